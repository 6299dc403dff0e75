//! Requests and answers: JSON, each with its length before it, and descriptors beside it where some are
//! handed over.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flannel_common::PublicKey;
use ipnet::IpNet;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::counters::CounterSnapshot;
use crate::datapath::{Config, InUse};
use crate::table::Peer;
use crate::wireguard::{HandedPeer, WireguardPeer, public_key};

/// Changed when either side would misunderstand the other. Whoever meets a process of another version hands
/// its work over, which every version can.
pub(crate) const VERSION: u32 = 1;

/// Longer than ten thousand peers take, with three sessions each that are in full use, and no more than anybody may make
/// us keep.
const MOST_BYTES: usize = 128 << 20;
/// Descriptors that one message carries; the kernel takes 253.
const MOST_DESCRIPTORS: usize = 200;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first thing said.
    Hello {
        version: u32,
    },
    /// Device, addresses and ports from now on.
    Configure(Config),
    /// All peers from now on.
    Replace(Vec<Peer>),
    /// These are put in or changed, those are gone.
    Update {
        put: Vec<Peer>,
        gone: Vec<IpNet>,
    },
    /// The same for a device of WireGuard.
    ReplaceWireguard(Vec<WireguardPeer>),
    UpdateWireguard {
        put: Vec<WireguardPeer>,
        gone: Vec<WireguardKey>,
    },
    Status,
    /// What has passed in all, without a line for each peer.
    Totals,
    /// Listen for others too, on the socket that comes with this.
    Listen,
    /// Stop serving and hand over what is served. If `End` does not follow, serving goes on, with new sessions:
    /// those that were handed over are not used again.
    HandOver,
    /// Prepare to go on with what another has handed over; its descriptors come with this.
    Adopt(Box<Handed>),
    /// That other has ended: go on.
    Begin,
    /// End, and leave the device for whoever comes next.
    End,
    /// End, and take the device along.
    Remove,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Hello {
        version: u32,
        pid: u32,
        program: Option<Program>,
        config: Option<Config>,
    },
    Done,
    Failed(String),
    Status(Box<TunnelStatus>),
    Totals(CounterSnapshot),
    /// With descriptors.
    Handed(Box<Handed>),
}

/// What is handed over beside descriptors. Of these, the first is the socket that is listened on, then come the
/// queues of the device, then for each lane its sockets, in the order of the addresses of the config.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handed {
    pub(crate) config: Config,
    pub(crate) in_use: InUse,
    pub(crate) peers: Vec<(Peer, CounterSnapshot)>,
    pub(crate) counters: CounterSnapshot,
    #[serde(default)]
    pub(crate) departed: CounterSnapshot,
    #[serde(default)]
    pub(crate) wireguard: Vec<HandedPeer>,
}

/// The key that a peer is known by.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct WireguardKey(#[serde(with = "public_key")] pub(crate) PublicKey);

/// A peer of WireGuard, as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireguardPeerStatus {
    #[serde(with = "public_key")]
    pub public_key: PublicKey,
    /// Where it was heard from last, or else is said to be.
    pub endpoint: SocketAddr,
    pub allowed: Vec<IpNet>,
    /// How long ago both have agreed upon keys.
    pub session_age: Option<Duration>,
}

/// How the datapath stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelStatus {
    pub config: Option<Config>,
    /// What it uses of what the kernel has.
    pub in_use: Option<InUse>,
    /// Why it carries nothing, if it does not.
    pub problem: Option<String>,
    pub peers: Vec<(Peer, CounterSnapshot)>,
    /// Of packets that belong to no peer.
    pub counters: CounterSnapshot,
    #[serde(default)]
    pub wireguard: Vec<WireguardPeerStatus>,
}

/// Which file a process was started from: another after an upgrade, though its name is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    device: u64,
    inode: u64,
    changed: i64,
}

impl Program {
    /// Of this process.
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
    // There are keys in some of them.
    let body = Zeroizing::new(serde_json::to_vec(message)?);
    let mut bytes = Zeroizing::new(Vec::with_capacity(4 + body.len()));
    bytes.extend_from_slice(&u32::try_from(body.len()).map_err(io::Error::other)?.to_be_bytes());
    bytes.extend_from_slice(&body);
    // Descriptors travel with the first byte.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors to hand over"));
    }
    let sent =
        sendmsg(stream.as_fd(), &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&bytes[sent..])
}

/// The next message, and the descriptors that came with it. `None` when the other side has gone.
pub(crate) fn receive<T: DeserializeOwned>(
    mut stream: &UnixStream,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut length)], &mut ancillary, flags) {
            Ok(received) => break received.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
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
    if length > MOST_BYTES {
        return Err(io::Error::other("a message longer than any that is sent here"));
    }
    let mut body = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, descriptors)))
}
