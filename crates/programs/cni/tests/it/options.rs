//! Every option that the Go plugins know is one that ours know, too: it does what it says, or it is
//! refused. None is passed over in silence.
//!
//! Which options there are, the Go programs say themselves: the names by which they read their
//! configuration are written in them. That an option is read is seen by a value that makes no sense,
//! which must be refused by name. That it does what it says is for the other tests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::node::{Node, Pod, V4, Whose, go_plugins};

/// Names that stand in every Go plugin: of the protocol, of results and errors.
const COMMON: [&str; 37] = [
    "-",
    "address",
    "capabilities",
    "cni.dev/valid-attachments",
    "cniVersion",
    "code",
    "containerID",
    "details",
    "dns",
    "domain",
    "gateway",
    "ifname",
    "interface",
    "interfaces",
    "ip",
    "ip4",
    "ip6",
    "ipam",
    "ips",
    "mac",
    "msg",
    "name",
    "nameservers",
    "options",
    "pciID",
    "prevResult",
    "routes",
    "runtimeConfig",
    "sandbox",
    "search",
    "socketPath",
    "supportedVersions",
    "type",
    "version",
    "args",
    "cni",
    "ignoreunknown",
];
/// Of a route, wherever one is written.
const ROUTES: [&str; 7] = ["advmss", "dst", "gw", "mtu", "priority", "scope", "table"];
/// The Go bridge speaks to nft in these.
const NFT: [&str; 34] = [
    "add",
    "addr",
    "bytes",
    "chain",
    "comment",
    "counter",
    "delete",
    "dnat",
    "expr",
    "family",
    "field",
    "flags",
    "flush",
    "goto",
    "handle",
    "hook",
    "index",
    "json_schema_version",
    "jump",
    "left",
    "masquerade",
    "match",
    "metainfo",
    "nftables",
    "op",
    "packets",
    "payload",
    "policy",
    "port",
    "prio",
    "protocol",
    "redirect",
    "release_name",
    "right",
];
const NFT_TOO: [&str; 3] = ["rule", "snat", "target"];

