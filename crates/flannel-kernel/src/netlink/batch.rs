//! Requests: many at once with one acknowledgement, and dumps.

use std::io;

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer,
    ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;

use super::NetlinkError;
use super::socket::Socket;

const HEADER_LEN: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Messages of one `send`. Larger ones gain nothing: each costs the kernel one allocation of this size.
const BATCH_BYTES: usize = 64 * 1024;
/// Room for the errors of a batch in which every message fails.
const RECEIVE_MEMORY: i32 = 4 << 20;
const DUMP_TRIES: usize = 5;

/// One change to the kernel. `flags` beyond REQUEST and ACK.
pub struct Request {
    pub message: RouteNetlinkMessage,
    pub flags: u16,
}

pub struct Connection {
    socket: Socket,
    sequence: u32,
}

impl Connection {
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(false, RECEIVE_MEMORY)?, sequence: 0 })
    }

    /// The kernel's name for this socket.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Carries out all requests in order, going on past those that fail, and hands every failure to
    /// `failed` with the position of its request. Requests are taken as they are sent, so that
    /// thousands of them never stand in memory at once. An `Err` means the state of the kernel is
    /// unknown.
    pub fn apply(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        mut failed: impl FnMut(usize, NetlinkError),
    ) -> io::Result<()> {
        let mut requests = requests.into_iter().peekable();
        let mut buffer = Vec::new();
        let mut start = 0;
        while requests.peek().is_some() {
            buffer.clear();
            let first_sequence = self.sequence.wrapping_add(1);
            let mut count = 0;
            let mut last_at = 0;
            while buffer.len() < BATCH_BYTES
                && let Some(request) = requests.next()
            {
                last_at = buffer.len();
                self.append(&mut buffer, &request.message, request.flags);
                count += 1;
            }
            // Only the last one is acknowledged: its answer closes the batch.
            let flags_at = last_at + 6;
            let flags = u16::from_ne_bytes([buffer[flags_at], buffer[flags_at + 1]]) | NLM_F_ACK;
            buffer[flags_at..flags_at + 2].copy_from_slice(&flags.to_ne_bytes());
            self.socket.send(&buffer)?;
            self.collect_errors(first_sequence, count, |at, error| failed(start + at, error))?;
            start += count;
        }
        Ok(())
    }

    /// One request that the kernel answers with one message.
    pub fn get(
        &mut self,
        message: &RouteNetlinkMessage,
    ) -> io::Result<Result<RouteNetlinkMessage, NetlinkError>> {
        let mut buffer = Vec::new();
        self.append(&mut buffer, message, 0);
        self.socket.send(&buffer)?;
        loop {
            let mut answer = None;
            for part in messages(self.socket.receive()?) {
                let part = part?;
                if part.sequence != self.sequence {
                    continue;
                }
                answer = match part.kind {
                    NLMSG_ERROR => NetlinkError::parse(part.payload, part.flags).err().map(Err),
                    _ => part.decode().map(Ok),
                };
            }
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }

    /// Everything the kernel has of a kind, as far as `read` wants it. A dump that a concurrent change
    /// has torn is taken again.
    pub fn dump<T>(
        &mut self,
        message: &RouteNetlinkMessage,
        mut read: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut items = Vec::new();
        for _ in 0..DUMP_TRIES {
            items.clear();
            if !self.dump_once(message, |message| items.extend(read(message)))? {
                break;
            }
        }
        Ok(items)
    }

    /// Returns whether the dump was interrupted by a change and may be inconsistent.
    fn dump_once(
        &mut self,
        message: &RouteNetlinkMessage,
        mut take: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<bool> {
        let mut buffer = Vec::new();
        self.append(&mut buffer, message, NLM_F_DUMP);
        self.socket.send(&buffer)?;
        let mut interrupted = false;
        loop {
            for part in messages(self.socket.receive()?) {
                let part = part?;
                if part.sequence != self.sequence {
                    continue;
                }
                interrupted |= part.flags & NLM_F_DUMP_INTR != 0;
                match part.kind {
                    NLMSG_DONE => return Ok(interrupted),
                    NLMSG_ERROR => {
                        return match NetlinkError::parse(part.payload, part.flags) {
                            Ok(()) => Ok(interrupted),
                            Err(error) => Err(io::Error::from_raw_os_error(error.errno)),
                        };
                    }
                    _ => part.decode().into_iter().for_each(&mut take),
                }
            }
        }
    }

    fn append(&mut self, buffer: &mut Vec<u8>, message: &RouteNetlinkMessage, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let start = buffer.len();
        let len = HEADER_LEN + message.buffer_len();
        buffer.resize(start + len.next_multiple_of(4), 0);
        let header = &mut buffer[start..start + HEADER_LEN];
        header[0..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[4..6].copy_from_slice(&message.message_type().to_ne_bytes());
        header[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        header[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        message.emit(&mut buffer[start + HEADER_LEN..start + len]);
    }

    fn collect_errors(
        &mut self,
        first_sequence: u32,
        count: usize,
        mut failed: impl FnMut(usize, NetlinkError),
    ) -> io::Result<()> {
        loop {
            let mut done = false;
            for part in messages(self.socket.receive()?) {
                let part = part?;
                let at = part.sequence.wrapping_sub(first_sequence) as usize;
                if part.kind != NLMSG_ERROR || at >= count {
                    continue;
                }
                if let Err(error) = NetlinkError::parse(part.payload, part.flags) {
                    failed(at, error);
                }
                done |= at == count - 1;
            }
            if done {
                return Ok(());
            }
        }
    }
}

/// One netlink message as it stands in the receive buffer.
pub(super) struct Part<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// Who caused it: of interest to the monitor.
    #[cfg_attr(not(feature = "engine"), expect(dead_code))]
    pub(super) port: u32,
    payload: &'a [u8],
}

impl Part<'_> {
    /// `None` for what the codec does not understand: a kernel newer than it may send that.
    pub(super) fn decode(&self) -> Option<RouteNetlinkMessage> {
        RouteNetlinkMessage::parse_with_param(self.payload, self.kind).ok()
    }
}

pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = io::Result<Part<'_>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.len() < HEADER_LEN {
            return None;
        }
        let Ok(message) = NetlinkBuffer::new_checked(rest) else {
            rest = &[];
            return Some(Err(io::Error::new(io::ErrorKind::InvalidData, "torn netlink message")));
        };
        let len = message.length() as usize;
        let part = Part {
            kind: message.message_type(),
            flags: message.flags(),
            sequence: message.sequence_number(),
            port: message.port_number(),
            payload: &rest[HEADER_LEN..len],
        };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(part))
    })
}
