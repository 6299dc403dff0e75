//! What is outside the cluster: the router that all nodes use, with servers behind it.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use flannel_lab::{Lab, Namespace};

/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A server outside the cluster that tells every client its address as seen from there.
#[derive(Debug)]
pub struct Outside {
    address: SocketAddr,
}

impl Outside {
    /// Starts a server with an address of its own behind the nodes' router. It ends with the test.
    pub fn serve(lab: &Lab, address: Ipv4Addr) -> Self {
        let router = lab.switch();
        router.ip(&format!("addr add {address}/32 dev lo")).expect("give the server its address");
        let listener = router
            .run(|| TcpListener::bind((address, 0)))
            .expect("enter the router")
            .expect("listen outside the cluster");
        let address = listener.local_addr().expect("the server's address");
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let _ = answer(client);
            }
        });
        Self { address }
    }

    /// Where it is, as words for `nc`.
    pub fn for_nc(&self) -> [String; 2] {
        [self.address.ip().to_string(), self.address.port().to_string()]
    }
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    let peer = client.peer_addr()?;
    writeln!(client, "{}", peer.ip())
}

/// Connects from outside and returns what is answered, or why there was no answer.
pub fn say_hello_to(from: &Namespace, address: IpAddr, port: u16) -> io::Result<String> {
    let talk = move || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.trim().to_owned())
    };
    from.run(talk).map_err(io::Error::other)?
}
