//! The daemon's API on a Unix socket, for root only: whoever can use it can do whatever the daemon can.

use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use flannel_common::{Backoff, ConnectionLimit, accept_connections};
use flannel_state::SOCKET_NAME;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};

use super::{Door, Through};

const READERS: usize = 32;
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// A daemon that runs accepts at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Door {
    /// Answers until it is dropped. A problem with the socket must not make a network fail.
    pub async fn serve(self, socket: &Path) -> Infallible {
        let mut tries = RETRY.tries(fastrand::Rng::new());
        let listener = loop {
            match take_place(socket).await {
                Ok(listener) => break listener,
                Err(error) => {
                    let pause = tries.pause();
                    tracing::warn!(
                        "Cannot listen on {}: {error}; `flannelctl status` has nobody to ask; next try \
                         in {pause:.0?}",
                        socket.display()
                    );
                    tokio::time::sleep(pause).await;
                }
            }
        };
        let serve = |stream, _| {
            let door = self.clone();
            Some(async move { door.talk(stream).await })
        };
        accept_connections("daemon's socket", &listener, ConnectionLimit::Wait(READERS), serve)
            .await
    }

    /// One request, one answer. What goes wrong on the way is the reader's business.
    async fn talk(&self, stream: UnixStream) {
        let answer = service_fn(|request: Request<Incoming>| async move {
            Ok::<_, Infallible>(self.respond(&request, Through::Socket).await)
        });
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer)
            .await;
    }
}

/// Listens there, unless another daemon does: whoever came first keeps it, and is followed when it is gone.
async fn take_place(socket: &Path) -> io::Result<UnixListener> {
    let other = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await;
    match other {
        // One that hangs is still there.
        Ok(Ok(_)) | Err(_) => {
            let why =
                "another flanneld answers there, and two must not serve one node: stop one of them";
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
        Ok(Err(_)) => listen(socket),
    }
}

/// The socket is made where nobody else can reach it and moved to its place when it is closed to all but its
/// owner, so that there is no moment in which others could connect. It takes the place of a former daemon's.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    let private = directory.join(format!(".{SOCKET_NAME}.{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&private);
    std::fs::create_dir(&private)?;
    let listener = (|| {
        std::fs::set_permissions(&private, Permissions::from_mode(0o700))?;
        let made = private.join("s");
        let listener = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        std::fs::rename(&made, socket)?;
        Ok(listener)
    })();
    let _ = std::fs::remove_dir_all(&private);
    listener
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_leaves_the_first_its_socket_and_takes_it_when_that_is_gone() {
        let home = tempfile::tempdir().expect("a directory");
        let socket = home.path().join(SOCKET_NAME);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let first = take_place(&socket).await.expect("nobody is there");
            let refused = take_place(&socket).await.expect_err("somebody is there");
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
            drop(first);
            take_place(&socket).await.expect("what a dead daemon left is taken");
        });
    }
}
