//! The accept loop of everything that listens: connections are bounded in number and end with the loop.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tracing::Instrument as _;

use crate::Throttle;

/// Pause after a failed accept: out of descriptors or memory, or the client has left. All of these pass.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub enum ConnectionLimit {
    /// The `serve` function bounds them.
    ByCaller,
    /// Further connections wait until one of these has ended.
    Wait(usize),
    /// The oldest connection is closed for the newest.
    CutOldest(usize),
}

pub trait Listener {
    type Stream;
    type Peer;

    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    type Peer = tokio::net::unix::SocketAddr;

    async fn next(&self) -> io::Result<(UnixStream, Self::Peer)> {
        self.accept().await
    }
}

/// Accepts connections until it is dropped, and with it every connection. `serve` turns one away by `None`.
pub async fn accept_connections<L: Listener, F>(
    name: &'static str,
    listener: &L,
    limit: ConnectionLimit,
    mut serve: impl FnMut(L::Stream, L::Peer) -> Option<F>,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut shortage = Throttle::default();
    loop {
        if let ConnectionLimit::Wait(most) = limit {
            while connections.len() >= most {
                connections.join_next().await.inspect(|ended| log_panic(name, ended));
            }
        }
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            Some(ended) = connections.join_next() => {
                log_panic(name, &ended);
                continue;
            }
        };
        let connection = match accepted {
            Ok((stream, peer)) => serve(stream, peer),
            Err(error) => {
                if let Some(suppressed) = shortage.pass(Instant::now()) {
                    tracing::warn!(%error, suppressed, "Cannot accept a connection to the {name}");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Some(connection) = connection else { continue };
        let connection = connections.spawn(connection.in_current_span());
        if let ConnectionLimit::CutOldest(most) = limit {
            oldest_first.retain(|connection| !connection.is_finished());
            if oldest_first.len() >= most
                && let Some(oldest) = oldest_first.pop_front()
            {
                oldest.abort();
            }
            oldest_first.push_back(connection);
        }
    }
}

fn log_panic(name: &str, ended: &Result<(), JoinError>) {
    if ended.as_ref().is_err_and(JoinError::is_panic) {
        tracing::error!("A connection to the {name} panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// How many of five clients are served at once, and how many are cut off.
    fn served(limit: ConnectionLimit) -> (usize, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let begun = Arc::new(AtomicUsize::new(0));
            let count = begun.clone();
            let serve = move |stream: TcpStream, _| {
                count.fetch_add(1, Ordering::Relaxed);
                Some(async move {
                    let _open = stream;
                    std::future::pending::<()>().await;
                })
            };
            let clients = async {
                let mut clients = Vec::new();
                for _ in 0..5 {
                    clients.push(TcpStream::connect(address).await.expect("a connection"));
                }
                let mut cut_off = 0;
                for mut client in clients {
                    let read = tokio::time::timeout(Duration::from_millis(50), client.read_u8());
                    cut_off += usize::from(read.await.is_ok());
                }
                (begun.load(Ordering::Relaxed), cut_off)
            };
            tokio::select! {
                never = accept_connections("test", &listener, limit, serve) => match never {},
                served = clients => served,
            }
        })
    }

    #[test]
    fn connections_beyond_the_limit_wait_or_take_the_place_of_the_oldest() {
        assert_eq!(served(ConnectionLimit::ByCaller), (5, 0));
        assert_eq!(served(ConnectionLimit::Wait(2)), (2, 0));
        assert_eq!(served(ConnectionLimit::CutOldest(2)), (5, 3));
    }
}
