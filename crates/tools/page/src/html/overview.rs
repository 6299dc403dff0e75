//! All nodes at a glance: whether the network is healthy, and problems first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use flannel_cli::time::span;

use super::text::{InAddress, Text, clock, number};
use super::{address_of, network_query};
use crate::collector::Collector;
use crate::common_cause::{self, CommonCause};
use crate::health::Health;
use crate::page::PageView;
use crate::picture::{NodeView, Picture};
use crate::timeline;

/// Number of different problems that are shown, and of the nodes named with each.
const PROBLEMS: usize = 20;
const NAMED: usize = 4;
pub(super) const ROWS: usize = 100;

pub(super) fn about(picture: &Picture, collector: &Collector) -> String {
    let config = &picture.config;
    let mut words: Vec<String> = config.networks.clone();
    words.push(config.backend.clone());
    words.push(collector.store());
    words.retain(|word| !word.is_empty());
    let words: Vec<String> = words.iter().map(|word| Text(word).to_string()).collect();
    words.join("<span class=\"dot\" aria-hidden=\"true\"> · </span>")
}

pub(super) fn verdict(picture: &Picture, collector: &Collector, shown: &PageView) -> String {
    let (level, headline, detail) = judge(picture, collector);
    let sign = match level {
        "bad" => "✕",
        "warn" => "!",
        "good" => "✓",
        _ => "…",
    };
    let mut html = format!(
        "<div class=\"banner {level}\"><span class=\"seal\" aria-hidden=\"true\">{sign}</span>\
         <div><h1>{}</h1><p>{}</p></div></div><ul class=\"counts\" aria-label=\"Nodes by state\">",
        Text(headline),
        Text(detail)
    );
    let all = format!("/{}#nodes", network_query(shown, '?'));
    let total = number(picture.nodes.len());
    let _ =
        write!(html, "<li><a href=\"{}\" data-state=\"\"><b>{total}</b> nodes</a></li>", Text(all));
    for health in Health::ALL {
        let count = picture.count(health);
        if count > 0 {
            let href = format!("/?state={}{}#nodes", health.key(), network_query(shown, '&'));
            let _ = write!(
                html,
                "<li><a href=\"{}\" data-state=\"{key}\"><span class=\"mark {key}\" aria-hidden=\"true\">{}\
                 </span><b>{}</b> {}</a></li>",
                Text(href),
                health.sign(),
                number(count),
                health.words_of(count),
                key = health.key()
            );
        }
    }
    html += "</ul>";
    html
}

/// Level, headline and detail of the banner.
fn judge(picture: &Picture, collector: &Collector) -> (&'static str, String, String) {
    let total = picture.nodes.len();
    let nodes = |count: usize| if count == 1 { "node" } else { "nodes" };
    if let Some(why) = &picture.store_problem {
        let known = match picture.read {
            Some(at) => {
                format!("; below is what was known {} ago", span(at.elapsed().as_secs()))
            }
            None => String::new(),
        };
        return ("bad", "The store cannot be read".to_owned(), format!("{why}{known}"));
    }
    if picture.read.is_none() {
        return ("wait", "Reading the leases".to_owned(), "This takes a moment.".to_owned());
    }
    if let Some(why) = &picture.config.problem {
        return ("bad", "There is no network".to_owned(), why.clone());
    }
    if total == 0 {
        let detail = "The network config is there; no node has taken a subnet.".to_owned();
        return ("wait", "No node has joined yet".to_owned(), detail);
    }
    let Some(way) = collector.way() else {
        let detail = "No probe port is given, so only leases are shown: start every flanneld with the same \
                      --healthz-port.";
        let headline = format!("{} {}, not asked how they are", number(total), nodes(total));
        return ("wait", headline, detail.to_owned());
    };
    let wrong = picture.nodes.values().filter(|node| node.health.is_wrong()).count();
    let unasked = picture.count(Health::Unasked);
    let asked = total - unasked;
    let silent = picture.count(Health::Silent);
    if silent == total {
        return ("bad", "No node answers".to_owned(), way.advice());
    }
    let progress = match unasked {
        0 => String::new(),
        _ => format!(" {} of {} nodes have been asked so far.", number(asked), number(total)),
    };
    if wrong > 0 {
        let worst = picture.nodes.values().map(|node| node.health).min().unwrap_or(Health::Healthy);
        let level = if worst <= Health::Unreached { "bad" } else { "warn" };
        let verb = if wrong == 1 { "needs" } else { "need" };
        let headline =
            format!("{} of {} {} {verb} attention", number(wrong), number(total), nodes(total));
        let whole = picture.count(Health::Healthy) + picture.count(Health::Warnings);
        let mut detail = format!("{} say that their network is healthy.{progress}", number(whole));
        if let Some(cause) = common_cause::find(picture) {
            detail = format!("{} {detail}", cause_text(&cause));
        }
        return (level, headline, detail);
    }
    if unasked > 0 {
        return ("wait", "Asking the nodes".to_owned(), progress.trim().to_owned());
    }
    let mute = picture.count(Health::NoState);
    let detail = match (mute, picture.count(Health::Warnings)) {
        (0, 0) if total == 1 => "Its only node says so.".to_owned(),
        (0, 0) => format!("All {} nodes say so.", number(total)),
        (0, but) => format!("{} of {} have a remark.", number(but), number(total)),
        (mute, _) => format!(
            "All nodes that report their state say so; {} of {} report none.",
            number(mute),
            number(total)
        ),
    };
    ("good", "The network is healthy".to_owned(), detail)
}

