//! Client for URLs of any server.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;

use crate::client::{Client, Limits};
use crate::proxy::Proxies;
use crate::server::Server;
use crate::target::{Target, Trust};

/// A client that keeps a connection to each server that it has asked. Clones share them.
#[derive(Clone, Debug)]
pub struct UrlClient {
    limits: Limits,
    proxies: Proxies,
    pub trust: Trust,
    clients: Arc<Mutex<HashMap<Server, Arc<Client>>>>,
}

impl UrlClient {
    /// Makes a client that uses the proxies of the environment.
    pub fn new(limits: Limits) -> Result<Self, String> {
        let proxies = Proxies::from_environment(|name| std::env::var(name).ok())?;
        Ok(Self { limits, proxies, trust: Trust::System, clients: Arc::default() })
    }

    #[must_use]
    pub fn with_proxies(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// Sends a request whose URI is a complete URL; see [`Client::request`]. The error names the server.
    pub async fn request(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let authority = request.uri().authority().map_or("", |it| it.as_str());
        let wrong = || format!("{authority:?} is not the URL of a server");
        let server = Server::of(request.uri()).ok_or_else(wrong)?;
        let new = || Arc::new(Client::new(self.limits));
        let client = self.clients.lock().entry(server.clone()).or_insert_with(new).clone();
        let target = || {
            let (trust, proxy) = (self.trust.clone(), self.proxies.way_to(&server).cloned());
            Ok(Target { trust, proxy, ..Target::new(server.clone()) })
        };
        client.request(target, request).await.map_err(|why| format!("{server}: {why}"))
    }
}
