//! One node: everything that its `flannelctl status`, `peers` and `events` show.

use std::fmt::Write as _;
use std::time::{Instant, SystemTime};

use flannel_cli::time::{seconds_between, span};
use flannel_lease::Subnet;
use flannel_state::{PeerState, counted};

use super::address_of;
use super::overview::kind_class;
use super::text::{Text, clock, number};
use crate::health::Health;
use crate::node_report::{NodeReport, words};
use crate::page::PageView;
use crate::picture::{NodeView, Picture, shown as shown_subnet};

pub(super) fn draw(picture: &Picture, subnet: &Subnet, shown: &PageView) -> String {
    let Some(node) = picture.nodes.get(subnet) else {
        return format!(
            "<div class=\"banner warn\"><span class=\"seal\" aria-hidden=\"true\">!</span><div><h1>{}</h1>\
             <p>No node has this subnet any more.</p></div></div>",
            Text(shown_subnet(subnet))
        );
    };
    let level = match node.health {
        Health::Healthy => "good",
        Health::Warnings | Health::Silent => "warn",
        health if health.is_wrong() => "bad",
        _ => "wait",
    };
    let words = match node.health {
        Health::Healthy => "The network is healthy, as far as this node can tell.",
        Health::Warnings => "The network is healthy, with warnings:",
        Health::CutOff => "Pods are cut off by this host:",
        Health::NotReady => "The network is not ready:",
        Health::Unreached => "The network is ready, but packets do not reach all peers:",
        Health::Silent => "It does not answer:",
        Health::NoState => "It reports no state:",
        Health::Unasked => "It has not been asked yet.",
    };
    let mut html = format!(
        "<nav class=\"back\" aria-label=\"Back\"><a href=\"/{}\">← all nodes</a></nav>\
         <div class=\"banner {level}\"><span class=\"seal\" aria-hidden=\"true\">{}</span><div><h1>{}</h1>\
         <p>{words}{}</p></div></div>",
        Text(super::network_query(shown, '?')),
        node.health.sign(),
        Text(node.name()),
        node.why.as_ref().map(|why| format!(" {}", Text(why))).unwrap_or_default()
    );
    html += "<div class=\"columns\"><section class=\"card\"><h2>Node</h2><dl class=\"facts\">";
    for (name, value) in facts(node) {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", Text(value));
    }
    html += "</dl></section>";
    if let Some(report) = &node.report {
        findings(&mut html, report);
    }
    html += "</div>";
    peers(&mut html, picture, node, shown);
    events(&mut html, node);
    html
}

fn facts(node: &NodeView) -> Vec<(&'static str, String)> {
    let lease = &node.lease;
    let mut facts = Vec::new();
    let ends = match lease.ends {
        None => "never expires".to_owned(),
        Some(end) => match end.duration_since(SystemTime::now()) {
            Ok(left) => format!("expires in {} unless renewed", span(left.as_secs())),
            Err(_) => "expired".to_owned(),
        },
    };
    facts.push(("lease", format!("{}, {ends}", node.subnets())));
    facts.push(("address", node.address()));
    facts.push(("backend", lease.backend.clone()));
    let Some(report) = &node.report else {
        return facts;
    };
    let NodeReport { network, version, started, now, .. } = &**report;
    if let Some(mtu) = network.mtu {
        let why = network.mtu_why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        facts.push(("MTU", format!("{mtu} for pods{why}")));
    }
    if let Some(underlay) = &network.underlay {
        facts.push(("underlay", format!("{underlay}: {}", underlay.why)));
    }
    if let Some(store) = &network.store {
        let since = span(seconds_between(&store.since, now));
        let condition = match &store.why {
            None => format!("up for {since}"),
            Some(why) => format!("unreachable for {since}: {why}"),
        };
        facts.push(("store", format!("{}, {condition}", store.name)));
    }
    let peers = network.peers;
    let parts = [(peers.unusable, "unusable"), (peers.vanished, "missing from the store")];
    facts.push(("peers", number(peers.known) + &counted(&parts, number)));
    let probing = network.probing.as_ref();
    facts.extend(probing.map(|found| ("probes", found.reached_and_others(number))));
    let entries = &network.entries;
    let missing = match entries.missing {
        0 => "all in place".to_owned(),
        missing => format!("{} missing", number(missing)),
    };
    facts.push(("entries", format!("{} wanted, {missing}", number(entries.wanted))));
    let up = span(seconds_between(started, now));
    facts.push(("daemon", format!("flanneld {version}, running for {up}")));
    let heard = node.seconds_since_answer(Instant::now());
    facts.extend(heard.map(|seconds| ("heard", format!("{} ago", span(seconds)))));
    facts
}

