//! A thread that owns a piece of state and does what blocks: netlink, programs, locks. Async code sends it commands
//! through a bounded queue; it also wakes up when a descriptor is readable, and by time.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{mpsc, oneshot};

use crate::{Task, simulation, sleep_until};

pub trait Work: Send + 'static {
    type Command: Send + 'static;

    fn carry_out(&mut self, command: Self::Command);

    /// Does what is due. Called after commands, when woken, and at [`Self::next_wake`].
    fn tick(&mut self);

    /// Time of the next `tick`, if nothing happens before.
    fn next_wake(&self) -> Option<Instant>;

    /// Descriptors that wake the worker when they are readable or closed.
    fn wake_on(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// A handle on a worker, which ends when the last handle is dropped.
pub struct Worker<C> {
    /// `None` only while being dropped.
    commands: Option<mpsc::Sender<C>>,
    /// `None` for a task, which waits for commands itself.
    wake: Option<Arc<OwnedFd>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl<C: Send + 'static> Worker<C> {
    /// Starts a thread, in the network namespace and with the log span of the caller. `make` runs in it.
    pub fn start<W: Work<Command = C>>(
        name: &'static str,
        queue: usize,
        make: impl FnOnce() -> W + Send + 'static,
    ) -> io::Result<Self> {
        if simulation::world().is_some() {
            return Ok(Self::start_task(name, queue, |queue| run_simulated(make(), queue)));
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, queue) = mpsc::channel(queue);
        let span = tracing::Span::current();
        let waker = wake.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || span.in_scope(|| run(&mut make(), queue, &waker)))?;
        Ok(Self { commands: Some(commands), wake: Some(wake) })
    }

    /// Starts a task instead of a thread, for work that does not block. It ends when there are no more commands.
    pub fn start_task<F>(
        name: &'static str,
        queue: usize,
        work: impl FnOnce(mpsc::Receiver<C>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (commands, queue) = mpsc::channel(queue);
        Task::spawn(name, work(queue)).detach();
        Self { commands: Some(commands), wake: None }
    }

    pub async fn send(&self, command: C) -> Result<(), Stopped> {
        let commands = self.commands.as_ref().ok_or(Stopped)?;
        commands.send(command).await.map_err(|_| Stopped)?;
        self.ring();
        Ok(())
    }

    /// Sends a command if there is room in the queue, without waiting.
    pub fn try_send(&self, command: C) -> Result<(), TrySendError<C>> {
        let Some(commands) = &self.commands else { return Err(TrySendError::Closed(command)) };
        commands.try_send(command)?;
        self.ring();
        Ok(())
    }

    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> C,
    ) -> Result<T, Stopped> {
        let (answer, receive) = oneshot::channel();
        self.send(command(answer)).await?;
        receive.await.map_err(|_| Stopped)
    }
}

impl<C> Worker<C> {
    fn ring(&self) {
        // A full counter means that it has been rung already.
        let _ = self.wake.as_ref().map(|wake| rustix::io::write(wake, &1u64.to_ne_bytes()));
    }
}

impl<C> Clone for Worker<C> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), wake: self.wake.clone() }
    }
}

impl<C> fmt::Debug for Worker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl<C> Drop for Worker<C> {
    fn drop(&mut self) {
        // The queue first, so that the woken worker finds it closed.
        drop(self.commands.take());
        self.ring();
    }
}

fn run<W: Work>(work: &mut W, mut queue: mpsc::Receiver<W::Command>, wake: &OwnedFd) {
    loop {
        match queue.try_recv() {
            Ok(command) => work.carry_out(command),
            Err(TryRecvError::Empty) => {
                work.tick();
                wait(work, wake);
            }
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

/// The same in a simulation, where the worker is a task.
async fn run_simulated<W: Work>(mut work: W, mut queue: mpsc::Receiver<W::Command>) {
    loop {
        match queue.try_recv() {
            Ok(command) => {
                work.carry_out(command);
                continue;
            }
            Err(TryRecvError::Empty) => work.tick(),
            Err(TryRecvError::Disconnected) => return,
        }
        let (next_wake, hears_kernel) = (work.next_wake(), !work.wake_on().is_empty());
        let kernel_changed = simulation::world().map(|world| world.kernel_changed());
        let Some(kernel_changed) = kernel_changed else { return };
        tokio::select! {
            biased;
            command = queue.recv() => match command {
                Some(command) => work.carry_out(command),
                None => return,
            },
            () = kernel_changed, if hears_kernel => {}
            () = sleep_until(next_wake) => {}
        }
    }
}

fn wait(work: &impl Work, wake: &OwnedFd) {
    let left = work.next_wake().map(|due| due.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(work.wake_on().into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, timeout.as_ref());
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as std_mpsc;
    use std::time::Duration;

    use super::*;

    struct Adder {
        sum: u32,
        ticks: std_mpsc::Sender<u32>,
        due: Option<Instant>,
    }

    impl Work for Adder {
        type Command = (u32, oneshot::Sender<u32>);

        fn carry_out(&mut self, (number, answer): Self::Command) {
            self.sum += number;
            let _ = answer.send(self.sum);
        }

        fn tick(&mut self) {
            self.due = self.due.filter(|due| *due > Instant::now());
            let _ = self.ticks.send(self.sum);
        }

        fn next_wake(&self) -> Option<Instant> {
            self.due
        }
    }

    fn adder(
        due: Option<Instant>,
    ) -> (Worker<(u32, oneshot::Sender<u32>)>, std_mpsc::Receiver<u32>) {
        let (ticks, receive) = std_mpsc::channel();
        let worker = Worker::start("adder", 1, move || Adder { sum: 0, ticks, due });
        (worker.expect("a thread"), receive)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn commands_are_carried_out_in_order_and_answered() {
        let (worker, _ticks) = adder(None);
        let sums = block_on(async {
            let add = |number| worker.ask(move |answer| (number, answer));
            (add(1).await, add(2).await)
        });
        assert_eq!(sums, (Ok(1), Ok(3)));
    }

    #[test]
    fn it_wakes_by_time() {
        let (_worker, ticks) = adder(Some(Instant::now() + Duration::from_millis(20)));
        assert_eq!((ticks.recv(), ticks.recv()), (Ok(0), Ok(0)));
    }

    #[test]
    fn it_ends_with_its_last_handle() {
        let (worker, ticks) = adder(None);
        let second = worker.clone();
        drop(worker);
        assert_eq!(block_on(second.ask(|answer| (5, answer))), Ok(5));
        drop(second);
        // What it ticked, then the end of it.
        let limit = Duration::from_secs(60);
        let end = std::iter::repeat_with(|| ticks.recv_timeout(limit)).find_map(Result::err);
        assert_eq!(end, Some(std_mpsc::RecvTimeoutError::Disconnected));
    }
}
