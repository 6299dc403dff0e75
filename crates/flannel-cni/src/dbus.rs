//! As much of D-Bus as it takes to call a method of a service on the host: texts go in, a text or a truth
//! value comes out.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use flannel_common::hex;

const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const DEFAULT: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// As long as others wait for an answer.
const PATIENCE: Duration = Duration::from_secs(25);
const LARGEST: usize = 1 << 20;
const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const FIELD_PATH: u8 = 1;
const FIELD_INTERFACE: u8 = 2;
const FIELD_MEMBER: u8 = 3;
const FIELD_ERROR_NAME: u8 = 4;
const FIELD_REPLY_SERIAL: u8 = 5;
const FIELD_DESTINATION: u8 = 6;
const FIELD_SIGNATURE: u8 = 8;

pub(crate) struct Bus {
    stream: BufReader<UnixStream>,
    serial: u32,
}

pub(crate) struct Method<'a> {
    pub(crate) destination: &'a str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) member: &'a str,
}

/// What a method returned, as far as we need it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Text(String),
    Bool(bool),
    Other,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BusError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The name of the error, and what the service said.
    #[error("{0}")]
    Refused(String),
}

impl Bus {
    pub(crate) fn of_system() -> Result<Self, BusError> {
        let address = std::env::var(VARIABLE).ok().filter(|it| !it.is_empty());
        Self::connect(address.as_deref().unwrap_or(DEFAULT))
    }

    fn connect(address: &str) -> Result<Self, BusError> {
        let stream = UnixStream::connect_addr(&socket_address(address)?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut bus = Self { stream: BufReader::new(stream), serial: 0 };
        bus.authenticate()?;
        bus.call(&Method { member: "Hello", ..OF_BUS }, &[])?;
        Ok(bus)
    }

    /// Whether some process has this name.
    pub(crate) fn has_owner(&mut self, name: &str) -> Result<bool, BusError> {
        let answer = self.call(&Method { member: "NameHasOwner", ..OF_BUS }, &[name])?;
        Ok(answer == Body::Bool(true))
    }

    pub(crate) fn call(
        &mut self,
        method: &Method<'_>,
        arguments: &[&str],
    ) -> Result<Body, BusError> {
        self.serial += 1;
        let message = encode(method, arguments, self.serial);
        self.stream.get_mut().write_all(&message)?;
        loop {
            let answer = self.receive()?;
            if answer.in_reply_to != Some(self.serial) {
                continue;
            }
            match answer.kind {
                RETURN => return Ok(answer.body),
                ERROR => {
                    let said = match answer.body {
                        Body::Text(text) => format!("{}: {text}", answer.error),
                        _ => answer.error,
                    };
                    return Err(BusError::Refused(said));
                }
                _ => {}
            }
        }
    }

    /// The kernel tells the other side who we are.
    fn authenticate(&mut self) -> Result<(), BusError> {
        let user = hex(rustix::process::geteuid().as_raw().to_string().as_bytes());
        self.stream.get_mut().write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
        let mut line = String::new();
        (&mut self.stream).take(LARGEST as u64).read_line(&mut line)?;
        if !line.starts_with("OK ") {
            return Err(BusError::Refused(format!("it does not let us in: {}", line.trim())));
        }
        Ok(self.stream.get_mut().write_all(b"BEGIN\r\n")?)
    }

    fn receive(&mut self) -> Result<Answer, BusError> {
        const FIXED: usize = 16;
        let mut message = vec![0; FIXED];
        self.stream.read_exact(&mut message)?;
        let order = Order { is_big: message[0] == b'B' };
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "it speaks no D-Bus");
        let lengths = order.number(&message, 4).zip(order.number(&message, 12));
        let (body, fields) = lengths.ok_or_else(nonsense)?;
        let fields_end = (FIXED + fields as usize).next_multiple_of(8);
        let whole = fields_end.saturating_add(body as usize);
        if whole > LARGEST {
            return Err(nonsense().into());
        }
        message.resize(whole, 0);
        self.stream.read_exact(&mut message[FIXED..])?;
        let end = FIXED + fields as usize;
        Ok(decode(order, &message, end, fields_end).ok_or_else(nonsense)?)
    }
}

