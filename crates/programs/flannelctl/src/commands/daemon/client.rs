//! Asking a daemon: that of this node by its socket, that of another by its probe port.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use flannel_common::OperatorCommands;
use flannel_https::PlainConnection;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, StatusCode};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::commands::daemon_process::operator_commands;

/// A daemon's state is some kilobytes; a line of an answer is one peer or event.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// It answers within milliseconds, and gives its networks two seconds each.
const DOOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Clone, Copy)]
pub(crate) enum Daemon<'a> {
    Here(&'a Path),
    There(SocketAddr),
}

struct Answer {
    body: Incoming,
    _connection: PlainConnection,
}

impl Daemon<'_> {
    pub(crate) async fn read<T: DeserializeOwned>(self, path: &str) -> anyhow::Result<T> {
        let mut text = Vec::new();
        let asked = self.text(path, |piece| {
            let is_bounded = text.len() + piece.len() <= MAX_ANSWER_BYTES;
            anyhow::ensure!(is_bounded, "flanneld's answer does not end");
            text.extend_from_slice(piece);
            Ok(())
        });
        match self {
            Self::Here(socket) => {
                let asked = tokio::time::timeout(DOOR_ANSWER_TIMEOUT, asked).await;
                asked.unwrap_or_else(|_| anyhow::bail!(hangs(socket, operator_commands())))?;
            }
            Self::There(_) => asked.await?,
        }
        serde_json::from_slice(&text)
            .context("flanneld's answer is not understood: it is of another version")
    }

    pub(crate) async fn text(
        self,
        path: &str,
        each: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        in_pieces(self.ask(Method::GET, path).await?, each).await
    }

    pub(crate) async fn lines<T: DeserializeOwned>(
        self,
        method: Method,
        path: &str,
        mut each: impl FnMut(T) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut rest: Vec<u8> = Vec::new();
        let take = |piece: &[u8]| {
            rest.extend_from_slice(piece);
            let complete = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in rest[..complete].split(|byte| *byte == b'\n').filter(|it| !it.is_empty()) {
                each(serde_json::from_slice(line).context("flanneld's answer is not understood")?)?;
            }
            rest.drain(..complete);
            let is_bounded = rest.len() <= MAX_ANSWER_BYTES;
            anyhow::ensure!(is_bounded, "a line of flanneld's answer does not end");
            Ok(())
        };
        in_pieces(self.ask(method, path).await?, take).await
    }

    pub(crate) async fn list<T: DeserializeOwned>(self, path: &str) -> anyhow::Result<Vec<T>> {
        let mut all = Vec::new();
        let push = |one: T| {
            all.push(one);
            Ok(())
        };
        self.lines(Method::GET, path, push).await?;
        Ok(all)
    }

    async fn ask(self, method: Method, path: &str) -> anyhow::Result<Answer> {
        match self {
            Self::Here(socket) => {
                let stream = UnixStream::connect(socket).await.with_context(|| {
                    format!(
                        "flanneld cannot be asked at {}; is it running ({}), and with this subnet file? It listens beside \
                         it, for root; --socket says where",
                        socket.display(),
                        operator_commands().show_daemon("this node")
                    )
                })?;
                talk(stream, method, path).await
            }
            Self::There(address) => talk(TcpStream::connect(address).await?, method, path).await,
        }
    }
}

fn hangs(socket: &Path, commands: OperatorCommands) -> String {
    format!(
        "flanneld listens at {} and does not answer within {DOOR_ANSWER_TIMEOUT:?}: it hangs, or was stopped (SIGSTOP), and traffic \
         goes on meanwhile; {}",
        socket.display(),
        commands.restart_here()
    )
}

async fn talk<S>(stream: S, method: Method, path: &str) -> anyhow::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connection = PlainConnection::open(stream).await?;
    let request = Request::builder().method(method).uri(path).header("host", "flanneld");
    let request = request.body(Bytes::new())?;
    let response = connection.send(request).await.context("flanneld did not answer")?;
    anyhow::ensure!(
        response.status() == StatusCode::OK,
        "flanneld does not know {path}: it is of another version ({})",
        response.status()
    );
    Ok(Answer { body: response.into_body(), _connection: connection })
}

pub(crate) async fn text_through<S>(
    stream: S,
    path: &str,
    each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    in_pieces(talk(stream, Method::GET, path).await?, each).await
}

async fn in_pieces(
    mut answer: Answer,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    while let Some(frame) = answer.body.frame().await {
        if let Ok(piece) = frame.context("flanneld has ended its answer early")?.into_data() {
            each(&piece)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_hangs_is_restarted_by_who_runs_it_and_nothing_else_is_advised() {
        for in_pods in [false, true] {
            let commands = OperatorCommands { in_pods, ..OperatorCommands::default() };
            let said = hangs(Path::new("/run/flannel/flanneld.sock"), commands);
            assert_eq!(said.contains("systemctl"), !in_pods, "{said}");
            assert_eq!(said.contains("pod"), in_pods, "{said}");
        }
    }
}
