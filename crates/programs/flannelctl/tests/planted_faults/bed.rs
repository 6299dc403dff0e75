//! Two nodes with pods on which faults are planted, and what the tools say of them.

use std::process::Command;
use std::time::Duration;

use flannel_lab::{Lab, Node, Pod, Process};
use serde_json::Value;

pub(crate) const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Where a fault is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The node on which the tools are run.
    Here,
    /// The other one.
    There,
    /// The pod that sends.
    One,
    /// The pod that is sent to.
    Two,
    /// A pod beside the first.
    BesideOne,
    /// A pod beside the second.
    BesideTwo,
    /// Between the nodes.
    Between,
}

/// What the trace is to say first: the node if not this one, the way, and the hop; and words of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Says<'a> {
    Wrong(&'a str, &'a str),
    /// Nothing is wrong for sure, and one line tells of what may be.
    May(&'a str),
    /// It does no harm, and nobody says a word.
    Nothing,
    /// Only real packets show it: the hop of the live part, and words.
    Live(&'a str, &'a str),
}

pub(crate) struct Fault<'a> {
    pub(crate) at: At,
    pub(crate) plant: String,
    pub(crate) heal: String,
    pub(crate) says: Says<'a>,
    /// What `check` says on the faulty node: the subject, and words.
    pub(crate) check: Option<(&'a str, &'a str)>,
}

pub(crate) struct Bed {
    pub(crate) lab: Lab,
    pub(crate) one: Pod,
    pub(crate) two: Pod,
    /// A further pod on each node.
    pub(crate) beside: [Pod; 2],
    /// A pod has processes, by which its network is found.
    _running: Vec<Process>,
}

pub(crate) fn start() -> Bed {
    let lab = Lab::builder().nodes(2).backend("vxlan").start().unwrap();
    let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
    let beside = [lab.pod(1).unwrap(), lab.pod(2).unwrap()];
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let running = [&one, &two, &beside[0], &beside[1]].map(|pod| {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        pod.spawn(sleep).unwrap()
    });
    Bed { lab, one, two, beside, _running: running.into() }
}

impl Bed {
    pub(crate) fn run(&self, at: At, command: &str) {
        let words = ["sh", "-ec", command];
        let done = match at {
            At::Here => self.lab.node(1).exec(&words),
            At::There => self.lab.node(2).exec(&words),
            At::One => self.one.exec(&words),
            At::Two => self.two.exec(&words),
            At::BesideOne => self.beside[0].exec(&words),
            At::BesideTwo => self.beside[1].exec(&words),
            At::Between => self.lab.switch().exec(&words),
        };
        done.unwrap();
    }

    pub(crate) fn trace(&self, more: &[&str]) -> Value {
        let (from, to) = (self.one.v4().unwrap().to_string(), self.two.v4().unwrap().to_string());
        let words = [&[FLANNELCTL, "trace", &from, &to, "-o", "json"], more].concat();
        let output = self.lab.node(1).output(&words).unwrap();
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr))
    }

    /// Nothing is left of what was planted before.
    pub(crate) fn assert_nothing_wrong(&self, after: &str) {
        self.lab
            .wait_until("nothing to be wrong", LIMIT, || {
                let traced = self.trace(&[]);
                let remarks = hops(&traced, "unknown").len() + hops(&traced, "wrong").len();
                if remarks == 0 { Ok(()) } else { Err(format!("after {after}: {traced:#}")) }
            })
            .unwrap();
    }

    pub(crate) fn check(&self, node: &Node) -> Vec<(String, String, String)> {
        let output = node.output(&[FLANNELCTL, "check", "-o", "json"]).unwrap();
        let report: Value = serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let findings = report["findings"].as_array().unwrap().iter();
        findings
            .filter(|one| one["severity"] != "note")
            .map(|one| (text(&one["subject"]), text(&one["what"]), text(&one["fix"])))
            .collect()
    }

    /// Plants it, asks the tools, and takes it away; what they say wrongly, if they do.
    pub(crate) fn is_named(&self, fault: &Fault<'_>) -> Result<(), String> {
        self.run(fault.at, &fault.plant);
        let said = self.judge(fault);
        self.run(fault.at, &fault.heal);
        said.map_err(|said| format!("{:?}: {}\n{said}", fault.at, fault.plant))
    }

    fn judge(&self, fault: &Fault<'_>) -> Result<(), String> {
        let traced = match fault.says {
            Says::Live(..) => self.trace(&["--live"]),
            Says::Wrong(..) | Says::May(_) | Says::Nothing => self.trace(&[]),
        };
        let (wrong, told) = (hops(&traced, "wrong"), hops(&traced, "unknown"));
        let is_right = match fault.says {
            Says::Wrong(place, words) => wrong.first().is_some_and(|first| {
                // What follows from it on the way back, and what probes say, is not something else.
                let same = |hop: &Named| hop.hop == first.hop || hop.hop == "probes";
                let named = first.place == place && first.what.contains(words);
                named && !first.fix.is_empty() && wrong.iter().all(same)
            }),
            Says::May(words) => {
                let blamed = wrong.iter().any(|hop| hop.hop != "probes");
                told.iter().any(|hop| hop.what.contains(words)) && !blamed
            }
            Says::Nothing => {
                let all = wrong.iter().chain(&told);
                all.into_iter().all(|hop| hop.hop == "probes")
            }
            Says::Live(hop, words) => {
                let live = wrong.iter().find(|one| one.place.contains("live"));
                live.is_some_and(|live| live.hop == hop && live.what.contains(words))
            }
        };
        if !is_right {
            return Err(format!("wrong: {wrong:#?}\ntold: {told:#?}"));
        }
        let Some((subject, words)) = fault.check else { return Ok(()) };
        let found = self.check(self.lab.node(if fault.at == At::There { 2 } else { 1 }));
        let is_it = |(of, what, fix): &&(String, String, String)| {
            of == subject && what.contains(words) && !fix.is_empty()
        };
        match found.iter().any(|one| is_it(&one)) {
            true => Ok(()),
            false => Err(format!("check: {found:#?}")),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Named {
    /// `node2 there rules`.
    pub(crate) place: String,
    pub(crate) hop: String,
    pub(crate) what: String,
    pub(crate) fix: String,
}

pub(crate) fn hops(traced: &Value, condition: &str) -> Vec<Named> {
    let all = traced["hops"].as_array().unwrap().iter();
    let of = all.filter(|hop| hop["condition"] == condition);
    let text = |hop: &Value, key: &str| hop[key].as_str().unwrap_or("here").to_owned();
    of.map(|hop| Named {
        place: ["node", "way", "hop"].map(|key| text(hop, key)).join(" "),
        hop: text(hop, "hop"),
        what: text(hop, "what"),
        fix: if hop["fix"].is_null() { String::new() } else { text(hop, "fix") },
    })
    .collect()
}

/// A rule in a table of its own.
pub(crate) fn nft(family: &str, chain: &str, rule: &str) -> String {
    format!(
        "nft add table {family} planted; nft 'add chain {family} planted c {{ type filter {chain} priority 10 ; }}'; \
         nft add rule {family} planted c {rule}"
    )
}
