//! The one table of flags: parsing, usage text, `FLANNELD_` variables and `docs/flags.md` are read off it.

use crate::verbosity;

pub(super) struct Flag {
    pub(super) subject: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text(&'static str, fn(&mut Typed) -> &mut value::Text),
    List(fn(&mut Typed) -> &mut value::List),
    Integer(i64, fn(&mut Typed) -> &mut value::Integer),
    /// A time, which the Go flannel takes as a number of a fixed unit. It may be written with a unit, too.
    Span(TimeUnit, i64, fn(&mut Typed) -> &mut value::Span),
    Bool(bool, fn(&mut Typed) -> &mut value::Bool),
    /// A log level; unlike other integers it is decimal only, as klog has it.
    Level(fn(&mut Typed) -> &mut value::Level),
    Modules(fn(&mut Typed) -> &mut value::Modules),
    SourceLine(fn(&mut Typed) -> &mut value::SourceLine),
}

mod value {
    pub(in crate::options) type Text = String;
    pub(in crate::options) type List = Vec<String>;
    pub(in crate::options) type Integer = i64;
    pub(in crate::options) type Span = i64;
    pub(in crate::options) type Bool = bool;
    pub(in crate::options) type Level = i32;
    pub(in crate::options) type Modules = super::verbosity::Modules;
    pub(in crate::options) type SourceLine = Option<super::verbosity::SourceLine>;
}

/// What a bare number of a [`Kind::Span`] counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeUnit {
    Seconds,
    Minutes,
}

use Kind::{Bool, Integer, Span, Text};
use TimeUnit::{Minutes, Seconds};

macro_rules! flags {
    ($($subject:literal {
        $($field:ident $name:literal = $kind:ident($($default:expr),*) $help:literal;)*
    })*) => {
        #[derive(Clone, Default)]
        pub(super) struct Typed {
            $($(pub(super) $field: value::$kind,)*)*
        }

        /// In the order of `docs/flags.md`: by subject.
        pub(super) static FLAGS: &[Flag] = &[$($(Flag {
            subject: $subject,
            name: $name,
            kind: Kind::$kind($($default,)* |typed| &mut typed.$field),
            help: $help,
        },)*)*];
    };
}

