//! A lease server in the test's own process.

#![allow(clippy::unwrap_used)]

use flannel_server::Embedded;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flannel_server::{Limits, Options, Server};
use flannel_store::remote::{Listen, TlsFiles};

/// Serves until the test ends, on a thread of its own. Returns where.
pub(crate) fn serve(data: &Path, tls: Option<TlsFiles>, tokens: Option<PathBuf>) -> String {
    let options = Options {
        listen: Listen::Address { host: "127.0.0.1".to_owned(), port: 0 },
        tls,
        tokens,
        reviewer: None,
        insecure: false,
        limits: Limits::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::bind(options)).unwrap();
    let address = server.address().to_string();
    let leases = Arc::new(Embedded::open(data, 1).unwrap());
    std::thread::spawn(move || match runtime.block_on(server.run(leases)) {});
    address
}
