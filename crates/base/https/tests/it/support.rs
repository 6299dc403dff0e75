//! Servers that answer as they are told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Who is connected with it now and what was asked, in the order in which it happened.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|it| *it == line).count()
    }
}

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) log: Log,
    /// PEM of what is to be trusted.
    pub(crate) certificate: Vec<u8>,
}

/// Answers every request with the same text, byte by byte; `close`: and ends the connection.
#[derive(Clone, Copy)]
pub(crate) struct Says {
    pub(crate) answer: &'static str,
    pub(crate) close: bool,
}

pub(crate) const FINE: Says =
    Says { answer: "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine", close: false };

impl TestServer {
    pub(crate) async fn plain(says: Says) -> Self {
        Self::start(says, None, Vec::new()).await
    }

    /// With a certificate for these names.
    pub(crate) async fn tls(says: Says, names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::start(says, Some(acceptor), certificate.pem().into_bytes()).await
    }

    async fn start(says: Says, tls: Option<TlsAcceptor>, certificate: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, log) = (listener.local_addr().unwrap(), Log::default());
        let of_task = log.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                of_task.add("connected");
                let (log, tls) = (of_task.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(tcp, says, log).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(tcp).await {
                                serve(stream, says, log).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, log, certificate }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.certificate.is_empty() { "http" } else { "https" };
        format!("{scheme}://{}", self.address)
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, says: Says, log: Log) {
    while let Some(head) = read_head(&mut stream).await {
        for line in head.lines() {
            log.add(line);
        }
        if stream.write_all(says.answer.as_bytes()).await.is_err() || says.close {
            return;
        }
    }
}

/// A request's head: nothing that is sent here has a body.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
        // Not HTTP: as every server, it answers in HTTP all the same.
        if !head[0].is_ascii_alphabetic() {
            break;
        }
    }
    Some(String::from_utf8_lossy(&head).trim_end().to_owned())
}

/// A proxy that says `answer` to CONNECT, and if that is 200 joins the connections.
pub(crate) async fn proxy(answer: &'static str) -> (SocketAddr, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, log) = (listener.local_addr().unwrap(), Log::default());
    let of_task = log.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let log = of_task.clone();
            tokio::spawn(async move {
                let head = read_head(&mut near).await.unwrap();
                head.lines().for_each(|line| log.add(line));
                near.write_all(answer.as_bytes()).await.unwrap();
                if !answer.contains(" 200 ") {
                    return;
                }
                let to = head.split(' ').nth(1).unwrap();
                let mut far = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, log)
}
