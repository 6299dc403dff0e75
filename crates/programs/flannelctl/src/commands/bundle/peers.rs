//! State of other nodes' daemons: read on their probe port, or in Kubernetes through the API server.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flannel_lease::Subnet;
use flannel_page::{Direct, LeaseRow, NodeConnector};
use flannel_state::PeerState;
use hyper::Method;

use super::BundleArgs;
use super::sources::{take, written};
use crate::commands::daemon::client::{self, Daemon};
use crate::commands::daemon_process::DaemonProcess;
use crate::commands::page::ThroughApiServer;
use crate::commands::store_args::block_on;

const PEER_TIMEOUT: Duration = Duration::from_secs(4);
const ALL_PEERS_TIMEOUT: Duration = Duration::from_secs(60);

/// Names and texts, of as many as are asked for, all asked before the time is over.
pub(super) fn files(args: &BundleArgs) -> Vec<(String, String)> {
    if args.peers == 0 {
        return Vec::new();
    }
    let asked = block_on(async {
        let way = way(args)?;
        let deadline = Instant::now() + ALL_PEERS_TIMEOUT;
        let mut files = Vec::new();
        for peer in known(args).await?.into_iter().take(args.peers) {
            if Instant::now() >= deadline {
                break;
            }
            let address = peer.address().map(|address| address.to_string());
            let place = peer.name.clone().or(address).unwrap_or_default();
            for (name, path) in [("state.json", "/v1/state"), ("events.jsonl", "/v1/events")] {
                let mut text = Vec::new();
                let asked = async {
                    let stream = way.connect(&peer).await.map_err(anyhow::Error::msg)?;
                    client::text_through(stream, path, |piece| take(&mut text, piece)).await
                };
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
async fn known(args: &BundleArgs) -> anyhow::Result<Vec<LeaseRow>> {
    let mut peers = Vec::new();
    let asked = Daemon::Here(&args.source.socket).lines(Method::GET, "/v1/peers", |peer| {
        let has_room = peers.len() < args.peers;
        peers.extend(row(peer).filter(|_| has_room));
        Ok(())
    });
    match asked.await {
        Err(_) if args.source.store.is_named() => {
            let leases = args.source.store.open()?.list().await?;
            Ok(leases.iter().map(LeaseRow::from).collect())
        }
        asked => asked.map(|()| peers),
    }
}

fn row(peer: PeerState) -> Option<LeaseRow> {
    let v4 = peer.subnet.and_then(|net| net.parse().ok());
    let subnet = Subnet::new(v4, peer.ipv6_subnet.and_then(|net| net.parse().ok()))?;
    let PeerState { name, public_ip: v4, public_ipv6: v6, backend, .. } = peer;
    Some(LeaseRow { subnet, name, v4, v6, backend, ends: None })
}

/// By the nodes' addresses, on a port that is the same everywhere, or through the API server.
fn way(args: &BundleArgs) -> anyhow::Result<Box<dyn NodeConnector>> {
    if let Some(ports) = args.source.store.stores()?.probe_ports()? {
        return Ok(Box::new(ThroughApiServer(ports)));
    }
    let process = DaemonProcess::find()?.context("no flanneld runs here that says which port")?;
    let probe = process.options()?.probe;
    let probe = probe.context("flanneld has no probe port here: --healthz-port gives it one")?;
    let is_loopback = probe.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    anyhow::ensure!(
        !is_loopback,
        "the probe port is open to its own node alone (--healthz-ip={}): in Kubernetes name the cluster \
         (--kubeconfig FILE, of somebody who has the rights of dist/kubernetes/operator.yml), and nodes are asked \
         through the API server",
        probe.host
    );
    Ok(Box::new(Direct { port: probe.port }))
}
