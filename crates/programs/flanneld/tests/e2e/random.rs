//! Whatever happens in whatever order, in the end the kernel holds exactly what the leases and the
//! config say: lease events, other configs and vandalism at random, then quiet, then a comparison line by
//! line.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use flannel_backend::{Backend, Node, Underlay, WantedBy};
use flannel_common::IfName;
use flannel_entries::facts::{KernelVersion, Path};
use flannel_entries::kernel::{Entry, Key};
use flannel_lab::{Lab, LabError, Result, SUBNET_ENV, Vandalism};
use flannel_lease::{Lease, LeaseAttrs, NetworkConfig, Subnet};
use serde_json::{Value, json};

use crate::support::{Held, Kernel, LIMIT, difference, lab, line, measured, seed};

/// How much happens; more of it when one looks for what is rare.
fn steps() -> usize {
    std::env::var("FLANNEL_TEST_STEPS").map_or(250, |text| text.parse().expect("a number"))
}

/// After ten repairs of an entry within a minute the daemon begins to pause, and what is done to a
/// device is done to every entry on it.
const DEEDS_TO_DEVICES: usize = 6;

/// What was written to each key since it was last deleted.
#[derive(Default)]
struct Values(BTreeMap<String, Vec<String>>);

impl Values {
    fn put(&mut self, key: &str, value: &str) {
        self.0.entry(key.to_owned()).or_default().push(value.to_owned());
    }

    /// What the node itself has written meanwhile: its own lease, and another one in another network.
    fn catch_up(&mut self, store: &[(String, String)]) {
        self.0.retain(|key, _| store.iter().any(|(there, _)| there == key));
        for (key, value) in store {
            if self.0.get(key).and_then(|values| values.last()) != Some(value) {
                self.put(key, value);
            }
        }
    }

    /// The leases as a daemon knows them that has seen everything: a value that cannot be read
    /// changes nothing.
    fn seen(&self) -> BTreeMap<Subnet, LeaseAttrs> {
        self.leases(|values| values.iter().rev().find_map(|value| attrs(value)))
    }

    /// The leases as a daemon finds them that starts now: it looks back one value, no further.
    fn found(&self) -> BTreeMap<Subnet, LeaseAttrs> {
        self.leases(|values| values.iter().rev().take(2).find_map(|value| attrs(value)))
    }

    fn leases(
        &self,
        known: impl Fn(&[String]) -> Option<LeaseAttrs>,
    ) -> BTreeMap<Subnet, LeaseAttrs> {
        // What is not a subnet is nobody's lease.
        let lease =
            |(key, values): (&String, &Vec<String>)| Some((key.parse().ok()?, known(values)?));
        self.0.iter().filter_map(lease).collect()
    }
}

fn attrs(value: &str) -> Option<LeaseAttrs> {
    LeaseAttrs::from_json(value.as_bytes()).ok()
}

/// The subnet that node 1 has.
fn own_subnet(lab: &Lab) -> Result<Subnet> {
    Ok(lab.node(1).subnet_env()?.file.lease_subnet().unwrap())
}

/// What the kernel of node 1 shall hold: a pure function of leases and config.
fn expected(lab: &Lab, config: &Value, mut leases: BTreeMap<Subnet, LeaseAttrs>) -> Result<Held> {
    let config = NetworkConfig::parse(&config.to_string()).unwrap();
    let backend = flannel_backend::create(&config.backend).unwrap();
    let own = own_subnet(lab)?;
    let attrs = leases.remove(&own).ok_or_else(|| LabError::Spec(format!("no lease of {own}")))?;
    let own = Lease { subnet: own, attrs };
    let node = node_one(config, leases.values());

    let mut wanted: BTreeMap<Key, Entry> = BTreeMap::new();
    let mut claim = |entries: Vec<Entry>| {
        for entry in entries {
            // The first in order of owners wins, and the node itself goes before all.
            wanted.entry(entry.key()).or_insert(entry);
        }
    };
    claim(backend.base(&node, &own).kernel);
    let peers: BTreeMap<WantedBy, Vec<Entry>> = leases
        .into_iter()
        .map(|(subnet, attrs)| {
            (WantedBy::Peer(subnet), peer(&*backend, &node, &own, subnet, attrs))
        })
        .collect();
    peers.into_values().for_each(&mut claim);
    Ok(wanted.values().filter_map(line).collect())
}

