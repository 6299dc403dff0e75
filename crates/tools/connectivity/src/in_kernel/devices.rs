//! The pair of devices that a test pod is, and how the kernel gets to it.
//!
//! Both ends are in the node's own namespace. What the kernel sends to the pod has a link-layer address that the far
//! end does not have, so that the kernel does not take it in there: only this process, which reads along, sees it.

use std::net::IpAddr;

use flannel_common::{IfName, Mac};
use flannel_entries::devices::TEST_POD_DEVICES;
use flannel_kernel::is_test_pod_device;
use flannel_netlink::{Connection, NetlinkError, Protocol, Request, verbs};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};
use netlink_packet_route::route::RouteProtocol;
use rustix::net::netdevice::name_to_index;

use super::{addresses, cannot};

/// Test pods that a node may have at once: one for each network.
const MAX_TEST_PODS: u32 = 100;

pub(super) struct Devices {
    kernel: Connection,
    near: u32,
    pub(super) far: u32,
    pub(super) near_mac: Mac,
    pub(super) pod_mac: Mac,
}

impl Drop for Devices {
    fn drop(&mut self) {
        if let Err(error) = self.apply("remove the test pod", Request::delete_link(self.near)) {
            tracing::warn!("{error}; `flannelctl cleanup` or a restart of flanneld removes it");
        }
    }
}

impl Devices {
    pub(super) fn make(addresses: &[IpAddr], mtu: u32) -> Result<Self, String> {
        let mut rng = fastrand::Rng::new();
        let [near_mac, far_mac, pod_mac] = std::array::from_fn(|_| Mac::random(&mut rng));
        let mut kernel = Connection::open(Protocol::Route).map_err(cannot("talk to the kernel"))?;
        let (near, far, name) = make_pair(&mut kernel, near_mac, far_mac, mtu)?;
        // From here on it is removed if anything fails.
        let mut devices = Self { kernel, near, far, near_mac, pod_mac };
        // Nobody but a card would finish the checksums of what this node itself sends.
        flannel_kernel::set_tx_checksum(name, false)
            .map_err(cannot(format!("switch off the checksum offload of {name}")))?;
        devices.apply("keep the test pod's far end without an address", no_address(far))?;
        devices.apply("set the test pod's devices up", up(far))?;
        devices.apply("set the test pod's devices up", up(near))?;
        for ip in addresses {
            devices.apply("lead to the test pod", neighbour(near, *ip, pod_mac))?;
            devices.apply("lead to the test pod", route(near, *ip))?;
        }
        Ok(devices)
    }

    fn apply(&mut self, attempted: &str, request: Request) -> Result<(), String> {
        apply(&mut self.kernel, attempted, request)?.map_err(cannot(attempted))
    }
}

/// The inner error is the kernel's refusal.
fn apply(
    kernel: &mut Connection,
    attempted: &str,
    request: Request,
) -> Result<Result<(), NetlinkError>, String> {
    let mut refused = Ok(());
    let sent = kernel.apply([request], |_, error| refused = Err(error));
    sent.map(|()| refused).map_err(cannot(attempted))
}

/// The indices of both ends, and the name of the near one.
fn make_pair(
    kernel: &mut Connection,
    near_mac: Mac,
    far_mac: Mac,
    mtu: u32,
) -> Result<(u32, u32, IfName), String> {
    let attempted = "make the devices of a test pod";
    let mut taken = None;
    for number in 0..MAX_TEST_PODS {
        let [near, far] = TEST_POD_DEVICES.map(|name| format!("{name}{number}"));
        let request = Request::create_veth(
            verbs::veth_end(&near, near_mac, Some(mtu)),
            verbs::veth_end(&far, far_mac, Some(mtu)),
        );
        match apply(kernel, attempted, request)? {
            Ok(()) => {
                let index = |name: &str| name_to_index(&*kernel, name).map_err(cannot(attempted));
                let name: IfName = near.parse().map_err(cannot(attempted))?;
                return Ok((index(&near)?, index(&far)?, name));
            }
            Err(error) if error.errno == libc::EEXIST => taken = Some(near),
            Err(error) => return Err(cannot(attempted)(error)),
        }
    }
    let taken = taken.unwrap_or_default();
    Err(format!("cannot {attempted}: {taken} is there already, and so are all before it"))
}

/// Removes what test pods of killed processes have left. Not to be called while this node has one in use.
pub fn sweep() {
    addresses::sweep();
    let Ok(mut kernel) = Connection::open(Protocol::Route) else { return };
    let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let left = kernel.dump(&all, |message| match message {
        RouteNetlinkMessage::NewLink(link) if is_test_pod_device(&link) => Some(link.header.index),
        _ => None,
    });
    for index in left.unwrap_or_default() {
        // The other end goes with the first.
        let _ = apply(&mut kernel, "remove what a test pod has left", Request::delete_link(index));
    }
}

fn up(index: u32) -> Request {
    Request::set_link_flags(verbs::indexed_link(index, []), LinkFlags::Up, true)
}

fn no_address(index: u32) -> Request {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    let mode = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
    Request::set_link(verbs::indexed_link(index, [mode]))
}

fn neighbour(near: u32, ip: IpAddr, mac: Mac) -> Request {
    Request::put_neighbour(verbs::neighbour(verbs::family(ip), near, Some(ip), Some(mac)))
}

/// Not with flannel's own protocol: the engine would take it for a peer's that is gone.
fn route(near: u32, ip: IpAddr) -> Request {
    Request::create_route(verbs::route(ip.into(), RouteProtocol::Boot, Some(near), None))
}