fn findings(html: &mut String, report: &NodeReport) {
    let findings: Vec<String> = report.findings().collect();
    if findings.is_empty() {
        return;
    }
    html.push_str("<section class=\"card\"><h2>Findings</h2><ul class=\"plain\">");
    for finding in findings {
        let _ = write!(html, "<li>{}</li>", Text(finding));
    }
    html.push_str("</ul></section>");
}

fn peers(html: &mut String, picture: &Picture, node: &NodeView, shown: &PageView) {
    let Some(peers) = node.peers.as_ref().filter(|peers| !peers.is_empty()) else {
        let id = node.lease.subnet.to_string();
        let network = super::network_query(shown, '&');
        let href = format!("/?from={}{network}#nodes", super::text::InAddress(&id));
        if node.report.is_some() {
            let _ = write!(
                html,
                "<p class=\"js-only\"><a class=\"button\" href=\"{}\">Show all nodes as this one sees them</a></p>",
                Text(href)
            );
        }
        return;
    };
    html.push_str(
        "<section class=\"card\"><h2>How it sees its peers</h2><div class=\"scroll\" tabindex=\"0\" role=\"region\" \
         aria-label=\"Peers\"><table><thead><tr><th scope=\"col\">Peer</th><th scope=\"col\">Subnet</th>\
         <th scope=\"col\">State</th><th scope=\"col\">Round trip</th><th scope=\"col\">Why</th></tr></thead><tbody>",
    );
    let mut ordered: Vec<(&String, &PeerState)> = peers.iter().collect();
    ordered.sort_by_key(|(key, seen)| (words(seen) == "programmed", *key));
    for (key, seen) in ordered {
        let is_it = |node: &&NodeView| node.lease.subnet.nets().any(|net| net.to_string() == **key);
        let other = picture.nodes.values().find(is_it);
        let name = match other {
            Some(other) => {
                let href = address_of(&other.lease.subnet.to_string(), shown);
                format!("<a href=\"{}\">{}</a>", Text(href), Text(other.name()))
            }
            None => "-".to_owned(),
        };
        let probe = seen.probe.as_ref();
        let latency = probe.and_then(|probe| probe.latency_micros);
        let latency = latency.map(|micros| format!("{:.2} ms", micros as f64 / 1_000.0));
        let why = probe.and_then(|probe| probe.why.as_ref()).or(seen.why.as_ref());
        let fix = probe.and_then(|probe| probe.fix.as_ref());
        let fix = fix.map(|fix| format!("fix: {fix}"));
        let why: Vec<&str> = why.into_iter().chain(&fix).map(String::as_str).collect();
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{name}</th><td class=\"mono\">{}</td><td>{}</td><td>{}</td>\
             <td class=\"why\">{}</td></tr>",
            Text(key),
            words(seen),
            latency.unwrap_or_default(),
            Text(why.join("; "))
        );
    }
    html.push_str("</tbody></table></div></section>");
}

fn events(html: &mut String, node: &NodeView) {
    if node.events.is_empty() {
        return;
    }
    html.push_str("<section class=\"card\"><h2>What happened here</h2><ol class=\"timeline\">");
    for event in node.events.iter().rev() {
        let _ = write!(
            html,
            "<li class=\"{}\"><time datetime=\"{}\">{}</time><div><span class=\"kind\">{}</span><p>{}</p></div>\
             </li>",
            kind_class(&event.kind),
            Text(&event.at),
            Text(clock(&event.at)),
            Text(event.kind.replace('-', " ")),
            Text(&event.what)
        );
    }
    html.push_str("</ol></section>");
}