fn peer(
    backend: &dyn Backend,
    node: &Node,
    own: &Lease,
    subnet: Subnet,
    attrs: LeaseAttrs,
) -> Vec<Entry> {
    let wishes = flannel_backend::peer_wishes(backend, node, own, &Lease { subnet, attrs });
    wishes.unwrap_or_default().kernel
}

/// Node 1 of the lab as the backends see it.
fn node_one<'a>(network: NetworkConfig, peers: impl Iterator<Item = &'a LeaseAttrs>) -> Node {
    let link = IfName::new("eth0").unwrap();
    let (v4, v6) = (Ipv4Addr::new(192, 168, 100, 1), Ipv6Addr::from_bits(0xfd00_0100 << 96 | 1));
    let path = |ip: IpAddr| {
        let (own, router): (bool, IpAddr) = match ip {
            IpAddr::V4(ip) => (ip.octets()[..3] == [192, 168, 100], [192, 168, 100, 254].into()),
            IpAddr::V6(ip) => (ip.segments()[1] == 0x100, "fd00:100::fe".parse().unwrap()),
        };
        Path { link, gateway: (!own).then_some(router), source: None }
    };
    let paths = peers
        .flat_map(LeaseAttrs::public_addresses)
        .map(|address| (address, path(address)))
        .collect();
    Node {
        underlay: Underlay {
            link,
            mtu: 1500,
            v4: Some(v4),
            v6: network.v6.is_some().then_some(v6),
            public_v4: Some(v4),
            public_v6: network.v6.is_some().then_some(v6),
            why: String::new(),
        },
        network,
        // New enough for everything.
        kernel: KernelVersion { major: 6, minor: 1 },
        paths,
        connected: Vec::new(),
        answers: Default::default(),
    }
}

/// Another config: a network that is wider or narrower or elsewhere, over the border from which on routes
/// are spread over metrics and back, and other options of the backend.
fn other_config(config: &mut Value, kinds: &[&str], rng: &mut Rng) {
    let mut any = |options: &[Value]| options[rng.usize(..options.len())].clone();
    match any(&[json!("network"), json!("network"), json!("backend")]).as_str() {
        Some("network") => {
            config["Network"] = any(&[
                json!("10.244.0.0/16"),
                json!("10.244.0.0/15"),
                json!("10.240.0.0/12"),
                json!("10.0.0.0/8"),
                json!("10.244.128.0/17"),
                json!("10.99.0.0/16"),
            ]);
        }
        _ => {
            config["Backend"]["Type"] =
                any(&kinds.iter().map(|kind| json!(kind)).collect::<Vec<_>>());
            config["Backend"]["VNI"] = any(&[json!(1), json!(1), json!(7)]);
            config["Backend"]["Port"] = any(&[json!(0), json!(0), json!(4789)]);
            config["Backend"]["MTU"] = any(&[json!(0), json!(1400), json!(9000)]);
            config["Backend"]["Learning"] = any(&[json!(false), json!(false), json!(true)]);
            config["Backend"]["DirectRouting"] = any(&[json!(false), json!(true)]);
        }
    }
}

/// Peers that exist in the store alone.
struct Peers<'a> {
    lab: &'a Lab,
    history: Values,
    rng: Rng,
    backend: String,
    dual: bool,
    /// How many values were drawn.
    drawn: u16,
}

