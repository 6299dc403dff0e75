//! The lease server in this process, on its own thread: its clients and the node do not keep each other waiting.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use flannel_common::Task;
use flannel_kube::{KubeNodes, KubeOptions};
use flannel_lease::SubnetOrigin;
use flannel_node::options::{Backing, Serve};
use flannel_server::{
    Embedded, LeaseService, Limits, Server, ServiceAccountTokens, StoreService, TokenReviewer,
};
use flannel_store::EtcdOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::first_config::FirstConfig;

/// What leases are kept in, for a node that uses its own server.
pub enum Served {
    Embedded(Embedded),
    Etcd(EtcdOptions),
    Kube(KubeOptions),
}

/// Starts serving. Everything wrong with the options is wrong here; then it runs as long as the process.
pub fn start(options: &Serve, probe_port: Option<u16>, seed: u64) -> anyhow::Result<Served> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the lease server's runtime")?;
    let server = runtime.block_on(Server::bind(flannel_server::Options {
        listen: options.listen.clone(),
        tls: options.tls.clone(),
        tokens: options.tokens.clone(),
        reviewer: reviewer(options)?,
        insecure: options.insecure,
        limits: Limits::default(),
    }))?;
    // Every node is taken to have its probes where this one has them.
    let server = server.with_probe_port(probe_port);
    let (service, served): (Arc<dyn LeaseService>, Served) = match &options.backing {
        Backing::Embedded(dir) => {
            // It says all there is to say: its cause need not be said again.
            let embedded = Embedded::open(dir, seed).map_err(|error| anyhow::anyhow!("{error}"))?;
            tracing::info!("Leases are kept in {}", dir.display());
            look_at_configs(&embedded);
            (Arc::new(embedded.clone()), Served::Embedded(embedded))
        }
        Backing::Etcd(etcd) => {
            let _within = runtime.enter();
            let service = StoreService::etcd(etcd.clone())?;
            tracing::info!("Leases are kept in etcd, under {}", etcd.prefix);
            (Arc::new(service), Served::Etcd(etcd.clone()))
        }
        Backing::Kube(kube) => {
            let _within = runtime.enter();
            let nodes = KubeNodes::open(kube, |name| std::env::var(name).ok(), seed)?;
            tracing::info!(
                "Leases are Node objects of Kubernetes, at {}; the network config is {}",
                nodes.endpoint(),
                kube.net_config.display()
            );
            (Arc::new(StoreService::kubernetes(nodes)), Served::Kube(kube.clone()))
        }
    };
    match (&options.config, &served) {
        (Some((network, file)), Served::Embedded(_)) => {
            let server = reachable(server.address()).to_string();
            // Whoever reads of it in the log may be elsewhere.
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let network = network.clone();
            let first = FirstConfig { service: service.clone(), network, file, server };
            runtime.block_on(first.begin())?;
            let _within = runtime.enter();
            Task::spawn("first-config", first.watch()).detach();
        }
        (Some(_), Served::Etcd(_)) => tracing::warn!(
            "net-config-path is not looked at: the network config is in etcd; `flannelctl config set` writes it"
        ),
        (_, Served::Kube(_)) | (None, _) => {}
    }
    let thread = std::thread::Builder::new().name("lease-server".to_owned());
    thread
        .spawn(move || match runtime.block_on(server.run(service)) {})
        .context("cannot start a thread for the lease server")?;
    Ok(served)
}

fn reviewer(options: &Serve) -> anyhow::Result<Option<Arc<dyn TokenReviewer>>> {
    let Some((account, kube)) = &options.service_account else { return Ok(None) };
    let api = kube.api(|name| std::env::var(name).ok())?;
    let tokens = ServiceAccountTokens::new(api, account)
        .context("listen-service-account is not the name of a ServiceAccount")?;
    tracing::info!("Nodes are known by the tokens of the ServiceAccount {account}");
    Ok(Some(Arc::new(tokens)))
}

/// One that was stored before anybody judged it stays stored, but not in silence.
fn look_at_configs(embedded: &Embedded) {
    for name in embedded.watch_logs().names() {
        let Some(text) =
            embedded.watch_logs().get(&name).and_then(|watch_log| watch_log.config_text())
        else {
            continue;
        };
        if let Err(error) = flannel_backend::judge_config(&text, SubnetOrigin::Pool) {
            tracing::error!(
                "No node can use the stored config of the network {name}: {error}; write another, \
                 `flannelctl config set FILE{}`",
                name.flag()
            );
        }
    }
}

/// Every client is an open file, and the usual limit is a thousand of them.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, ?limit, "The number of clients is limited: open files cannot be raised");
    }
}

fn reachable(listens: SocketAddr) -> SocketAddr {
    let ip = match listens.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listens.port())
}
