//! Metrics of the server, for Prometheus.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use flannel_lease::{NetworkConfig, SubnetOrigin, SubnetSource};
use flannel_metrics::{Latency, Scrape, server};
use http::{Method, StatusCode};
use parking_lot::Mutex;

use crate::LeaseService;

#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    pub(crate) open: AtomicUsize,
    watchers: Arc<AtomicUsize>,
}

/// A client that follows events or waits for some, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct WatcherCount(Arc<AtomicUsize>);

impl Drop for WatcherCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Figures of the log of a server that keeps leases itself.
#[derive(Debug, Default)]
pub struct LogFigures {
    pub(crate) sync: Latency,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) snapshot_bytes: AtomicU64,
    pub(crate) unwritable: AtomicBool,
}

impl RequestCounters {
    pub(crate) fn request(&self, path: &str, method: &Method, status: StatusCode) {
        let key = (route(path), word(method), status.as_u16());
        let mut requests = self.requests.lock();
        *requests.entry(key).or_default() += 1;
    }

    pub(crate) fn watching(&self) -> WatcherCount {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        WatcherCount(self.watchers.clone())
    }

    pub(crate) fn scrape(&self, service: &dyn LeaseService) -> Scrape {
        let mut scrape = Scrape::default();
        scrape.number(&server::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        let requests = self.requests.lock();
        for ((route, method, code), count) in &*requests {
            scrape.count(&server::REQUESTS, &[route, method, &code.to_string()], *count);
        }
        drop(requests);
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed) as f64;
        scrape.number(&server::CONNECTIONS, &[], load(&self.open));
        scrape.number(&server::WATCHERS, &[], load(&self.watchers));
        if let Some(log) = service.log_figures() {
            let load = |number: &AtomicU64| number.load(Ordering::Relaxed) as f64;
            scrape.latency(&server::SYNC, &[], &log.sync);
            scrape.number(&server::LOG_BYTES, &[], load(&log.log_bytes));
            scrape.number(&server::SNAPSHOT_BYTES, &[], load(&log.snapshot_bytes));
            let writable = !log.unwritable.load(Ordering::Relaxed);
            scrape.is(&server::WRITABLE, &[], writable);
        }
        add_networks(&mut scrape, service);
        scrape
    }
}

fn add_networks(scrape: &mut Scrape, service: &dyn LeaseService) {
    for name in service.watch_logs().names() {
        let Some(watch_log) = service.watch_logs().get(&name) else { continue };
        scrape.number(&server::LEASES, &[name.as_str()], watch_log.count() as f64);
        let text = watch_log.config_text().filter(|_| service.subnets() == SubnetOrigin::Pool);
        let Some(config) = text.and_then(|text| NetworkConfig::parse(&text).ok()) else { continue };
        let v4 = config.v4.and_then(SubnetSource::pool).map(|pool| ("ipv4", pool.capacity()));
        let v6 = config.v6.and_then(SubnetSource::pool).map(|pool| ("ipv6", pool.capacity()));
        for (family, size) in v4.into_iter().chain(v6) {
            scrape.number(&server::POOL, &[name.as_str(), family], size as f64);
        }
    }
}

/// Label of a path: one of a few, whatever clients send.
fn route(path: &str) -> &'static str {
    let mut parts = path.split('/').skip(1);
    let parts = [(); 7].map(|()| parts.next());
    match parts {
        [Some("v1"), None | Some(""), None, ..] => "networks",
        [Some("v1"), Some(_), Some("config"), None, ..] => "config",
        [Some("v1"), Some(_), Some("node"), None, ..] => "node",
        [Some("v1"), Some(_), Some("leases"), None, ..] => "leases",
        [Some("v1"), Some(_), Some("leases"), Some(_), None, ..] => "lease",
        [Some("v1"), Some(_), Some("events"), None, ..] => "events",
        [Some("v1"), Some(_), Some("reservations"), None, ..] => "reservations",
        [Some("v1"), Some(_), Some("reservations"), Some(_), None, ..] => "reservation",
        [Some("v1"), Some(_), Some("requests"), Some(_), None, ..] => "request",
        [Some("v1"), Some(_), Some("requests"), Some(_), Some("answers"), None, _] => "answers",
        [Some("v1"), Some(_), Some("requests"), Some(_), Some("answers"), Some(_), None] => {
            "answer"
        }
        [Some("openapi.json"), None, ..] => "openapi",
        [Some("healthz"), None, ..] => "healthz",
        [Some("metrics"), None, ..] => "metrics",
        _ => "other",
    }
}

fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_asked_for_is_one_of_a_few_routes() {
        for (path, name) in [
            ("/v1/", "networks"),
            ("/v1/_/leases", "leases"),
            ("/v1/blue/leases/10.5.1.0-24", "lease"),
            ("/v1/blue/reservations/10.5.1.0-24", "reservation"),
            ("/v1/blue/requests/a", "request"),
            ("/v1/blue/requests/a/answers", "answers"),
            ("/v1/blue/requests/a/answers/10.5.1.0-24", "answer"),
            ("/metrics", "metrics"),
            ("/v1/a/b/c/d/e/f", "other"),
            ("/wp-login.php", "other"),
            ("", "other"),
        ] {
            assert_eq!(route(path), name, "{path}");
        }
        let brew = Method::from_bytes(b"BREW").expect("a method");
        assert_eq!(word(&brew), "other");
    }
}
