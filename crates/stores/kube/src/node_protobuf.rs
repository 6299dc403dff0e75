//! A Node in protobuf.

use std::borrow::Cow;

use flannel_lease::machine_hash;

use crate::annotations::AnnotationPrefix;
use crate::message::{INITIAL_EVENTS_END, Result};
use crate::node::{NETWORK_UNAVAILABLE, NodeView};
use crate::protobuf::{Fields, Value, first, seconds, text};

pub(crate) fn read<'a>(node: &'a [u8], prefix: &AnnotationPrefix) -> Result<NodeView<'a>> {
    let mut view = NodeView::default();
    for field in Fields(node) {
        match field? {
            (1, Value::Bytes(bytes)) => metadata(bytes, prefix, &mut view)?,
            (2, Value::Bytes(bytes)) => spec(bytes, &mut view)?,
            (3, Value::Bytes(bytes)) => status_of_node(bytes, &mut view)?,
            _ => {}
        }
    }
    Ok(view)
}

fn metadata<'a>(bytes: &'a [u8], prefix: &AnnotationPrefix, view: &mut NodeView<'a>) -> Result<()> {
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => view.name = Cow::Borrowed(text(bytes)?),
            (5, Value::Bytes(bytes)) => view.uid = Cow::Borrowed(text(bytes)?),
            (6, Value::Bytes(bytes)) => view.resource_version = Cow::Borrowed(text(bytes)?),
            (8, Value::Bytes(time)) => view.created = seconds(time)?,
            (12, Value::Bytes(entry)) => {
                let name = text(first(entry, 1)?)?;
                if let Some(key) = prefix.key(name) {
                    view.annotations.set(key, Cow::Borrowed(text(first(entry, 2)?)?));
                } else if name == INITIAL_EVENTS_END {
                    view.ends_initial_events = first(entry, 2)? == b"true";
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn spec<'a>(bytes: &'a [u8], view: &mut NodeView<'a>) -> Result<()> {
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => view.pod_cidr = Cow::Borrowed(text(bytes)?),
            (7, Value::Bytes(bytes)) => view.pod_cidrs.push(Cow::Borrowed(text(bytes)?)),
            _ => {}
        }
    }
    Ok(())
}

fn status_of_node<'a>(status: &'a [u8], view: &mut NodeView<'a>) -> Result<()> {
    for field in Fields(status) {
        match field? {
            (4, Value::Bytes(condition))
                if first(condition, 1)? == NETWORK_UNAVAILABLE.as_bytes() =>
            {
                view.network_unavailable = Some(Cow::Borrowed(text(first(condition, 2)?)?));
            }
            (7, Value::Bytes(info)) => view.machine = machine_hash(text(first(info, 1)?)?),
            _ => {}
        }
    }
    Ok(())
}
