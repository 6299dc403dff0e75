//! The one table of flags. Parsing, the usage text, the `FLANNELD_` variables and
//! `docs/flags.md` are all read off it, so a flag is added here and nowhere else.

use crate::verbosity::{Modules, SourceLine};

/// What was typed, flag by flag, before anybody asks what it means.
#[derive(Clone, Default)]
pub(super) struct Typed {
    pub(super) etcd_endpoints: String,
    pub(super) etcd_prefix: String,
    pub(super) etcd_keyfile: String,
    pub(super) etcd_certfile: String,
    pub(super) etcd_cafile: String,
    pub(super) etcd_username: String,
    pub(super) etcd_password: String,
    pub(super) remote: String,
    pub(super) remote_keyfile: String,
    pub(super) remote_certfile: String,
    pub(super) remote_cafile: String,
    pub(super) remote_token: String,
    pub(super) remote_token_file: String,
    pub(super) remote_insecure: bool,
    pub(super) networks: String,
    pub(super) allow_commands: bool,
    pub(super) listen: String,
    pub(super) listen_insecure: bool,
    pub(super) listen_token_file: String,
    pub(super) listen_service_account: String,
    pub(super) store: String,
    pub(super) data_dir: String,
    pub(super) iface: Vec<String>,
    pub(super) iface_regex: Vec<String>,
    pub(super) iface_can_reach: String,
    pub(super) subnet_file: String,
    pub(super) subnet_dir: String,
    pub(super) public_ip: String,
    pub(super) public_ipv6: String,
    pub(super) subnet_lease_renew_margin: i64,
    pub(super) ip_masq: bool,
    pub(super) ip_masq_fully_random_disable: bool,
    pub(super) kube_subnet_mgr: bool,
    pub(super) kube_api_url: String,
    pub(super) kube_annotation_prefix: String,
    pub(super) kubeconfig_file: String,
    pub(super) version: bool,
    pub(super) cni_bin_dir: String,
    pub(super) cni_conf_source: String,
    pub(super) cni_conf_file: String,
    pub(super) healthz_ip: String,
    pub(super) healthz_port: i64,
    pub(super) peer_probe_port: i64,
    pub(super) iptables_resync: i64,
    pub(super) iptables_forward_rules: bool,
    pub(super) ip_blackhole_route: bool,
    pub(super) net_config_path: String,
    pub(super) set_node_network_unavailable: bool,
    pub(super) v: i32,
    pub(super) vmodule: Modules,
    pub(super) log_backtrace_at: Option<SourceLine>,
}

pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

/// The kind of a flag: its default and where its value is kept.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text(&'static str, fn(&mut Typed) -> &mut String),
    /// Every occurrence adds one element.
    List(fn(&mut Typed) -> &mut Vec<String>),
    Integer(i64, fn(&mut Typed) -> &mut i64),
    /// A time, which the Go flannel takes as a number of a fixed unit. It may be written with a unit, too.
    Span(TimeUnit, i64, fn(&mut Typed) -> &mut i64),
    Bool(bool, fn(&mut Typed) -> &mut bool),
    /// A log level; unlike other integers it is decimal only, as klog has it.
    Level(fn(&mut Typed) -> &mut i32),
    Modules(fn(&mut Typed) -> &mut Modules),
    SourceLine(fn(&mut Typed) -> &mut Option<SourceLine>),
}

/// What a bare number of a [`Kind::Span`] counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeUnit {
    Seconds,
    Minutes,
}

use Kind::{Bool, Integer, Level, List, Span, Text};

const fn flag(name: &'static str, kind: Kind, help: &'static str) -> Flag {
    Flag { name, kind, help }
}

