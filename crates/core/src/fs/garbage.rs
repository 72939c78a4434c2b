//! What a client owes the pool: handles to end, and objects of files that are gone to free. It goes
//! with other requests where it can, and is worked off between them.

use super::{Fs, ITSELF, Rpc, unexpected};
use crate::auth::ReapOrder;
use crate::config::{REAP_BATCH_MAX, RIDERS_PER_CALL_MAX};
use crate::error::{Code, Error, Result};
use crate::layout::Member;
use crate::types::{Ino, ServerIndex, TargetId};
use crate::wire::data::TargetRequest;
use crate::wire::meta::{MetaReply, MetaRequest, Reap, Rider};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What waits for its turn.
#[derive(Default)]
pub(super) struct Owed {
    garbage: Mutex<Vec<Garbage>>,
    /// Whether the metadata service said that it knows of more.
    told: AtomicBool,
    /// What goes with the next request, and of which files.
    riders: Mutex<Vec<(Ino, Rider)>>,
    /// How many tasks are freeing objects now.
    freeing: AtomicUsize,
    /// Targets of whose disks' failure the metadata service was told, or is about to be.
    unfit: Mutex<BTreeSet<TargetId>>,
}

/// Files to free, with leave to do so.
type Garbage = (Vec<Reap>, ReapOrder);

/// Orders to free objects that may wait to be sent in one go.
const GARBAGE_ORDERS_MAX: usize = 64;

impl<R: Rpc> Fs<R> {
    fn owed(&self) -> &Owed {
        &self.shared.owed
    }

    /// Keeps this client's lease, and frees objects that others left behind. To be called every
    /// [`Timing::renew_ms`](crate::config::Timing::renew_ms).
    pub async fn keep_alive(&self) -> Result<()> {
        self.ask_for_garbage(Ino::ROOT).await?;
        self.collect_garbage().await
    }

    /// Whether objects wait to be freed, or handles to be ended.
    pub fn has_garbage(&self) -> bool {
        !self.lock_garbage().is_empty()
            || self.owed().told.load(Ordering::Acquire)
            || !self.lock_riders().is_empty()
    }

    /// Works garbage off where much of it waits.
    pub(super) async fn throw_away_soon(&self) -> Result<()> {
        let many = self.lock_garbage().len() >= GARBAGE_ORDERS_MAX;
        if many { self.collect_garbage().await } else { Ok(()) }
    }

    fn lock_garbage(&self) -> MutexGuard<'_, Vec<Garbage>> {
        self.owed().garbage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_riders(&self) -> MutexGuard<'_, Vec<(Ino, Rider)>> {
        self.owed().riders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the metadata service hear of a target whose disk failed, with the next request: once.
    pub(super) fn heed(&self, member: Member, error: &Error) {
        if error.code == Code::Disk {
            let mut unfit = self.owed().unfit.lock().unwrap_or_else(PoisonError::into_inner);
            if unfit.insert(member.target) {
                self.lock_riders().push((Ino::ROOT, Rider::Unfit { member }));
            }
        }
    }

    /// Ends a handle with the next request.
    pub(super) async fn ride(&self, ino: Ino, rider: Rider) -> Result<()> {
        let many = {
            let mut waiting = self.lock_riders();
            waiting.push((ino, rider));
            waiting.len() >= RIDERS_PER_CALL_MAX
        };
        if many { self.ask_for_garbage(ino).await } else { Ok(()) }
    }

