//! Appending: the metadata service reserves a place, behind which everybody else's goes.
//!
//! It does not know what was written past it. So the targets are asked how long the file is, unless the client knows:
//! from one moment on this handle was the only one by which the file could grow, as the service says, and since then it
//! has asked the targets once and heard of all that was written by this handle.

use super::file::refused;
use super::{File, Rpc, unexpected};
use crate::error::{Error, Result};
use crate::wire::meta::{MetaReply, MetaRequest};

/// What a handle knows of the end of its file.
#[derive(Default)]
pub(super) struct Books {
    /// The file's version when the service last said that nobody else could write to it.
    sole: Option<u64>,
    /// Its end, as long as it has this version.
    end: Option<u64>,
    /// How often this handle made the file longer, or may have.
    growths: u64,
    /// Others write by this handle too, unheard of.
    lent: bool,
}

impl Books {
    /// Something was written, up to there.
    pub(super) fn grown(&mut self, end: u64) {
        self.growths += 1;
        self.end = self.end.map(|known| known.max(end));
    }

    /// Of an opening by which others may write, too.
    pub(super) fn lent() -> Books {
        Books { lent: true, ..Books::default() }
    }

    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Something may have been written that these books do not have.
    pub(super) fn forget(&mut self) {
        *self = Books { lent: self.lent, growths: self.growths + 1, ..Books::default() };
    }

    /// The end of the file and the version that it holds for.
    fn known(&self) -> Option<(u64, u64)> {
        self.end.zip(self.sole)
    }

    /// The service has given the place before `end`, and says who else can write. Before that, when these books had
    /// `(sole, growths)`, the file was found to end at that place.
    fn placed(&mut self, before: (Option<u64>, u64), sole: Option<u64>, end: u64) {
        let sole = sole.filter(|_| !self.lent);
        let was_sole = sole.is_some() && before.0 == sole && self.sole == sole;
        if was_sole && (self.end.is_some() || before.1 == self.growths) {
            self.end = Some(self.end.unwrap_or(0).max(end));
        } else if self.sole != sole {
            self.end = None;
        }
        self.sole = sole;
    }
}

impl<R: Rpc> File<R> {
    /// Appends: the place is reserved first, so that no two appends overlap; the bytes are visible
    /// once stored. Gives the offset.
    pub async fn append(&self, bytes: &[u8]) -> Result<u64> {
        let length = bytes.len() as u64;
        let offset = self.reserve(length).await?;
        if let Err(error) = self.write_at(bytes, offset).await {
            self.give_back(offset, length, &error).await;
            return Err(error);
        }
        Ok(offset)
    }

    /// Reserves a place for so many bytes at the end of the file; gives the offset.
    pub async fn reserve(&self, length: u64) -> Result<u64> {
        self.place(length).await.map_err(|error: Error| error.on("append", self.name()))
    }

    /// The write to a place that was reserved has failed so. What was refused leaves no hole: the place is given back.
    pub async fn give_back(&self, offset: u64, length: u64, error: &Error) {
        self.with_books(Books::forget);
        if refused(error) {
            let (handle, ino) = (self.opening(), self.ino());
            // Who cannot be told leaves a hole.
            let _ = self.ask(MetaRequest::ReleaseAppend { handle, ino, offset, length }).await;
        }
    }

    /// This borrower is the only one to write by its opening, but for what it says ([`File::written_elsewhere`]).
    pub fn writes_alone(&self) {
        self.with_books(|books| *books = Books::default());
    }

    /// By this opening something was written that this end of it did not see.
    pub fn written_elsewhere(&self) {
        self.with_books(Books::forget);
    }

    async fn place(&self, length: u64) -> Result<u64> {
        loop {
            let (known, before) =
                self.with_books(|books| (books.known(), (books.sole, books.growths)));
            let (floor, sole) = match known {
                Some((end, version)) => (end, Some(version)),
                None => (self.size().await?, None),
            };
            match self.ask_for_place(length, floor, sole).await? {
                (Some(offset), sole) => {
                    self.with_books(|books| books.placed(before, sole, offset + length));
                    return Ok(offset);
                }
                // Somebody else has opened it since. Asked without books the service always answers.
                (None, _) if sole.is_some() => self.with_books(Books::forget),
                (None, _) => return Err(crate::wire::protocol("no place for what is appended")),
            }
        }
    }

    async fn ask_for_place(
        &self,
        length: u64,
        floor: u64,
        sole: Option<u64>,
    ) -> Result<(Option<u64>, Option<u64>)> {
        let (handle, ino) = (self.opening(), self.ino());
        let request = MetaRequest::ReserveAppend { handle, ino, length, floor, sole };
        match self.ask(request).await? {
            MetaReply::Reserved { offset, sole } => Ok((offset, sole)),
            other => Err(unexpected(&other)),
        }
    }
}
