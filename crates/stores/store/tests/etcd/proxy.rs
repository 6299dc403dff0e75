//! A TCP proxy that can be broken in the ways networks break.

use std::net::SocketAddr;
use std::time::Duration;

use flannel_store::testing::free_ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Forwards to a server; dropped, it refuses and ends all connections.
pub(crate) struct Proxy {
    address: SocketAddr,
    accepting: JoinHandle<()>,
    frozen: watch::Sender<u64>,
}

impl Proxy {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let [port] = free_ports();
        Self::at(port, server).await
    }

    pub(crate) async fn at(port: u16, server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, freeze) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let mut freeze = freeze.clone();
                freeze.mark_unchanged();
                connections.spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        // Open, and silent for ever.
                        Ok(()) = freeze.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, accepting, frozen }
    }

    /// What is open now says nothing any more and does not end; new connections work.
    pub(crate) fn freeze(&self) {
        self.frozen.send_modify(|times| *times += 1);
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends it and gives its port, to start another one there.
    pub(crate) fn end(self) -> u16 {
        self.address.port()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Ends the listener and, with the set they are in, all connections.
        self.accepting.abort();
    }
}

/// Lets so many bytes per second through from the server.
pub(crate) async fn slow_line(
    server: SocketAddr,
    bytes_per_second: usize,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            connections.spawn(async move {
                let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
            });
            connections.spawn(async move {
                let mut buffer = vec![0; bytes_per_second / 20];
                while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
                    if to_client.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
    });
    (endpoint, task)
}

/// Accepts connections and never says a word.
pub(crate) async fn black_hole() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut kept = vec![];
        while let Ok((connection, _)) = listener.accept().await {
            kept.push(connection);
        }
    });
    (endpoint, task)
}
