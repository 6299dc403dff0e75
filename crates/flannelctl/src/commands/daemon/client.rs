//! Asking the daemon of this node.

use std::path::Path;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// A daemon's state is some kilobytes; a line of an answer is one peer or event.
const LARGEST: usize = 16 << 20;

async fn get(socket: &Path, path: &str) -> anyhow::Result<Response<Incoming>> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        format!(
            "flanneld cannot be asked at {}; is it running on this node (`systemctl status flanneld`, or \
             its pod), and with this subnet file? It listens beside it, for root; --socket says where",
            socket.display()
        )
    })?;
    let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "flanneld").body(Empty::<Bytes>::new())?;
    let response = send.send_request(request).await.context("flanneld did not answer")?;
    anyhow::ensure!(
        response.status() == StatusCode::OK,
        "flanneld does not know {path}: it is of another version ({})",
        response.status()
    );
    Ok(response)
}

pub(super) async fn read<T: DeserializeOwned>(socket: &Path, path: &str) -> anyhow::Result<T> {
    let mut text = Vec::new();
    pieces(socket, path, |piece| {
        anyhow::ensure!(text.len() + piece.len() <= LARGEST, "flanneld's answer does not end");
        text.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    serde_json::from_slice(&text)
        .context("flanneld's answer is not understood: it is of another version")
}

/// Hands over each line of an answer as it comes.
pub(super) async fn lines<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    mut each: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut rest: Vec<u8> = Vec::new();
    pieces(socket, path, |piece| {
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
    socket: &Path,
    path: &str,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut body = get(socket, path).await?.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.context("flanneld has ended its answer early")?.into_data() {
            each(&piece)?;
        }
    }
    Ok(())
}
