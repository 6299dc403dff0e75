//! WebSocket (RFC 6455) as a client needs it, for servers that speak it once a request has been upgraded
//! ([`crate::Client::upgrade`]). Without I/O: bytes in, messages out, and the other way round.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, Request};

/// Every server adds this to the key that it was sent, so that it is known to speak WebSocket.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Data(Vec<u8>),
    /// To be answered by [`pong`].
    Ping(Vec<u8>),
    Close,
}

/// The request that asks for it. `key` is new for each.
pub fn ask(path: &str, protocol: &str, key: [u8; 16]) -> Result<Request<Bytes>, String> {
    Request::get(path)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, STANDARD.encode(key))
        .header(SEC_WEBSOCKET_PROTOCOL, protocol)
        .body(Bytes::new())
        .map_err(|error| error.to_string())
}

/// Whether the server has understood what it was asked.
pub fn is_accepted(headers: &HeaderMap, protocol: &str, key: [u8; 16]) -> bool {
    let said = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let digest = ring::digest::digest(
        &ring::digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{}{GUID}", STANDARD.encode(key)).as_bytes(),
    );
    said(SEC_WEBSOCKET_ACCEPT) == Some(&*STANDARD.encode(digest))
        && said(SEC_WEBSOCKET_PROTOCOL) == Some(protocol)
}

/// A message, ready to be sent. `mask` is new for each.
pub fn data(payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    frame(BINARY, payload, mask)
}

pub fn pong(payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    frame(PONG, payload, mask)
}

fn frame(kind: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    const FINAL: u8 = 0x80;
    const MASKED: u8 = 0x80;
    let mut frame = Vec::with_capacity(payload.len() + 14);
    frame.push(FINAL | kind);
    match payload.len() {
        short @ 0..126 => frame.push(MASKED | short as u8),
        long @ 126..=0xffff => {
            frame.push(MASKED | 126);
            frame.extend((long as u16).to_be_bytes());
        }
        longer => {
            frame.push(MASKED | 127);
            frame.extend((longer as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[derive(Debug)]
pub struct Reader {
    /// What has come and is not yet a whole frame.
    pub buffer: Vec<u8>,
    /// The parts of a message that came in several frames.
    begun: Option<Vec<u8>>,
    largest: usize,
}

impl Reader {
    pub fn new(largest: usize) -> Self {
        Self { buffer: Vec::new(), begun: None, largest }
    }

    /// The next whole message, if there is one. The error is for an operator.
    pub fn next_message(&mut self) -> Result<Option<Message>, String> {
        while let Some((is_final, kind, payload)) = self.cut()? {
            match kind {
                CLOSE => return Ok(Some(Message::Close)),
                PING => return Ok(Some(Message::Ping(payload))),
                PONG => {}
                CONTINUATION | 1 | BINARY => {
                    let mut message = self.begun.take().unwrap_or_default();
                    message.extend(payload);
                    if message.len() > self.largest {
                        return Err("it sends a message without end".to_owned());
                    }
                    if is_final {
                        return Ok(Some(Message::Data(message)));
                    }
                    self.begun = Some(message);
                }
                _ => return Err(format!("it sends a frame of the unknown kind {kind}")),
            }
        }
        Ok(None)
    }

    fn cut(&mut self) -> Result<Option<(bool, u8, Vec<u8>)>, String> {
        let Some((&[first, second], rest)) = self.buffer.split_first_chunk() else {
            return Ok(None);
        };
        if second & 0x80 != 0 {
            return Err("it masks what it sends, as no server does".to_owned());
        }
        let (length, head) = match second {
            126 => match rest.first_chunk() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= self.largest);
        let length = length.ok_or("it sends a message without end")?;
        let Some(payload) = self.buffer.get(head..head + length).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.buffer.drain(..head + length);
        Ok(Some((first & 0x80 != 0, first & 0x0f, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a server sends it: without a mask.
    fn sent(kind: u8, is_final: bool, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![if is_final { 0x80 | kind } else { kind }];
        match payload.len() {
            short @ 0..126 => bytes.push(short as u8),
            long => {
                bytes.push(126);
                bytes.extend((long as u16).to_be_bytes());
            }
        }
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn messages_are_read_however_they_are_cut_up() {
        let mut bytes = sent(BINARY, true, b"one");
        bytes.extend(sent(BINARY, false, b"t"));
        bytes.extend(sent(PING, true, b"?"));
        bytes.extend(sent(CONTINUATION, true, &[b'o'; 300]));
        bytes.extend(sent(CLOSE, true, b""));
        let long = [&b"t"[..], &[b'o'; 300]].concat();
        let expected = [
            Message::Data(b"one".to_vec()),
            Message::Ping(b"?".to_vec()),
            Message::Data(long),
            Message::Close,
        ];
        for step in [1, 2, 7, bytes.len()] {
            let (mut reader, mut read) = (Reader::new(1_000), Vec::new());
            for piece in bytes.chunks(step) {
                reader.buffer.extend(piece);
                while let Some(message) = reader.next_message().expect("good frames") {
                    read.push(message);
                }
            }
            assert_eq!(read, expected, "{step} bytes at a time");
        }
    }

    #[test]
    fn what_has_no_end_or_makes_no_sense_is_refused() {
        let refused = |bytes: &[u8]| {
            let mut reader = Reader::new(100);
            reader.buffer.extend(bytes);
            reader.next_message().expect_err("it is refused")
        };
        assert!(refused(&[0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255]).contains("end"));
        assert!(refused(&sent(BINARY, true, &[0; 101])).contains("end"));
        let parts = [sent(BINARY, false, &[0; 60]), sent(CONTINUATION, true, &[0; 60])].concat();
        assert!(refused(&parts).contains("end"));
        assert!(refused(&data(b"x", [1, 2, 3, 4])).contains("masks"));
        assert!(refused(&[0x83, 0]).contains("kind 3"));
    }

    #[test]
    fn what_is_sent_is_masked_and_unmasks_to_itself() {
        for length in [0, 5, 125, 126, 70_000] {
            let payload = vec![7; length];
            let frame = data(&payload, [1, 2, 3, 4]);
            let head = frame.len() - length;
            let mask = &frame[head - 4..head];
            let shown: Vec<u8> =
                frame[head..].iter().zip(mask.iter().cycle()).map(|(a, b)| a ^ b).collect();
            assert_eq!((frame[0], frame[1] & 0x80, shown), (0x82, 0x80, payload));
        }
    }

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn a_server_is_known_by_what_it_makes_of_the_key() {
        let key: [u8; 16] = *b"the sample nonce";
        let mut headers = HeaderMap::new();
        headers.insert(SEC_WEBSOCKET_ACCEPT, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".parse().expect("text"));
        headers.insert(SEC_WEBSOCKET_PROTOCOL, "chat".parse().expect("text"));
        assert!(is_accepted(&headers, "chat", key));
        assert!(!is_accepted(&headers, "other", key));
        assert!(!is_accepted(&headers, "chat", [0; 16]));
        assert!(!is_accepted(&HeaderMap::new(), "chat", key));
    }
}
