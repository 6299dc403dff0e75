//! What was typed → what is meant. A value that the daemon cannot use is refused once, with its flag and the fix.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use flannel_backend::ConfigOrigin;
use flannel_kube::KubeOptions;
use flannel_lease::{NetworkName, NetworkNameError, UnusableAddress, check_public_address};
use flannel_state::SOCKET_NAME;
use flannel_store::remote::{Listen, ListenError, TlsFiles};
use flannel_store::{ClusterPin, EtcdOptions, RemoteOptions, Secret};

use super::{Given, UsageError};
use crate::iface::Selection;
use crate::verbosity::Verbosity;

const OWN: &str = "self";

/// Leases live for 24 hours; a margin must leave some of that.
const RENEW_MARGIN_MINUTES: std::ops::RangeInclusive<i64> = 1..=1439;

/// A pause beyond this is the same as never; it keeps sums of times in range.
const LONGEST_PAUSE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

#[derive(Debug, Clone)]
pub struct Options {
    /// The networks that this node joins; none when it only serves leases.
    pub networks: Vec<Joined>,
    pub socket: PathBuf,
    pub serve: Option<Serve>,
    /// Configs may have commands run, and credentials sent, wherever they come from.
    pub allow_commands: bool,
    pub underlay: Selection,
    pub renew_margin: Duration,
    pub traffic: Traffic,
    pub blackhole_route: bool,
    pub cni_conf: Option<CniConf>,
    /// Where the probe server listens; `None` turns it off.
    pub probe: Option<ProbeAddress>,
    /// Where this node answers the probes of its peers; `None`: it neither answers nor asks.
    pub peer_probe_port: Option<NonZeroU16>,
    pub verbosity: Verbosity,
    pub data_dir: PathBuf,
}

#[derive(Debug, Clone)]
pub struct Joined {
    pub name: NetworkName,
    pub store: StoreOptions,
    pub subnet_file: PathBuf,
}

#[derive(Debug, Clone)]
pub enum StoreOptions {
    Etcd(EtcdOptions),
    Kube(KubeOptions),
    Remote(RemoteOptions),
    Own,
}

