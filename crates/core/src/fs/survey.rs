//! Sizes and times of files that somebody may be writing: the targets know them, and what is cut off
//! is cut off there.

use super::{Fs, Rpc, Told, unexpected};
use crate::auth::Capability;
use crate::error::{Code, Error, Result};
use crate::layout::Layout;
use crate::types::{Attributes, Credentials, Ino, WallTime};
use crate::wire::data::TargetRequest;
use crate::wire::meta::{
    MetaReply, MetaRequest, PendingTruncate, Record, Rider, Settlement, Unsettled,
};
use std::sync::Arc;

/// Times that the targets are asked anew because a truncation came between their answers.
const SURVEYS_MAX: usize = 8;
/// Truncations by others that are carried out before one's own.
const OTHERS_MAX: usize = 64;

impl<R: Rpc> Fs<R> {
    /// Truncates; gives the version in force with it, and its data epoch.
    pub(super) async fn truncate_through(
        &self,
        who: &Credentials,
        ino: Ino,
        size: u64,
        handle: Option<u64>,
    ) -> Result<(u64, u32)> {
        for _ in 0..OTHERS_MAX {
            let request = MetaRequest::BeginTruncate { ino, size, handle };
            match self.meta(who, ino, request).await? {
                MetaReply::Truncation { pending, layout, capability, version } => {
                    self.carry_out(ino, pending, &layout, &Arc::new(capability)).await?;
                    return Ok((version, pending.epoch));
                }
                MetaReply::Unfinished { pending, layout, capability } => {
                    self.carry_out(ino, pending, &layout, &Arc::new(capability)).await?;
                }
                other => return Err(unexpected(&other)),
            }
        }
        Err(Error::because(Code::Busy, "others truncate the file again and again; try later"))
    }

    /// Tells all targets of a truncation, then, by the way, the metadata service that they know. Until
    /// then others may carry it out once more, which changes nothing.
    pub(super) async fn carry_out(
        &self,
        ino: Ino,
        pending: PendingTruncate,
        layout: &Layout,
        capability: &Arc<Capability>,
    ) -> Result<()> {
        let epoch = pending.epoch;
        let request = |column| TargetRequest::Truncate {
            ino,
            cut: layout.object_size(column, pending.cut),
            size: layout.object_size(column, pending.size),
            epoch,
        };
        let mut columns: Vec<usize> = (0..layout.stripe_count()).collect();
        if let Some(last) = pending.size.checked_sub(1) {
            // First where the file is to end. If there is a hole and others cut before, the file
            // looks shorter than it was and will be: for a moment, or for long if this fails.
            let (end, _) = layout.locate(last);
            self.on_some_columns(layout, capability, [end], request).await?;
            columns.retain(|&column| column != end);
        }
        self.on_some_columns(layout, capability, columns, request).await?;
        self.ride(ino, Rider::Truncated { ino, epoch }).await
    }

    /// Makes size and times true: where the metadata service does not know them, the targets do.
    pub(super) async fn resolve(&self, who: &Credentials, record: Record) -> Result<Attributes> {
        let mut record = record;
        for tries_left in (0..SURVEYS_MAX).rev() {
            let mut attributes = record.attributes;
            let Some(unsettled) = record.unsettled else {
                // What is settled has no holes, and what is no file has none either.
                attributes.allocated = attributes.size;
                return Ok(attributes);
            };
            let Unsettled { version, settles, layout, capability, truncation } = *unsettled;
            let capability = Arc::new(capability);
            let ino = attributes.ino;
            if let Some(pending) = truncation {
                self.carry_out(ino, pending, &layout, &capability).await?;
            }
            let seen = self.survey(&layout, &capability, ino, attributes.data_epoch).await?;
            if seen.epoch > attributes.data_epoch && tries_left > 0 {
                // A truncation came between: some columns may have been asked before, others after.
                record = self.record(who, ino, MetaRequest::Attributes { ino }).await?;
                continue;
            }
            attributes.size = seen.size;
            attributes.allocated = seen.allocated;
            if seen.mtime > WallTime(0) {
                attributes.mtime = seen.mtime;
                attributes.ctime = attributes.ctime.max(seen.mtime);
            }
            if settles && seen.is_settled() {
                let settlement = Settlement { version, size: seen.size, mtime: seen.mtime };
                self.done(who, ino, MetaRequest::Settle { ino, settlement }).await?;
            }
            return Ok(attributes);
        }
        Err(Error::because(Code::Internal, "no survey was made"))
    }

    /// Asks all columns for the file's size and time of last write.
    pub(super) async fn survey(
        &self,
        layout: &Layout,
        capability: &Arc<Capability>,
        ino: Ino,
        data_epoch: u32,
    ) -> Result<Survey> {
        let told = self.on_columns(layout, capability, |_| TargetRequest::Witness { ino }).await?;
        let mut survey = Survey { safe: true, ..Survey::default() };
        for (column, Told { witness, allocated, safe }) in told.into_iter().enumerate() {
            survey.safe &= safe;
            survey.epoch = survey.epoch.max(witness.epoch);
            survey.size = survey.size.max(layout.file_size_seen(column, witness.size));
            survey.allocated += allocated;
            if witness.epoch >= data_epoch {
                survey.mtime = survey.mtime.max(witness.mtime);
            }
        }
        Ok(survey)
    }
}

/// What the targets say of a file together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Survey {
    pub(super) size: u64,
    pub(super) allocated: u64,
    pub(super) mtime: WallTime,
    /// Newest data epoch that a target has heard of.
    pub(super) epoch: u32,
    /// Whether all that they hold of it is as safe as it will ever be.
    pub(super) safe: bool,
}

impl Survey {
    /// What has holes stays unsettled: the targets alone know how much they hold of it. Nor is anything
    /// settled that a crash may undo.
    pub(super) fn is_settled(&self) -> bool {
        self.safe && self.allocated >= self.size
    }
}
