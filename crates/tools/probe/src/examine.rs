//! One turn: a peer is asked, and if it does not answer as it should, what is needed to tell why is tried.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::mtu_search::MtuSearch;
use crate::net::{ANSWER_TIMEOUT, Exchange, Question, ping};
use crate::peers::Plan;
use crate::responder::Way;
use crate::verdict::{AskOutcome, Asks, Evidence, Full, ProbeAnswer};

/// Smallest packet that an ask makes, in the family that needs more.
const LEAST: u32 = (crate::wire::ASK + crate::header(true)) as u32;
/// Small asks in succession, where some were lost before or the first took long.
const BURST: u32 = 10;
const BURST_INTERVAL: Duration = Duration::from_millis(20);
/// Time for one of many answers, when it is known how long they take.
const SHORT_ANSWER_TIMEOUT: Duration = Duration::from_millis(150);

/// Returns what was found out, by family, and the cookies that the peer has given out.
pub(crate) async fn examine(plan: Plan) -> (Vec<(usize, Evidence)>, [u64; 4]) {
    let mut turn = Examination { cookies: plan.cookies, plan, since: Instant::now() };
    let mut found = Vec::new();
    for family in turn.plan.families.clone() {
        turn.since = Instant::now();
        let evidence = match turn.plan.own.over(&turn.plan.target, family) {
            Some(over) => turn.through_the_tunnel(family, over).await,
            None => turn.without_a_tunnel(family).await,
        };
        found.push((family, Evidence { machine: turn.plan.target.machine, ..evidence }));
    }
    (found, turn.cookies)
}

struct Examination {
    plan: Plan,
    cookies: [u64; 4],
    /// When the peer was first asked in this family.
    since: Instant,
}

impl Examination {
    async fn through_the_tunnel(&mut self, family: usize, over: (IpAddr, IpAddr)) -> Evidence {
        let mut exchange = self.exchange(over, Way::Overlay, family);
        let first = exchange.ask(&self.small(false)).await;
        self.cookies[slot(Way::Overlay, family)] = exchange.cookie;
        match first {
            AskOutcome::Answered(answered) => {
                let full = self.largest(&mut exchange, answered.latency, self.plan.own.mtu).await;
                let beside = match full {
                    Some(Full::Passes) => self.beside(family).await,
                    _ => None,
                };
                let small = self.ask_more(family, &mut exchange, answered).await;
                Evidence { overlay: Some(first), full, beside, ..small }
            }
            AskOutcome::Silent => {
                let mut found = self.diagnose(family, over, exchange.cookie).await;
                // It was one of many, or of some: how many are lost is found out at once.
                if found.overlay.as_ref().is_some_and(is_answered) {
                    let mut again = self.exchange(over, Way::Overlay, family);
                    found.asks = Asks { asked: 2, lost: 1 };
                    found.asks += self.burst(&mut again, |_| true).await.0;
                }
                found
            }
            told => Evidence { overlay: Some(told), ..Evidence::default() },
        }
    }

    /// All at once, so that it does not take long.
    async fn diagnose(&mut self, family: usize, over: (IpAddr, IpAddr), cookie: u64) -> Evidence {
        self.cookies[slot(Way::Overlay, family)] = cookie;
        let under = self.plan.own.under(&self.plan.target, family);
        let mut again = self.exchange(over, Way::Overlay, family);
        let mut plain = self.exchange(over, Way::Overlay, family);
        let mut underlay = under.map(|under| self.exchange(under, Way::Underlay, family));
        let (small, without) = (self.small(false), self.small(true));
        let underlay_answer = if_some(underlay.as_mut().map(|exchange| exchange.ask(&small)));
        let underlay_ping = if_some(under.map(|under| self.ping(under)));
        let (overlay, plain_answer, overlay_ping, underlay_answer, underlay_ping) = tokio::join!(
            again.ask(&small),
            plain.ask(&without),
            self.ping(over),
            underlay_answer,
            underlay_ping,
        );
        self.cookies[slot(Way::Overlay, family)] = again.cookie;
        if let Some(exchange) = underlay {
            self.cookies[slot(Way::Underlay, family)] = exchange.cookie;
        }
        Evidence {
            overlay: Some(overlay),
            plain: Some(plain_answer),
            overlay_ping,
            underlay: underlay_answer,
            underlay_ping: underlay_ping.flatten(),
            ..Evidence::default()
        }
    }

    /// What is known of small asks after the first answer: of many, if some were lost lately or this one took long.
    async fn ask_more(
        &self,
        family: usize,
        exchange: &mut Exchange,
        first: ProbeAnswer,
    ) -> Evidence {
        let (mut asks, mut shortest) = (Asks { asked: 1, lost: 0 }, first.latency);
        let known = self.plan.shortest[family & 1];
        let goes_on = |time| self.plan.counts_losses || known.is_exceeded_by(time);
        if goes_on(shortest) {
            let (more, least) = self.burst(exchange, goes_on).await;
            asks += more;
            shortest = least.map_or(shortest, |least| least.min(shortest));
        }
        Evidence { asks, round_trip: Some(shortest), ..Evidence::default() }
    }

