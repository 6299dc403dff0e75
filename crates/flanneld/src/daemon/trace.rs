//! An operator traces a packet from another node: this node walks the half of the way that is its own, and says its hops.

use std::io;
use std::net::IpAddr;

use flannel_kernel::look::Kernel;
use flannel_trace::request::{Asked as Wanted, Said};
use flannel_trace::{End, Hop, NodeInNetwork};
use ipnet::IpNet;

use super::requests::Asked;

pub(super) async fn run(mut asked: Asked) {
    let wanted = serde_json::from_value::<Wanted>(asked.body.borrow_and_update().clone());
    let node = asked.means.node.borrow().clone();
    let (Ok(wanted), Some(node)) = (wanted, node) else {
        return asked.answer(&Said::Failed("the request cannot be understood".to_owned())).await;
    };
    asked.answer(&Said::Looking).await;
    let walked = tokio::task::spawn_blocking(move || walk(&node.in_network, &wanted)).await;
    let said = match walked {
        Ok(Ok(hops)) if hops.is_empty() => Said::Failed("neither end is on it".to_owned()),
        Ok(Ok(hops)) => {
            let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
            Said::Walked { node, hops }
        }
        Ok(Err(error)) => Said::Failed(format!("it cannot look at its kernel: {error}")),
        Err(_) => Said::Failed("nobody has looked at its kernel".to_owned()),
    };
    asked.answer(&said).await;
}

fn walk(node: &NodeInNetwork, wanted: &Wanted) -> io::Result<Vec<Hop>> {
    let kernel = Kernel::open()?;
    let addresses = kernel.devices.iter().flat_map(|device| &device.addresses);
    let hosts: Vec<IpAddr> = addresses.map(IpNet::addr).collect();
    let peers = std::slice::from_ref(&wanted.asker);
    let end = |ip: IpAddr| (ip, End::place(ip, &hosts, &node.own, peers));
    let (from, to) = (end(wanted.from), end(wanted.to));
    let is_here = |end: End<'_>| matches!(end, End::Pod | End::Host);
    if !is_here(from.1) && !is_here(to.1) {
        return Ok(Vec::new());
    }
    flannel_trace::walk(node, from, to)
}
