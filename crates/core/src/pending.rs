//! What a driver of sessions keeps of a request: its buffers, and who waits for its end. Whatever moves the
//! bytes, what arrives for such a request is taken in here.

use crate::error::{Code, Error, Result};
use crate::session::{Completion, Incoming, Reply, Session};
use crate::slice::Slice;
use crate::wire::Header;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// One request under way: the tag of a driver's sessions.
#[derive(Debug)]
pub struct Pending {
    /// The payload that goes with the request.
    pub source: Vec<Slice>,
    /// Where the answer's payload goes, which may be shorter.
    pub sink: Vec<Slice>,
    outcome: Mutex<Outcome>,
}

#[derive(Debug)]
enum Outcome {
    Awaited(Option<Waker>),
    Ended(Result<Reply>),
    Taken,
}

impl Pending {
    /// A request that is about to be submitted.
    pub fn new(source: Vec<Slice>, sink: Vec<Slice>) -> Arc<Pending> {
        Arc::new(Pending { source, sink, outcome: Mutex::new(Outcome::Awaited(None)) })
    }

    /// Tells who waits.
    pub fn end(&self, result: Result<Reply>) {
        let before = std::mem::replace(&mut *self.outcome(), Outcome::Ended(result));
        if let Outcome::Awaited(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Whether it has not ended.
    pub fn is_under_way(&self) -> bool {
        matches!(*self.outcome(), Outcome::Awaited(_))
    }

    /// Waits for the end, which is told once.
    pub async fn ended(&self) -> Result<Reply> {
        poll_fn(|context| {
            let mut outcome = self.outcome();
            match std::mem::replace(&mut *outcome, Outcome::Taken) {
                Outcome::Ended(result) => Poll::Ready(result),
                _ => {
                    *outcome = Outcome::Awaited(Some(context.waker().clone()));
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Its holder panicked: the bug has been told, and an outcome is always whole.
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory for `length` bytes of an answer.
    fn place(&self, length: usize) -> Result<Vec<Slice>> {
        let mut left = length;
        let mut slices = Vec::with_capacity(self.sink.len());
        for slice in &self.sink {
            let taken = left.min(slice.length);
            if taken > 0 {
                slices.push(slice.part(0, taken));
            }
            left -= taken;
        }
        if left > 0 {
            let cause = format!("{left} bytes more than were asked for");
            return Err(Error::because(Code::Protocol, cause));
        }
        Ok(slices)
    }
}

/// Tells who waits for these.
pub fn end(completions: Vec<Completion<Arc<Pending>>>) {
    for completion in completions {
        completion.tag.end(completion.result);
    }
}

impl Session<Arc<Pending>> {
    /// The request whose payload is being received.
    pub fn receiving_for(&mut self) -> Option<Arc<Pending>> {
        let (slot, _) = self.receiving()?;
        self.tag(slot).cloned()
    }

    /// Takes a frame's head in; what ends with it is added to `ended`. Gives where the payload goes: None where
    /// there is none, or nobody waits for it any more. After an error the connection is to be closed.
    pub fn take_head(
        &mut self,
        now_ms: u64,
        header: Header,
        body: &[u8],
        ended: &mut Vec<Completion<Arc<Pending>>>,
    ) -> Result<Option<Vec<Slice>>> {
        match self.receive(now_ms, header, body) {
            Incoming::Nothing | Incoming::Discard => {}
            Incoming::Done(completion) => ended.push(completion),
            Incoming::Ready(completions) => ended.extend(completions),
            Incoming::Close(completions) => {
                let cause = completions
                    .first()
                    .and_then(|completion| completion.result.as_ref().err())
                    .map_or("server refused the connection", |error| error.cause.as_str());
                let error = Error::because(Code::ServerLost, cause);
                ended.extend(completions);
                return Err(error);
            }
            Incoming::Payload(slot) => {
                let length = header.payload_length as usize;
                return self.tag(slot).map(|pending| pending.place(length)).transpose();
            }
        }
        Ok(None)
    }

    /// The payload of the last head is where it belongs.
    pub fn take_payload(&mut self, now_ms: u64, ended: &mut Vec<Completion<Arc<Pending>>>) {
        if let Some((slot, length)) = self.receiving() {
            ended.extend(self.payload_received(now_ms, slot, length));
        }
    }
}