    /// Small asks in succession, and their shortest round trip. `goes_on`: whether one so long calls for more.
    async fn burst(
        &self,
        exchange: &mut Exchange,
        goes_on: impl Fn(Duration) -> bool,
    ) -> (Asks, Option<Duration>) {
        let (mut asks, mut shortest) = (Asks::default(), None);
        for _ in 0..BURST {
            tokio::time::sleep(BURST_INTERVAL).await;
            let answer = match exchange.ask(&self.small(false)).await {
                AskOutcome::Answered(answered) => Some(answered.latency),
                _ => None,
            };
            asks += Asks { asked: 1, lost: answer.is_none().into() };
            shortest = shortest.into_iter().chain(answer).min();
            // Nothing comes at all: that is for the next turn to find out.
            if asks.lost > BURST / 2 || answer.is_some_and(|time| !goes_on(time)) {
                break;
            }
        }
        (asks, shortest)
    }

    /// Whether the path carries the largest packets of the tunnel whole. The tunnel lets its own be cut up.
    async fn beside(&mut self, family: usize) -> Option<Full> {
        let under = self.plan.own.under(&self.plan.target, family)?;
        let mut exchange = self.exchange(under, Way::Underlay, family);
        let answer = exchange.ask(&self.small(false)).await;
        self.cookies[slot(Way::Underlay, family)] = exchange.cookie;
        // A node behind a NAT may not be reachable this way, and that is not a fault.
        let AskOutcome::Answered(answered) = answer else { return None };
        let own = &self.plan.own;
        self.largest(&mut exchange, answered.latency, own.mtu + own.overhead).await
    }

    async fn without_a_tunnel(&mut self, family: usize) -> Evidence {
        let Some(under) = self.plan.own.under(&self.plan.target, family) else {
            return Evidence::default();
        };
        let mut exchange = self.exchange(under, Way::Underlay, family);
        let small = self.small(false);
        let mut answer = exchange.ask(&small).await;
        let mut underlay_ping = None;
        if answer == AskOutcome::Silent {
            (answer, underlay_ping) = tokio::join!(exchange.ask(&small), self.ping(under));
        }
        self.cookies[slot(Way::Underlay, family)] = exchange.cookie;
        let AskOutcome::Answered(answered) = answer else {
            return Evidence { underlay: Some(answer), underlay_ping, ..Evidence::default() };
        };
        let full = self.largest(&mut exchange, answered.latency, self.plan.own.mtu).await;
        let mut small = self.ask_more(family, &mut exchange, answered).await;
        if underlay_ping.is_some() {
            small.asks += Asks { asked: 1, lost: 1 };
        }
        Evidence { underlay: Some(answer), underlay_ping, full, ..small }
    }

    /// Whether the largest packet passes, and else how large one may be; `None` if that is not to be found out.
    async fn largest(
        &self,
        exchange: &mut Exchange,
        latency: Duration,
        largest: u32,
    ) -> Option<Full> {
        if !self.plan.full {
            return None;
        }
        let timeout = (latency * 8).clamp(SHORT_ANSWER_TIMEOUT, ANSWER_TIMEOUT);
        for timeout in [timeout, ANSWER_TIMEOUT] {
            if is_answered(&exchange.ask(&self.of(largest, timeout)).await) {
                return Some(Full::Passes);
            }
        }
        let mut search = MtuSearch::new(LEAST, largest, self.plan.guess);
        while let Some(size) = search.next() {
            let mut has_passed = false;
            // What is lost once may be chance.
            for _ in 0..2 {
                has_passed |=
                    !has_passed && is_answered(&exchange.ask(&self.of(size, timeout)).await);
            }
            search.tell(size, has_passed);
        }
        // Unless it has gone meanwhile.
        let still_there = is_answered(&exchange.ask(&self.small(false)).await);
        still_there.then(|| Full::Fits(search.found()))
    }

    fn exchange(&self, (from, to): (IpAddr, IpAddr), way: Way, family: usize) -> Exchange {
        let own = &self.plan.own;
        Exchange {
            from: own.at(from, 0),
            to: own.at(to, self.plan.target.port.get()),
            subnet: self.plan.own.subnet,
            about_v6: family == 1,
            cookie: self.cookies[slot(way, family)],
            fits: self.plan.fits[family & 1],
        }
    }

    async fn ping(&self, (from, to): (IpAddr, IpAddr)) -> Option<bool> {
        let own = &self.plan.own;
        ping(own.at(from, 0), own.at(to, 0), ANSWER_TIMEOUT).await
    }

    fn small(&self, plain: bool) -> Question {
        Question { plain, ..self.of(LEAST, ANSWER_TIMEOUT) }
    }

    fn of(&self, size: u32, timeout: Duration) -> Question {
        Question { size, plain: false, timeout, since: self.since }
    }
}

async fn if_some<T>(future: Option<impl Future<Output = T>>) -> Option<T> {
    match future {
        Some(future) => Some(future.await),
        None => None,
    }
}

fn is_answered(outcome: &AskOutcome) -> bool {
    matches!(outcome, AskOutcome::Answered(_))
}

fn slot(way: Way, family: usize) -> usize {
    match way {
        Way::Underlay => family & 1,
        Way::Overlay => 2 + (family & 1),
    }
}
