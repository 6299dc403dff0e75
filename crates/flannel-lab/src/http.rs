//! The little HTTP that a lab needs: one request, one answer, from inside a namespace.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Status and body of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends a request on the network of the calling thread. HTTP/1.0, so the answer ends where the
/// connection ends and is never chunked.
pub(crate) fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&str>,
    limit: Duration,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let body = body.unwrap_or("");
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        let answer = parse("HTTP/1.1 503 Service Unavailable\r\nX: y\r\n\r\nnot yet").unwrap();
        assert_eq!(answer, Answer { status: 503, body: "not yet".into() });
        assert_eq!(parse("garbage"), None);
    }
}
