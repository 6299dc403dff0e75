//! A server on a port of its own, and the simplest of all clients.

use flannel_server::Embedded;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flannel_lease::{LeaseAttrs, NetworkConfig, NetworkName, Subnet};
use flannel_server::lease_state::Request;
use flannel_server::{Limits, Options, Server};
use flannel_store::remote::{Listen, TlsFiles};
use flannel_store::testing::plain;
use flannel_store::{Claim, RemoteOptions, RemoteStore, StoreEvent};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) embedded: Embedded,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn plain_options(port: u16) -> Options {
    Options {
        listen: Listen::Address { host: "127.0.0.1".to_owned(), port },
        tls: None,
        tokens: None,
        reviewer: None,
        insecure: false,
        limits: Limits::default(),
    }
}

pub(crate) async fn serve(dir: &Path, options: Options) -> Running {
    let embedded = open(dir).await;
    let server = Server::bind(options).await.unwrap();
    let address = server.address();
    let service = Arc::new(embedded.clone());
    let task = tokio::spawn(async move { match server.run(service).await {} });
    Running { address, embedded, task }
}

/// A former server may take a moment to let go of the directory.
async fn open(dir: &Path) -> Embedded {
    timeout(WAIT_LIMIT, async {
        loop {
            if let Ok(embedded) = Embedded::open(dir, fastrand::u64(..)) {
                return embedded;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap()
}

/// With the default network in it.
pub(crate) async fn serve_default(dir: &Path) -> Running {
    let running = serve(dir, plain_options(0)).await;
    set_config(&running).await;
    running
}

pub(crate) async fn set_config(running: &Running) {
    let request = Request::SetConfig { text: CONFIG.to_owned(), force: false };
    running.embedded.ask(&NetworkName::default(), request).await.unwrap();
}

impl Running {
    /// Ends the server as if it had been killed: nothing of it is left.
    pub(crate) async fn kill(self) {
        self.task.abort();
        while !self.task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn remote(&self) -> RemoteStore {
        remote(&[self.address], |_| {})
    }
}

pub(crate) fn remote(
    addresses: &[SocketAddr],
    change: impl FnOnce(&mut RemoteOptions),
) -> RemoteStore {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    let mut options = RemoteOptions { addresses, ..RemoteOptions::default() };
    change(&mut options);
    RemoteStore::new(options, fastrand::u64(..)).unwrap()
}

pub(crate) fn attrs(node: u8) -> LeaseAttrs {
    LeaseAttrs {
        public_ip: Some([192, 0, 2, node].into()),
        backend_type: "vxlan".into(),
        ..LeaseAttrs::default()
    }
}

pub(crate) fn claim(node: u8) -> Claim {
    Claim::new(attrs(node), None)
}

pub(crate) fn config() -> NetworkConfig {
    NetworkConfig::parse(CONFIG).unwrap()
}

/// One that is free: nodes take theirs by chance.
pub(crate) fn subnet_beside(taken: Subnet) -> Subnet {
    let candidates = ["10.5.9.0-24", "10.5.10.0-24"].map(subnet);
    if candidates[0] == taken { candidates[1] } else { candidates[0] }
}

pub(crate) fn subnet(key: &str) -> Subnet {
    key.parse().unwrap()
}

/// The next event, without version and reservation.
pub(crate) async fn next(events: &mut mpsc::Receiver<StoreEvent>) -> StoreEvent {
    let event = timeout(WAIT_LIMIT, events.recv()).await.expect("an event in time");
    plain(event.expect("the watch goes on"))
}

/// The next event that is not about the connection.
pub(crate) async fn next_change(events: &mut mpsc::Receiver<StoreEvent>) -> StoreEvent {
    loop {
        match next(events).await {
            StoreEvent::Down(_) | StoreEvent::Up => {}
            event => return event,
        }
    }
}

/// Status and body of one request over a connection of its own.
pub(crate) async fn http(address: SocketAddr, head: &str, body: &str) -> (u16, String) {
    let (status, _, body) = http_whole(address, head, body).await;
    (status, body)
}

pub(crate) async fn http_whole(
    address: SocketAddr,
    head: &str,
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let request = format!(
        "{head}\r\nHost: {address}\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n{body}"
    );
    // A server that has seen enough may answer before it has read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = timeout(WAIT_LIMIT, stream.read_to_end(&mut answer)).await.expect("an answer in time");
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, head.to_owned(), body.to_owned())
}

/// A certificate authority and what it has signed, as files.
pub(crate) struct Pki {
    pub(crate) dir: tempfile::TempDir,
    ca: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        params.key_usages =
            vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        Self { dir, ca }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ca_pem(&self) -> String {
        self.ca.pem()
    }

    /// A list of certificates that are no longer good, by their numbers.
    pub(crate) fn revoke(&self, serials: &[u8]) -> String {
        let day = |year| rcgen::date_time_ymd(year, 1, 1);
        let revoked = |serial: &u8| rcgen::RevokedCertParams {
            serial_number: rcgen::SerialNumber::from_slice(&[*serial]),
            revocation_time: day(2026),
            reason_code: None,
            invalidity_date: None,
        };
        let list = rcgen::CertificateRevocationListParams {
            this_update: day(2026),
            next_update: day(2050),
            crl_number: rcgen::SerialNumber::from_slice(&[1]),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.ca).unwrap().pem().unwrap()
    }

    pub(crate) fn fingerprint(&self) -> String {
        let print = flannel_https::pem::fingerprint(self.ca.der());
        print.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// `<name>.pem` (with the authority's certificate after it) and `<name>.key`.
    pub(crate) fn issue(&self, name: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        self.issue_with(name, names, |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        name: &str,
        names: &[&str],
        change: impl FnOnce(&mut rcgen::CertificateParams),
    ) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        let (pem, key_file) =
            (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        std::fs::write(&pem, format!("{}{}", certificate.pem(), self.ca.pem())).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        (pem, key_file)
    }

    pub(crate) fn server_files(&self, ca: bool) -> TlsFiles {
        let (cert, key) = self.issue("server", &["127.0.0.1", "localhost"]);
        TlsFiles { cert, key, ca: ca.then(|| self.file("ca.pem")) }
    }
}
