//! All appliers behind one type: the rest of the daemon does not need to know which applier sees to what.
//!
//! Appliers depend on each other: an address or a route of the kernel needs the device that a tunnel has created. So
//! additions go bottom up, those appliers before the kernel; removals go top down: no route points to a missing device.

mod trial;

use std::future::poll_fn;
use std::path::Path;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use flannel_backend::{DesiredState, WantedBy};
use flannel_cloud::CloudApplier;
use flannel_commands::CommandRunner;
use flannel_common::SearchPath;
use flannel_entries::kernel::Ownership;
use flannel_ipsec::Ipsec;
use flannel_kernel::Engine;
use flannel_traffic::TrafficApplier;
use flannel_tunnel::Tunnel;
use flannel_wanted::{
    Applier, Comparison, Desired, EntryQuery, EntryReport, Status, Stopped, Tally,
};
use ipnet::IpNet;
use tokio::sync::watch;

#[derive(Clone)]
pub struct Appliers {
    /// It knows the node, too: its facts, and the paths to peers.
    pub(crate) kernel: Engine<WantedBy>,
    commands: CommandRunner<WantedBy>,
    pub(crate) tunnel: Tunnel<WantedBy>,
    cloud: CloudApplier<WantedBy>,
    ipsec: Ipsec<WantedBy>,
    pub(crate) rules: TrafficApplier<WantedBy>,
}

/// What can be asked of an applier, whatever its entries are: see [`Applier`].
pub trait Reporting: Sync {
    fn watch_status(&self) -> watch::Receiver<Status>;
    fn entries(&self, query: EntryQuery<WantedBy>) -> Answer<'_, Vec<EntryReport<WantedBy>>>;
    fn tally(&self) -> Answer<'_, Tally<WantedBy>>;
    fn compare(&self) -> Answer<'_, Comparison>;
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Stopped>> + Send + 'a>>;

impl<A: Applier<Requester = WantedBy>> Reporting for A {
    fn watch_status(&self) -> watch::Receiver<Status> {
        Applier::watch_status(self)
    }

    fn entries(&self, query: EntryQuery<WantedBy>) -> Answer<'_, Vec<EntryReport<WantedBy>>> {
        Box::pin(Applier::entries(self, query))
    }

    fn tally(&self) -> Answer<'_, Tally<WantedBy>> {
        Box::pin(Applier::tally(self))
    }

    fn compare(&self) -> Answer<'_, Comparison> {
        Box::pin(Applier::compare(self))
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Applier::stop(self))
    }
}

/// How people are told of the applier that every network has.
pub const KERNEL: &str = "kernel";
/// The same for the one that keeps traffic rules.
pub const RULES: &str = "traffic-rules";

impl Appliers {
    pub const COUNT: usize = 6;

    /// `run`: the directory for files that last until the next boot. `resync`: how often rules of iptables-legacy are
    /// looked at. `earlier`: networks whose rules a former run may have left, and nobody else is to remove.
    pub fn start(
        seed: u64,
        run: &Path,
        resync: Duration,
        earlier: &[IpNet],
    ) -> anyhow::Result<Self> {
        let tunnel = Tunnel::new(run.to_owned(), seed);
        let cloud = CloudApplier::new(seed, run.to_owned());
        let commands = CommandRunner::new(seed);
        let ipsec = Ipsec::new(run.to_owned(), seed);
        let rules = TrafficApplier::new(resync, SearchPath::of_environment(), earlier, seed);
        Ok(Self { kernel: Engine::start(seed)?, commands, tunnel, cloud, ipsec, rules })
    }

    /// Declares all that is wanted. `ownership`: what is ours in the kernel.
    pub async fn replace(
        &self,
        ownership: Ownership,
        desired: DesiredState,
    ) -> Result<Status, Stopped> {
        let DesiredState { kernel, commands, tunnel, cloud, ipsec, rules } = desired;
        let networks = ownership.networks.clone();
        let above = self.kernel.replace(ownership, kernel);
        let above = replace_below(&self.cloud, networks.clone(), cloud, above);
        let above = replace_below(&self.tunnel, networks.clone(), tunnel, above);
        let above = replace_below(&self.ipsec, networks, ipsec, above);
        let status = replace_below(&self.commands, (), commands, above).await?;
        Ok(status.and(self.rules.replace((), rules).await?))
    }

