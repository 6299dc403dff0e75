//! A door from the host into the lab: connections to a port of the host's loopback address are made to a
//! server in a namespace.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::error::{Context, Result};
use crate::namespace::Namespace;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// It is open as long as this process lives.
#[derive(Debug)]
pub(crate) struct Forward {
    address: SocketAddr,
}

impl Forward {
    pub(crate) fn start(namespace: &Namespace, server: SocketAddr) -> Result<Self> {
        let what = || "open a port on the host's loopback address".to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(what)?;
        let address = listener.local_addr().context(what)?;
        let namespace = namespace.clone();
        let serve = move || {
            for client in listener.incoming().flatten() {
                let connect = || TcpStream::connect_timeout(&server, CONNECT_LIMIT);
                if let Ok(Ok(server)) = namespace.run(connect) {
                    let _ = join(client, server);
                }
            }
        };
        thread::Builder::new().name("lab-forward".into()).spawn(serve).context(what)?;
        Ok(Self { address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Two threads, one for each direction, until either side has had enough.
fn join(client: TcpStream, server: TcpStream) -> io::Result<()> {
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        thread::Builder::new().name("lab-forward".into()).spawn(move || {
            let _ = io::copy(&mut &from, &mut &to);
            let _ = to.shutdown(Shutdown::Write);
        })?;
    }
    Ok(())
}
