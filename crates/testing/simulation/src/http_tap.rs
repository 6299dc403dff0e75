//! Reads what a client and the lease server say to each other from the client's end of a connection, so that the history
//! is what clients saw, whatever client it was.

use flannel_lease::{LeaseAttrs, Subnet};
use flannel_store::wire::{WatchResult, WireFault, WireLease, WireReservation};

use crate::operations::{self, Answer, Call, LeaseSeen, Machine, Moment};

/// The client's end of one connection: HTTP/1.1, one request after the other.
pub(crate) struct HttpTap {
    client: String,
    request: Vec<u8>,
    /// When the first byte of the request was written.
    begun: Option<Moment>,
    response: Vec<u8>,
    asked: Asked,
}

/// What the next response answers.
enum Asked {
    Nothing,
    Operation(usize),
    /// Something that is no part of the history.
    Other,
    /// A stream that never ends.
    Stream,
}

impl HttpTap {
    pub(crate) fn new(client: String) -> Self {
        let asked = Asked::Nothing;
        Self { client, request: Vec::new(), begun: None, response: Vec::new(), asked }
    }

    /// The client has written this.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        if matches!(self.asked, Asked::Stream) {
            return;
        }
        let begun = *self.begun.get_or_insert_with(operations::moment);
        self.request.extend_from_slice(bytes);
        let Some((head, body, length)) = message(&self.request) else { return };
        let (network, call) = read_call(&head, &body).unwrap_or_default();
        let path = head.lines().next().unwrap_or_default();
        self.asked = match call {
            Some(call) => {
                let client = self.client.clone();
                Asked::Operation(operations::called(client, network, call, begun))
            }
            None if path.contains("/events") => Asked::Stream,
            None => Asked::Other,
        };
        self.request.drain(..length);
        self.begun = None;
    }

    /// The client has read this.
    pub(crate) fn received(&mut self, bytes: &[u8]) {
        if matches!(self.asked, Asked::Stream) {
            return;
        }
        self.response.extend_from_slice(bytes);
        let Some((head, body, length)) = message(&self.response) else { return };
        self.response.drain(..length);
        if let Asked::Operation(operation) = std::mem::replace(&mut self.asked, Asked::Nothing) {
            let call = operations::call_of(operation);
            if let Some(answer) = read_answer(&call, &head, &body) {
                operations::answered(operation, answer);
            }
        }
    }
}

/// The first message, if it is all there: its head, its body, and its length.
fn message(bytes: &[u8]) -> Option<(String, String, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        let (body, length) = unchunked(&bytes[end..])?;
        return Some((head, body, end + length));
    }
    let length = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let body = bytes.get(end..end + length)?;
    Some((head, String::from_utf8_lossy(body).into_owned(), end + length))
}

/// A body in chunks, and its length with what is between them.
fn unchunked(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = bytes[at..].windows(2).position(|two| two == b"\r\n")?;
        let length = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let length = usize::from_str_radix(length, 16).ok()?;
        at += line + 2;
        body.extend_from_slice(bytes.get(at..at + length)?);
        bytes.get(at + length..at + length + 2)?;
        at += length + 2;
        if length == 0 {
            return Some((String::from_utf8_lossy(&body).into_owned(), at));
        }
    }
}

/// What is asked, and of which network, if it belongs to the history.
fn read_call(head: &str, body: &str) -> Option<(String, Option<Call>)> {
    let mut words = head.lines().next()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let option = |name: &str| {
        query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).map(unescaped)
    };
    let parts: Vec<String> = path.trim_start_matches('/').split('/').map(unescaped).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let ["v1", network, rest @ ..] = parts.as_slice() else { return None };
    let subnet = |text: &str| text.parse::<Subnet>().ok();
    let version = option("version").and_then(|text| text.parse().ok());
    let call = match (method, rest) {
        ("POST", ["leases"]) => {
            let attrs = LeaseAttrs::from_json(body.as_bytes()).ok()?;
            Call::Acquire { machine: Machine::of(&attrs) }
        }
        ("PUT", ["leases", name]) => {
            let lease = WireLease::read(body).ok()?;
            let (subnet, machine) = (subnet(name)?, Machine::of(&lease.attrs));
            match option("import").as_deref() {
                Some("true") => Call::Import { subnet, machine },
                _ => Call::Renew { subnet, machine, version: lease.version },
            }
        }
        ("DELETE", ["leases", name]) => Call::Release { subnet: subnet(name)?, version },
        ("POST", ["reservations"]) => {
            let WireReservation { subnet, attrs } = WireReservation::read(body).ok()?;
            Call::Reserve { subnet, machine: Machine::of(&attrs) }
        }
        ("DELETE", ["reservations", name]) => Call::Unreserve { subnet: subnet(name)? },
        ("GET", ["leases"]) if option("next").is_none() => Call::ListLeases,
        ("PUT", ["config"]) => {
            let force = option("force").as_deref() == Some("true");
            Call::SetConfig { text: body.to_owned(), force }
        }
        // What is read otherwise has every value spelled out.
        ("GET", ["config"]) if option("raw").as_deref() == Some("true") => Call::ReadConfig,
        _ => return Some(((*network).to_owned(), None)),
    };
    Some(((*network).to_owned(), Some(call)))
}