    /// Asks the metadata service that has this file for what waits to be freed.
    async fn ask_for_garbage(&self, ino: Ino) -> Result<()> {
        match self.meta(&ITSELF, ino, MetaRequest::KeepAlive).await? {
            MetaReply::Garbage { reap, order } => {
                self.throw_away(reap, order);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn throw_away(&self, reap: Vec<Reap>, order: Option<ReapOrder>) {
        if let Some(order) = order {
            self.lock_garbage().push((reap, order));
        }
    }

    /// Ends handles that wait for it, and frees the objects of files that are gone: many files in
    /// one request to each server.
    pub async fn collect_garbage(&self) -> Result<()> {
        let closing = self.lock_riders().first().map(|(ino, _)| *ino);
        if self.owed().told.swap(false, Ordering::AcqRel) || closing.is_some() {
            self.ask_for_garbage(closing.unwrap_or(Ino::ROOT)).await?;
        }
        loop {
            let batch: Vec<Garbage> = {
                let mut garbage = self.lock_garbage();
                let keep = garbage.len().saturating_sub(REAP_BATCH_MAX);
                garbage.split_off(keep)
            };
            if batch.is_empty() {
                return Ok(());
            }
            let _freeing = Freeing::begin(&self.owed().freeing);
            self.free(&batch).await?;
        }
    }

    /// Frees what can be freed, or waits for another task that is at it. Says whether there may be
    /// more room now.
    pub(super) async fn reclaim(&self) -> Result<bool> {
        if self.has_garbage() {
            self.collect_garbage().await?;
            return Ok(true);
        }
        let others = self.owed().freeing.load(Ordering::Acquire) > 0;
        while self.owed().freeing.load(Ordering::Acquire) > 0 {
            self.rpc().sleep(self.shared.options.timing.busy_retry_ms).await;
        }
        Ok(others)
    }

    async fn free(&self, batch: &[Garbage]) -> Result<()> {
        let members: BTreeSet<_> = batch
            .iter()
            .flat_map(|(reap, _)| reap)
            .flat_map(|reap| &reap.layout.groups)
            .flat_map(|group| &group.members)
            .map(|member| (member.target, member.incarnation))
            .collect();
        let orders: Vec<ReapOrder> = batch.iter().map(|(_, order)| order.clone()).collect();
        let inos: Vec<Ino> = orders.iter().flat_map(|order| order.inos.iter().copied()).collect();
        let remove = |(target, incarnation)| {
            let request = TargetRequest::Remove { orders: orders.clone() };
            self.target(Member { target, incarnation }, None, request)
        };
        for result in join_all(members.into_iter().map(remove)).await {
            match result {
                // What an older life of a target held is gone by itself.
                Err(error) if error.code == Code::Lost => {}
                other => {
                    other?;
                }
            }
        }
        for inos in inos.chunks(REAP_BATCH_MAX) {
            let request = MetaRequest::Reaped { inos: inos.to_vec() };
            self.done(&ITSELF, Ino::ROOT, request).await?;
        }
        Ok(())
    }
}

/// Handles that end with a request. Those that may not have, because it failed on its way or was
/// dropped, wait for another.
pub(super) struct Riders<'a, R: Rpc> {
    fs: &'a Fs<R>,
    riders: Vec<(Ino, Rider)>,
}

impl<'a, R: Rpc> Riders<'a, R> {
    /// Those that go to this server with this request.
    pub(super) fn board(fs: &'a Fs<R>, server: ServerIndex, request: &MetaRequest) -> Self {
        let mut riders = Riders { fs, riders: Vec::new() };
        // That one is answered when something happens, and not before.
        if !matches!(request, MetaRequest::AwaitLocks { .. }) {
            let mut waiting = fs.lock_riders();
            let that_way = |(ino, _): &mut (Ino, Rider)| fs.map().metadata_of(*ino) == server;
            riders.riders.extend(waiting.extract_if(.., that_way).take(RIDERS_PER_CALL_MAX));
        }
        riders
    }

    pub(super) fn on_board(&self) -> Vec<Rider> {
        self.riders.iter().map(|(_, rider)| *rider).collect()
    }

    /// The request has ended: whether the server has dealt with it, and may know of more garbage.
    pub(super) fn end(mut self, arrived: bool, more: bool) {
        if more && !self.riders.is_empty() {
            self.fs.owed().told.store(true, Ordering::Release);
        }
        if arrived {
            self.riders.clear();
        }
    }
}

impl<R: Rpc> Drop for Riders<'_, R> {
    fn drop(&mut self) {
        if !self.riders.is_empty() {
            self.fs.lock_riders().append(&mut self.riders);
        }
    }
}

/// Counts a task that frees objects, until it ends or is dropped.
struct Freeing<'a>(&'a AtomicUsize);

impl<'a> Freeing<'a> {
    fn begin(count: &'a AtomicUsize) -> Freeing<'a> {
        count.fetch_add(1, Ordering::AcqRel);
        Freeing(count)
    }
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