const OF_BUS: Method<'static> = Method {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    member: "",
};

struct Answer {
    kind: u8,
    in_reply_to: Option<u32>,
    error: String,
    body: Body,
}

/// Of the places in the list, the first that is a socket.
fn socket_address(addresses: &str) -> io::Result<SocketAddr> {
    for address in addresses.split(';') {
        let Some(options) = address.strip_prefix("unix:") else { continue };
        for option in options.split(',') {
            match option.split_once('=') {
                Some(("path", path)) => return SocketAddr::from_pathname(path),
                Some(("abstract", name)) => return SocketAddr::from_abstract_name(name),
                _ => {}
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no socket in {addresses:?}")))
}

fn encode(method: &Method<'_>, arguments: &[&str], serial: u32) -> Vec<u8> {
    let mut body = Vec::new();
    arguments.iter().for_each(|text| put_text(&mut body, text));
    let mut message = vec![b'l', CALL, 0, 1];
    message.extend((body.len() as u32).to_le_bytes());
    message.extend(serial.to_le_bytes());
    let mut fields = Vec::new();
    for (field, kind, value) in [
        (FIELD_PATH, b'o', method.path),
        (FIELD_INTERFACE, b's', method.interface),
        (FIELD_MEMBER, b's', method.member),
        (FIELD_DESTINATION, b's', method.destination),
    ] {
        pad(&mut fields, 8);
        fields.extend([field, 1, kind, 0]);
        put_text(&mut fields, value);
    }
    if !arguments.is_empty() {
        pad(&mut fields, 8);
        fields.extend([FIELD_SIGNATURE, 1, b'g', 0, arguments.len() as u8]);
        fields.extend(std::iter::repeat_n(b's', arguments.len()));
        fields.push(0);
    }
    message.extend((fields.len() as u32).to_le_bytes());
    message.extend(fields);
    pad(&mut message, 8);
    message.extend(body);
    message
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

#[derive(Clone, Copy)]
struct Order {
    is_big: bool,
}

impl Order {
    fn number(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// A text and where it ends.
    fn text(self, bytes: &[u8], at: usize) -> Option<(String, usize)> {
        let at = at.next_multiple_of(4);
        let length = self.number(bytes, at)? as usize;
        let text = bytes.get(at + 4..(at + 4).checked_add(length)?)?;
        Some((String::from_utf8_lossy(text).into_owned(), at + 4 + length + 1))
    }
}

fn decode(order: Order, message: &[u8], fields_end: usize, body_at: usize) -> Option<Answer> {
    let mut answer =
        Answer { kind: message[1], in_reply_to: None, error: String::new(), body: Body::Other };
    let mut signature = String::new();
    let mut at = 16;
    while at < fields_end {
        at = at.next_multiple_of(8);
        let (field, kind) = (*message.get(at)?, *message.get(at + 2)?);
        at += 4;
        match kind {
            b'u' => {
                let number = order.number(message, at.next_multiple_of(4))?;
                at = at.next_multiple_of(4) + 4;
                if field == FIELD_REPLY_SERIAL {
                    answer.in_reply_to = Some(number);
                }
            }
            b's' | b'o' => {
                let (text, end) = order.text(message, at)?;
                at = end;
                if field == FIELD_ERROR_NAME {
                    answer.error = text;
                }
            }
            b'g' => {
                let length = usize::from(*message.get(at)?);
                let text = message.get(at + 1..at + 1 + length)?;
                at += length + 2;
                if field == FIELD_SIGNATURE {
                    signature = String::from_utf8_lossy(text).into_owned();
                }
            }
            _ => return None,
        }
    }
    answer.body = match signature.as_bytes().first() {
        Some(b's') => Body::Text(order.text(message, body_at)?.0),
        Some(b'b') => Body::Bool(order.number(message, body_at)? != 0),
        _ => Body::Other,
    };
    Some(answer)
}
