//! TCP connections whose packets pass every path: a store is also asked about paths that lose larger packets, through
//! them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use flannel_common::simulation;
use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Largest segment that both ends send: packets of 576 bytes, which every path must carry.
const LARGEST_SEGMENT: u32 = 536;

pub(crate) async fn connect(address: SocketAddr) -> io::Result<flannel_common::TcpStream> {
    if let Some(connected) = simulation::world().map(|world| world.connect(address)) {
        return connected.await;
    }
    Ok(Box::new(connect_socket(address).await?))
}

async fn connect_socket(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Optional: without it the connection is still made.
    let _ = SockRef::from(&socket).set_tcp_mss(LARGEST_SEGMENT);
    socket.connect(address).await
}

/// Connects to the first address of a name that answers, within `most`. Small requests are sent at once.
pub async fn connect_to(host: &str, port: u16, most: Duration) -> io::Result<TcpStream> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let each = most / u32::try_from(found.len().max(1)).unwrap_or(u32::MAX);
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in found {
        match timeout(each, connect_socket(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_ends_send_small_segments() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let connected = connect_to("127.0.0.1", at.port(), Duration::from_secs(5));
        let (ours, theirs) = tokio::join!(connected, listener.accept());
        for stream in [ours.expect("ours"), theirs.expect("theirs").0] {
            let segment = SockRef::from(&stream).tcp_mss().expect("a size");
            assert!(segment <= LARGEST_SEGMENT, "{segment}");
        }
    }
}
