//! Server-sent events, each with what has changed since the browser read the last one: nothing queues for a slow one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::collector::{Collector, Viewer};
use crate::page::PageView;
use crate::picture::{NodeView, Picture};
use crate::{html, reachability};

const PAUSE: Duration = Duration::from_millis(400);
/// Longest pause: ages and remaining times change when nothing happens.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

pub(crate) struct Live {
    pub(crate) collector: Arc<Collector>,
    pub(crate) shown: PageView,
    pub(crate) viewer: Viewer,
    pub(crate) still: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Live {
    pub(crate) async fn run(self, send: mpsc::Sender<Bytes>) {
        let Self { collector, shown, viewer: _viewer, still } = self;
        let mut changes = collector.changes();
        let mut sent = BrowserState::default();
        loop {
            if !still() {
                return;
            }
            changes.mark_unchanged();
            let message = sent.message(&collector, &shown);
            if send.send(message).await.is_err() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = send.closed() => return,
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(SIGN_OF_LIFE) => {}
                () = send.closed() => return,
            }
        }
    }
}

#[derive(Default)]
struct BrowserState {
    version: Option<u64>,
    parts: HashMap<&'static str, String>,
    cells: Option<Vec<Vec<i64>>>,
}

impl BrowserState {
    fn message(&mut self, collector: &Collector, shown: &PageView) -> Bytes {
        let picture = collector.picture();
        let mut parts = serde_json::Map::new();
        for (name, text) in html::parts(&picture, collector, shown) {
            if self.parts.get(name) != Some(&text) {
                parts.insert(name.to_owned(), text.clone().into());
                self.parts.insert(name, text);
            }
        }
        let mut message = json!({ "parts": parts });
        if shown.node.is_none() {
            message["nodes"] = self.nodes(&picture);
            let cells = reachability::cells(&picture);
            if self.cells != cells {
                message["mesh"] = json!({
                    "order": picture.nodes.keys().map(ToString::to_string).collect::<Vec<_>>(),
                    "cells": cells,
                });
                self.cells = cells;
            }
        }
        Bytes::from(format!("data: {message}\n\n"))
    }

    fn nodes(&mut self, picture: &Picture) -> Value {
        let known = self.version.replace(picture.version);
        let since = known.and_then(|version| picture.since(version));
        let is_whole = since.is_none();
        let (changed, gone) =
            since.unwrap_or_else(|| (picture.nodes.values().collect(), Vec::new()));
        json!({
            "whole": is_whole,
            "rows": changed.into_iter().map(row).collect::<Vec<_>>(),
            "gone": gone.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

/// A row, which is short, since there may be thousands of them; `page.js` knows the order.
fn row(node: &NodeView) -> Value {
    let lease = &node.lease;
    let ends = lease.ends.and_then(|end| end.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!([
        lease.subnet.to_string(),
        node.name(),
        node.subnets(),
        node.address(),
        node.health.key(),
        node.why,
        lease.backend,
        ends.map(|ends| ends.as_secs()),
    ])
}
