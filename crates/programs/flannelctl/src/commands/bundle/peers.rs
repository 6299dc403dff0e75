//! State of other nodes' daemons: read on their probe port, or in Kubernetes through the API server.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flannel_kube::ProbePorts;
use flannel_lease::LeaseAttrs;
use flannel_state::PeerState;

use super::BundleArgs;
use super::sources::{take, written};
use crate::commands::daemon::client::{self, Daemon};
use crate::commands::daemon_process::DaemonProcess;
use crate::commands::store_args::block_on;

const PEER_TIMEOUT: Duration = Duration::from_secs(4);
const ALL_PEERS_TIMEOUT: Duration = Duration::from_secs(60);

struct Peer {
    name: Option<String>,
    address: Option<IpAddr>,
}

enum Way {
    /// By its address, on a port that is the same everywhere.
    Direct(u16),
    ThroughApiServer(Box<ProbePorts>),
}

/// Names and texts, of as many as are asked for, all asked before the time is over.
pub(super) fn files(args: &BundleArgs) -> Vec<(String, String)> {
    if args.peers == 0 {
        return Vec::new();
    }
    let asked = block_on(async {
        let way = Way::of(args)?;
        let deadline = Instant::now() + ALL_PEERS_TIMEOUT;
        let mut files = Vec::new();
        for peer in known(args).await?.into_iter().take(args.peers) {
            if Instant::now() >= deadline {
                break;
            }
            let address = peer.address.map(|address| address.to_string());
            let place = peer.name.clone().or(address).unwrap_or_default();
            for (name, path) in [("state.json", "/v1/state"), ("events.jsonl", "/v1/events")] {
                let mut text = Vec::new();
                let asked = way.ask(&peer, path, &mut text);
                let answer = tokio::time::timeout(PEER_TIMEOUT, asked).await;
                let answer =
                    answer.unwrap_or_else(|_| anyhow::bail!("no answer in {PEER_TIMEOUT:?}"));
                files.push((format!("peers/{place}/{name}"), written(text, answer)));
            }
        }
        Ok(files)
    });
    asked.unwrap_or_else(|error| vec![("peers.txt".to_owned(), format!("{error:#}\n"))])
}

/// Those that the daemon knows; where none answers, those of the store.
async fn known(args: &BundleArgs) -> anyhow::Result<Vec<Peer>> {
    let mut peers = Vec::new();
    let asked = Daemon::Here(&args.source.socket).lines("/v1/peers", |peer: PeerState| {
        if peers.len() < args.peers {
            let PeerState { name, public_ip, public_ipv6, .. } = peer;
            let address = public_ip.map(IpAddr::from).or(public_ipv6.map(IpAddr::from));
            peers.push(Peer { name, address });
        }
        Ok(())
    });
    match asked.await {
        Err(_) if args.source.store.is_named() => {
            let snapshot = args.source.store.open()?.snapshot().await?;
            let peer = |attrs: LeaseAttrs| Peer {
                name: attrs.owner_name().map(str::to_owned),
                address: attrs.public_ip.map(IpAddr::from).or(attrs.public_ipv6.map(IpAddr::from)),
            };
            Ok(snapshot.leases.into_iter().map(|stored| peer(stored.lease.attrs)).collect())
        }
        asked => asked.map(|()| peers),
    }
}

impl Way {
    fn of(args: &BundleArgs) -> anyhow::Result<Self> {
        if let Some(ports) = args.source.store.stores()?.probe_ports()? {
            return Ok(Self::ThroughApiServer(Box::new(ports)));
        }
        let process =
            DaemonProcess::find()?.context("no flanneld runs here that says which port")?;
        let probe = process.options()?.probe;
        let probe =
            probe.context("flanneld has no probe port here: --healthz-port gives it one")?;
        let is_loopback = probe.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        anyhow::ensure!(
            !is_loopback,
            "the probe port is open to its own node alone (--healthz-ip={}): in Kubernetes name the cluster \
             (--kubeconfig FILE, of somebody who has the rights of dist/kubernetes/operator.yml), and nodes are asked \
             through the API server",
            probe.host
        );
        Ok(Self::Direct(probe.port))
    }

    async fn ask(&self, peer: &Peer, path: &str, text: &mut Vec<u8>) -> anyhow::Result<()> {
        let each = |piece: &[u8]| take(text, piece);
        match self {
            Self::Direct(port) => {
                let address = peer.address.context("its lease has no address")?;
                Daemon::There(SocketAddr::new(address, *port)).text(path, each).await
            }
            Self::ThroughApiServer(ports) => {
                let name = peer.name.as_deref();
                let name = name.context("its lease does not say which Node it is")?;
                let stream = ports.connect(name).await.map_err(anyhow::Error::msg)?;
                client::text_through(stream, path, each).await
            }
        }
    }
}
