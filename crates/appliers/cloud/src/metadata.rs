//! A machine's metadata service: text at paths, on an address that only the machine itself reaches.

use flannel_entries::cloud::Provider;
use http::Method;

use crate::http::{Destination, Headers, send};
use crate::{CloudError, Fault, Result};

pub(crate) struct Metadata {
    provider: Provider,
    base: String,
    headers: Headers,
}

impl Metadata {
    pub(crate) fn new(provider: Provider, base: &str) -> Self {
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        Self { provider, base: base.trim_end_matches('/').to_owned(), headers: Vec::new() }
    }

    #[must_use]
    pub(crate) fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Text at a path; `None` if there is none.
    pub(crate) async fn find(&self, path: &str) -> Result<Option<String>> {
        self.ask(Method::GET, path, self.headers.clone()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<String> {
        let nothing = || {
            self.wrong(Fault::NotFound, path, "it is not there")
                .with_fix(format!("is this machine one of {}'s, and in a VPC?", self.provider))
        };
        self.find(path).await?.ok_or_else(nothing)
    }

    pub(crate) async fn put(
        &self,
        path: &str,
        header: &'static str,
        value: &str,
    ) -> Result<Option<String>> {
        self.ask(Method::PUT, path, vec![(header, value.to_owned())]).await
    }

    async fn ask(&self, method: Method, path: &str, headers: Headers) -> Result<Option<String>> {
        let url = format!("{}{path}", self.base);
        let unreachable = |why: String| {
            self.wrong(Fault::Temporary, path, &why).with_fix(format!(
                "the backend {} works on machines of that cloud alone, and flanneld must reach the metadata \
                 service: use the host's network",
                self.provider
            ))
        };
        let answer = send(method, url, headers, String::new(), Destination::Metadata).await;
        let answer = answer.map_err(unreachable)?;
        match answer.status {
            200 => Ok(Some(answer.body.trim().to_owned())),
            404 => Ok(None),
            401 | 403 => Err(self.wrong(Fault::Denied, path, &format!("HTTP {}", answer.status)).with_fix(
                "the metadata service is switched off for this machine, or filtered: allow it in the \
                 instance's metadata options",
            )),
            status => Err(self.wrong(Fault::Temporary, path, &format!("HTTP {status}"))),
        }
    }

    fn wrong(&self, fault: Fault, path: &str, why: &str) -> CloudError {
        CloudError::new(fault, format!("the metadata service ({}{path})", self.base), why)
    }
}
