//! A question beside all schedules, for operators' tools.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::net::{Exchange, Question};
use crate::verdict::AskOutcome;

const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);

/// Asks a node at one of its addresses, and once more if nothing comes back. `subnet`: who asks.
pub async fn ask_once(from: IpAddr, to: SocketAddr, subnet: IpNet) -> AskOutcome {
    let about_v6 = subnet.addr().is_ipv6();
    let from = SocketAddr::new(from, 0);
    let mut exchange = Exchange { from, to, subnet, about_v6, cookie: 0, fits: None };
    let question =
        Question { size: 0, plain: false, timeout: ANSWER_TIMEOUT, since: Instant::now() };
    match exchange.ask(&question).await {
        AskOutcome::Silent => exchange.ask(&question).await,
        told => told,
    }
}