    /// Begins to write what the next [`Self::replace`] will declare, without waiting. Only where nobody but the kernel is
    /// concerned: what others make stands in an order that needs the whole.
    pub fn prepare(&self, beginning: DesiredState) {
        let DesiredState { kernel, commands, tunnel, cloud, ipsec, rules: _ } = beginning;
        if commands.is_empty() && tunnel.is_empty() && cloud.is_empty() && ipsec.is_empty() {
            self.kernel.prepare(kernel);
        }
    }

    pub async fn update(&self, changes: DesiredState) -> Result<Status, Stopped> {
        let DesiredState { kernel, commands, tunnel, cloud, ipsec, rules } = changes;
        let above = update_below(&self.cloud, cloud, self.kernel.update(kernel));
        let above = update_below(&self.tunnel, tunnel, above);
        let above = update_below(&self.ipsec, ipsec, above);
        let status = update_below(&self.commands, commands, above).await?;
        // Peers need none: no change of a lease waits for programs that write rules.
        let rules = match rules.is_empty() {
            true => self.rules_status(),
            false => self.rules.update(rules).await?,
        };
        Ok(status.and(rules))
    }

    /// All of them by name, bottom up.
    pub fn each(&self) -> [(&'static str, &dyn Reporting); Self::COUNT] {
        // Taken apart, so that the compiler names one that is missing here.
        let Self { kernel, commands, tunnel, cloud, ipsec, rules } = self;
        [
            ("commands", commands),
            ("ipsec", ipsec),
            ("tunnel", tunnel),
            ("cloud", cloud),
            (KERNEL, kernel),
            (RULES, rules),
        ]
    }

    pub fn watch_status(&self) -> WatchedStatus {
        WatchedStatus(self.each().map(|(_, applier)| applier.watch_status()).into())
    }

    pub fn rules_status(&self) -> Status {
        Applier::watch_status(&self.rules).borrow().clone()
    }

    pub async fn stop(&self) {
        for (_, applier) in self.each().into_iter().rev() {
            applier.stop().await;
        }
    }
}

/// Declares everything to `below`, which `above` depends on: before it, or after it if nothing is wanted any more. Boxed,
/// because each is a part of the next: a network's task would grow with each.
fn replace_below<'a, A>(
    below: &'a A,
    ownership: A::Ownership,
    desired: Desired<WantedBy, A::Entry>,
    above: impl Future<Output = Result<Status, Stopped>> + Send + 'a,
) -> Answer<'a, Status>
where
    A: Applier<Requester = WantedBy>,
{
    Box::pin(async move {
        if desired.is_empty() {
            let above = above.await?;
            return Ok(below.replace(ownership, desired).await?.and(above));
        }
        let below = below.replace(ownership, desired).await?;
        Ok(below.and(above.await?))
    })
}

/// The same for changes: additions go before `above`, removals after it.
fn update_below<'a, A: Applier<Requester = WantedBy>>(
    below: &'a A,
    changes: Desired<WantedBy, A::Entry>,
    above: impl Future<Output = Result<Status, Stopped>> + Send + 'a,
) -> Answer<'a, Status> {
    Box::pin(async move {
        let (adding, removing): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|(_, entries)| !entries.is_empty());
        if !adding.is_empty() {
            below.update(adding).await?;
        }
        let above = above.await?;
        Ok(below.update(removing).await?.and(above))
    })
}

/// How it stands with all of them, and every change of that.
pub struct WatchedStatus(Vec<watch::Receiver<Status>>);

