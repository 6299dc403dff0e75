//! Flannel's devices and routes in the kernel: found by what marks them as flannel's, and removed.

use anyhow::Context as _;
use flannel_entries::kernel::ROUTE_PROTOCOL;
use flannel_kernel::is_flannel_device;
use flannel_kernel::look::Kernel;
use flannel_netlink::{Connection, Protocol, Request};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;

use super::{Report, remove_one};

const POD_BRIDGE: &str = "cni0";

/// Routes before the devices that would take them along. `pods`: also the bridge of pods, if none is on it.
pub(super) fn clean(report: &mut Report, pods: bool) -> anyhow::Result<()> {
    let mut kernel = Kernel::open()?;
    let mut connection = Connection::open(Protocol::Route).context("talk to the kernel")?;
    for route in kernel.routes()?.iter().filter(|route| route.protocol == ROUTE_PROTOCOL) {
        let link = kernel.device(&route.link).map(|device| device.index);
        let removal = Request::delete_route(route.removal(link));
        report.clean(format!("route {route}"), || remove_one(&mut connection, removal));
    }
    let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let ours = connection.dump(&all, |message| match message {
        RouteNetlinkMessage::NewLink(link) => {
            let index = link.header.index;
            is_flannel_device(link).then_some(index)
        }
        _ => None,
    });
    let ours = ours.context("list the devices")?;
    for device in &kernel.devices {
        // A bridge of such a name would be somebody else's.
        let of_pods = pods
            && device.name == POD_BRIDGE
            && device.kind == "bridge"
            && !kernel.devices.iter().any(|port| port.master == Some(device.index));
        if of_pods || ours.contains(&device.index) {
            let removal = Request::delete_link(device.index);
            report
                .clean(format!("device {}", device.name), || remove_one(&mut connection, removal));
        }
    }
    Ok(())
}
