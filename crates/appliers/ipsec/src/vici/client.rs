//! A connection to charon: a command and its answer, or a list that comes in parts.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{InvalidMessage, Message};

/// Time after which a charon that does not answer is taken to hang, and is ended with all its tunnels. It does not
/// answer about a connection until the step of its negotiation is done, and for the first one the kernel may load
/// modules: on a slow machine that takes a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest message that charon accepts and sends.
const MAX_BYTES: usize = 512 * 1024;

const COMMAND: u8 = 0;
const ANSWER: u8 = 1;
const UNKNOWN_COMMAND: u8 = 2;
const REGISTER: u8 = 3;
const UNREGISTER: u8 = 4;
const CONFIRMED: u8 = 5;
const UNKNOWN_EVENT: u8 = 6;
const EVENT: u8 = 7;

#[derive(Debug, thiserror::Error)]
pub enum ViciError {
    #[error("charon does not answer: {0}")]
    Lost(#[from] io::Error),
    #[error("charon does not answer: {0}")]
    Invalid(#[from] InvalidMessage),
    #[error("charon does not know the command {0}: is its strongSwan older than 5.7?")]
    Unknown(&'static str),
    #[error("charon refuses it: {0}")]
    Refused(String),
}

pub type Result<T, E = ViciError> = std::result::Result<T, E>;

impl ViciError {
    /// Whether charon is there and does not answer.
    pub(crate) fn is_silence(&self) -> bool {
        let silent = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        matches!(self, Self::Lost(error) if silent.contains(&error.kind()))
    }

    /// Whether the connection can still be used.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Unknown(_))
    }
}

pub struct Vici {
    stream: UnixStream,
}

impl Vici {
    pub fn connect(socket: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(socket)?)
    }

    pub(crate) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream })
    }

    /// Whether the other end is gone. It sends nothing unasked, so anything to read is the end.
    pub fn has_ended(&self) -> bool {
        let mut wait = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut wait, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    pub fn command(&mut self, name: &'static str, message: &Message) -> Result<Message> {
        self.send(COMMAND, name, Some(message))?;
        let (kind, bytes) = self.receive()?;
        let answer = match kind {
            ANSWER => Message::read(&bytes)?,
            UNKNOWN_COMMAND => return Err(ViciError::Unknown(name)),
            _ => return Err(unexpected()),
        };
        match answer.get_text("success") {
            Some("no") => {
                let why = answer.get_text("errmsg").unwrap_or("it does not say why");
                Err(ViciError::Refused(why.to_owned()))
            }
            _ => Ok(answer),
        }
    }

    /// Sends a command that may be refused: what it is for may be done already, and is checked again later.
    pub(crate) fn try_command(&mut self, name: &'static str, message: &Message) -> Result<()> {
        match self.command(name, message) {
            Err(error) if error.is_refusal() => {
                tracing::debug!("{error}");
                Ok(())
            }
            done => done.map(drop),
        }
    }

    /// Sends a command and returns its events of this name.
    pub fn list(
        &mut self,
        name: &'static str,
        event: &'static str,
        message: &Message,
    ) -> Result<Vec<Message>> {
        self.register(REGISTER, event)?;
        self.send(COMMAND, name, Some(message))?;
        let mut items = Vec::new();
        loop {
            let (kind, bytes) = self.receive()?;
            match kind {
                EVENT => items.push(Message::read(after_name(&bytes)?)?),
                ANSWER => break,
                UNKNOWN_COMMAND => return Err(ViciError::Unknown(name)),
                _ => return Err(unexpected()),
            }
        }
        self.register(UNREGISTER, event)?;
        Ok(items)
    }

    fn register(&mut self, kind: u8, event: &'static str) -> Result<()> {
        self.send(kind, event, None)?;
        loop {
            match self.receive()?.0 {
                CONFIRMED => return Ok(()),
                UNKNOWN_EVENT => return Err(ViciError::Unknown(event)),
                // One that was on its way.
                EVENT => {}
                _ => return Err(unexpected()),
            }
        }
    }

    fn send(&mut self, kind: u8, name: &str, message: Option<&Message>) -> Result<()> {
        let mut bytes = vec![0, 0, 0, 0, kind, name.len() as u8];
        bytes.extend_from_slice(name.as_bytes());
        if let Some(message) = message {
            message.write(&mut bytes)?;
        }
        let len = bytes.len() - 4;
        if len > MAX_BYTES {
            return Err(ViciError::Refused(format!("{name}: it is too long ({len} bytes)")));
        }
        bytes[..4].copy_from_slice(&(len as u32).to_be_bytes());
        Ok(self.stream.write_all(&bytes)?)
    }

    /// Receives a packet: its type, and its content.
    fn receive(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len == 0 || len > MAX_BYTES {
            return Err(unexpected());
        }
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        let kind = bytes.remove(0);
        Ok((kind, bytes))
    }
}

