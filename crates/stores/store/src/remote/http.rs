//! Requests to whichever lease server answers: to one of them, until it fails.

use std::time::Duration;

use bytes::Bytes;
use flannel_https::{
    Advice, ClientCertificate, Credentials, FileOrPem, Limits, Server, Stream, Target, Trust,
};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::options::{CLEAR_TEXT, RemoteOptions};
use super::token;
use crate::{StoreError, wire};

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(3),
    answer: Duration::from_secs(10),
    // A snapshot is large, and all nodes may read it at once.
    body: Duration::from_secs(60),
    largest: 256 << 20,
};
const MAX_TRIES: usize = 2;

const ADVICE: Advice = Advice {
    server: "the server",
    untrusted: "give remote-cafile, or a token as `flannelctl pki token` prints it, and check that it is the right \
                server",
    wrong_name: "use one of its names in remote, or give it a certificate with this one",
    use_tls: "if it is a server with TLS, use https:// in remote, and remote-token-file or remote-cafile",
    no_tls: "give it a certificate, or use http:// in remote (and remote-insecure, if there is a token)",
    certificate_missing: "give remote-certfile and remote-keyfile",
    clear_text: CLEAR_TEXT,
};

/// Nobody answered; why, and at which server.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) endpoint: String,
    pub(super) reason: String,
}

/// An answer, whatever it says.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) endpoint: String,
    pub(super) status: StatusCode,
    pub(super) body: String,
    /// The server's time, by which leases end there.
    pub(super) time: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Client {
    options: RemoteOptions,
    /// At least one.
    servers: Vec<(Server, flannel_https::Client)>,
    current: Mutex<usize>,
    /// Counts how often this node has moved.
    moved: watch::Sender<u64>,
}

impl Client {
    /// Begins with a random server, so that the nodes spread over them.
    pub(super) fn new(options: RemoteOptions, mut rng: fastrand::Rng) -> Result<Self, StoreError> {
        let servers = options.servers()?.into_iter();
        let servers: Vec<_> =
            servers.map(|server| (server, flannel_https::Client::new(LIMITS))).collect();
        let current = Mutex::new(rng.usize(..servers.len()));
        Ok(Self { options, servers, current, moved: watch::Sender::new(0) })
    }

    /// Sends an idempotent request to each server in turn: after a lost answer it may have been carried out twice.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Answer, Fault> {
        let mut tries = self.servers.len().max(MAX_TRIES);
        loop {
            tries -= 1;
            match self.try_once(&method, path, body.clone()).await {
                // It is there, but cannot do it; another one may.
                Ok(answer) if answer.status == StatusCode::SERVICE_UNAVAILABLE && tries > 0 => {
                    self.leave(&answer.endpoint);
                }
                Err(fault) if tries > 0 => self.leave(&fault.endpoint),
                done => return done,
            }
            if self.servers.len() == 1 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(20..100))).await;
            }
        }
    }

    /// Opens a stream at the current server, and says which that is.
    pub(super) async fn stream(&self, path: &str) -> Result<(String, Response<Stream>), Fault> {
        let (server, client) = self.current();
        let endpoint = server.to_string();
        let opened = match self.build(&Method::GET, path, String::new()) {
            Ok(request) => client.stream(|| self.target(server), request).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(response) => Ok((endpoint, response)),
            Err(reason) => {
                self.leave(&endpoint);
                Err(Fault { endpoint, reason })
            }
        }
    }

    /// Moves on to the next server, unless another request has done so.
    pub(super) fn leave(&self, endpoint: &str) {
        let mut current = self.current.lock();
        let (server, client) = &self.servers[*current];
        if server.to_string() == endpoint {
            client.forget();
            *current = (*current + 1) % self.servers.len();
        }
    }

    pub(super) fn node_moved(&self) {
        self.servers.iter().for_each(|(_, client)| client.forget());
        self.moved.send_modify(|times| *times += 1);
    }

    pub(super) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    pub(super) fn endpoint(&self) -> String {
        self.current().0.to_string()
    }

    async fn try_once(&self, method: &Method, path: &str, body: String) -> Result<Answer, Fault> {
        let (server, client) = self.current();
        let endpoint = server.to_string();
        let answered = async {
            let request = self.build(method, path, body)?;
            let answer = client.request(|| self.target(server), request).await?;
            let (head, body) = answer.into_parts();
            let time = head.headers.get(wire::TIME_HEADER);
            let time = time.and_then(|text| text.to_str().ok()?.parse().ok());
            let body =
                String::from_utf8(body.into()).map_err(|_| "the answer is not text".to_owned())?;
            Ok(Answer { endpoint: endpoint.clone(), status: head.status, body, time })
        };
        answered.await.map_err(|reason| Fault { endpoint: endpoint.clone(), reason })
    }

    fn build(&self, method: &Method, path: &str, body: String) -> Result<Request<Bytes>, String> {
        let mut request =
            Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json; charset=utf-8");
        }
        let RemoteOptions { token, token_file, cert, node_secret, .. } = &self.options;
        // Without authentication it would be useless, and sent in clear text.
        let says_who = token.is_some() || token_file.is_some() || cert.is_some();
        if let Some(secret) = node_secret.as_ref().filter(|_| says_who) {
            let mut value = HeaderValue::try_from(secret.reveal())
                .map_err(|_| "the node's secret has characters that cannot be sent".to_owned())?;
            value.set_sensitive(true);
            request = request.header(wire::NODE_SECRET_HEADER, value);
        }
        request.body(Bytes::from(body)).map_err(|error| error.to_string())
    }

    fn target(&self, server: &Server) -> Result<Target, String> {
        let RemoteOptions { ca, cert, key, token, token_file, insecure, .. } = &self.options;
        let credentials = match (token, token_file) {
            (Some(token), _) => Credentials::Bearer(token.clone()),
            (None, Some(file)) => Credentials::BearerFile { file: file.clone(), read: token::read },
            (None, None) => Credentials::None,
        };
        let certificate = match (cert, key) {
            (Some(cert), Some(key)) => Some(ClientCertificate {
                certificate: FileOrPem::File(cert.clone()),
                key: FileOrPem::File(key.clone()),
            }),
            (None, None) => None,
            (Some(file), None) | (None, Some(file)) => {
                return Err(format!(
                    "{}: a client certificate needs both remote-certfile and remote-keyfile",
                    file.display()
                ));
            }
        };
        let trust = match (ca, self.options.pin()?) {
            (Some(ca), _) => Trust::Authorities(FileOrPem::File(ca.clone())),
            (None, Some(pin)) => Trust::Pinned(pin),
            (None, None) => Trust::System,
        };
        Ok(Target {
            trust,
            certificate,
            credentials,
            clear_text_allowed: *insecure,
            advice: &ADVICE,
            ..Target::new(server.clone())
        })
    }

    fn current(&self) -> &(Server, flannel_https::Client) {
        &self.servers[*self.current.lock()]
    }
}
