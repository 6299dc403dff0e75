//! Asking a daemon: that of this node by its socket, that of another by its probe port.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use flannel_common::OperatorCommands;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::commands::daemon_process::operator_commands;

/// A daemon's state is some kilobytes; a line of an answer is one peer or event.
const LARGEST: usize = 16 << 20;

/// It answers within milliseconds, and gives its networks two seconds each.
const PATIENCE: Duration = Duration::from_secs(8);

/// Where a daemon is asked.
#[derive(Clone, Copy)]
enum Place<'a> {
    Here(&'a Path),
    There(SocketAddr),
}

async fn send(place: Place<'_>, method: Method, path: &str) -> anyhow::Result<Response<Incoming>> {
    match place {
        Place::Here(socket) => {
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
        Place::There(address) => talk(TcpStream::connect(address).await?, method, path).await,
    }
}

async fn talk<S>(stream: S, method: Method, path: &str) -> anyhow::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "flanneld");
    let request = request.body(Empty::<Bytes>::new())?;
    let response = send.send_request(request).await.context("flanneld did not answer")?;
    anyhow::ensure!(
        response.status() == StatusCode::OK,
        "flanneld does not know {path}: it is of another version ({})",
        response.status()
    );
    Ok(response)
}

pub(crate) async fn read<T: DeserializeOwned>(socket: &Path, path: &str) -> anyhow::Result<T> {
    let asked = tokio::time::timeout(PATIENCE, read_from(Place::Here(socket), path)).await;
    asked.unwrap_or_else(|_| anyhow::bail!(hangs(socket, operator_commands())))
}

fn hangs(socket: &Path, commands: OperatorCommands) -> String {
    format!(
        "flanneld listens at {} and does not answer within {PATIENCE:?}: it hangs, or was stopped (SIGSTOP), and traffic \
         goes on meanwhile; {}",
        socket.display(),
        commands.restart_here()
    )
}

/// Of the daemon of another node.
pub(crate) async fn read_at<T: DeserializeOwned>(at: SocketAddr, path: &str) -> anyhow::Result<T> {
    read_from(Place::There(at), path).await
}

async fn read_from<T: DeserializeOwned>(place: Place<'_>, path: &str) -> anyhow::Result<T> {
    let mut text = Vec::new();
    pieces(place, Method::GET, path, |piece| {
        anyhow::ensure!(text.len() + piece.len() <= LARGEST, "flanneld's answer does not end");
        text.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    serde_json::from_slice(&text)
        .context("flanneld's answer is not understood: it is of another version")
}

/// As it is answered, in pieces.
pub(crate) async fn text(
    socket: &Path,
    path: &str,
    each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    pieces(Place::Here(socket), Method::GET, path, each).await
}

/// Of the daemon of another node.
pub(crate) async fn text_at(
    at: SocketAddr,
    path: &str,
    each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    pieces(Place::There(at), Method::GET, path, each).await
}

/// Of a daemon to which there is a connection.
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

/// Hands over each line of an answer as it comes.
pub(crate) async fn lines<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    lines_from(Place::Here(socket), Method::GET, path, each).await
}

/// Asks for something to be done, and hands over each line of what is said of it.
pub(crate) async fn post<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    lines_from(Place::Here(socket), Method::POST, path, each).await
}

/// Of the daemon of another node.
pub(crate) async fn lines_at<T: DeserializeOwned>(
    at: SocketAddr,
    path: &str,
    each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    lines_from(Place::There(at), Method::GET, path, each).await
}

async fn lines_from<T: DeserializeOwned>(
    place: Place<'_>,
    method: Method,
    path: &str,
    mut each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut rest: Vec<u8> = Vec::new();
    pieces(place, method, path, |piece| {
        rest.extend_from_slice(piece);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in rest[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            each(serde_json::from_slice(line).context("flanneld's answer is not understood")?)?;
        }
        rest.drain(..whole);
        anyhow::ensure!(rest.len() <= LARGEST, "a line of flanneld's answer does not end");
        Ok(())
    })
    .await
}

async fn pieces(
    place: Place<'_>,
    method: Method,
    path: &str,
    each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    in_pieces(send(place, method, path).await?, each).await
}

async fn in_pieces(
    answer: Response<Incoming>,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
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
