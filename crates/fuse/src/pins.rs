//! Names that are replaced faster than what they name can be opened.
//!
//! The kernel looks a name up, then opens the inode that it was told. If somebody has replaced the
//! name in between, and the inode is gone, it hears so and starts over, but once only. A name to
//! which that has happened is therefore *pinned* when it is looked up again: the file is held open
//! here until the kernel has opened it, so that the second try succeeds whatever others do.

use crate::shared::{SUPERUSER, Shared};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_client::Net;
use weir_core::error::{Code, Result};
use weir_core::fs::{File, Looked};
use weir_core::types::{Credentials, FileKind, Ino};
use weir_core::wire::meta::{OpenMode, Place};

/// How long a name counts as one that is replaced fast, and a file is held for the kernel.
const HELD: Duration = Duration::from_secs(1);
/// Names, and files, at a time; newer ones take the place of the oldest.
const PINS_MAX: usize = 64;
/// Lookups until one was not overtaken.
const TRIES_MAX: usize = 100;

/// See the module.
#[derive(Default)]
pub(crate) struct Pins {
    /// Names and files in there: most of the time none, which costs no lock to know.
    count: AtomicUsize,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    names: Vec<(Instant, u64, Box<[u8]>)>,
    files: Vec<(Instant, File<Net>)>,
}

impl Pins {
    /// What `work` says; and files to be closed, which nobody opened in time.
    fn with<T>(&self, work: impl FnOnce(&mut Inside) -> T) -> (T, Vec<File<Net>>) {
        let now = Instant::now();
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.names.retain(|(since, ..)| now.duration_since(*since) < HELD);
        let old = inside.files.extract_if(.., |(since, _)| now.duration_since(*since) >= HELD);
        let old = old.map(|(_, file)| file).collect();
        let result = work(&mut inside);
        self.count.store(inside.names.len() + inside.files.len(), Ordering::Relaxed);
        (result, old)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

impl Shared {
    /// The kernel was told of an inode that is gone now: by which name, it knows.
    pub(crate) fn was_overtaken(&self, ino: Ino) {
        let Some((parent, name)) = self.names.place(ino.0) else { return };
        let ((), old) = self.pins.with(|inside| {
            inside.names.retain(|(_, at, called)| *at != parent || *called != name);
            if inside.names.len() >= PINS_MAX {
                inside.names.remove(0);
            }
            inside.names.push((Instant::now(), parent, name));
        });
        self.unpin(old);
    }

    /// What a name names, if anything, and for how long the kernel may believe that.
    pub(crate) async fn lookup(
        &self,
        who: &Credentials,
        parent: Ino,
        name: &[u8],
    ) -> Result<Looked> {
        let look = || self.fs().lookup_way(who, Place::new(parent, name), self.others);
        if self.pins.is_empty() {
            return look().await;
        }
        let (overtaken, old) = self.pins.with(|inside| {
            inside.names.iter().any(|(_, at, called)| *at == parent.0 && **called == *name)
        });
        self.close(old).await;
        for _ in 0..if overtaken { TRIES_MAX } else { 0 } {
            let looked = look().await?;
            let ino = match &looked.attributes {
                Some(found) if found.kind == FileKind::Regular => found.ino,
                _ => return Ok(looked),
            };
            match self.fs().open(&SUPERUSER, ino, OpenMode::READ).await {
                Err(error) if error.code == Code::NotFound => continue,
                Err(_) => return Ok(looked),
                Ok((file, attributes)) => {
                    let (instead, mut old) = self.pins.with(|inside| {
                        let full = inside.files.len() >= PINS_MAX;
                        inside.files.push((Instant::now(), file));
                        full.then(|| inside.files.remove(0).1)
                    });
                    old.extend(instead);
                    self.close(old).await;
                    return Ok(Looked::at(attributes));
                }
            }
        }
        look().await
    }

    /// The kernel has opened it: what was held for that is closed.
    pub(crate) fn was_opened(&self, ino: Ino) {
        if self.pins.is_empty() {
            return;
        }
        let (mut held, old) = self.pins.with(|inside| {
            let held = inside.files.extract_if(.., |(_, file)| file.ino() == ino);
            held.map(|(_, file)| file).collect::<Vec<_>>()
        });
        held.extend(old);
        self.unpin(held);
    }

    /// At the end of the mount.
    pub(crate) fn unpin_all(&self) {
        let (left, old) = self.pins.with(|inside| std::mem::take(&mut inside.files));
        self.unpin(left.into_iter().map(|(_, file)| file).chain(old).collect());
    }

    fn unpin(&self, files: Vec<File<Net>>) {
        if !files.is_empty() {
            self.pool.run(self.close(files));
        }
    }

    async fn close(&self, files: Vec<File<Net>>) {
        for error in futures_util::future::join_all(files.iter().map(File::close)).await {
            if let Err(error) = error {
                tracing::debug!(%error, "close of a pinned file failed");
            }
        }
    }
}
