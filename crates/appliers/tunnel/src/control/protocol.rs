//! Requests and answers: JSON with a length prefix, and descriptors beside it where some are handed over.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flannel_common::PublicKey;
use flannel_entries::tunnel::{Peer, TunnelDevice, WireguardPeer, public_key};
use ipnet::IpNet;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::counters::CounterSnapshot;
use crate::datapath::FeaturesInUse;
use crate::wireguard::HandedPeer;

/// Changed when either side would misunderstand the other. Every version can hand its work over to any other.
pub(crate) const VERSION: u32 = 1;

/// Largest message: more than 10,000 peers take with three full sessions each; nobody makes us keep more.
const MAX_BYTES: usize = 128 << 20;
/// Descriptors that one message carries; the kernel allows 253.
const MAX_DESCRIPTORS: usize = 200;

#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    Hello {
        version: u32,
    },
    /// Sets device, addresses and ports.
    Configure(TunnelDevice),
    Replace(Vec<Peer>),
    Update {
        put: Vec<Peer>,
        gone: Vec<IpNet>,
    },
    /// The same for a WireGuard device.
    ReplaceWireguard(Vec<WireguardPeer>),
    UpdateWireguard {
        put: Vec<WireguardPeer>,
        gone: Vec<WireguardKey>,
    },
    Status,
    /// Sum of all traffic, without a line for each peer.
    Totals,
    /// Also listen on the socket that comes with this.
    Listen,
    /// Stop serving and hand over what is served. Unless `End` follows, serving goes on, with new sessions.
    HandOver,
    /// Prepare to go on with what another has handed over; its descriptors come with this.
    Adopt(Box<Handed>),
    /// The other has ended: go on.
    Begin,
    /// End, and leave the device for the next process.
    End,
    /// End, and remove the device.
    Remove,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Answer {
    Hello {
        version: u32,
        pid: u32,
        program: Option<Program>,
        config: Option<TunnelDevice>,
    },
    Done,
    Failed(String),
    Status(Box<TunnelStatus>),
    Totals(CounterSnapshot),
    /// Comes with descriptors.
    Handed(Box<Handed>),
}

/// What is handed over besides descriptors. Of these, the first is the listening socket, then come the queues of the
/// device, then for each lane its sockets, in the order of the addresses of the config.
#[derive(Serialize, Deserialize)]
pub(crate) struct Handed {
    pub(crate) config: TunnelDevice,
    pub(crate) in_use: FeaturesInUse,
    pub(crate) peers: Vec<(Peer, CounterSnapshot)>,
    pub(crate) counters: CounterSnapshot,
    #[serde(default)]
    pub(crate) departed: CounterSnapshot,
    #[serde(default)]
    pub(crate) wireguard: Vec<HandedPeer>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct WireguardKey(#[serde(with = "public_key")] pub(crate) PublicKey);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardPeerStatus {
    #[serde(with = "public_key")]
    pub public_key: PublicKey,
    /// Address that it was heard from last, or else the announced one.
    pub endpoint: SocketAddr,
    pub allowed: Vec<IpNet>,
    pub session_age: Option<Duration>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelStatus {
    pub config: Option<TunnelDevice>,
    pub in_use: Option<FeaturesInUse>,
    /// Why it carries nothing, if it does not.
    pub problem: Option<String>,
    pub peers: Vec<(Peer, CounterSnapshot)>,
    pub counters: CounterSnapshot,
    #[serde(default)]
    pub wireguard: Vec<WireguardPeerStatus>,
}

/// File that a process was started from: a different one after an upgrade, though its name is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    device: u64,
    inode: u64,
    changed: i64,
}

impl Program {
    pub(crate) fn own() -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::metadata("/proc/self/exe").ok()?;
        Some(Self { device: file.dev(), inode: file.ino(), changed: file.mtime() })
    }
}

pub(crate) fn send<T: Serialize>(
    mut stream: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    // Some of them hold keys.
    let body = Zeroizing::new(serde_json::to_vec(message)?);
    let mut bytes = Zeroizing::new(Vec::with_capacity(4 + body.len()));
    bytes.extend_from_slice(&u32::try_from(body.len()).map_err(io::Error::other)?.to_be_bytes());
    bytes.extend_from_slice(&body);
    // Descriptors travel with the first byte.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors to hand over"));
    }
    let sent =
        sendmsg(stream.as_fd(), &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&bytes[sent..])
}

/// Receives the next message, and the descriptors that came with it. `None` when the other side has gone.
pub(crate) fn receive<T: DeserializeOwned>(
    mut stream: &UnixStream,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let received = retry_on_intr(|| {
        let into = &mut [IoSliceMut::new(&mut length)];
        recvmsg(stream.as_fd(), into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let received = received.bytes;
    if received == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            descriptors.extend(handed);
        }
    }
    stream.read_exact(&mut length[received..])?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_BYTES {
        return Err(io::Error::other("a message longer than any that is sent here"));
    }
    let mut body = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, descriptors)))
}
