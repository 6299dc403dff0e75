//! TCP connections and listeners: the kernel's, or those of a [simulation](crate::simulation).

use std::io;
use std::net::SocketAddr;

use crate::simulation::{ByteStream, StreamListener};
use crate::{Listener, simulation};

pub type TcpStream = Box<dyn ByteStream>;

impl ByteStream for tokio::net::TcpStream {
    fn socket(&self) -> Option<&Self> {
        Some(self)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
    }
}

pub enum TcpListener {
    Kernel(tokio::net::TcpListener),
    Simulated(Box<dyn StreamListener>, SocketAddr),
}

impl TcpListener {
    /// A listener of the simulation that the calling thread takes part in, if it does.
    pub fn simulated(at: SocketAddr) -> Option<io::Result<Self>> {
        let world = simulation::world()?;
        Some(world.listen(at).map(|listener| Self::Simulated(listener, at)))
    }

    /// The kernel's socket, for its options. A simulated one has none.
    pub fn socket(&self) -> Option<&tokio::net::TcpListener> {
        match self {
            Self::Kernel(listener) => Some(listener),
            Self::Simulated(..) => None,
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(listener) => listener.local_addr(),
            Self::Simulated(_, at) => Ok(*at),
        }
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Self::Kernel(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Box::new(stream), peer))
            }
            Self::Simulated(listener, _) => {
                let stream = listener.accept().await?;
                let peer = stream.peer_addr()?;
                Ok((stream, peer))
            }
        }
    }
}