fn after_name(bytes: &[u8]) -> Result<&[u8]> {
    let len = usize::from(*bytes.first().ok_or_else(unexpected)?);
    bytes.get(1 + len..).ok_or_else(unexpected)
}

fn unexpected() -> ViciError {
    ViciError::Lost(io::Error::new(io::ErrorKind::InvalidData, "it answers something else"))
}

impl AsFd for Vici {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a peer that sends these packets makes of a command or a list.
    fn packet(kind: u8, name: Option<&str>, message: &Message) -> Vec<u8> {
        let mut bytes = vec![kind];
        if let Some(name) = name {
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name.as_bytes());
        }
        message.write(&mut bytes).expect("it can be said");
        [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()
    }

    fn vici(packets: &[Vec<u8>]) -> (Vici, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.write_all(&packets.concat()).expect("room");
        (Vici::over(ours).expect("a connection"), theirs)
    }

    #[test]
    fn a_command_is_answered_or_refused_with_the_reason() {
        let yes = Message::default().text("success", "yes");
        let no = Message::default().text("success", "no").text("errmsg", "no such connection");
        let nothing = Message::default();
        let (mut vici, mut theirs) = vici(&[
            packet(ANSWER, None, &yes),
            packet(ANSWER, None, &no),
            packet(UNKNOWN_COMMAND, None, &nothing),
        ]);
        vici.command("load-conn", &nothing).expect("yes");
        let error = vici.command("unload-conn", &nothing).expect_err("no");
        assert_eq!(error.to_string(), "charon refuses it: no such connection");
        assert!(vici.command("none", &nothing).expect_err("unknown").is_refusal());
        let mut sent = [0; 15];
        theirs.read_exact(&mut sent).expect("what was sent");
        assert_eq!(sent, *b"\0\0\0\x0b\0\x09load-conn");
        assert!(!vici.has_ended());
        drop(theirs);
        assert!(vici.has_ended());
        assert!(!vici.command("version", &nothing).expect_err("gone").is_refusal());
    }

    #[test]
    fn a_list_is_all_its_events() {
        let item = |name: &str| Message::default().section(name, Message::default());
        let nothing = Message::default();
        let (mut vici, _theirs) = vici(&[
            packet(CONFIRMED, None, &nothing),
            packet(EVENT, Some("list-sa"), &item("a")),
            packet(EVENT, Some("list-sa"), &item("b")),
            packet(ANSWER, None, &nothing),
            packet(CONFIRMED, None, &nothing),
        ]);
        let items = vici.list("list-sas", "list-sa", &nothing).expect("a list");
        assert_eq!(items, [item("a"), item("b")]);
    }

    #[test]
    fn what_is_no_vici_is_an_error_and_takes_no_memory() {
        for bytes in [&[0xff; 64][..], &[0, 0, 0, 0], &[0, 0, 0, 2, 9, 0], &[0, 0, 0, 2, 1, 9]] {
            let (mut vici, theirs) = vici(&[bytes.to_vec()]);
            theirs.shutdown(std::net::Shutdown::Write).expect("it ends");
            assert!(!vici.command("version", &Message::default()).expect_err("no").is_refusal());
        }
    }
}
