//! Clients that contend for a few subnets of a network of their own, at the same moments: what daemons do alone is rarely
//! contended. The history of all of them is checked for linearizability.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use flannel_lease::{LeaseAttrs, NetworkConfig, NetworkName, Subnet};
use flannel_server::embedded::AskError;
use flannel_server::lease_state::{Reply, Request};
use flannel_store::{
    AcquireAttempt as _, Claim, Cursor, Held, NodeStore as _, OperatorStore as _, RemoteOptions,
    RemoteStore, Snapshot, StoreError, SubnetPool as _,
};
use tracing::Instrument as _;

use crate::clib;
use crate::host::Host;
use crate::operator::Operator;

const NETWORK: &str = "contended";
/// One more than there are subnets at first.
const CLIENTS: u8 = 4;
/// The last of the subnets, at first.
const FIRST_LAST: u8 = 3;
/// Clients act within so many milliseconds of the same moments.
const CROWD_MS: u64 = 40;
const BETWEEN_CROWDS: Duration = Duration::from_secs(10);
/// After the faults have ended every client reads once more.
const LAST_READ_AFTER: Duration = Duration::from_secs(45);

/// Starts clients on these machines, until the faults end at this time.
pub(crate) fn start(
    hosts: &[Rc<Host>],
    server: &str,
    operator: &Operator,
    seed: u64,
    faults_end: Duration,
) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for number in 0..CLIENTS {
        let host = &hosts[usize::from(number) % hosts.len()];
        let options = RemoteOptions {
            addresses: vec![server.to_owned()],
            network: NETWORK.parse().unwrap_or_default(),
            ..RemoteOptions::default()
        };
        let (number_of_host, rng, operator) = (host.number as u64, rng.fork(), operator.clone());
        let span = tracing::info_span!("simulated host", number = number_of_host);
        let client = async move {
            let (mut rng, network) = (rng, options.network.clone());
            let (store, config) = (RemoteStore::new(options, rng.u64(..)), config_text(FIRST_LAST));
            if let (Ok(store), Ok(config)) = (store, NetworkConfig::parse(&config)) {
                let held = None;
                let client = Contender { number, store, operator, network, rng, config, held };
                client.run(faults_end).await;
            }
        };
        tokio::spawn(client.instrument(span));
    }
}

struct Contender {
    number: u8,
    store: RemoteStore,
    operator: Operator,
    network: NetworkName,
    rng: fastrand::Rng,
    config: NetworkConfig,
    held: Option<Held>,
}

impl Contender {
    async fn run(mut self, faults_end: Duration) {
        if self.number == 0 {
            while !matches!(self.set_config(FIRST_LAST).await, Some(Ok(_)))
                && clib::elapsed() < Duration::from_secs(20)
            {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        while clib::elapsed() < faults_end {
            self.wait_for_crowd().await;
            // What comes of it is in the history of operations.
            if let Err(StoreError::Lost { .. } | StoreError::Taken { .. }) = self.act().await {
                self.held = None;
            }
            // Whoever looks at once sees what was acknowledged and not done.
            if self.rng.bool() {
                let _ = self.store.list().await;
            }
        }
        tokio::time::sleep((faults_end + LAST_READ_AFTER).saturating_sub(clib::elapsed())).await;
        let _ = self.store.list().await;
        self.operator.read_config(&self.network);
    }

    async fn wait_for_crowd(&mut self) {
        let crowds = self.rng.u32(1..=3);
        let passed = clib::elapsed().as_nanos() % BETWEEN_CROWDS.as_nanos();
        let to_next = BETWEEN_CROWDS - Duration::from_nanos(passed as u64);
        let jitter = Duration::from_millis(self.rng.u64(..CROWD_MS));
        tokio::time::sleep(to_next + BETWEEN_CROWDS * (crowds - 1) + jitter).await;
    }

    async fn act(&mut self) -> Result<(), StoreError> {
        let subnet = self.any_subnet();
        let store = self.store.clone();
        match (self.rng.u8(..12), self.held.take()) {
            (0..=3, Some(held)) => {
                let attrs = held.lease.attrs.clone();
                let renewed = store.renew(&held, &attrs).await;
                self.held = Some(held);
                self.held = Some(renewed?);
            }
            (0..=5, _) => {
                let previous = self.rng.bool().then_some(subnet);
                let claim = Claim::new(attrs(self.number), previous);
                let acquired = Box::new(store).run(&self.config, &claim, &nothing()).await;
                self.held = Some(acquired?);
            }
            (6 | 7, Some(held)) => store.release(&held).await?,
            (6 | 7, None) => store.revoke(&subnet).await?,
            (8, held) => {
                self.held = held;
                let attrs = attrs(self.rng.u8(..CLIENTS));
                self.ask(Request::Reserve { subnet, attrs }).await;
            }
            (9, held) => {
                self.held = held;
                self.ask(Request::Unreserve { subnet }).await;
            }
            (10, held) => {
                self.held = held;
                let last = self.rng.u8(3..=5);
                self.set_config(last).await;
            }
            (_, held) => {
                self.held = held;
                store.list().await?;
                self.operator.read_config(&self.network);
            }
        }
        Ok(())
    }

    fn any_subnet(&mut self) -> Subnet {
        let net = ipnet::Ipv4Net::new(Ipv4Addr::new(10, 9, self.rng.u8(1..=3), 0), 24);
        net.ok().and_then(|net| Subnet::new(Some(net), None)).expect("a subnet")
    }

    /// Writes a config with the subnets up to this one.
    async fn set_config(&self, last: u8) -> Option<Result<Reply, AskError>> {
        self.ask(Request::SetConfig { text: config_text(last), force: false }).await
    }

    /// Asks what only operators may.
    async fn ask(&self, request: Request) -> Option<Result<Reply, AskError>> {
        self.operator.ask(&self.network, request).await
    }
}

fn config_text(last: u8) -> String {
    format!(
        r#"{{"Network":"10.9.0.0/20","SubnetMin":"10.9.1.0","SubnetMax":"10.9.{last}.0","Backend":{{"Type":"host-gw"}}}}"#
    )
}

fn attrs(client: u8) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: Some(Ipv4Addr::new(192, 168, 7, 1 + client)),
        backend_type: "host-gw".into(),
        ..LeaseAttrs::default()
    }
}

fn nothing() -> Snapshot {
    Snapshot { leases: Vec::new(), cursor: Cursor::BEGINNING }
}
