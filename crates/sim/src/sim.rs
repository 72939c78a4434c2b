//! Runs the tasks of all clients and the world's events, in one thread, in one order.

use crate::client::SimRpc;
use crate::world::{Job, JobWaker, Ready, Sleepers, World, lock};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// How a stretch of simulated time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All tasks that are waited for are done.
    Done,
    /// The time is up.
    TimeUp,
    /// Something is wrong.
    Failed,
}

/// More jobs than this without time passing never end: ten thousand clients have some hundred thousand.
const JOBS_AT_ONCE_MAX: u64 = 10_000_000;

struct Task {
    client: usize,
    awaited: bool,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

pub(crate) struct Sim {
    pub(crate) world: Arc<Mutex<World>>,
    ready: Arc<Ready>,
    sleepers: Sleepers,
    tasks: Vec<Option<Task>>,
    awaited: usize,
}

impl Sim {
    pub(crate) fn new(world: World) -> Sim {
        let (ready, sleepers) = (world.ready.clone(), world.sleepers.clone());
        let world = Arc::new(Mutex::new(world));
        Sim { world, ready, sleepers, tasks: Vec::new(), awaited: 0 }
    }

    pub(crate) fn rpc(&self, client: usize) -> SimRpc {
        SimRpc { world: self.world.clone(), client }
    }

    /// Starts a task of a client; it ends with the client at the latest.
    pub(crate) fn spawn(
        &mut self,
        client: usize,
        awaited: bool,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        self.tasks.push(Some(Task { client, awaited, future: Box::pin(future) }));
        self.awaited += usize::from(awaited);
        self.ready.push(Job::Task(self.tasks.len() - 1));
    }

    fn end(&mut self, task: usize) {
        if let Some(task) = self.tasks[task].take() {
            self.awaited -= usize::from(task.awaited);
        }
    }

    fn run_jobs(&mut self) {
        let mut count = 0;
        while let Some(job) = self.ready.pop() {
            count += 1;
            if count > JOBS_AT_ONCE_MAX {
                let cause = "tasks call each other again and again, and no time passes";
                lock(&self.world).fail(|| cause.to_owned());
                return;
            }
            match job {
                Job::Request { server, life, task } => {
                    lock(&self.world).server_job(server, life, task);
                }
                Job::Task(number) => {
                    let Some(task) = &mut self.tasks[number] else { continue };
                    {
                        let mut world = lock(&self.world);
                        let client = &mut world.clients[task.client];
                        if client.stopped {
                            client.waiting_jobs.push(job);
                            continue;
                        }
                        if !client.alive {
                            drop(world);
                            self.end(number);
                            continue;
                        }
                    }
                    let waker = Waker::from(Arc::new(JobWaker { ready: self.ready.clone(), job }));
                    if let Poll::Ready(()) =
                        task.future.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        self.end(number);
                    }
                }
            }
        }
    }

    /// Goes on until all awaited tasks are done, or `until_us` has come.
    pub(crate) fn run(&mut self, until_us: u64) -> Ended {
        self.go(until_us, true)
    }

    /// Lets time pass.
    pub(crate) fn rest(&mut self, us: u64) -> Ended {
        let until_us = lock(&self.world).now_us + us;
        match self.go(until_us, false) {
            Ended::Failed => Ended::Failed,
            _ => Ended::Done,
        }
    }

    fn go(&mut self, until_us: u64, stops_when_done: bool) -> Ended {
        loop {
            self.run_jobs();
            let dead = {
                let mut world = lock(&self.world);
                for (us, waker) in std::mem::take(&mut *lock(&self.sleepers)) {
                    let at_us = world.now_us + us;
                    world.at(at_us, crate::world::Event::Wake(waker));
                }
                world.disks_asked();
                world.bells_rung();
                if world.failure.is_some() {
                    return Ended::Failed;
                }
                std::mem::take(&mut world.dead)
            };
            if !dead.is_empty() {
                for number in 0..self.tasks.len() {
                    if self.tasks[number].as_ref().is_some_and(|task| dead.contains(&task.client)) {
                        self.end(number);
                    }
                }
                continue;
            }
            if stops_when_done && self.awaited == 0 {
                return Ended::Done;
            }
            let mut world = lock(&self.world);
            match world.next_us() {
                Some(at_us) if at_us <= until_us => world.step(),
                _ => {
                    world.now_us = world.now_us.max(until_us);
                    return Ended::TimeUp;
                }
            }
        }
    }
}
