//! What the programs of a simulated host take for their machine.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use flannel_common::Mac;
use flannel_common::simulation::{ByteStream, NetlinkSocket, StreamListener, Waiting, World};

use crate::clib;
use crate::host::Host;
use crate::kernel::CARD;
use crate::network::Network;

/// Time that work takes which blocks a thread.
const BLOCKED_TIME: Duration = Duration::from_millis(200);

pub(crate) struct SimulatedWorld {
    pub(crate) hosts: Vec<Rc<Host>>,
    pub(crate) network: Network,
}

fn host() -> io::Result<Rc<Host>> {
    clib::current_host().ok_or_else(|| io::Error::other("no host runs at the moment"))
}

impl World for SimulatedWorld {
    fn connect(&self, to: SocketAddr) -> Waiting<io::Result<Box<dyn ByteStream>>> {
        match host() {
            Ok(host) => {
                let own = host.addresses().find(|own| own.is_ipv4() == to.is_ipv4());
                let Some(own) = own else {
                    let none = io::Error::from(io::ErrorKind::NetworkUnreachable);
                    return Box::pin(std::future::ready(Err(none)));
                };
                self.network.connect(host.number, SocketAddr::new(own, 0), to)
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        self.network.listen(host()?.number, at)
    }

    fn open_netlink(&self, protocol: i32) -> io::Result<Box<dyn NetlinkSocket>> {
        if protocol != libc::NETLINK_ROUTE {
            return Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
        }
        Ok(Box::new(host()?.kernel.connect()))
    }

    fn kernel_changed(&self) -> Waiting<()> {
        let Ok(host) = host() else { return Box::pin(std::future::pending()) };
        if host.kernel.has_news() {
            return Box::pin(tokio::task::yield_now());
        }
        let changed = host.kernel.changed.clone().notified_owned();
        Box::pin(changed)
    }

    fn blocked(&self) -> Waiting<()> {
        Box::pin(tokio::time::sleep(BLOCKED_TIME))
    }

    fn who_has(&self, link: u32, address: IpAddr) -> Vec<Mac> {
        let Ok(asking) = host() else { return Vec::new() };
        let others = self.hosts.iter().filter(|it| it.number != asking.number && link == CARD);
        let answering = others.filter(|it| it.has_address(address) && it.is_up.get());
        answering.map(|it| it.mac).collect()
    }

    fn fill_with_random(&self, bytes: &mut [u8]) {
        clib::fill_with_random(bytes);
    }
}