/// Where the option stands, and a value that makes no sense there.
type Wrong = (&'static str, Value);

fn of_bridge() -> Vec<Wrong> {
    vec![
        ("bridge", json!(5)),
        ("isGateway", json!("x")),
        ("isDefaultGateway", json!("x")),
        ("forceAddress", json!("x")),
        ("ipMasq", json!("x")),
        ("ipMasqBackend", json!("x")),
        ("mtu", json!("x")),
        ("hairpinMode", json!("x")),
        ("promiscMode", json!("x")),
        ("vlan", json!("x")),
        ("vlanTrunk", json!("x")),
        ("vlanTrunk/0/minID", json!("x")),
        ("vlanTrunk/0/maxID", json!("x")),
        ("vlanTrunk/0/id", json!("x")),
        ("preserveDefaultVlan", json!("x")),
        ("macspoofchk", json!("x")),
        ("enabledad", json!("x")),
        ("disableContainerInterface", json!("x")),
        ("portIsolation", json!("x")),
        ("args/cni/mac", json!("x")),
        ("runtimeConfig/mac", json!("x")),
        ("dns", json!("x")),
        ("dns/nameservers", json!("x")),
        ("ipam", json!("x")),
        ("ipam/type", json!(5)),
    ]
}

fn of_host_local() -> Vec<Wrong> {
    vec![
        ("ipam/dataDir", json!(5)),
        ("ipam/resolvConf", json!(5)),
        ("ipam/ranges", json!("x")),
        ("ipam/ranges/0/0/subnet", json!("x")),
        ("ipam/ranges/0/0/rangeStart", json!("x")),
        ("ipam/ranges/0/0/rangeEnd", json!("x")),
        ("ipam/ranges/0/0/gateway", json!("x")),
        ("ipam/subnet", json!("x")),
        ("ipam/rangeStart", json!("x")),
        ("ipam/rangeEnd", json!("x")),
        ("ipam/gateway", json!("x")),
        ("ipam/routes", json!("x")),
        ("ipam/routes/0/dst", json!("x")),
        ("ipam/routes/0/gw", json!("x")),
        ("ipam/routes/0/mtu", json!("x")),
        ("ipam/routes/0/advmss", json!("x")),
        ("ipam/routes/0/priority", json!("x")),
        ("ipam/routes/0/table", json!("x")),
        ("ipam/routes/0/scope", json!("x")),
        ("runtimeConfig/ipRanges", json!("x")),
        ("runtimeConfig/ipRanges/0/0/subnet", json!("x")),
        ("runtimeConfig/ips", json!("x")),
        ("args/cni/ips", json!("x")),
    ]
}

fn of_portmap() -> Vec<Wrong> {
    vec![
        ("backend", json!("x")),
        ("snat", json!("x")),
        ("conditionsV4", json!("x")),
        ("conditionsV6", json!("x")),
        ("masqAll", json!("x")),
        ("markMasqBit", json!("x")),
        ("externalSetMarkChain", json!(5)),
        ("runtimeConfig/portMappings", json!("x")),
        ("runtimeConfig/portMappings/0/hostPort", json!("x")),
        ("runtimeConfig/portMappings/0/containerPort", json!("x")),
        ("runtimeConfig/portMappings/0/protocol", json!("x")),
        ("runtimeConfig/portMappings/0/hostIP", json!("x")),
    ]
}

fn of_flannel() -> Vec<Wrong> {
    vec![
        ("subnetFile", json!(5)),
        ("dataDir", json!(5)),
        ("delegate", json!("x")),
        ("ipam", json!("x")),
        ("runtimeConfig", json!("x")),
    ]
}

/// What stands in a Go program as `json:"NAME`, without what is common to all.
fn names_in(plugin: &str) -> BTreeSet<String> {
    const MARK: &[u8] = b"json:\"";
    let program = std::fs::read(go_plugins().join(plugin)).unwrap();
    let mut names = BTreeSet::new();
    for at in 0..program.len() - MARK.len() {
        if program[at..].starts_with(MARK) {
            let rest = &program[at + MARK.len()..];
            let end = rest.iter().position(|byte| matches!(byte, b',' | b'"')).unwrap_or(0);
            if let Ok(name) = std::str::from_utf8(&rest[..end])
                && !name.is_empty()
                && name.len() < 40
            {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// The last part of each option's path.
fn known(options: &[Wrong]) -> BTreeSet<String> {
    options.iter().map(|(path, _)| path.rsplit('/').next().unwrap().to_owned()).collect()
}

#[test]
fn the_table_has_every_name_that_is_written_in_the_go_programs() {
    for (plugin, options) in [
        ("bridge", of_bridge()),
        ("host-local", of_host_local()),
        ("portmap", of_portmap()),
        ("flannel", of_flannel()),
        ("loopback", Vec::new()),
    ] {
        let mut missing = names_in(plugin);
        assert!(missing.contains("cniVersion"), "{plugin} cannot be read: {missing:?}");
        let known = known(&options);
        missing.retain(|name| {
            let name = name.as_str();
            let is_nft = plugin == "bridge" && (NFT.contains(&name) || NFT_TOO.contains(&name));
            !known.contains(name) && !COMMON.contains(&name) && !ROUTES.contains(&name) && !is_nft
        });
        assert!(missing.is_empty(), "options of {plugin} that nobody thought of: {missing:?}");
    }
}

#[test]
fn a_value_that_makes_no_sense_is_refused_by_the_option_s_name() {
    let node = Node::new(V4);
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true,
        "ipam": {
            "type": "host-local", "dataDir": node.path("networks"),
            "ranges": [[{"subnet": "10.244.57.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}],
        },
        "runtimeConfig": {}, "args": {"cni": {}}, "dns": {}, "vlanTrunk": [{}],
    });
    let mut host_local = bridge.clone();
    host_local["runtimeConfig"] = json!({"ipRanges": [[{}]]});
    let mapping = json!([{"hostPort": 8080, "containerPort": 80}]);
    let mut portmap = node.portmap_conf(&Pod::with_ports("pod-1", mapping));
    portmap["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.244.57.9/24"}]});
    let mut silent = Vec::new();
    for (plugin, base, options) in [
        ("bridge", &bridge, of_bridge()),
        ("bridge", &host_local, of_host_local()),
        ("host-local", &host_local, of_host_local()),
        ("portmap", &portmap, of_portmap()),
        ("flannel", &node.flannel_conf(), of_flannel()),
    ] {
        for (path, value) in options {
            let mut conf = base.clone();
            put(&mut conf, path, value);
            let answer = node.call(Whose::Ours, plugin, "ADD", &Pod::new("pod-1"), &conf);
            let name = path.rsplit('/').next().unwrap().to_lowercase();
            // An address is refused as what it is, and a range for what is in it.
            let named = answer.stdout.to_lowercase().contains(&name)
                || answer.stdout.contains("\\\"x\\\"")
                || answer.stdout.contains("invalid CIDR")
                || answer.stdout.contains("range");
            if answer.code == 0 || !named {
                silent.push(format!("{plugin} {path}: {}", answer.stdout));
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
    node.assert_clean();
}

/// A number in the path is an index of a list.
fn put(conf: &mut Value, path: &str, value: Value) {
    let mut at = conf;
    for key in path.split('/') {
        at = match key.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[key],
        };
    }
    *at = value;
}