/// In the order of `docs/flags.md`: by subject.
pub(super) static FLAGS: &[Flag] = &[
    // Where leases are kept: etcd.
    flag(
        "etcd-endpoints",
        Text("http://127.0.0.1:2379", |t| &mut t.etcd_endpoints),
        "comma-separated list of etcd endpoints",
    ),
    flag(
        "etcd-prefix",
        Text("/coreos.com/network", |t| &mut t.etcd_prefix),
        "prefix of every key in etcd",
    ),
    flag(
        "etcd-keyfile",
        Text("", |t| &mut t.etcd_keyfile),
        "private key (PEM) of the etcd client certificate",
    ),
    flag("etcd-certfile", Text("", |t| &mut t.etcd_certfile), "client certificate (PEM) for etcd"),
    flag(
        "etcd-cafile",
        Text("", |t| &mut t.etcd_cafile),
        "certificate authorities (PEM) that etcd's certificate is checked against",
    ),
    flag(
        "etcd-username",
        Text("", |t| &mut t.etcd_username),
        "etcd user; used only together with a password",
    ),
    flag(
        "etcd-password",
        Text("", |t| &mut t.etcd_password),
        "etcd password; prefer the environment variable, since others can read the command line",
    ),
    // Where leases are kept: Kubernetes.
    flag(
        "kube-subnet-mgr",
        Bool(false, |t| &mut t.kube_subnet_mgr),
        "take subnets from Kubernetes Node objects instead of etcd",
    ),
    flag(
        "kube-api-url",
        Text("", |t| &mut t.kube_api_url),
        "URL of the Kubernetes API server, when it is not the one of the kubeconfig or the pod",
    ),
    flag(
        "kube-annotation-prefix",
        Text("flannel.alpha.coreos.com", |t| &mut t.kube_annotation_prefix),
        "prefix of the Node annotations; may hold one slash",
    ),
    flag(
        "kubeconfig-file",
        Text("", |t| &mut t.kubeconfig_file),
        "kubeconfig file; without it and without kube-api-url the pod's service account is used",
    ),
    flag(
        "net-config-path",
        Text("/etc/kube-flannel/net-conf.json", |t| &mut t.net_config_path),
        "file with the network configuration, with kube-subnet-mgr or store=kube; with listen, the one to begin with \
         (flannelctl config set changes it later)",
    ),
    flag(
        "set-node-network-unavailable",
        Bool(true, |t| &mut t.set_node_network_unavailable),
        "clear the node condition NetworkUnavailable once the network works",
    ),
    // Where leases are kept: a lease server.
    flag(
        "remote",
        Text("", |t| &mut t.remote),
        "comma-separated list of lease servers to use instead of etcd, each host:port (port 10253 if left out); self: the one of this process",
    ),
    flag(
        "remote-keyfile",
        Text("", |t| &mut t.remote_keyfile),
        "private key (PEM) of remote-certfile",
    ),
    flag(
        "remote-certfile",
        Text("", |t| &mut t.remote_certfile),
        "certificate (PEM) shown to the lease server, and by it",
    ),
    flag(
        "remote-cafile",
        Text("", |t| &mut t.remote_cafile),
        "certificate authorities (PEM) that the lease server's certificate is checked against, and by it those of its clients",
    ),
    flag(
        "remote-token",
        Text("", |t| &mut t.remote_token),
        "token that tells the lease server who this node is; prefer the environment variable or remote-token-file",
    ),
    flag(
        "remote-token-file",
        Text("", |t| &mut t.remote_token_file),
        "file with the token, read at every request",
    ),
    flag(
        "remote-insecure",
        Bool(false, |t| &mut t.remote_insecure),
        "allow the token to be sent to lease servers on other machines without TLS",
    ),
    flag(
        "networks",
        Text("", |t| &mut t.networks),
        "comma-separated names of the networks to join; the one without a name if empty",
    ),
    // Serving leases to other nodes.
    flag(
        "listen",
        Text("", |t| &mut t.listen),
        "serve leases on host:port (port 10253 if left out) or fd://; joins a network as well only with remote",
    ),
    flag(
        "listen-insecure",
        Bool(false, |t| &mut t.listen_insecure),
        "allow leases to be served to other machines without TLS",
    ),
    flag(
        "listen-token-file",
        Text("", |t| &mut t.listen_token_file),
        "file with the hashes of the tokens by which the lease server knows its clients",
    ),
    flag(
        "listen-service-account",
        Text("", |t| &mut t.listen_service_account),
        "namespace/name of the ServiceAccount of Kubernetes by whose tokens the lease server knows nodes",
    ),
    flag(
        "store",
        Text("embedded", |t| &mut t.store),
        "where the lease server keeps leases: embedded (in data-dir), etcd or kube (Node objects)",
    ),
    flag(
        "data-dir",
        Text("/var/lib/flannel", |t| &mut t.data_dir),
        "directory of what this node keeps: the lease server's embedded store, and which subnet it has",
    ),
    // How this node is reached.
    flag(
        "iface",
        List(|t| &mut t.iface),
        "interface (name or IP) to reach other nodes through; may be repeated, the first that can be used wins",
    ),
    flag(
        "iface-regex",
        List(|t| &mut t.iface_regex),
        "regular expression over addresses, then names, of interfaces; may be repeated; tried after iface",
    ),
    flag(
        "iface-can-reach",
        Text("", |t| &mut t.iface_can_reach),
        "use the interface the kernel would send to this IP through; tried last",
    ),
    flag(
        "public-ip",
        Text("", |t| &mut t.public_ip),
        "IPv4 address other nodes reach this one at; the interface's own if empty",
    ),
    flag(
        "public-ipv6",
        Text("", |t| &mut t.public_ipv6),
        "IPv6 address other nodes reach this one at; the interface's own if empty",
    ),
    // What the node does.
    flag(
        "subnet-file",
        Text("/run/flannel/subnet.env", |t| &mut t.subnet_file),
        "file that tells the container runtime subnet and MTU; read at the next start to keep the subnet",
    ),
    flag(
        "subnet-dir",
        Text("/run/flannel/networks", |t| &mut t.subnet_dir),
        "directory for the subnet files of the networks in networks, each NAME.env",
    ),
    flag(
        "subnet-lease-renew-margin",
        Span(TimeUnit::Minutes, 60, |t| &mut t.subnet_lease_renew_margin),
        "minutes before its end at which a lease is renewed, 1 to 1439",
    ),
    flag(
        "ip-masq",
        Bool(false, |t| &mut t.ip_masq),
        "masquerade traffic that leaves the flannel network",
    ),
    flag(
        "ip-masq-fully-random-disable",
        Bool(false, |t| &mut t.ip_masq_fully_random_disable),
        "do not ask for fully random source ports when masquerading",
    ),
    flag(
        "iptables-forward-rules",
        Bool(true, |t| &mut t.iptables_forward_rules),
        "accept forwarding from and to the flannel network",
    ),
    flag(
        "iptables-resync",
        Span(TimeUnit::Seconds, 5, |t| &mut t.iptables_resync),
        "seconds between checks of the firewall rules and of the blackhole route, 1 or more",
    ),
    flag(
        "ip-blackhole-route",
        Bool(false, |t| &mut t.ip_blackhole_route),
        "keep a blackhole route for the local subnet, so that unused pod addresses do not leave the node",
    ),
    flag(
        "allow-commands",
        Bool(false, |t| &mut t.allow_commands),
        "run what commands the network config has, also from a lease server or changed while this runs, and let it send cloud credentials to any endpoint",
    ),
    // What container runtimes see.
    flag(
        "cni-bin-dir",
        Text("", |t| &mut t.cni_bin_dir),
        "directory of the node's CNI plugins: if those of cni-conf-source are this flannel's, runtimes are told that they know CNI 1.1.0 too; not looked at if empty",
    ),
    flag(
        "cni-conf-file",
        Text("", |t| &mut t.cni_conf_file),
        "file in the container runtime's directory to show cni-conf-source as, from when the network works; none if empty",
    ),
    flag(
        "cni-conf-source",
        Text("/etc/kube-flannel/cni-conf.json", |t| &mut t.cni_conf_source),
        "file with the CNI configuration, with cni-conf-file",
    ),
    // Watching the daemon.
    flag(
        "healthz-ip",
        Text("0.0.0.0", |t| &mut t.healthz_ip),
        "address the probe server listens on",
    ),
    flag(
        "healthz-port",
        Integer(0, |t| &mut t.healthz_port),
        "port of the probe server; 0 turns it off",
    ),
    flag(
        "peer-probe-port",
        Integer(flannel_probe::PORT as i64, |t| &mut t.peer_probe_port),
        "UDP port on which nodes probe each other, through the overlay and beside it; 0 turns it off",
    ),
    flag(
        "v",
        Level(|t| &mut t.v),
        "log verbosity: 2 and more shows details, 4 and more shows everything",
    ),
    flag(
        "vmodule",
        Kind::Modules(|t| &mut t.vmodule),
        "verbosity of single source files: comma-separated pattern=N",
    ),
    flag(
        "log_backtrace_at",
        Kind::SourceLine(|t| &mut t.log_backtrace_at),
        "log a stack trace when the log line at file:N is reached",
    ),
    flag("version", Bool(false, |t| &mut t.version), "print the version and exit"),
];

