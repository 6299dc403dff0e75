//! The probe server: `/healthz` (the daemon runs), `/readyz` (pods of this node reach those of others), and what the [`Door`]
//! tells everybody. It must never be the reason that the daemon is restarted: a port in use is waited for, and a client that is
//! slow or one of many is cut off instead of served late.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use flannel_common::{Backoff, ConnectionLimit, accept_connections};
use flannel_node::options::ProbeAddress;
use flannel_state::Verdict;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::door::{Body, Door, Through, response, whole};
use crate::readiness::Readiness;

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// More than this at once, and the oldest is cut off.
    connections: usize,
    lifetime: Duration,
    rebind: Backoff,
}

const LIMITS: Limits = Limits {
    connections: 64,
    lifetime: Duration::from_secs(5),
    rebind: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
};

/// hyper's smallest; a probe has a line and a few headers.
const REQUEST_BYTES: usize = 8 * 1024;

#[derive(Clone)]
pub struct HealthSources {
    pub readiness: watch::Receiver<Readiness>,
    pub door: Option<Door>,
}

/// Answers probes until it is dropped, and with it every connection.
pub async fn serve(address: ProbeAddress, told: HealthSources) -> Infallible {
    serve_within(LIMITS, address, told).await
}

async fn serve_within(limits: Limits, address: ProbeAddress, told: HealthSources) -> Infallible {
    let listener = bind_patiently(limits, &address).await;
    if let Ok(address) = listener.local_addr() {
        tracing::info!("Probe server listens on {address}");
    }
    accept_forever(limits, &listener, &told).await
}

/// Waits for a port that an older daemon still holds, or for an address that is not there yet.
async fn bind_patiently(limits: Limits, address: &ProbeAddress) -> TcpListener {
    let mut tries = limits.rebind.tries(fastrand::Rng::new());
    loop {
        match bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                let pause = tries.pause();
                let ProbeAddress { host, port } = address;
                tracing::error!(
                    %error,
                    "Cannot listen for probes on {host}:{port}: free the port or change \
                     healthz-ip and healthz-port; next try in {pause:.1?}"
                );
                tokio::time::sleep(pause).await;
            }
        }
    }
}

async fn bind(address: &ProbeAddress) -> io::Result<TcpListener> {
    if !address.host.is_empty() {
        return TcpListener::bind((address.host.as_str(), address.port)).await;
    }
    // Every address; a kernel without IPv6 has the IPv4 ones only.
    match TcpListener::bind(("::", address.port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(("0.0.0.0", address.port)).await
        }
        other => other,
    }
}

async fn accept_forever(
    limits: Limits,
    listener: &TcpListener,
    told: &HealthSources,
) -> Infallible {
    let limit = ConnectionLimit::CutOldest(limits.connections);
    let serve = |stream, _| {
        let talk = tokio::time::timeout(limits.lifetime, talk(stream, told.clone()));
        Some(async move { drop(talk.await) })
    };
    accept_connections("probe port", listener, limit, serve).await
}

/// Answers one request, or several if the client says keep-alive. What goes wrong is the client's business.
async fn talk(stream: TcpStream, told: HealthSources) {
    let answer = service_fn(async |request: Request<Incoming>| {
        let goes_on = request.headers().get(CONNECTION).is_some_and(|how| how == "keep-alive");
        let path = request.uri().path();
        let of_door = path.starts_with("/v1/") || path == "/metrics";
        let door = told.door.as_ref().filter(|_| of_door);
        let mut response = match door {
            Some(door) => door.respond(&request, Through::Port).await,
            None => respond(request.uri().path(), &told.readiness.borrow()),
        };
        if !goes_on {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

fn respond(path: &str, readiness: &Readiness) -> Response<Body> {
    let (status, text) = match path {
        "/healthz" => (StatusCode::OK, "flanneld is running".to_owned()),
        "/readyz" => say_readiness(readiness),
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    };
    response(status, "text/plain; charset=utf-8", whole(text))
}

fn say_readiness(readiness: &Readiness) -> (StatusCode, String) {
    let (status, text) = match readiness.verdict {
        Verdict::Ready | Verdict::ReadyBut => (StatusCode::OK, "flanneld is ready"),
        Verdict::CutOff => {
            (StatusCode::SERVICE_UNAVAILABLE, "flanneld is ready, but pods are cut off")
        }
        Verdict::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "flanneld is not ready yet"),
    };
    let gap = if readiness.why.is_empty() { "" } else { "\n" };
    (status, format!("{text}{gap}{}", readiness.why))
}

#[cfg(test)]
mod tests;
