//! Clouds on this machine: servers that speak the providers' protocols, check signatures with code of their own,
//! and do on demand what makes a real cloud hard: throttle, deny, fill up, answer page by page.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on must say so and stop"
)]

mod ali;
mod aws;
mod cloud;
mod gce;
mod http;
mod signing;
mod tencent;

pub use cloud::{Cloud, Machine, RouteTable, State, TableRoute};
pub use gce::key_file;

use crate::xml::Element;

/// Reads a document as an answer of EC2 is read, and writes what was understood.
pub fn rewrite_xml(text: &str) -> Result<String, String> {
    Element::parse(text).map(|root| write_xml(&root))
}

fn write_xml(element: &Element) -> String {
    let Element { name, text, children } = element;
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let children: String = children.iter().map(write_xml).collect();
    // The reader takes `<a//>` for an element `a/`.
    let name = name.replace(|char: char| !char.is_alphanumeric(), "_");
    // A reader takes a line's end in either form for `\n`.
    format!("<{name}>{}{children}</{name}>", text.replace('\r', "&#13;"))
}
