//! Asks nodes before a config is written: one that cannot use it would be cut off from those that change.

use std::io::Write as _;
use std::time::{Duration, Instant};

use flannel_backend::{CONFIG_QUESTION, ConfigAnswer, ConfigQuestion, redact_config};
use flannel_lease::{LeaseAttrs, Subnet, SubnetOrigin};
use flannel_store::{NodeRequest, OperatorStore, REQUEST_RENEWAL_INTERVAL, RequestId};
use tokio::time::{sleep, timeout};

/// Time for a daemon to hear of the question, and to say so. Older ones and those of the Go flannel say nothing.
const HEARING_TIMEOUT: Duration = Duration::from_secs(4);
const TRIAL_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Nodes that are asked at most: what one of them lacks, others of its make lack too.
const MAX_LEASES_ASKED: usize = 1_000;
/// The same in Kubernetes, where each of them is a Node that is written, and all nodes hear of that.
const MAX_NODES_ASKED: usize = 50;
const MAX_NODES_NAMED: usize = 5;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeOpinions {
    unable: Vec<(Subnet, String)>,
    silent: Vec<Subnet>,
    asked: usize,
}

impl NodeOpinions {
    pub(super) fn objection(&self) -> Option<String> {
        if self.unable.is_empty() {
            return None;
        }
        let (count, asked) = (self.unable.len(), self.asked);
        let mut text = format!("{count} of {asked} nodes that were asked cannot use this config");
        for (subnet, why) in self.unable.iter().take(MAX_NODES_NAMED) {
            text += &format!("\n  {}: {why}", named(subnet));
        }
        if count > MAX_NODES_NAMED {
            text += &format!("\n  and {} more", count - MAX_NODES_NAMED);
        }
        Some(text)
    }

    pub(super) fn silence(&self) -> Option<String> {
        if self.silent.is_empty() {
            return None;
        }
        let names: Vec<String> = self.silent.iter().take(MAX_NODES_NAMED).map(named).collect();
        let more = match self.silent.len().saturating_sub(MAX_NODES_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "{}{more} did not say whether they can use this config: they are away, or their flanneld is older",
            names.join(", ")
        ))
    }
}

fn named(subnet: &Subnet) -> String {
    format!("{subnet:#}")
}

/// Asks the nodes that would change. Whatever keeps them from being asked is said, and keeps nobody from writing.
pub(super) async fn ask_nodes(store: &dyn OperatorStore, config: &str) -> NodeOpinions {
    match try_to_ask(store, config).await {
        Ok(opinions) => opinions,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "warning: nodes were not asked: {error:#}");
            NodeOpinions::default()
        }
    }
}

async fn try_to_ask(store: &dyn OperatorStore, config: &str) -> anyhow::Result<NodeOpinions> {
    // The first config of a network changes nobody.
    let in_use = timeout(STORE_TIMEOUT, store.config_as_written()).await??;
    if in_use.is_none_or(|in_use| in_use == config) {
        return Ok(NodeOpinions::default());
    }
    let leases = timeout(STORE_TIMEOUT, store.snapshot()).await??.leases;
    let leases = leases.into_iter().map(|stored| stored.lease);
    let ours = leases.filter(|lease| knows_questions(&lease.attrs)).map(|lease| lease.subnet);
    let most = match store.subnets() {
        SubnetOrigin::Pool => MAX_LEASES_ASKED,
        SubnetOrigin::Store if has_secrets(config) => anyhow::bail!(
            "the config has a secret in it, and whoever may read Nodes would read the question; name a file of the \
             nodes instead, such as PSKFile"
        ),
        SubnetOrigin::Store => MAX_NODES_ASKED,
    };
    let nodes: Vec<Subnet> = ours.take(most).collect();
    if nodes.is_empty() {
        return Ok(NodeOpinions::default());
    }
    let id = RequestId::random(&mut fastrand::Rng::new());
    let limit = HEARING_TIMEOUT + TRIAL_TIMEOUT;
    let body = serde_json::to_value(ConfigQuestion { config: config.to_owned() })?;
    let request = NodeRequest { id, kind: CONFIG_QUESTION.to_owned(), nodes, limit, body };
    let opinions = hear(store, &request).await;
    // If that cannot be said, the request ends by itself.
    let _ = timeout(STORE_TIMEOUT, store.requests().withdraw(&request.id)).await;
    opinions
}