impl WatchedStatus {
    pub fn now(&mut self) -> Status {
        let each = self.0.iter_mut().map(|status| status.borrow_and_update().clone());
        each.reduce(Status::and).unwrap_or_default()
    }

    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        let mut changes: Vec<_> =
            self.0.iter_mut().map(|status| Box::pin(status.changed())).collect();
        poll_fn(|context| {
            let mut polled = changes.iter_mut().map(|change| pin!(change).poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use flannel_wanted::{KeyedEntry, WorkerHandle};

    use super::*;

    /// Writes down what is asked of it.
    #[derive(Clone)]
    struct Recorder(&'static str, Arc<Mutex<Vec<String>>>);

    #[derive(Clone, PartialEq)]
    struct Nothing;

    impl KeyedEntry for Nothing {
        type Key = ();
        type Device = ();

        fn key(&self) {}

        fn devices(&self) -> impl Iterator<Item = ()> {
            std::iter::empty()
        }

        fn describe(&self) -> String {
            "nothing".to_owned()
        }

        fn kind(&self) -> &'static str {
            "nothing"
        }
    }

    impl Recorder {
        fn note(&self, what: &str, of: &Desired<WantedBy, Nothing>) -> Result<Status, Stopped> {
            let lists: Vec<usize> = of.iter().map(|(_, entries)| entries.len()).collect();
            self.1.lock().expect("not poisoned").push(format!("{} {what} {lists:?}", self.0));
            Ok(status(of.len(), 0))
        }
    }

    impl Applier for Recorder {
        type Requester = WantedBy;
        type Entry = Nothing;
        type Ownership = ();
        type Other = Infallible;

        fn handle(&self) -> &WorkerHandle<WantedBy, Nothing, ()> {
            unreachable!("nothing is asked of it but what it writes down")
        }

        async fn replace(
            &self,
            (): (),
            desired: Desired<WantedBy, Nothing>,
        ) -> Result<Status, Stopped> {
            self.note("replace", &desired)
        }

        async fn update(&self, changes: Desired<WantedBy, Nothing>) -> Result<Status, Stopped> {
            self.note("update", &changes)
        }
    }

    #[test]
    fn what_others_stand_on_is_made_before_them_and_taken_away_after_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let log = Arc::new(Mutex::new(Vec::new()));
        let [tunnel, kernel] = ["tunnel", "kernel"].map(|name| Recorder(name, log.clone()));
        let peer =
            |number: u8| WantedBy::Peer(format!("10.1.{number}.0-24").parse().expect("a subnet"));
        let some = || vec![(WantedBy::Node, vec![Nothing])];
        let both = || vec![(peer(1), vec![]), (peer(2), vec![Nothing])];
        let expect = |calls: &[&str]| {
            assert_eq!(std::mem::take(&mut *log.lock().expect("not poisoned")), calls);
        };
        runtime.block_on(async {
            let sum = replace_below(&tunnel, (), some(), kernel.replace((), some())).await;
            assert_eq!(sum, Ok(status(2, 0)));
            expect(&["tunnel replace [1]", "kernel replace [1]"]);
            update_below(&tunnel, both(), kernel.update(both())).await.expect("it runs");
            expect(&["tunnel update [1]", "kernel update [0, 1]", "tunnel update [0]"]);
            replace_below(&tunnel, (), vec![], kernel.replace((), some())).await.expect("it runs");
            expect(&["kernel replace [1]", "tunnel replace []"]);
        });
    }

    fn status(wanted: usize, bad: usize) -> Status {
        Status { wanted, bad, ..Status::default() }
    }

    #[test]
    fn the_status_is_that_of_all_and_follows_each() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (first, one) = watch::channel(status(3, 0));
        let (second, other) = watch::channel(status(4, 1));
        let mut both = WatchedStatus(vec![one, other]);
        assert_eq!(both.now(), status(7, 1));
        runtime.block_on(async {
            for (sender, sum) in [(&second, status(6, 0)), (&first, status(6, 0))] {
                sender.send_replace(status(3, 0));
                both.changed().await.expect("both are there");
                assert_eq!(both.now(), sum);
            }
            drop(first);
            assert!(both.changed().await.is_err(), "one has stopped");
        });
    }
}
