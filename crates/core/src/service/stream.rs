//! What a server keeps of one stream of one client: its slots, which make each request happen once.

use crate::config::{KEPT_REPLY_BYTES_MAX, SLOTS_PER_STREAM_MAX};
use crate::error::{Code, Error, Result};
use crate::types::Now;
use crate::wire::{self, Header, Kind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One stream. It outlives its connections: the newest one speaks for it, earlier ones are fenced off.
#[derive(Default)]
pub(super) struct Stream {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the connection that speaks for it; 0: none did yet.
    connection: u64,
    connected: bool,
    heard_ms: u64,
    slots: Vec<Slot>,
}

#[derive(Default)]
struct Slot {
    sequence: u32,
    state: SlotState,
}

#[derive(Default, PartialEq)]
enum SlotState {
    /// Nothing under way; what had that number can be carried out again, or never came.
    #[default]
    Open,
    /// Its payload is being received: rolled back if the connection breaks.
    Receiving,
    /// Being carried out.
    Executing,
    /// Carried out; the answer's frame.
    Kept(Vec<u8>),
}

/// What to do with a request.
pub(super) enum Admission {
    /// It is new: carry it out, then [`Stream::settle`].
    Run,
    /// It was carried out before: send this answer again.
    Repeat(Vec<u8>),
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection speaks for the stream from now on. What an earlier one was receiving did not
    /// happen. Gives the newest sequence number of each slot.
    pub(super) fn take_over(&self, connection: u64, now: Now) -> Vec<u32> {
        let mut state = self.lock();
        state.roll_back();
        state.connection = connection;
        state.connected = true;
        state.heard_ms = now.mono_ms;
        state.slots.iter().map(|slot| slot.sequence).collect()
    }

    /// A connection has ended.
    pub(super) fn leave(&self, connection: u64, now: Now) {
        let mut state = self.lock();
        if state.connection == connection {
            state.connected = false;
            state.heard_ms = now.mono_ms;
            state.roll_back();
        }
    }

    /// Whether nobody has spoken for it since then.
    pub(super) fn lapsed(&self, since_ms: u64) -> bool {
        let state = self.lock();
        !state.connected && state.heard_ms < since_ms
    }

    /// Refuses a connection that a newer one has replaced, with `Busy`.
    pub(super) fn fence(&self, connection: u64) -> Result<()> {
        self.lock().fence(connection)
    }

    /// Admits a request to its slot, on behalf of the connection that speaks for the stream.
    ///
    /// # Errors
    /// About the connection, which is to be closed: it is out of step, or (`Busy`: the client comes
    /// back) it was replaced, or repeats what is still being carried out for the connection before
    /// it, whose answer will be kept.
    pub(super) fn admit(
        &self,
        connection: u64,
        header: Header,
        receiving: bool,
    ) -> Result<Admission> {
        let index = usize::from(header.slot);
        if index >= SLOTS_PER_STREAM_MAX {
            return Err(wire::protocol(format!("slot {index} of {SLOTS_PER_STREAM_MAX}")));
        }
        let mut state = self.lock();
        state.fence(connection)?;
        if state.slots.len() <= index {
            state.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut state.slots[index];
        // A slot that this server has never seen may start anywhere: earlier lives of the stream may
        // have counted it up.
        let fresh = slot.sequence == 0 && slot.state == SlotState::Open;
        let next = header.sequence == slot.sequence.wrapping_add(1);
        let again = header.sequence == slot.sequence;
        match &slot.state {
            SlotState::Kept(frame) if again => return Ok(Admission::Repeat(frame.clone())),
            SlotState::Executing if again => {
                let cause = "the request's first try is still being carried out";
                return Err(Error::because(Code::Busy, cause));
            }
            SlotState::Open if again || next || fresh => {}
            _ if next => {}
            _ => {
                let (seen, sequence) = (slot.sequence, header.sequence);
                let cause = format!("slot {index}: sequence {sequence} after {seen}");
                return Err(wire::protocol(cause));
            }
        }
        slot.sequence = header.sequence;
        slot.state = if receiving { SlotState::Receiving } else { SlotState::Executing };
        Ok(Admission::Run)
    }

    /// A request's payload is all here: from now on it is being carried out.
    pub(super) fn received(&self, connection: u64, header: Header) -> Result<()> {
        let mut state = self.lock();
        state.fence(connection)?;
        if let Some(slot) = state.slots.get_mut(usize::from(header.slot)) {
            slot.state = SlotState::Executing;
        }
        Ok(())
    }

    /// Marks a request as carried out, and keeps its answer if it must happen `once`. Gives the
    /// answer's frame.
    pub(super) fn settle(
        &self,
        header: Header,
        once: bool,
        result: Result<Vec<u8>>,
        payload_length: usize,
    ) -> Vec<u8> {
        let answer = Header {
            kind: if result.is_ok() { Kind::Reply } else { Kind::Failure },
            payload_length: payload_length as u32,
            ..header
        };
        let body = result.unwrap_or_else(|error| wire::encode_failure(&error));
        let frame = wire::frame(answer, &body);
        let mut state = self.lock();
        if let Some(slot) = state.slots.get_mut(usize::from(header.slot))
            && slot.sequence == header.sequence
        {
            slot.state = if once && frame.len() <= KEPT_REPLY_BYTES_MAX {
                SlotState::Kept(frame.clone())
            } else {
                SlotState::Open
            };
        }
        frame
    }
}

impl State {
    fn fence(&self, connection: u64) -> Result<()> {
        if self.connection == connection {
            return Ok(());
        }
        // Not fatal: a connection that the client gave up may prove itself late, after the one that
        // is in use. The client comes back, with the same sequence numbers, and is the newest then.
        Err(Error::because(Code::Busy, "a newer connection has replaced this one"))
    }

    /// What was being received did not happen: its number counts as not yet used up.
    fn roll_back(&mut self) {
        for slot in &mut self.slots {
            if slot.state == SlotState::Receiving {
                slot.state = SlotState::Open;
            }
        }
    }
}