impl Peers<'_> {
    fn key(&mut self) -> String {
        let n = self.rng.u8(200..224);
        match (self.dual, self.rng.u8(..20)) {
            (_, 0) => format!("no-subnet-{n}"),
            (_, 1) => format!("10.99.{n}.0-24"),
            // Half a subnet, which then overlaps the whole one of another peer.
            (false, 2) => format!("10.244.{n}.0-25"),
            (false, _) => format!("10.244.{n}.0-24"),
            (true, 2) => format!("10.244.{n}.0-24"),
            (true, _) => format!("10.244.{n}.0-24&fd00:244:0:{n:x}::-64"),
        }
    }

    /// Addresses on the node's own segment and behind the router. No two have one MAC: who keeps that depends on who
    /// was first, and is another test's.
    fn value(&mut self) -> String {
        if self.rng.u8(..20) == 0 {
            return ["", "{", "null", "[1]", r#"{"PublicIP":"nonsense"}"#][self.rng.usize(..5)]
                .into();
        }
        let (segment, host) = (self.rng.u8(..2), self.rng.u8(50..90));
        self.drawn += 1;
        let [high, low] = self.drawn.to_be_bytes();
        let mac = format!("02:11:22:33:{high:02x}:{low:02x}");
        let data = json!({"VNI": 1, "VtepMAC": mac});
        let mut value = json!({
            "PublicIP": format!("192.168.{}.{host}", 100 + segment),
            "PublicIPv6": null,
            "BackendType": self.backend,
        });
        if self.dual {
            value["PublicIPv6"] = json!(format!("fd00:{:x}::{host:x}", 0x100 + u16::from(segment)));
        }
        if self.backend == "vxlan" {
            value["BackendData"] = data.clone();
            if self.dual {
                value["BackendV6Data"] = data;
            }
        }
        match self.rng.u8(..20) {
            0 => value["BackendType"] = json!("udp"),
            1 => value["BackendData"] = json!({"VtepMAC": "nothing of the kind"}),
            2 => value["PublicIP"] = json!("0.0.0.0"),
            // Somebody with our own address.
            3 => value["PublicIP"] = json!("192.168.100.1"),
            _ => {}
        }
        value.to_string()
    }

    fn change(&mut self) -> Result<()> {
        let etcd = self.lab.etcd()?;
        let path = |key: &str| format!("{}/subnets/{key}", self.lab.spec().etcd_prefix);
        // Who takes the node's own subnet is a fight, and another test's.
        let own = own_subnet(self.lab)?;
        let free = |key: &str| key.parse().is_ok_and(|subnet: Subnet| !subnet.overlaps(&own));
        if self.rng.u8(..10) < 3 {
            let key = self.key();
            if !free(&key) {
                return Ok(());
            }
            self.history.0.remove(&key);
            return etcd.delete(&path(&key)).map(drop);
        }
        // Now and then many at once.
        let count = if self.rng.u8(..10) == 0 { self.rng.usize(..20) } else { 1 };
        let mut pairs: BTreeMap<_, _> = (0..count).map(|_| (self.key(), self.value())).collect();
        pairs.retain(|key, _| key.parse::<Subnet>().is_err() || free(key));
        pairs.iter().for_each(|(key, value)| self.history.put(key, value));
        let pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (path(&key), value)).collect();
        etcd.put_many(&pairs)
    }
}

fn is_to_a_device(deed: &Vandalism) -> bool {
    !matches!(
        deed,
        Vandalism::RouteDelete(_)
            | Vandalism::NeighbourDelete { .. }
            | Vandalism::FdbDelete { .. }
            | Vandalism::AddressDelete { .. }
    )
}