fn has_secrets(config: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    read(config) != read(&redact_config(config))
}

/// The Go flannel announces neither; nor does a reservation.
fn knows_questions(attrs: &LeaseAttrs) -> bool {
    attrs.machine.is_some() || attrs.probe_port.is_some()
}

async fn hear(store: &dyn OperatorStore, request: &NodeRequest) -> anyhow::Result<NodeOpinions> {
    let began = Instant::now();
    let mut placed: Option<Instant> = None;
    loop {
        if placed.is_none_or(|at| at.elapsed() >= REQUEST_RENEWAL_INTERVAL) {
            timeout(STORE_TIMEOUT, store.requests().place(request)).await??;
            placed = Some(Instant::now());
        }
        let answers = timeout(STORE_TIMEOUT, store.requests().answers(&request.id)).await??;
        let answers = answers.into_iter().filter_map(|answer| {
            Some((answer.node, serde_json::from_value::<ConfigAnswer>(answer.body).ok()?))
        });
        let answers: Vec<(Subnet, ConfigAnswer)> = answers.collect();
        let (opinions, is_tried) = weigh(&request.nodes, answers);
        let patience = if is_tried { HEARING_TIMEOUT + TRIAL_TIMEOUT } else { HEARING_TIMEOUT };
        if opinions.silent.is_empty() || began.elapsed() >= patience {
            return Ok(opinions);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// What was heard so far, and whether somebody is still trying.
fn weigh(asked: &[Subnet], answers: Vec<(Subnet, ConfigAnswer)>) -> (NodeOpinions, bool) {
    let mut opinions = NodeOpinions { asked: asked.len(), ..NodeOpinions::default() };
    let mut is_tried = false;
    for node in asked {
        match answers.iter().find(|(by, _)| by == node).map(|(_, answer)| answer) {
            None => opinions.silent.push(*node),
            Some(ConfigAnswer::Trying) => {
                is_tried = true;
                opinions.silent.push(*node);
            }
            Some(ConfigAnswer::Usable) => {}
            Some(ConfigAnswer::Unusable(why)) => {
                // What a node says may have any length, and anything in it.
                let why: String = why.chars().filter(|c| !c.is_control()).take(500).collect();
                opinions.unable.push((*node, why));
            }
        }
    }
    (opinions, is_tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8) -> Subnet {
        format!("10.1.{number}.0-24").parse().expect("a subnet")
    }

    #[test]
    fn nodes_that_cannot_are_an_objection_and_those_that_are_silent_are_named() {
        let asked = [node(1), node(2), node(3), node(4)];
        let answers = vec![
            (node(1), ConfigAnswer::Usable),
            (node(2), ConfigAnswer::Unusable("no ipip\n\u{1b}[0m".to_owned())),
            (node(3), ConfigAnswer::Trying),
            (node(9), ConfigAnswer::Unusable("was not asked".to_owned())),
        ];
        let (opinions, is_tried) = weigh(&asked, answers);
        assert!(is_tried);
        let objection = opinions.objection().expect("one cannot");
        let text = "1 of 4 nodes that were asked cannot use this config\n  10.1.2.0/24: no ipip[0m";
        assert_eq!(objection, text);
        let silence = opinions.silence().expect("two are silent");
        assert!(silence.starts_with("10.1.3.0/24, 10.1.4.0/24 did not say"), "{silence}");
        assert!(has_secrets(r#"{"Backend":{"Type":"ipsec","PSK":"hunter2"}}"#));
        assert!(!has_secrets(r#"{ "Backend": {"Type": "ipsec", "PSKFile": "/etc/psk"} }"#));
        let (agreed, _) = weigh(&[node(1)], vec![(node(1), ConfigAnswer::Usable)]);
        assert_eq!((agreed.objection(), agreed.silence()), (None, None));
    }
}
