//! Tasks of the async runtime, the only ones of product code: each has a name, ends with its owner and logs its panic.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::simulation;

/// A running task. It ends when this is dropped; awaiting it gives what it returns.
#[must_use = "a task ends when it is dropped"]
#[derive(Debug)]
pub struct Task<T = ()> {
    handle: JoinHandle<T>,
    detached: bool,
}

impl<T: Send + 'static> Task<T> {
    /// Starts a task, whose log lines carry the origin of the caller's. Must be called within a tokio runtime.
    pub fn spawn(name: &'static str, work: impl Future<Output = T> + Send + 'static) -> Self {
        let named = async move {
            let _log = PanicLog(name);
            work.await
        };
        Self { handle: tokio::spawn(named.in_current_span()), detached: false }
    }

    /// Starts what blocks, on a thread beside the runtime. It runs to its own end: nobody can interrupt it.
    pub fn spawn_blocking(name: &'static str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        if let Some(blocked) = simulation::world().map(|world| world.blocked()) {
            return Self::spawn(name, async move {
                blocked.await;
                work()
            });
        }
        let span = tracing::Span::current();
        let named = move || {
            let _log = PanicLog(name);
            span.in_scope(work)
        };
        Self { handle: tokio::task::spawn_blocking(named), detached: false }
    }

    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl Task {
    /// Lets a short task run to its own end, for work that nobody waits for.
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if !self.detached {
            self.handle.abort();
        }
    }
}

/// Starts a task that sends into a channel. It ends when the receiver is dropped.
pub fn spawn_sender<T, F>(
    name: &'static str,
    capacity: usize,
    work: impl FnOnce(mpsc::Sender<T>) -> F,
) -> mpsc::Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(capacity);
    let (unwanted, work) = (sender.clone(), work(sender));
    run_until(name, work, async move { unwanted.closed().await });
    receiver
}

/// Starts a task that keeps a value up to date. It ends when the last receiver is dropped.
pub fn spawn_publisher<T, F>(
    name: &'static str,
    initial: T,
    work: impl FnOnce(watch::Sender<T>) -> F,
) -> watch::Receiver<T>
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = watch::channel(initial);
    let (unwanted, work) = (sender.clone(), work(sender));
    run_until(name, work, async move { unwanted.closed().await });
    receiver
}

fn run_until(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
    unwanted: impl Future<Output = ()> + Send + 'static,
) {
    let task = Task::spawn(name, async move {
        tokio::select! {
            () = work => {}
            () = unwanted => {}
        }
    });
    task.detach();
}

/// Publishes a value, unless it is the one that receivers have.
pub fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, now: T) {
    sender.send_if_modified(|former| {
        let changed = *former != now;
        *former = now;
        changed
    });
}

/// Sleeps until a time; for ever without one.
pub async fn sleep_until(due: Option<impl Into<Instant>>) {
    run_if_any(due.map(|due| tokio::time::sleep_until(due.into()))).await;
}

/// Does what there is to do; never ends where there is nothing.
pub async fn run_if_any<T>(work: Option<impl Future<Output = T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Logs that a task panicked, when it is dropped by the panic.
struct PanicLog(&'static str);

impl Drop for PanicLog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(task = self.0, "{} panicked", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tracing::field::{Field, Visit};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

    use super::*;

    /// Messages of the events that were logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl<S: tracing::Subscriber> Layer<S> for Log {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            struct Message(String);
            impl Visit for Message {
                fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                    if field.name() == "message" {
                        self.0 = format!("{value:?}");
                    }
                }
            }
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().expect("a log").push(message.0);
        }
    }

    fn logged(work: impl Future<Output = ()>) -> Vec<String> {
        let log = Log::default();
        let subscriber = tracing_subscriber::registry().with(log.clone());
        tracing::subscriber::with_default(subscriber, || block_on(work));
        let messages = log.0.lock().expect("a log");
        messages.clone()
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        // Without any, who is the first to log decides for all threads that nobody listens.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().expect("a runtime").block_on(work)
    }

    #[test]
    fn a_task_gives_its_value_to_whoever_awaits_it() {
        let value = block_on(async { Task::spawn("adder", async { 1 + 1 }).await });
        assert_eq!(value.expect("a value"), 2);
    }

    #[test]
    fn a_dropped_task_ends_and_a_detached_one_does_not() {
        block_on(async {
            let (alive, ended) = oneshot::channel::<()>();
            drop(Task::spawn("sleeper", async move {
                std::future::pending::<()>().await;
                drop(alive);
            }));
            assert!(ended.await.is_err());

            let (done, finished) = oneshot::channel();
            let task = Task::spawn("sender", async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let _ = done.send(());
            });
            task.detach();
            assert!(finished.await.is_ok());
        });
    }

    #[test]
    fn panics_are_logged_under_the_name_of_their_task() {
        let messages = logged(async {
            let panicking = async { panic!("a bug") };
            let _ = Task::spawn("watcher", panicking).await;
        });
        assert_eq!(messages, ["watcher panicked"]);
    }

    #[test]
    fn what_blocks_gives_its_value_or_its_panic() {
        block_on(async {
            assert_eq!(Task::spawn_blocking("adder", || 1 + 1).await.expect("a value"), 2);
            let panicking: Task = Task::spawn_blocking("walker", || panic!("a bug"));
            assert!(panicking.await.is_err_and(|error| error.is_panic()));
        });
    }

    #[test]
    fn senders_end_with_their_receivers() {
        block_on(async {
            let (alive, ended) = oneshot::channel::<()>();
            let mut receiver = spawn_sender("counter", 1, |numbers| async move {
                let _alive = alive;
                let _ = numbers.send(1).await;
                std::future::pending().await
            });
            assert_eq!(receiver.recv().await, Some(1));
            drop(receiver);
            assert!(ended.await.is_err());

            let (alive, ended) = oneshot::channel::<()>();
            let mut receiver = spawn_publisher("gauge", 1, |gauge| async move {
                let _alive = alive;
                gauge.send_replace(2);
                std::future::pending().await
            });
            assert!(receiver.changed().await.is_ok());
            assert_eq!(*receiver.borrow(), 2);
            drop(receiver);
            assert!(ended.await.is_err());
        });
    }

    #[test]
    fn sleeping_without_a_time_never_ends() {
        block_on(async {
            let second = Duration::from_secs(1);
            sleep_until(Some(std::time::Instant::now() + second)).await;
            let forever = sleep_until(None::<Instant>);
            assert!(tokio::time::timeout(second, forever).await.is_err());
        });
    }
}
