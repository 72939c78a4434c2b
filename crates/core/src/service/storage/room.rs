//! Writes for which there is no memory at the moment: the wait for it.
//!
//! Their payload was thrown away, so all that waits is the answer, which asks the client to send it once
//! more. Answers wait in the queue for memory, in the order of asking, with readers; whoever comes back and finds
//! that others were quicker waits in front. So with many writers on little memory each gets on, and none
//! asks again and again while nothing has changed. The queue is as long as clients have slots.

use super::Target;
use super::write::Draft;
use crate::types::ClientId;
use crate::wire::data::Io;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A wait until there is memory for a write, or never will be. See [`Target::room`].
#[derive(Debug)]
pub struct Room {
    target: Arc<Target>,
    client: ClientId,
    io: Io,
    /// Its number in the queue.
    id: Option<u64>,
}

impl Target {
    /// What to wait for before the client is told that a write found no memory ([`Target::begin_write`]
    /// failed with [`crate::error::Code::Busy`]); nothing, where there is no disk that makes room.
    pub fn room(self: &Arc<Target>, client: ClientId, io: Io) -> Option<Room> {
        self.disk.as_ref()?;
        Some(Room { target: Arc::clone(self), client, io, id: None })
    }

    fn poll_room(
        &self,
        room: &mut Option<u64>,
        client: ClientId,
        io: &Io,
        context: &Context<'_>,
    ) -> Poll<()> {
        let mut state = self.lock();
        let number = match *room {
            Some(number) => number,
            None => *room.insert(state.queue_up(client, context.waker())),
        };
        if !state.is_first(number, context.waker()) {
            return Poll::Pending;
        }
        // What it needs may have changed: others write to the same chunks.
        let Some(needed) = Draft::needed(&mut state, io) else { return Poll::Pending };
        let possible = needed < state.chunks.arena.blocks() as isize;
        if possible && !state.make_room(needed) && (state.room_comes() || state.tickets > 0) {
            return Poll::Pending;
        }
        state.leave_queue(number, client);
        *room = None;
        Poll::Ready(())
    }
}

impl Future for Room {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Room { target, client, io, id } = &mut *self;
        let result = target.poll_room(id, *client, io, context);
        target.pump();
        result
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.target.give_up(self.id);
    }
}
