//! One ask and its answer, with a socket of its own: the kernel lets in only the answer, or tells that nobody listens.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use flannel_common::random_bytes;
use ipnet::IpNet;

use super::socket;
use crate::verdict::{AskOutcome, ProbeAnswer};
use crate::wire::{Ask, REPLY, Reply};

pub(crate) struct Exchange {
    /// Its port is whichever is free.
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Subnet of this node's own lease.
    pub(crate) subnet: IpNet,
    pub(crate) about_v6: bool,
    /// Cookie as the peer has given it out; 0 for none yet.
    pub(crate) cookie: u64,
    /// The largest packet that passes, where larger ones are known to vanish.
    pub(crate) fits: Option<NonZeroU16>,
}

pub(crate) struct Question {
    /// Bytes of the whole IP packet.
    pub(crate) size: u32,
    /// Without a checksum.
    pub(crate) plain: bool,
    pub(crate) timeout: Duration,
    /// When the peer was first asked in this turn.
    pub(crate) since: Instant,
}

/// Time for an answer: more than there and back around the world.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);
/// What a clock may be off, and a packet late.
const SLACK: Duration = Duration::from_millis(50);

/// Asks a node at one of its addresses beside all schedules, and once more if nothing comes back. `subnet`: who asks.
pub async fn ask_once(from: IpAddr, to: SocketAddr, subnet: IpNet) -> AskOutcome {
    let (from, about_v6) = (SocketAddr::new(from, 0), subnet.addr().is_ipv6());
    let mut exchange = Exchange { from, to, subnet, about_v6, cookie: 0, fits: None };
    let question =
        Question { size: 0, plain: false, timeout: ANSWER_TIMEOUT, since: Instant::now() };
    match exchange.ask(&question).await {
        AskOutcome::Silent => exchange.ask(&question).await,
        outcome => outcome,
    }
}

impl Exchange {
    pub(crate) async fn ask(&mut self, question: &Question) -> AskOutcome {
        match tokio::time::timeout(question.timeout, self.try_ask(question)).await {
            Err(_) => AskOutcome::Silent,
            Ok(Ok(answered)) => AskOutcome::Answered(answered),
            Ok(Err(outcome)) => outcome,
        }
    }

    /// The error is the outcome of an ask that is not answered.
    async fn try_ask(&mut self, question: &Question) -> Result<ProbeAnswer, AskOutcome> {
        let socket = socket::asking(self.from).map_err(unsent)?;
        if question.plain {
            socket::leave_out_checksums(&socket, true).map_err(unsent)?;
        }
        socket.connect(self.to).await.map_err(unsent)?;
        // Twice at most: once for a cookie.
        let mut has_been_challenged = false;
        loop {
            let ask = Ask {
                nonce: random_bytes().map(u64::from_ne_bytes).map_err(unsent)?,
                cookie: self.cookie,
                subnet: self.subnet,
                about_v6: self.about_v6,
                plain: question.plain,
                fits: self.fits,
            };
            // A peer that must be challenged first is asked with a short packet.
            let size = if self.cookie == 0 { 0 } else { payload(self.to.ip(), question.size) };
            let sent = Instant::now();
            let sending = socket.send(&ask.encode(size)).await;
            sending.map_err(|error| match error.raw_os_error() {
                // More than the device takes.
                Some(libc::EMSGSIZE) => AskOutcome::Silent,
                Some(libc::ECONNREFUSED) => AskOutcome::Refused,
                _ => unsent(error),
            })?;
            match receive(&socket, ask.nonce).await? {
                Reply::Challenge { cookie, .. } if !has_been_challenged => {
                    has_been_challenged = true;
                    self.cookie = cookie;
                }
                Reply::Challenge { .. } => return Err(AskOutcome::Silent),
                Reply::Answer(answer) => {
                    let here = question.since.elapsed() + SLACK;
                    let has_heard = answer.heard.is_some_and(|heard| heard <= here);
                    let (latency, standing, machine) =
                        (sent.elapsed(), answer.standing, answer.machine);
                    return Ok(ProbeAnswer { latency, standing, has_heard, machine });
                }
            }
        }
    }
}

async fn receive(socket: &tokio::net::UdpSocket, nonce: u64) -> Result<Reply, AskOutcome> {
    let mut bytes = [0; REPLY + 1];
    loop {
        let received = socket.recv(&mut bytes).await;
        let length = received.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => AskOutcome::Refused,
            // A router on the way says that there is no way, or the kernel that nobody answers ARP.
            _ => AskOutcome::Silent,
        })?;
        let reply = bytes.get(..length).and_then(Reply::read);
        if let Some(reply) = reply.filter(|reply| reply.nonce() == nonce) {
            return Ok(reply);
        }
    }
}

/// What is left for us of a packet of this size.
fn payload(to: IpAddr, size: u32) -> usize {
    usize::try_from(size).unwrap_or_default().saturating_sub(crate::header(to.is_ipv6()))
}

fn unsent(error: io::Error) -> AskOutcome {
    AskOutcome::Unsent(match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "this node's own firewall does not let them out (output rules)".to_owned()
        }
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => {
            format!("there is no route ({error})")
        }
        Some(libc::EADDRNOTAVAIL) => {
            "this node does not have the address that it is to send from".to_owned()
        }
        _ => error.to_string(),
    })
}
