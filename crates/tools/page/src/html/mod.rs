//! The picture as HTML. Each part is drawn here alone: in the document, and again when it has changed.

mod document;
mod node;
mod overview;
mod pool;
mod text;

pub(crate) use document::{document, form, nothing};

use crate::collector::Collector;
use crate::page::PageView;
use crate::picture::Picture;

/// Parts of the document that change, by the ids of their elements.
pub(crate) fn parts(
    picture: &Picture,
    collector: &Collector,
    shown: &PageView,
) -> Vec<(&'static str, String)> {
    let about = ("about", overview::about(picture, collector));
    match &shown.node {
        Some(subnet) => vec![about, ("node", node::draw(picture, subnet, shown))],
        None => vec![
            about,
            ("verdict", overview::verdict(picture, collector, shown)),
            ("problems", overview::problems(picture, shown)),
            ("pool", pool::draw(&picture.pools)),
            ("timeline", overview::timeline(picture, shown)),
        ],
    }
}

fn address_of(id: &str, shown: &PageView) -> String {
    format!("/node/{}{}", text::InAddress(id), network_query(shown, '?'))
}

fn network_query(shown: &PageView, sign: char) -> String {
    let name = shown.network.as_ref();
    name.map(|name| format!("{sign}network={}", text::InAddress(name))).unwrap_or_default()
}