fn in_the_end_all_is_right(backend: Value, dual: bool, kinds: &[&str]) -> Result<()> {
    let seed = seed();
    let kind = backend["Type"].as_str().unwrap().to_owned();
    let lab = lab(1).backend_json(backend).ipv6(dual).start()?;
    let mut config = lab.spec().network_config();
    // Networks to come do not contain it.
    config.as_object_mut().unwrap().remove("SubnetMax");
    config["Replaces"] = json!(["10.0.0.0/8", "fd00::/8"]);
    let mut rng = Rng::with_seed(seed);
    let mut history = Values::default();
    lab.leases()?.iter().for_each(|(key, value)| history.put(key, value));
    let mut peers = Peers { lab: &lab, history, rng: rng.fork(), backend: kind, dual, drawn: 0 };
    let node = lab.node(1);
    let mut deeds: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..steps() {
        match rng.u8(..20) {
            0 => {
                other_config(&mut config, kinds, &mut rng);
                peers.backend = config["Backend"]["Type"].as_str().unwrap().to_owned();
                reconfigure(&lab, &config, rng.bool())?;
                *deeds.entry("configs").or_default() += 1;
            }
            1..5 => {
                // A device may go while one looks at it.
                let mut possible = node.possible_deeds().unwrap_or_default();
                if deeds.get("deeds to devices").is_some_and(|count| *count >= DEEDS_TO_DEVICES) {
                    possible.retain(|deed| !is_to_a_device(deed));
                }
                if !possible.is_empty() {
                    let deed = possible.swap_remove(rng.usize(..possible.len()));
                    // The entry may have gone between looking and doing.
                    let _ = node.vandalize(&deed);
                    let to =
                        if is_to_a_device(&deed) { "deeds to devices" } else { "deeds to entries" };
                    *deeds.entry(to).or_default() += 1;
                }
            }
            _ => peers.change()?,
        }
    }

    let mut kernel = Kernel::with_networks(node, &["10.0.0.0/8", "fd00:244::/48"])?;
    let begin = std::time::Instant::now();
    let mut lines = 0;
    lab.wait_until("the kernel to hold what the leases say", LIMIT, || {
        peers.history.catch_up(&lab.leases()?);
        let (wanted, held) = (expected(&lab, &config, peers.history.seen())?, kernel.held());
        lines = wanted.len();
        if held == wanted {
            return Ok(());
        }
        Err(LabError::Spec(format!("{config}{}", difference(&wanted, &held))))
    })?;
    measured(format_args!(
        "{} steps, among them {deeds:?}: {lines} lines as wanted {:.1?} after the last",
        steps(),
        begin.elapsed()
    ));
    // And so it is for a daemon that starts with all this.
    node.flanneld().kill9();
    let begun = || node.flanneld().log().matches("Running backend.").count();
    let before = begun();
    node.flanneld().start()?;
    // Ready it may not be: some peer's lease may overlap the subnet that a new config has given it.
    lab.wait_until("the next daemon to hold the same", LIMIT, || {
        peers.history.catch_up(&lab.leases()?);
        let (wanted, held) = (expected(&lab, &config, peers.history.found())?, kernel.held());
        if begun() > before && held == wanted {
            return Ok(());
        }
        Err(LabError::Spec(format!("{config}\n{}", difference(&wanted, &held))))
    })
}

/// Writes the config. A subnet that does not fit it is exchanged, and that is waited for: peers must not
/// take the new one before.
fn reconfigure(lab: &Lab, config: &Value, wait: bool) -> Result<()> {
    lab.put_config(&config.to_string())?;
    let parsed = NetworkConfig::parse(&config.to_string()).unwrap();
    if wait || !parsed.accepts(&own_subnet(lab)?) {
        let network = format!("FLANNEL_NETWORK={}\n", config["Network"].as_str().unwrap());
        lab.wait_until("the new network in the subnet file", LIMIT, || {
            lab.node(1).read_file(SUBNET_ENV).is_ok_and(|env| env.starts_with(&network))
        })?;
    }
    Ok(())
}

#[test]
fn after_random_events_the_kernel_is_right_with_vxlan() -> Result<()> {
    in_the_end_all_is_right(json!({"Type": "vxlan"}), true, &["vxlan"])
}

#[test]
fn after_random_events_the_kernel_is_right_with_direct_routing() -> Result<()> {
    in_the_end_all_is_right(json!({"Type": "vxlan", "DirectRouting": true}), false, &["vxlan"])
}

#[test]
fn after_random_events_the_kernel_is_right_with_host_gw() -> Result<()> {
    in_the_end_all_is_right(json!({"Type": "host-gw"}), true, &["host-gw"])
}

#[test]
fn after_random_events_the_kernel_is_right_with_one_backend_after_the_other() -> Result<()> {
    in_the_end_all_is_right(json!({"Type": "vxlan"}), false, &["vxlan", "host-gw"])
}
