//! What drives operations: whoever is inside a call on their pool.
//!
//! An operation whose request was answered is *ready*: it stands in the pool's queue until some
//! thread polls it, the one that waits for it if there is one, or else any that waits for anything.

use crate::locks::Waits;
use crate::{invalid, panicked};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;
use weir_client::Pool;
use weir_core::error::{Code, Error, Result};
use weir_core::types::Credentials;

/// Counts forks: a handle from before one is of no use to the child.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connected pool and its operations. Files, directories and operations keep it alive.
pub(crate) struct Engine {
    pool: Pool,
    pub(crate) who: Credentials,
    forks: u64,
    pub(crate) waits: Waits,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    ready: Mutex<VecDeque<Arc<Task>>>,
    /// Threads inside a call.
    waiting: Mutex<Vec<Waker>>,
}

/// What an operation gives: bytes.
pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = Result<usize>> + Send>>;

/// An operation.
pub(crate) struct Task {
    queue: Arc<Queue>,
    /// None once it has ended or was cancelled.
    future: Mutex<Option<TaskFuture>>,
    outcome: Mutex<Outcome>,
    queued: AtomicBool,
}

#[derive(Default)]
struct Outcome {
    result: Option<Result<usize>>,
    waiting: Vec<Waker>,
}

fn register(list: &mut Vec<Waker>, waker: &Waker) {
    if !list.iter().any(|other| other.will_wake(waker)) {
        list.push(waker.clone());
    }
}

impl Queue {
    /// Polls what is ready.
    fn drain(&self) {
        loop {
            // The lock must not be held while a task is polled.
            let task = lock(&self.ready).pop_front();
            let Some(task) = task else {
                return;
            };
            task.queued.store(false, Ordering::Release);
            task.advance();
        }
    }

    /// Removes a thread that leaves its call; what is ready is then another's.
    fn leave(&self, waker: &Waker) {
        let next = {
            let mut waiting = lock(&self.waiting);
            waiting.retain(|other| !other.will_wake(waker));
            waiting.last().cloned()
        };
        if let Some(next) = next
            && !lock(&self.ready).is_empty()
        {
            next.wake();
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            lock(&self.queue.ready).push_back(self.clone());
        }
        let mut waker = lock(&self.outcome).waiting.first().cloned();
        if waker.is_none() {
            waker = lock(&self.queue.waiting).last().cloned();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Task {
    fn advance(self: &Arc<Self>) {
        let mut slot = lock(&self.future);
        let Some(future) = slot.as_mut() else {
            return;
        };
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        let result = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(result)) => result,
            Err(payload) => Err(panicked(payload.as_ref())),
        };
        // Dropped before the result can be seen: whoever has that may close the file.
        *slot = None;
        drop(slot);
        let waiting = {
            let mut outcome = lock(&self.outcome);
            outcome.result = Some(result);
            std::mem::take(&mut outcome.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The result, if it has ended.
    pub(crate) fn result(&self) -> Option<Result<usize>> {
        lock(&self.outcome).result.clone()
    }

    /// Abandons it, if it is under way; its buffers are not touched any more afterwards.
    pub(crate) fn cancel(&self) {
        let future = lock(&self.future).take();
        drop(future);
    }
}

/// A thread's entries in the lists of who is to be woken, for the time of one call.
struct Waiting<'a> {
    queue: &'a Queue,
    tasks: &'a [&'a Task],
    waker: Option<Waker>,
}

impl Waiting<'_> {
    fn enter(&mut self, waker: &Waker) {
        if self.waker.as_ref().is_some_and(|mine| mine.will_wake(waker)) {
            return;
        }
        self.withdraw();
        register(&mut lock(&self.queue.waiting), waker);
        for task in self.tasks {
            let mut outcome = lock(&task.outcome);
            if outcome.result.is_none() {
                register(&mut outcome.waiting, waker);
            }
        }
        self.waker = Some(waker.clone());
    }

    fn withdraw(&mut self) {
        let Some(waker) = self.waker.take() else {
            return;
        };
        for task in self.tasks {
            lock(&task.outcome).waiting.retain(|other| !other.will_wake(&waker));
        }
        self.queue.leave(&waker);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Engine {
    pub(crate) fn new(pool: Pool) -> Result<Arc<Engine>> {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler only adds to an atomic. Without memory for it, forks go
            // unnoticed, which is the caller's mistake to begin with.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        // The servers take whoever proves the secret for the owner, whatever this says.
        // SAFETY: these calls have no preconditions.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let who = Credentials { uid, gid, groups: Vec::new() };
        let forks = FORKS.load(Ordering::Relaxed);
        Ok(Arc::new(Engine { pool, who, forks, waits: Waits::default(), queue: Arc::default() }))
    }

    /// The pool, unless this process is a child of the one that connected to it.
    pub(crate) fn pool(&self) -> Result<&Pool> {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            return Err(invalid(
                "the pool was connected to before fork(); the child process must connect anew",
            ));
        }
        Ok(&self.pool)
    }

    /// Runs a future to its end, and all operations meanwhile.
    pub(crate) fn run<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.pool()?;
        self.drive(future, &[], None)
            .unwrap_or_else(|| Err(Error::because(Code::Internal, "a call without end ended")))
    }

    /// As [`Engine::run`], for as long as the deadline allows; `tasks` are those that it looks at.
    fn drive<T>(
        &self,
        future: impl Future<Output = T>,
        tasks: &[&Task],
        deadline: Option<Instant>,
    ) -> Option<T> {
        let mut future = pin!(future);
        let mut waiting = Waiting { queue: &self.queue, tasks, waker: None };
        let both = poll_fn(|context| {
            waiting.enter(context.waker());
            self.queue.drain();
            future.as_mut().poll(context)
        });
        self.pool.fs().rpc().run_until(pin!(both), deadline)
    }

    /// Begins an operation: its requests are on their way when this returns.
    pub(crate) fn submit(&self, future: TaskFuture) -> Arc<Task> {
        let task = Arc::new(Task {
            queue: self.queue.clone(),
            future: Mutex::new(Some(future)),
            outcome: Mutex::default(),
            queued: AtomicBool::new(false),
        });
        task.advance();
        task
    }

    /// Waits until one of these has ended; gives the index of the first that has.
    pub(crate) fn wait(&self, tasks: &[&Task], deadline: Option<Instant>) -> Option<usize> {
        let ended = || tasks.iter().position(|task| lock(&task.outcome).result.is_some());
        if let Some(index) = ended() {
            return Some(index);
        }
        let any = poll_fn(|_| ended().map_or(Poll::Pending, Poll::Ready));
        self.drive(any, tasks, deadline)
    }
}