/// The variable that is read when the flag is not given: `etcd-prefix` → `FLANNELD_ETCD_PREFIX`.
pub(super) fn variable(flag: &str) -> String {
    format!("FLANNELD_{}", flag.to_uppercase().replace(['-', '.'], "_"))
}

impl Flag {
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    pub(super) fn variable(&self) -> String {
        variable(self.name)
    }

    pub(super) fn is_bool(&self) -> bool {
        matches!(self.kind, Bool(..))
    }

    /// The kind as the usage text names it; nothing for a boolean.
    pub(super) fn value_name(&self) -> &'static str {
        match self.kind {
            Text(..) => "string",
            Integer(..) | Span(..) => "int",
            Bool(..) => "",
            List(_) | Level(_) | Kind::Modules(_) | Kind::SourceLine(_) => "value",
        }
    }

    /// The default as text; empty when there is nothing worth showing.
    pub(super) fn default_text(&self) -> String {
        match self.kind {
            Text(default, _) => default.to_owned(),
            Integer(default, _) | Span(_, default, _) if default != 0 => default.to_string(),
            Bool(true, _) => "true".to_owned(),
            _ => String::new(),
        }
    }
}

impl Typed {
    pub(super) fn defaults() -> Self {
        let mut typed = Self::default();
        for flag in FLAGS {
            match flag.kind {
                Text(default, at) => default.clone_into(at(&mut typed)),
                Integer(default, at) | Span(_, default, at) => *at(&mut typed) = default,
                Bool(default, at) => *at(&mut typed) = default,
                List(_) | Level(_) | Kind::Modules(_) | Kind::SourceLine(_) => {}
            }
        }
        typed
    }
}
