//! An operator traces a packet from another node: this node walks the half of the way that is its own, and says its hops.

use std::io;
use std::net::IpAddr;

use flannel_common::Task;
use flannel_kernel::look::Kernel;
use flannel_trace::request::{TraceAnswer, TraceRequest};
use flannel_trace::{End, Hop, NodeInNetwork};
use ipnet::IpNet;

use super::requests::NodeRequest;

pub(super) async fn run(mut request: NodeRequest) {
    let node = request.context.node.borrow().clone();
    let (Some(wanted), Some(node)) = (request.read::<TraceRequest>(), node) else {
        return request
            .answer(&TraceAnswer::Failed("the request cannot be understood".to_owned()))
            .await;
    };
    request.answer(&TraceAnswer::Looking).await;
    let walked = Task::spawn_blocking("trace", move || walk(&node.in_network, &wanted)).await;
    let said = match walked {
        Ok(Ok(hops)) if hops.is_empty() => TraceAnswer::Failed("neither end is on it".to_owned()),
        Ok(Ok(hops)) => {
            let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
            TraceAnswer::Walked { node, hops }
        }
        Ok(Err(error)) => TraceAnswer::Failed(format!("it cannot look at its kernel: {error}")),
        Err(_) => TraceAnswer::Failed("nobody has looked at its kernel".to_owned()),
    };
    request.answer(&said).await;
}

fn walk(node: &NodeInNetwork, wanted: &TraceRequest) -> io::Result<Vec<Hop>> {
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