/// `None` if the answer does not say whether anything was done.
fn read_answer(call: &Call, head: &str, body: &str) -> Option<Answer> {
    let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
    if status >= 500 {
        return None;
    }
    if !(200..300).contains(&status) {
        let fault = WireFault::read(body);
        let code = fault.as_ref().map_or_else(|| status.to_string(), |fault| fault.code.clone());
        let taken_by = fault.and_then(|fault| lease_seen(fault.lease.as_deref()?));
        return Some(match (code.as_str(), taken_by) {
            ("gone", _) => Answer::Gone,
            ("taken", Some((_, lease))) => Answer::Taken(lease),
            ("reserved", _) => Answer::Reserved,
            ("no-network", _) if *call == Call::ReadConfig => Answer::Config(None),
            _ => Answer::Refused(code),
        });
    }
    match call {
        Call::Acquire { .. } | Call::Renew { .. } | Call::Import { .. } => {
            let (subnet, lease) = lease_seen(&WireLease::read(body).ok()?)?;
            Some(Answer::Lease(subnet, lease))
        }
        Call::ListLeases => {
            let leases = WatchResult::read(body).ok()?.snapshot?;
            Some(Answer::Leases(leases.iter().filter_map(lease_seen).collect()))
        }
        Call::ReadConfig => Some(Answer::Config(Some(body.to_owned()))),
        _ => Some(Answer::Done),
    }
}

fn lease_seen(lease: &WireLease) -> Option<(Subnet, LeaseSeen)> {
    let reserved = lease.expiry == Some(flannel_lease::Expiry::Never);
    let machine = Machine::of(&lease.attrs);
    Some((lease.subnet?, LeaseSeen { machine, version: lease.version?, reserved }))
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        let code = more.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &more[2..];
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquired_lease_is_read_from_both_directions_in_pieces() {
        let mut tap = HttpTap::new("node-1".to_owned());
        tap.sent(b"POST /v1/_/leases?previous=10.1.2.0-24 HTTP/1.1\r\nContent-Length: 26\r\n\r\n");
        tap.sent(br#"{"PublicIP":"192.168.0.7"}"#);
        let lease = r#"{"Subnet":"10.1.2.0/24","Attrs":{"PublicIP":"192.168.0.7"},"Expiration":"2026-01-01T00:00:00Z","Version":5}"#;
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{lease}", lease.len());
        for piece in response.as_bytes().chunks(7) {
            tap.received(piece);
        }
        let all = operations::all();
        assert_eq!(all.len(), 1);
        let machine = Machine { v4: Some("192.168.0.7".parse().unwrap()), v6: None };
        assert_eq!(all[0].call, Call::Acquire { machine });
        let lease = LeaseSeen { machine, version: 5, reserved: false };
        let answer = all[0].answer.as_ref().map(|(_, answer)| answer.clone());
        assert_eq!(answer, Some(Answer::Lease("10.1.2.0-24".parse().unwrap(), lease)));
    }

    #[test]
    fn a_request_without_a_clear_answer_stays_open() {
        let mut tap = HttpTap::new("node-1".to_owned());
        tap.sent(b"DELETE /v1/_/leases/10.1.2.0%2D24?version=4 HTTP/1.1\r\n\r\n");
        tap.received(
            b"HTTP/1.1 503 Service Unavailable\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        );
        let all = operations::all();
        let subnet = "10.1.2.0-24".parse().unwrap();
        assert_eq!(all[0].call, Call::Release { subnet, version: Some(4) });
        assert_eq!(all[0].answer, None);
    }
}
