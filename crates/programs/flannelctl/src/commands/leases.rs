//! `flannelctl leases`, `reserve`, `unreserve` and `release`: who owns which subnet.

use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use flannel_cli::table::{Colour, Table};
use flannel_cloud::OwnRoute;
use flannel_lease::{Expiry, Lease, LeaseAttrs, Subnet, SubnetOrigin};
use flannel_store::{Held, PoolChange, StoreEvent};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::cleanup::Report;
use super::daemon::plain;
use super::daemon_process;
use super::output::OutputArgs;
use super::store_args::{StoreArgs, block_on};

const RUN_DIRECTORY: &str = "/run/flannel";

/// Who owns which subnet
#[derive(Debug, Args)]
pub(crate) struct LeasesArgs {
    #[command(flatten)]
    output: OutputArgs,
    /// Go on showing what changes
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    store: StoreArgs,
}

impl LeasesArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let store = self.store.open()?;
        block_on(async {
            let cursor = store.snapshot().await?.cursor;
            let mut leases = store.list().await?;
            leases.sort_by_key(|held| held.lease.subnet);
            let ends = Ends { subnets: store.subnets(), now: SystemTime::now() };
            let format = self.output.output;
            format.show(&json(&leases), |wide| table(&leases, wide, ends))?;
            if !self.watch {
                return Ok(());
            }
            let mut events = store.watch(cursor);
            while let Some(event) = events.recv().await {
                let text = format.one_of_many(&event_json(&event))?;
                let text = text.unwrap_or_else(|| format!("{}\n", told(&event)));
                std::io::stdout().write_all(text.as_bytes())?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn address(attrs: &LeaseAttrs) -> String {
    let both: Vec<String> = attrs.public_addresses().map(|ip| ip.to_string()).collect();
    if both.is_empty() { "-".to_owned() } else { both.join(" ") }
}

fn shown(subnet: &Subnet) -> String {
    subnet.nets().map(|net| net.to_string()).collect::<Vec<_>>().join(" ")
}

#[derive(Clone, Copy)]
struct Ends {
    subnets: SubnetOrigin,
    now: SystemTime,
}

fn left(expiry: Expiry, Ends { subnets, now }: Ends) -> String {
    match expiry.remaining(now) {
        None if subnets == SubnetOrigin::Store => "assigned".to_owned(),
        None => "reserved".to_owned(),
        Some(left) if left.is_zero() => "over".to_owned(),
        Some(left) => {
            let minutes = left.as_secs() / 60;
            format!("{}h{:02}m", minutes / 60, minutes % 60)
        }
    }
}

const LONGEST_KIND: usize = 32;
const LONGEST_NAME: usize = 63;
const LONGEST_DATA: usize = 400;
/// Many readers of JSON stop at 128, and there are brackets around it.
const MAX_JSON_DEPTH: usize = 100;

fn table(leases: &[Held], wide: bool, ends: Ends) -> String {
    // Where nobody is known by name there is none to show.
    let named = leases.iter().any(|held| held.lease.attrs.owner.is_some());
    let shown_columns = [true, true, named, true, true, wide];
    let heading = ["SUBNET", "NODE", "NAME", "BACKEND", "ENDS IN", "DATA"];
    let mut table = Table::new(&select(heading, shown_columns)).flush_left();
    for held in leases {
        let attrs = &held.lease.attrs;
        let kind = if attrs.backend_type.is_empty() { "-" } else { &attrs.backend_type };
        let data = [&attrs.backend_data, &attrs.backend_v6_data].into_iter().flatten();
        let data: Vec<&str> = data.map(|data| data.as_str()).collect();
        let cells = [
            shown(&held.lease.subnet),
            address(attrs),
            brief(attrs.owner_name().unwrap_or("-"), LONGEST_NAME),
            brief(kind, LONGEST_KIND),
            left(held.expiry, ends),
            brief(&data.join(" "), LONGEST_DATA),
        ];
        table.row(select(cells.map(|text| (Colour::Plain, text)), shown_columns));
    }
    table.text()
}

fn select<T, const N: usize>(cells: [T; N], shown: [bool; N]) -> Vec<T> {
    cells.into_iter().zip(shown).filter_map(|(cell, shown)| shown.then_some(cell)).collect()
}

/// What a node has written, for a line of a terminal: not endless, and without what a terminal takes as a command.
fn brief(text: &str, longest: usize) -> String {
    let shown: String = text.chars().take(longest).collect();
    match shown.len() < text.len() {
        true => format!("{}… ({} bytes, see -o json)", plain(&shown), text.len()),
        false => plain(&shown),
    }
}

fn json(leases: &[Held]) -> Value {
    let value = |held: &Held| {
        let mut lease = lease_json(&held.lease);
        lease["expires"] = match held.expiry {
            Expiry::Never => Value::Null,
            Expiry::At(at) => {
                at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().into()
            }
        };
        lease
    };
    leases.iter().map(value).collect()
}

fn lease_json(lease: &Lease) -> Value {
    let LeaseAttrs { backend_data, backend_v6_data, .. } = &lease.attrs;
    let plain = LeaseAttrs { backend_data: None, backend_v6_data: None, ..lease.attrs.clone() };
    let mut attrs: Value = serde_json::from_str(&plain.to_json()).unwrap_or_default();
    for (key, data) in [("BackendData", backend_data), ("BackendV6Data", backend_v6_data)] {
        if let Some(data) = data {
            // What is nested too deeply for readers of JSON is shown as text.
            let shallow = data.depth() <= MAX_JSON_DEPTH;
            let read = shallow.then(|| serde_json::from_str(data.as_str()).ok()).flatten();
            attrs[key] = read.unwrap_or_else(|| data.as_str().into());
        }
    }
    json!({
        "subnet": lease.subnet.v4().map(|net| net.to_string()),
        "ipv6Subnet": lease.subnet.v6().map(|net| net.to_string()),
        "attrs": attrs,
    })
}

fn event_json(event: &StoreEvent) -> Value {
    match event {
        StoreEvent::Put(stored) => json!({"put": lease_json(&stored.lease)}),
        StoreEvent::Gone(subnet) => json!({"gone": shown(subnet)}),
        StoreEvent::Snapshot(leases) => {
            let leases: Vec<_> = leases.iter().map(|stored| lease_json(&stored.lease)).collect();
            json!({ "snapshot": leases })
        }
        StoreEvent::Config(text) => json!({ "config": text }),
        StoreEvent::ConfigGone => json!({"config": null}),
        StoreEvent::Assigned(subnet) => json!({"assigned": subnet.as_ref().map(shown)}),
        StoreEvent::Down(why) => json!({ "down": why }),
        StoreEvent::Up => json!({"up": true}),
    }
}

fn told(event: &StoreEvent) -> String {
    match event {
        StoreEvent::Put(stored) => {
            let Lease { subnet, attrs } = &stored.lease;
            format!("put   {}  {}", shown(subnet), address(attrs))
        }
        StoreEvent::Gone(subnet) => format!("gone  {}", shown(subnet)),
        StoreEvent::Snapshot(leases) => format!("all   {} leases, listed again", leases.len()),
        StoreEvent::Config(_) => "the network config has changed".to_owned(),
        StoreEvent::ConfigGone => "the network config is gone".to_owned(),
        StoreEvent::Assigned(Some(subnet)) => format!("assigned {}", shown(subnet)),
        StoreEvent::Assigned(None) => "assigned nothing".to_owned(),
        StoreEvent::Down(why) => format!("lost the store: {why}"),
        StoreEvent::Up => "the store is back".to_owned(),
    }
}

/// A subnet, as a CIDR or as a key
#[derive(Clone, Debug, Args)]
struct SubnetArgs {
    /// 10.5.1.0/24, or both families: 10.5.1.0/24,fd00:5:1::/64
    subnet: String,
}

impl SubnetArgs {
    fn read(&self) -> anyhow::Result<Subnet> {
        if let Ok(subnet) = self.subnet.parse() {
            return Ok(subnet);
        }
        let (mut v4, mut v6) = (None, None);
        for part in self.subnet.split([',', ' ']).filter(|part| !part.is_empty()) {
            match part.parse() {
                Ok(IpNet::V4(net)) => v4 = Some(net),
                Ok(IpNet::V6(net)) => v6 = Some(net),
                Err(_) => anyhow::bail!("{part:?} is not a subnet: write it like 10.5.1.0/24"),
            }
        }
        if v4.is_some_and(|net| net.trunc() != net) || v6.is_some_and(|net| net.trunc() != net) {
            anyhow::bail!("{} has bits set below its length", self.subnet);
        }
        Subnet::new(v4, v6).ok_or_else(|| anyhow::anyhow!("which subnet?"))
    }
}

/// Keep a subnet for one node, for ever
#[derive(Debug, Args)]
pub(crate) struct ReserveArgs {
    #[command(flatten)]
    subnet: SubnetArgs,
    /// The node's public IPv4 address
    #[arg(long, required_unless_present = "public_ipv6")]
    public_ip: Option<Ipv4Addr>,
    /// The node's public IPv6 address
    #[arg(long)]
    public_ipv6: Option<Ipv6Addr>,
    #[command(flatten)]
    store: StoreArgs,
}

impl ReserveArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (subnet, store) = (self.subnet.read()?, self.store.open()?);
        let Self { public_ip, public_ipv6, .. } = self;
        let attrs = LeaseAttrs { public_ip, public_ipv6, ..LeaseAttrs::default() };
        block_on(async {
            let pool = store.pool(PoolChange::Reserve(subnet)).await?;
            Ok(pool.reserve(&subnet, &attrs).await?)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// One subnet of one store
#[derive(Debug, Args)]
pub(crate) struct OneLease {
    #[command(flatten)]
    subnet: SubnetArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl OneLease {
    pub(crate) fn unreserve(self) -> anyhow::Result<ExitCode> {
        let (subnet, store) = (self.subnet.read()?, self.store.open()?);
        block_on(async {
            let pool = store.pool(PoolChange::Unreserve(subnet)).await?;
            Ok(pool.unreserve(&subnet).await?)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// On the node that had it, its route in a cloud goes too, unless a flanneld runs there and takes the subnet back.
    pub(crate) fn release(self) -> anyhow::Result<ExitCode> {
        let (subnet, store) = (self.subnet.read()?, self.store.open()?);
        block_on(async {
            let pool = store.pool(PoolChange::Release(subnet)).await?;
            Ok(pool.revoke(&subnet).await?)
        })?;
        if daemon_process::running().is_some() {
            return Ok(ExitCode::SUCCESS);
        }
        let is_of_it = |own: &OwnRoute| subnet.nets().any(|net| own.destination == net);
        let mut report = Report { removes: true, ..Report::default() };
        report.clean_cloud(Path::new(RUN_DIRECTORY), is_of_it);
        let Report { things, failures, .. } = report;
        for route in things {
            writeln!(std::io::stdout(), "removed the {route}")?;
        }
        anyhow::ensure!(
            failures.is_empty(),
            "the lease is released, but could not {}; fix that and run `flannelctl cleanup --yes` here",
            failures.join("; ")
        );
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flannel_lease::Version;
    use flannel_store::StoredLease;

    use super::*;

    fn held(key: &str, expiry: Expiry) -> Held {
        let attrs = LeaseAttrs::from_json(
            br#"{"PublicIP":"192.0.2.1","BackendType":"vxlan","BackendData":{"VNI":1}}"#,
        );
        Held {
            lease: Lease { subnet: key.parse().unwrap(), attrs: attrs.unwrap() },
            expiry,
            version: Version::new(1),
        }
    }

    #[test]
    fn leases_are_a_table_with_how_long_they_last() {
        let now = SystemTime::UNIX_EPOCH;
        let ends = Ends { subnets: SubnetOrigin::Pool, now };
        let leases = [
            held("10.5.1.0-24", Expiry::At(now + Duration::from_secs(3_700))),
            held("10.5.2.0-24&fd00:5:2::-64", Expiry::Never),
        ];
        assert_eq!(
            table(&leases, false, ends),
            "SUBNET                     NODE       BACKEND  ENDS IN\n\
             10.5.1.0/24                192.0.2.1  vxlan    1h01m\n\
             10.5.2.0/24 fd00:5:2::/64  192.0.2.1  vxlan    reserved\n"
        );
        assert!(table(&leases, true, ends).contains(r#"{"VNI":1}"#));
        let value = json(&leases);
        assert_eq!(value[0]["expires"], 3_700);
        assert_eq!(value[1]["ipv6Subnet"], "fd00:5:2::/64");
    }

    #[test]
    fn where_nodes_have_names_and_subnets_are_assigned_the_table_says_so() {
        let mut lease = held("10.5.1.0-24", Expiry::Never);
        lease.lease.attrs.owner = Some("node-1".into());
        let ends = Ends { subnets: SubnetOrigin::Store, now: SystemTime::UNIX_EPOCH };
        assert_eq!(
            table(&[lease], false, ends),
            "SUBNET       NODE       NAME    BACKEND  ENDS IN\n\
             10.5.1.0/24  192.0.2.1  node-1  vxlan    assigned\n"
        );
    }

    fn announcing(kind: &str, data: &str) -> Held {
        let mut held = held("10.5.1.0-24", Expiry::Never);
        held.lease.attrs.backend_type = kind.into();
        held.lease.attrs.backend_data = flannel_lease::RawJson::read(data).unwrap();
        held
    }

    #[test]
    fn whatever_a_node_has_written_can_be_shown() {
        let ends = Ends { subnets: SubnetOrigin::Pool, now: SystemTime::UNIX_EPOCH };
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let long = format!("\"{}\"", "x".repeat(200_000));
        let kind = "k".repeat(100_000);
        for (kind, data) in
            [("vxlan", &*deep), ("vxlan", &long), (&kind, "1"), ("é\u{1b}[31m", "\"é\"")]
        {
            let leases = [announcing(kind, data), held("10.5.2.0-24", Expiry::Never)];
            for wide in [false, true] {
                let text = table(&leases, wide, ends);
                assert!(text.lines().count() == 3 && text.len() < 2_000, "{}", text.len());
                assert!(!text.contains('\u{1b}'), "no terminal takes it as a command");
            }
            let all: serde_json::Value = serde_json::from_str(&json(&leases).to_string()).unwrap();
            assert_eq!(all[0]["attrs"]["PublicIP"], "192.0.2.1", "of {}…", &data[..1]);
            assert_eq!(all[1]["attrs"]["BackendData"]["VNI"], 1);
            event_json(&StoreEvent::Put(StoredLease::from(&leases[0])));
        }
    }

    #[test]
    fn a_subnet_is_written_as_people_do() {
        let read = |text: &str| SubnetArgs { subnet: text.to_owned() }.read();
        for text in ["10.5.1.0/24", "10.5.1.0-24"] {
            assert_eq!(read(text).unwrap().to_string(), "10.5.1.0-24");
        }
        let both = read("10.5.1.0/24,fd00:5:1::/64").unwrap();
        assert_eq!(both.to_string(), "10.5.1.0-24&fd00:5:1::-64");
        for text in ["", "10.5.1.1/24", "subnet"] {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
