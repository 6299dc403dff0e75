//! Tunnels as charon and the kernel have them: which are missing, useless, or unknown. Pure except for reading them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use flannel_common::xfrm::ESP_REQID;
use flannel_entries::ipsec::ConnectionName;
use flannel_netlink::xfrm::{self, State};
use flannel_netlink::{Connection, Protocol};

use crate::vici::{Message, Result, Vici};

/// Time after which a tunnel that did not come about is requested again.
const REQUEST_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IkeSession {
    name: ConnectionName,
    is_beginning: bool,
    children: Vec<Child>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Child {
    id: String,
    stage: Stage,
    spi_in: u32,
    spi_out: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Beginning,
    Installed,
    Ending,
}

impl IkeSession {
    pub(crate) fn list(vici: &mut Vici) -> Result<Vec<Self>> {
        let told = vici.list("list-sas", "list-sa", &Message::default())?;
        Ok(told.iter().flat_map(Self::read).collect())
    }

    fn read(message: &Message) -> impl Iterator<Item = Self> {
        message.sections().filter_map(|(name, session)| {
            let children = session.get_section("child-sas").into_iter();
            let state = session.get_text("state").unwrap_or_default();
            Some(Self {
                name: name.parse().ok()?,
                is_beginning: matches!(state, "CREATED" | "CONNECTING"),
                children: children
                    .flat_map(Message::sections)
                    .map(|(_, it)| Child::read(it))
                    .collect(),
            })
        })
    }
}

impl Child {
    fn read(message: &Message) -> Self {
        let text = |name: &str| message.get_text(name).unwrap_or_default();
        let spi = |name: &str| u32::from_str_radix(text(name), 16).unwrap_or_default();
        Self {
            id: text("uniqueid").to_owned(),
            stage: match text("state") {
                "INSTALLED" | "REKEYING" | "UPDATING" => Stage::Installed,
                "CREATED" | "ROUTED" | "INSTALLING" | "RETRYING" => Stage::Beginning,
                _ => Stage::Ending,
            },
            spi_in: spi("spi-in"),
            spi_out: spi("spi-out"),
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TunnelActions {
    /// Connections without a tunnel, and without one that is about to be.
    pub(crate) missing: Vec<ConnectionName>,
    /// charon's ids of tunnels that the kernel does not have.
    pub(crate) lost: Vec<String>,
    /// Tunnels in the kernel that nobody uses.
    pub(crate) stale: Vec<State>,
}

/// What earlier checks have seen and requested.
#[derive(Default)]
pub(crate) struct TunnelHistory {
    /// Tunnels unknown to charon at the last check. It may have been about to report them.
    suspects: BTreeSet<(IpAddr, u32)>,
    requests: BTreeMap<ConnectionName, Instant>,
}

impl TunnelHistory {
    /// Notes that charon has been told of a connection, and requests it by itself.
    pub(crate) fn requested(&mut self, name: &ConnectionName, now: Instant) {
        self.requests.insert(name.clone(), now);
    }

    pub(crate) fn decide(
        &mut self,
        wanted: &BTreeSet<ConnectionName>,
        sessions: &[IkeSession],
        states: Vec<State>,
        now: Instant,
    ) -> TunnelActions {
        let mut actions = TunnelActions::default();
        let held: BTreeSet<u32> = states.iter().map(|state| state.spi).collect();
        let known: BTreeSet<u32> = sessions
            .iter()
            .flat_map(|it| &it.children)
            .flat_map(|child| [child.spi_in, child.spi_out])
            .collect();
        let mut served = BTreeSet::new();
        for name in wanted {
            let (mut works, mut begins) = (false, false);
            for session in sessions.iter().filter(|it| it.name == *name) {
                begins |= session.is_beginning;
                for child in &session.children {
                    let is_held = held.contains(&child.spi_in) && held.contains(&child.spi_out);
                    match child.stage {
                        Stage::Beginning => begins = true,
                        Stage::Installed if is_held => works = true,
                        Stage::Installed => actions.lost.push(child.id.clone()),
                        Stage::Ending => {}
                    }
                }
            }
            let requests =
                self.requests.get(name).is_some_and(|then| now < *then + REQUEST_INTERVAL);
            if works {
                served.extend([(name.local, name.remote), (name.remote, name.local)]);
            } else if !begins && !requests {
                self.requests.insert(name.clone(), now);
                actions.missing.push(name.clone());
            }
        }
        self.requests.retain(|name, then| wanted.contains(name) && now < *then + REQUEST_INTERVAL);

        // A tunnel that charon does not know is used until there is a newer one, if one is wanted at all.
        let pairs: BTreeSet<(IpAddr, IpAddr)> =
            wanted.iter().flat_map(|it| [(it.local, it.remote), (it.remote, it.local)]).collect();
        let unknown: Vec<State> = states
            .into_iter()
            .filter(|state| state.spi != 0 && !known.contains(&state.spi))
            .filter(|state| {
                let pair = (state.src, state.dst);
                served.contains(&pair) || !pairs.contains(&pair)
            })
            .collect();
        let suspects = unknown.iter().map(|state| (state.dst, state.spi)).collect();
        let before = std::mem::replace(&mut self.suspects, suspects);
        actions.stale = unknown;
        actions.stale.retain(|state| before.contains(&(state.dst, state.spi)));
        actions
    }
}

pub(crate) fn states() -> io::Result<Vec<State>> {
    let mut kernel = Connection::open(Protocol::Xfrm)?;
    let states = kernel.ask_all(&xfrm::list_states(), |message| {
        xfrm::read_state(message).filter(|state| state.reqid == ESP_REQID)
    })?;
    states.map_err(|error| io::Error::from_raw_os_error(error.errno))
}

pub(crate) fn remove(states: &[State]) -> io::Result<()> {
    if states.is_empty() {
        return Ok(());
    }
    let mut kernel = Connection::open(Protocol::Xfrm)?;
    // It is not a failure if one has gone by itself.
    kernel.apply(states.iter().map(xfrm::delete_state), |_, _| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> ConnectionName {
        "192.0.2.1-10.1.1.0/24-10.1.2.0/24-192.0.2.2".parse().expect("a name")
    }

    fn told(state: &str, child: Option<(&str, &str, &str)>) -> Vec<IkeSession> {
        let mut children = Message::default();
        if let Some((stage, spi_in, spi_out)) = child {
            let child = Message::default()
                .text("uniqueid", "7")
                .text("state", stage)
                .text("spi-in", spi_in)
                .text("spi-out", spi_out);
            children = children.section("c-7", child);
        }
        let session = Message::default().text("state", state).section("child-sas", children);
        let message = Message::default()
            .section("home", Message::default())
            .section(&name().to_string(), session);
        IkeSession::read(&message).collect()
    }

    fn held(spis: &[(u32, bool)]) -> Vec<State> {
        let (local, remote) = (name().local, name().remote);
        let ends = |inward| if inward { (remote, local) } else { (local, remote) };
        let state = |(spi, inward): &(u32, bool)| {
            let (src, dst) = ends(*inward);
            State { src, dst, spi: *spi, reqid: ESP_REQID, protocol: xfrm::ESP }
        };
        spis.iter().map(state).collect()
    }

    #[test]
    fn a_tunnel_that_neither_is_nor_begins_is_asked_for_and_not_at_once_again() {
        let wanted = BTreeSet::from([name()]);
        let (mut history, now) = (TunnelHistory::default(), Instant::now());
        for (sessions, missing) in [
            (told("CONNECTING", None), false),
            (told("ESTABLISHED", Some(("INSTALLING", "0", "0"))), false),
            (told("ESTABLISHED", Some(("INSTALLED", "a1", "b1"))), false),
            (told("ESTABLISHED", None), true),
            (Vec::new(), true),
            (told("ESTABLISHED", Some(("DELETED", "a1", "b1"))), true),
        ] {
            let states = || held(&[(0xa1, true), (0xb1, false)]);
            let actions = TunnelHistory::default().decide(&wanted, &sessions, states(), now);
            assert_eq!(!actions.missing.is_empty(), missing, "{sessions:?}");
        }
        assert_eq!(history.decide(&wanted, &[], Vec::new(), now).missing, [name()]);
        assert_eq!(history.decide(&wanted, &[], Vec::new(), now), TunnelActions::default());
        let later = now + REQUEST_INTERVAL;
        assert_eq!(history.decide(&wanted, &[], Vec::new(), later).missing, [name()]);
    }

    #[test]
    fn a_tunnel_that_the_kernel_lost_is_ended_and_asked_for_anew() {
        let wanted = BTreeSet::from([name()]);
        let sessions = told("ESTABLISHED", Some(("INSTALLED", "a1", "b1")));
        for states in [Vec::new(), held(&[(0xa1, true)]), held(&[(0xb1, false)])] {
            let actions =
                TunnelHistory::default().decide(&wanted, &sessions, states, Instant::now());
            assert_eq!((actions.lost, actions.missing), (vec!["7".to_owned()], vec![name()]));
        }
    }

    #[test]
    fn what_charon_does_not_know_serves_until_there_is_a_newer_one() {
        let wanted = BTreeSet::from([name()]);
        let (mut history, now) = (TunnelHistory::default(), Instant::now());
        let old = || held(&[(0xc1, true), (0xd1, false)]);
        let both = || held(&[(0xa1, true), (0xb1, false), (0xc1, true), (0xd1, false)]);
        for _ in 0..3 {
            assert_eq!(history.decide(&wanted, &told("CONNECTING", None), old(), now).stale, []);
        }
        let new = told("ESTABLISHED", Some(("INSTALLED", "a1", "b1")));
        assert_eq!(history.decide(&wanted, &new, both(), now).stale, [], "it may be telling");
        assert_eq!(history.decide(&wanted, &new, both(), now).stale, old());
        // Nobody wants one to there.
        let nobody = BTreeSet::new();
        history.decide(&nobody, &[], old(), now);
        assert_eq!(history.decide(&nobody, &[], old(), now).stale, old());
        // The kernel's own, which waits for a tunnel.
        history.decide(&nobody, &[], held(&[(0, false)]), now);
        assert_eq!(history.decide(&nobody, &[], held(&[(0, false)]), now).stale, []);
    }
}
