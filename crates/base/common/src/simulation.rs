//! The seam for simulations: a test may put a [`World`] in place of what the threads, sockets and random bytes of this
//! machine are to the programs, for one of its own threads. Nothing else ever sets one. Clocks and files have no seam here:
//! the simulation replaces functions of the C library. See docs/decisions/0020-simulation.md.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
#[cfg(feature = "worker")]
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

#[cfg(feature = "worker")]
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Mac;

/// Something that a simulated world takes its time for.
pub type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a simulation puts in place of this machine. Each question is asked by the host whose task runs at the moment.
pub trait World {
    #[cfg(feature = "worker")]
    fn connect(&self, to: SocketAddr) -> Waiting<io::Result<Box<dyn ByteStream>>>;

    #[cfg(feature = "worker")]
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn StreamListener>>;

    /// Opens a netlink socket of a protocol (`NETLINK_ROUTE`, …) to the kernel of this host.
    fn open_netlink(&self, protocol: i32) -> io::Result<Box<dyn NetlinkSocket>>;

    /// Waits until one of the netlink sockets of this host has heard something.
    fn kernel_changed(&self) -> Waiting<()>;

    /// Waits for as long as work takes that blocks a thread.
    fn blocked(&self) -> Waiting<()>;

    /// Hardware addresses of other machines on a link that answer for an address.
    fn who_has(&self, link: u32, address: IpAddr) -> Vec<Mac>;

    fn fill_with_random(&self, bytes: &mut [u8]);
}

#[cfg(feature = "worker")]
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {
    /// The kernel's socket, for its options. A simulated connection has none.
    fn socket(&self) -> Option<&tokio::net::TcpStream> {
        None
    }

    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn peer_addr(&self) -> io::Result<SocketAddr>;
}

#[cfg(feature = "worker")]
pub trait StreamListener: Send + Sync {
    fn accept(&self) -> Waiting<io::Result<Box<dyn ByteStream>>>;
}

/// A socket whose other end is a kernel, which answers before [`NetlinkSocket::send`] returns.
pub trait NetlinkSocket: Send + Sync {
    fn port(&self) -> u32;
    fn join(&self, group: u32) -> io::Result<()>;
    fn send(&self, bytes: &[u8]) -> io::Result<()>;
    /// The next datagram; [`io::ErrorKind::WouldBlock`] if there is none.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// Puts a world in place of this machine, for everything that runs on the calling thread from now on.
pub fn replace_world(world: Option<Rc<dyn World>>) {
    WORLD.set(world);
}

/// The simulated world of the calling thread; `None` wherever programs do their work.
pub fn world() -> Option<Rc<dyn World>> {
    WORLD.with_borrow(Clone::clone)
}
