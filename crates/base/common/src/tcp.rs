//! TCP connections and listeners: the kernel's, or those of a [simulation](crate::simulation).

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::simulation::{ByteStream, StreamListener};
use crate::{Listener, simulation};

pub enum TcpStream {
    Kernel(tokio::net::TcpStream),
    Simulated(Box<dyn ByteStream>),
}

impl TcpStream {
    /// The kernel's socket, for its options. A simulated connection has none.
    pub fn socket(&self) -> Option<&tokio::net::TcpStream> {
        match self {
            Self::Kernel(stream) => Some(stream),
            Self::Simulated(_) => None,
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(stream) => stream.local_addr(),
            Self::Simulated(stream) => Ok(stream.local_addr()),
        }
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(stream) => stream.peer_addr(),
            Self::Simulated(stream) => Ok(stream.peer_addr()),
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Simulated(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Simulated(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_flush(context),
            Self::Simulated(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Simulated(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Kernel(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Simulated(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Kernel(stream) => stream.is_write_vectored(),
            Self::Simulated(stream) => stream.is_write_vectored(),
        }
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
                Ok((TcpStream::Kernel(stream), peer))
            }
            Self::Simulated(listener, _) => {
                let stream = listener.accept().await?;
                let peer = stream.peer_addr();
                Ok((TcpStream::Simulated(stream), peer))
            }
        }
    }
}
