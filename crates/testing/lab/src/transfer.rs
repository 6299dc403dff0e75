//! A TCP transfer between two places whose every byte is checked.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::error::{Context, LabError, Result};
use crate::lab::Lab;
use crate::matrix::{PlaceRef, common};

const BLOCK: usize = 64 << 10;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long a transfer may stand still.
const STALL_LIMIT: Duration = Duration::from_secs(20);

/// A transfer that arrived whole.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// How much.
    pub bytes: u64,
    /// How long it took from the connection's beginning to the last byte.
    pub elapsed: Duration,
}

impl Transfer {
    /// Bits a second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Lab {
    /// Sends bytes over TCP and checks every one that arrives, over IPv4 if both places have it.
    pub fn tcp_transfer(
        &self,
        from: &dyn PlaceRef,
        to: &dyn PlaceRef,
        bytes: u64,
    ) -> Result<Transfer> {
        let failed =
            |reason: String| LabError::Transfer { from: from.label(), to: to.label(), reason };
        let target = common(from, to).into_iter().next();
        let target = target.ok_or_else(|| failed("no address family in common".into()))?;
        let listener = to
            .namespace()
            .run(|| TcpListener::bind(SocketAddr::new(target, 0)))?
            .context(|| format!("{}: listen on {target}", to.label()))?;
        let target = listener.local_addr().context(|| "ask for the port".into())?;
        let begin = Instant::now();
        let sender = from
            .namespace()
            .run(|| TcpStream::connect_timeout(&target, CONNECT_LIMIT))?
            .map_err(|error| failed(format!("connect to {target}: {error}")))?;
        // The connection stands already, so this does not wait.
        let (receiver, _) = listener.accept().map_err(|error| failed(error.to_string()))?;
        let (sent, received) = std::thread::scope(|scope| {
            let sent = scope.spawn(move || send(sender, bytes));
            let received = receive(receiver, bytes);
            (sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), received)
        });
        received.and(sent).map_err(|error| failed(error.to_string()))?;
        Ok(Transfer { bytes, elapsed: begin.elapsed() })
    }
}

fn send(mut stream: TcpStream, bytes: u64) -> io::Result<()> {
    stream.set_write_timeout(Some(STALL_LIMIT))?;
    let mut block = pattern();
    let mut at = 0;
    while at < bytes {
        number(&mut block, at);
        let length = usize::try_from(bytes - at).unwrap_or(BLOCK).min(BLOCK);
        stream.write_all(&block[..length])?;
        at += length as u64;
    }
    stream.shutdown(Shutdown::Write)
}

fn receive(mut stream: TcpStream, bytes: u64) -> io::Result<()> {
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let (mut expected, mut found) = (pattern(), vec![0; BLOCK]);
    let mut at = 0;
    while at < bytes {
        number(&mut expected, at);
        let length = usize::try_from(bytes - at).unwrap_or(BLOCK).min(BLOCK);
        stream.read_exact(&mut found[..length]).map_err(|error| {
            io::Error::new(error.kind(), format!("after {at} of {bytes} bytes: {error}"))
        })?;
        if found[..length] != expected[..length] {
            return Err(wrong(format!("wrong bytes between {at} and {}", at + length as u64)));
        }
        at += length as u64;
    }
    if stream.read(&mut found)? != 0 {
        return Err(wrong(format!("more than {bytes} bytes")));
    }
    Ok(())
}

/// Bytes that show a shift by any number of places.
fn pattern() -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(BLOCK as u64);
    std::iter::repeat_with(|| rng.u8(..)).take(BLOCK).collect()
}

/// Makes a block different from all others.
fn number(block: &mut [u8], at: u64) {
    block[..8].copy_from_slice(&at.to_be_bytes());
}