// Field of `Typed`, name, kind and default, meaning.
flags! {
    "Leases in etcd (the default)" {
        etcd_endpoints "etcd-endpoints" = Text("http://127.0.0.1:2379")
            "comma-separated list of etcd endpoints";
        etcd_prefix "etcd-prefix" = Text("/coreos.com/network")
            "prefix of every key in etcd";
        etcd_keyfile "etcd-keyfile" = Text("")
            "private key (PEM) of the etcd client certificate";
        etcd_certfile "etcd-certfile" = Text("")
            "client certificate (PEM) for etcd";
        etcd_cafile "etcd-cafile" = Text("")
            "certificate authorities (PEM) that etcd's certificate is checked against";
        etcd_username "etcd-username" = Text("")
            "etcd user; used only together with a password";
        etcd_password "etcd-password" = Text("")
            "etcd password; prefer the environment variable, since others can read the command line";
    }
    "Leases in Kubernetes" {
        kube_subnet_mgr "kube-subnet-mgr" = Bool(false)
            "take subnets from Kubernetes Node objects instead of etcd";
        kube_api_url "kube-api-url" = Text("")
            "URL of the Kubernetes API server, when it is not the one of the kubeconfig or the pod";
        kube_annotation_prefix "kube-annotation-prefix" = Text("flannel.alpha.coreos.com")
            "prefix of the Node annotations; may hold one slash";
        kubeconfig_file "kubeconfig-file" = Text("")
            "kubeconfig file; without it and without kube-api-url the pod's service account is used";
        net_config_path "net-config-path" = Text("/etc/kube-flannel/net-conf.json")
            "file with the network configuration, with kube-subnet-mgr or store=kube; with listen, the one to begin with (flannelctl config set changes it later)";
        set_node_network_unavailable "set-node-network-unavailable" = Bool(true)
            "clear the node condition NetworkUnavailable once the network works";
    }
    "Leases at a lease server" {
        remote "remote" = Text("")
            "comma-separated list of lease servers to use instead of etcd, each host:port (port 10253 if left out); self: the one of this process";
        remote_keyfile "remote-keyfile" = Text("")
            "private key (PEM) of remote-certfile";
        remote_certfile "remote-certfile" = Text("")
            "certificate (PEM) shown to the lease server, and by it";
        remote_cafile "remote-cafile" = Text("")
            "certificate authorities (PEM) that the lease server's certificate is checked against, and by it those of its clients";
        remote_token "remote-token" = Text("")
            "token that tells the lease server who this node is; prefer the environment variable or remote-token-file";
        remote_token_file "remote-token-file" = Text("")
            "file with the token, read at every request";
        remote_insecure "remote-insecure" = Bool(false)
            "allow the token to be sent to lease servers on other machines without TLS";
        networks "networks" = Text("")
            "comma-separated names of the networks to join; the one without a name if empty";
    }
    "Serving leases to other nodes" {
        listen "listen" = Text("")
            "serve leases on host:port (port 10253 if left out) or fd://; joins a network as well only with remote";
        listen_insecure "listen-insecure" = Bool(false)
            "allow leases to be served to other machines without TLS";
        listen_token_file "listen-token-file" = Text("")
            "file with the hashes of the tokens by which the lease server knows its clients";
        listen_service_account "listen-service-account" = Text("")
            "namespace/name of the ServiceAccount of Kubernetes by whose tokens the lease server knows nodes";
        store "store" = Text("embedded")
            "where the lease server keeps leases: embedded (in data-dir), etcd or kube (Node objects)";
        data_dir "data-dir" = Text("/var/lib/flannel")
            "directory of what this node keeps: the lease server's embedded store, and which subnet it has";
    }
    "How this node is reached" {
        iface "iface" = List()
            "interface (name or IP) to reach other nodes through; may be repeated, the first that can be used wins";
        iface_regex "iface-regex" = List()
            "regular expression over addresses, then names, of interfaces; may be repeated; tried after iface";
        iface_can_reach "iface-can-reach" = Text("")
            "use the interface the kernel would send to this IP through; tried last";
        public_ip "public-ip" = Text("")
            "IPv4 address other nodes reach this one at; the interface's own if empty";
        public_ipv6 "public-ipv6" = Text("")
            "IPv6 address other nodes reach this one at; the interface's own if empty";
    }
    "What the node does" {
        subnet_file "subnet-file" = Text("/run/flannel/subnet.env")
            "file that tells the container runtime subnet and MTU; read at the next start to keep the subnet";
        subnet_dir "subnet-dir" = Text("/run/flannel/networks")
            "directory for the subnet files of the networks in networks, each NAME.env";
        subnet_lease_renew_margin "subnet-lease-renew-margin" = Span(Minutes, 60)
            "minutes before its end at which a lease is renewed, 1 to 1439";
        ip_masq "ip-masq" = Bool(false)
            "masquerade traffic that leaves the flannel network";
        ip_masq_fully_random_disable "ip-masq-fully-random-disable" = Bool(false)
            "do not ask for fully random source ports when masquerading";
        iptables_forward_rules "iptables-forward-rules" = Bool(true)
            "accept forwarding from and to the flannel network";
        iptables_resync "iptables-resync" = Span(Seconds, 5)
            "seconds between checks of the firewall rules and of the blackhole route, 1 or more";
        ip_blackhole_route "ip-blackhole-route" = Bool(false)
            "keep a blackhole route for the local subnet, so that unused pod addresses do not leave the node";
        allow_commands "allow-commands" = Bool(false)
            "run what commands the network config has, also from a lease server or changed while this runs, and let it send cloud credentials to any endpoint";
    }
    "What container runtimes see" {
        cni_bin_dir "cni-bin-dir" = Text("")
            "directory of the node's CNI plugins: if those of cni-conf-source are this flannel's, runtimes are told that they know CNI 1.1.0 too; not looked at if empty";
        cni_conf_file "cni-conf-file" = Text("")
            "file in the container runtime's directory to show cni-conf-source as, from when the network works; none if empty";
        cni_conf_source "cni-conf-source" = Text("/etc/kube-flannel/cni-conf.json")
            "file with the CNI configuration, with cni-conf-file";
    }
    "Watching the daemon" {
        healthz_ip "healthz-ip" = Text("0.0.0.0")
            "address the probe server listens on";
        healthz_port "healthz-port" = Integer(0)
            "port of the probe server; 0 turns it off";
        peer_probe_port "peer-probe-port" = Integer(flannel_probe::PORT as i64)
            "UDP port on which nodes probe each other, through the overlay and beside it; 0 turns it off";
        v "v" = Level()
            "log verbosity: 2 and more shows details, 4 and more shows everything";
        vmodule "vmodule" = Modules()
            "verbosity of single source files: comma-separated pattern=N";
        log_backtrace_at "log_backtrace_at" = SourceLine()
            "log a stack trace when the log line at file:N is reached";
        version "version" = Bool(false)
            "print the version and exit";
    }
}

/// The variable that is read when the flag is not given: `etcd-prefix` → `FLANNELD_ETCD_PREFIX`.
pub(super) fn variable(flag: &str) -> String {
    format!("FLANNELD_{}", flag.to_uppercase().replace(['-', '.'], "_"))
}

impl Flag {
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
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
            _ => "value",
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
                _ => {}
            }
        }
        typed
    }
}