fn cause_text(cause: &CommonCause<'_>) -> String {
    let (reporters, name) = (number(cause.reporters), cause.node.name());
    format!("{reporters} nodes do not reach {name}: look at that node first.")
}

pub(super) fn problems(picture: &Picture, shown: &PageView) -> String {
    // The same problem on many nodes is shown once.
    let mut groups: BTreeMap<(Health, &str), Vec<&NodeView>> = BTreeMap::new();
    for node in picture.nodes.values() {
        if node.health.is_wrong() || node.health == Health::Warnings {
            let why = node.why.as_deref().unwrap_or_default();
            // The reason of a node that does not answer begins with the node's address.
            let reason = why.split_once(": ").filter(|_| node.health == Health::Silent);
            let why = reason.map_or(why, |(_, reason)| reason);
            groups.entry((node.health, why)).or_default().push(node);
        }
    }
    let mut html = "<h2>What is wrong</h2>".to_owned();
    if groups.is_empty() {
        html += "<p class=\"calm\">Nothing that a node knows of.</p>";
        return html;
    }
    if let Some(cause) = common_cause::find(picture) {
        let _ = write!(html, "<p class=\"cause\">{}</p>", Text(cause_text(&cause)));
    }
    html += "<ul class=\"problems\">";
    let mut ordered: Vec<_> = groups.iter().collect();
    ordered.sort_by_key(|((health, _), nodes)| (*health, usize::MAX - nodes.len()));
    for ((health, why), nodes) in ordered.iter().take(PROBLEMS) {
        let _ = write!(
            html,
            "<li><span class=\"mark {}\" aria-hidden=\"true\">{}</span><div><p class=\"who\">",
            health.key(),
            health.sign()
        );
        for (index, node) in nodes.iter().take(NAMED).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let href = address_of(&node.lease.subnet.to_string(), shown);
            let _ = write!(html, "{comma}<a href=\"{}\">{}</a>", Text(href), Text(node.name()));
        }
        if nodes.len() > NAMED {
            let _ = write!(html, " and {} more", number(nodes.len() - NAMED));
        }
        let words = health.words_of(nodes.len());
        let _ = write!(html, " <span class=\"how {}\">{words}</span></p>", health.key());
        let why = if nodes.len() == 1 { nodes[0].why.as_deref().unwrap_or_default() } else { why };
        if !why.is_empty() {
            let _ = write!(html, "<p class=\"why\">{}</p>", Text(why));
        }
        html += "</div></li>";
    }
    html += "</ul>";
    if ordered.len() > PROBLEMS {
        let more = number(ordered.len() - PROBLEMS);
        let _ = write!(html, "<p>… and {more} other problems; the list of nodes has them all.</p>");
    }
    html
}