impl StoreOptions {
    pub fn config_origin(&self) -> ConfigOrigin {
        match self {
            Self::Etcd(_) | Self::Kube(_) => ConfigOrigin::Cluster,
            Self::Remote(_) | Self::Own => ConfigOrigin::LeaseServer,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Serve {
    pub listen: Listen,
    pub tls: Option<TlsFiles>,
    pub tokens: Option<PathBuf>,
    pub insecure: bool,
    pub backing: Backing,
    /// The ServiceAccount, `NAMESPACE/NAME`, whose tokens nodes are known by, and how Kubernetes is asked about them.
    pub service_account: Option<(String, KubeOptions)>,
    /// The config to begin with, where there is none yet, and of which network.
    pub config: Option<(NetworkName, PathBuf)>,
}

#[derive(Debug, Clone)]
pub enum Backing {
    Embedded(PathBuf),
    Etcd(EtcdOptions),
    Kube(KubeOptions),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    pub ip_masq: bool,
    pub random_fully: bool,
    pub forward_rules: bool,
    pub resync: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniConf {
    pub source: PathBuf,
    pub file: PathBuf,
    /// Where the runtime finds plugins, if that can be seen from here.
    pub plugins: Option<PathBuf>,
    /// Directory that a reboot empties.
    pub volatile: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeAddress {
    /// An address or a name; empty means every address.
    pub host: String,
    pub port: u16,
}

impl Options {
    pub(super) fn new(given: &Given) -> Result<Self, UsageError> {
        let typed = &given.typed;
        let (networks, serve) = (given.networks()?, given.serve()?);
        let fix = "use an IP address, such as 192.0.2.1";
        let can_reach = given.address("iface-can-reach", &typed.iface_can_reach, fix)?;
        let fix = "use an IPv4 address, such as 192.0.2.1";
        let public_ip = given.public_address("public-ip", &typed.public_ip, fix)?;
        let fix = "use an IPv6 address, such as 2001:db8::1";
        let public_ipv6 = given.public_address("public-ipv6", &typed.public_ipv6, fix)?;
        Ok(Self {
            networks,
            socket: given.file("subnet-file", &typed.subnet_file)?.with_file_name(SOCKET_NAME),
            serve,
            allow_commands: typed.allow_commands,
            underlay: Selection {
                iface: typed.iface.clone(),
                regex: typed.iface_regex.clone(),
                can_reach,
                public_ip,
                public_ipv6,
            },
            renew_margin: given.renew_margin()?,
            traffic: Traffic {
                ip_masq: typed.ip_masq,
                random_fully: !typed.ip_masq_fully_random_disable,
                forward_rules: typed.iptables_forward_rules,
                resync: given.resync()?,
            },
            blackhole_route: typed.ip_blackhole_route,
            cni_conf: given.cni_conf()?,
            probe: given.probe()?,
            peer_probe_port: given.port("peer-probe-port", typed.peer_probe_port)?,
            verbosity: Verbosity {
                level: typed.v,
                modules: typed.vmodule.clone(),
                backtrace_at: typed.log_backtrace_at.clone(),
            },
            data_dir: PathBuf::from(&typed.data_dir),
        })
    }
}

impl Given {
    fn networks(&self) -> Result<Vec<Joined>, UsageError> {
        let mut networks = Vec::new();
        for name in self.names()? {
            let Some(store) = self.store(&name)? else { break };
            let subnet_file = self.subnet_file(&name)?;
            networks.push(Joined { name, store, subnet_file });
        }
        Ok(networks)
    }

    fn names(&self) -> Result<Vec<NetworkName>, UsageError> {
        let typed = &self.typed.networks;
        let mut names = Vec::new();
        for part in list(typed) {
            let name: NetworkName = part.parse().map_err(|error: NetworkNameError| {
                self.refuse("networks", typed, &error.to_string())
            })?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            names.push(NetworkName::default());
        } else {
            let serves_kube = self.typed.store == "kube" && !self.typed.listen.is_empty();
            let fix = "there is one network in Kubernetes, and it has no name: leave it out";
            self.require(!self.typed.kube_subnet_mgr && !serves_kube, "networks", typed, fix)?;
        }
        Ok(names)
    }

    /// Named networks have theirs in a directory; but one alone may have it anywhere.
    fn subnet_file(&self, name: &NetworkName) -> Result<PathBuf, UsageError> {
        let typed = &self.typed;
        if typed.networks.is_empty() {
            return self.file("subnet-file", &typed.subnet_file);
        }
        if !self.is_given("subnet-file") {
            return Ok(Path::new(&typed.subnet_dir).join(format!("{name}.env")));
        }
        let fix = "each of several networks has a file of its own: use subnet-dir";
        self.require(self.names()?.len() == 1, "subnet-file", &typed.subnet_file, fix)?;
        self.file("subnet-file", &typed.subnet_file)
    }

    fn store(&self, network: &NetworkName) -> Result<Option<StoreOptions>, UsageError> {
        let typed = &self.typed;
        if typed.kube_subnet_mgr {
            return Ok(Some(StoreOptions::Kube(self.kube()?)));
        }
        match (typed.remote.as_str(), typed.listen.is_empty()) {
            ("", true) => Ok(Some(StoreOptions::Etcd(self.etcd()?.of_network(network)))),
            ("", false) => Ok(None),
            (OWN, true) => {
                let fix = "only with listen can a process be its own lease server";
                Err(self.refuse("remote", OWN, fix))
            }
            (OWN, false) => Ok(Some(StoreOptions::Own)),
            _ => Ok(Some(StoreOptions::Remote(self.remote(network)?))),
        }
    }

    fn kube(&self) -> Result<KubeOptions, UsageError> {
        let typed = &self.typed;
        Ok(KubeOptions {
            api_url: text(&typed.kube_api_url),
            annotation_prefix: typed.kube_annotation_prefix.clone(),
            kubeconfig: path(&typed.kubeconfig_file),
            net_config: self.file("net-config-path", &typed.net_config_path)?,
            set_node_network_unavailable: typed.set_node_network_unavailable,
        })
    }

    fn etcd(&self) -> Result<EtcdOptions, UsageError> {
        let typed = &self.typed;
        Ok(EtcdOptions {
            endpoints: self.endpoints()?,
            prefix: typed.etcd_prefix.clone(),
            key: path(&typed.etcd_keyfile),
            cert: path(&typed.etcd_certfile),
            ca: path(&typed.etcd_cafile),
            username: text(&typed.etcd_username),
            password: text(&typed.etcd_password).map(Secret::new),
            cluster: ClusterPin::default(),
        })
    }

    fn remote(&self, network: &NetworkName) -> Result<RemoteOptions, UsageError> {
        let typed = &self.typed;
        let addresses: Vec<String> = list(&typed.remote).collect();
        let are_addresses = !addresses.iter().any(|address| address.contains('@'));
        let fix = "name at least one lease server, such as 192.0.2.1:10253";
        self.require(!addresses.is_empty() && are_addresses, "remote", "<redacted>", fix)?;
        Ok(RemoteOptions {
            addresses,
            network: network.clone(),
            ca: path(&typed.remote_cafile),
            cert: path(&typed.remote_certfile),
            key: path(&typed.remote_keyfile),
            token: text(&typed.remote_token).map(Secret::new),
            token_file: path(&typed.remote_token_file),
            node_secret: None,
            insecure: typed.remote_insecure,
        })
    }

    fn serve(&self) -> Result<Option<Serve>, UsageError> {
        let typed = &self.typed;
        if typed.listen.is_empty() {
            return Ok(None);
        }
        let listen = typed.listen.parse().map_err(|error: ListenError| {
            self.refuse("listen", &typed.listen, &error.to_string())
        })?;
        let tls = match (path(&typed.remote_certfile), path(&typed.remote_keyfile)) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key, ca: path(&typed.remote_cafile) }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(self.refuse("remote-keyfile", "", "give the key of remote-certfile"));
            }
            (None, Some(_)) => {
                return Err(self.refuse("remote-certfile", "", "give the certificate of the key"));
            }
        };
        let backing = match typed.store.as_str() {
            "embedded" => Backing::Embedded(PathBuf::from(&typed.data_dir)),
            "etcd" => Backing::Etcd(self.etcd()?),
            "kube"
                if typed.listen_token_file.is_empty()
                    && typed.remote_cafile.is_empty()
                    && typed.listen_service_account.is_empty() =>
            {
                let fix = "nodes are known to Kubernetes by name, so the server must know theirs: give \
                           listen-service-account, listen-token-file (flannelctl pki token NODE), or remote-cafile \
                           for certificates";
                return Err(self.refuse("store", "kube", fix));
            }
            "kube" => Backing::Kube(self.kube()?),
            other => return Err(self.refuse("store", other, "use embedded, etcd or kube")),
        };
        let config = match self.is_given("net-config-path") {
            // There it is the config, now and later.
            true if matches!(backing, Backing::Kube(_)) => None,
            true => Some((self.first_network()?, PathBuf::from(&typed.net_config_path))),
            false => None,
        };
        let service_account = match typed.listen_service_account.as_str() {
            "" => None,
            account if account.split('/').filter(|part| !part.is_empty()).count() == 2 => {
                Some((account.to_owned(), self.kube()?))
            }
            other => {
                let fix = "name a ServiceAccount with its namespace, such as kube-flannel/flannel";
                return Err(self.refuse("listen-service-account", other, fix));
            }
        };
        let (tokens, insecure) = (path(&typed.listen_token_file), typed.listen_insecure);
        Ok(Some(Serve { listen, tls, tokens, insecure, backing, service_account, config }))
    }

    fn first_network(&self) -> Result<NetworkName, UsageError> {
        match self.names()?.as_slice() {
            [name] => Ok(name.clone()),
            _ => {
                let fix = "it is the config of one network; write those of several with \
                           `flannelctl config set --networks NAME FILE`";
                Err(self.refuse("net-config-path", &self.typed.net_config_path, fix))
            }
        }
    }

    fn endpoints(&self) -> Result<Vec<String>, UsageError> {
        let endpoints: Vec<String> = list(&self.typed.etcd_endpoints).collect();
        let fix = "name at least one, such as http://127.0.0.1:2379";
        self.require(!endpoints.is_empty(), "etcd-endpoints", &self.typed.etcd_endpoints, fix)?;
        // Refused before anybody logs it: what stands before the `@` has a password in it.
        let has_password = endpoints.iter().any(|endpoint| endpoint.contains('@'));
        let fix = "give name and password as etcd-username and etcd-password";
        self.require(!has_password, "etcd-endpoints", "<redacted>", fix)?;
        Ok(endpoints)
    }

    fn renew_margin(&self) -> Result<Duration, UsageError> {
        let minutes = self.typed.subnet_lease_renew_margin;
        let is_right = RENEW_MARGIN_MINUTES.contains(&minutes);
        let fix = "a lease lives for 24 hours: use 1 to 1439 minutes";
        self.require(is_right, "subnet-lease-renew-margin", &minutes.to_string(), fix)?;
        Ok(Duration::from_secs(minutes.unsigned_abs() * 60))
    }

    fn resync(&self) -> Result<Duration, UsageError> {
        let seconds = self.typed.iptables_resync;
        let fix = "use 1 second or more; the usual is 5";
        self.require(seconds >= 1, "iptables-resync", &seconds.to_string(), fix)?;
        Ok(Duration::from_secs(seconds.unsigned_abs()).min(LONGEST_PAUSE))
    }

    fn cni_conf(&self) -> Result<Option<CniConf>, UsageError> {
        let typed = &self.typed;
        if typed.cni_conf_file.is_empty() {
            return Ok(None);
        }
        let subnet_file = self.file("subnet-file", &typed.subnet_file)?;
        Ok(Some(CniConf {
            source: self.file("cni-conf-source", &typed.cni_conf_source)?,
            file: self.file("cni-conf-file", &typed.cni_conf_file)?,
            plugins: path(&typed.cni_bin_dir),
            volatile: subnet_file.parent().unwrap_or(Path::new("/run/flannel")).to_owned(),
        }))
    }

    fn probe(&self) -> Result<Option<ProbeAddress>, UsageError> {
        let port = self.port("healthz-port", self.typed.healthz_port)?;
        let host = self.typed.healthz_ip.clone();
        Ok(port.map(|port| ProbeAddress { host, port: port.get() }))
    }

    fn port(&self, flag: &'static str, typed: i64) -> Result<Option<NonZeroU16>, UsageError> {
        let fix = "use a port up to 65535, or 0 for none";
        let port = u16::try_from(typed.max(0));
        port.map(NonZeroU16::new).map_err(|_| self.refuse(flag, &typed.to_string(), fix))
    }

    fn address<A: FromStr>(
        &self,
        flag: &'static str,
        typed: &str,
        fix: &str,
    ) -> Result<Option<A>, UsageError> {
        if typed.is_empty() {
            return Ok(None);
        }
        typed.parse().map(Some).map_err(|_| self.refuse(flag, typed, fix))
    }

    /// An address at which peers can send to this node. One of the link alone may be all that there is.
    fn public_address<A: FromStr + Copy + Into<IpAddr>>(
        &self,
        flag: &'static str,
        typed: &str,
        fix: &str,
    ) -> Result<Option<A>, UsageError> {
        let Some(address) = self.address::<A>(flag, typed, fix)? else { return Ok(None) };
        match check_public_address(address.into(), &[]) {
            Ok(()) | Err(UnusableAddress::LinkLocal) => Ok(Some(address)),
            Err(why) => Err(self.refuse(flag, typed, &format!("it {why}; {fix}"))),
        }
    }

    fn file(&self, flag: &'static str, typed: &str) -> Result<PathBuf, UsageError> {
        let file = PathBuf::from(typed);
        let is_file = !typed.ends_with('/') && file.file_name().is_some();
        let fix = "use the path of a file, such as /run/flannel/subnet.env";
        self.require(is_file, flag, typed, fix)?;
        Ok(file)
    }

    fn require(
        &self,
        is_right: bool,
        flag: &'static str,
        value: &str,
        fix: &str,
    ) -> Result<(), UsageError> {
        is_right.then_some(()).ok_or_else(|| self.refuse(flag, value, fix))
    }

    fn refuse(&self, flag: &'static str, value: &str, fix: &str) -> UsageError {
        UsageError::Refused(self.bad_value(flag, value.to_owned(), fix.to_owned()))
    }
}

fn text(typed: &str) -> Option<String> {
    (!typed.is_empty()).then(|| typed.to_owned())
}

fn list(typed: &str) -> impl Iterator<Item = String> {
    typed.split(',').filter_map(|part| text(part.trim()))
}

fn path(typed: &str) -> Option<PathBuf> {
    text(typed).map(PathBuf::from)
}