pub(super) fn timeline(picture: &Picture, shown: &PageView) -> String {
    let lines = timeline::of_all(picture);
    let mut html = "<h2>What happened</h2>".to_owned();
    if lines.is_empty() {
        html += "<p class=\"calm\">No node tells of anything.</p>";
        return html;
    }
    html += "<ol class=\"timeline\">";
    for line in &lines {
        let others = match line.others {
            0 => String::new(),
            1 => " and another".to_owned(),
            others => format!(" and {} others", number(others)),
        };
        let _ = write!(
            html,
            "<li class=\"{}\"><time datetime=\"{}\">{}</time><div><a href=\"{}\">{}</a>{others} \
             <span class=\"kind\">{}</span><p>{}</p></div></li>",
            kind_class(&line.event.kind),
            line.at,
            Text(clock(&line.event.at)),
            Text(address_of(&line.id, shown)),
            Text(&line.node),
            Text(line.event.kind.replace('-', " ")),
            Text(&line.event.what)
        );
    }
    html += "</ol>";
    html
}

pub(super) fn kind_class(kind: &str) -> &'static str {
    match kind {
        "error" | "peer-unreachable" => "bad",
        "warning" | "peer-gone" | "peer-silent" | "offload-switched-off" => "warn",
        kind if kind.ends_with("-restored") => "repaired",
        kind if kind.ends_with("-lost") => "warn",
        kind if kind.ends_with("-found") => "good",
        "ready" | "peer-announced" | "peer-reached" | "lease-acquired" => "good",
        _ => "plain",
    }
}

fn found<'a>(picture: &'a Picture, shown: &PageView) -> Vec<&'a NodeView> {
    let search = shown.search.to_lowercase();
    let is_meant = |node: &&NodeView| {
        let is_found = || {
            let text = format!("{} {} {}", node.name(), node.subnets(), node.address());
            text.to_lowercase().contains(&search)
        };
        shown.health.is_none_or(|health| node.health == health) && (search.is_empty() || is_found())
    };
    picture.nodes.values().filter(is_meant).collect()
}

/// The list where there is no JavaScript: a page of the nodes that match.
pub(super) fn list(picture: &Picture, shown: &PageView) -> String {
    let found = found(picture, shown);
    let mut html = String::new();
    for node in found.iter().skip(shown.page * ROWS).take(ROWS) {
        let id = node.lease.subnet.to_string();
        let _ = write!(
            html,
            "<tr><td><span class=\"mark {key}\" aria-hidden=\"true\">{}</span> {}</td><th scope=\"row\">\
             <a href=\"{}\">{}</a></th><td class=\"mono\">{}</td><td class=\"mono\">{}</td>\
             <td class=\"why\">{}</td></tr>",
            node.health.sign(),
            node.health.words_of(1),
            Text(address_of(&id, shown)),
            Text(node.name()),
            Text(node.subnets()),
            Text(node.address()),
            Text(node.why.as_deref().unwrap_or_default()),
            key = node.health.key(),
        );
    }
    html
}

pub(super) fn pages(picture: &Picture, shown: &PageView) -> String {
    let pages = found(picture, shown).len().div_ceil(ROWS);
    if pages <= 1 {
        return String::new();
    }
    let mut html = "<nav class=\"pages no-js\" aria-label=\"Pages of the list\">".to_owned();
    for page in 0..pages {
        let current = if page == shown.page { " aria-current=\"page\"" } else { "" };
        let state = shown.health.map(Health::key).unwrap_or_default();
        let (search, network) = (InAddress(&shown.search), network_query(shown, '&'));
        let href = format!("/?page={page}&q={search}&state={state}{network}#nodes");
        let _ = write!(html, "<a href=\"{}\"{current}>{}</a> ", Text(href), page + 1);
    }
    html += "</nav>";
    html
}
