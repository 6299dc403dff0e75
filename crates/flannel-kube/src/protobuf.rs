//! Kubernetes' protobuf, as much of it as is needed: fields are looked at where they lie, and a field that
//! nobody asked for is stepped over by its length. The numbers are those of `k8s.io/api/core/v1` and
//! `k8s.io/apimachinery`, which Kubernetes never changes.

use std::borrow::Cow;
use std::num::NonZeroU64;

use flannel_lease::machine_hash;

use crate::annotations::AnnotationPrefix;
use crate::message::{INITIAL_EVENTS_END, Malformed, NETWORK_UNAVAILABLE, Status};
use crate::node::NodeView;

/// What every message that is not a stream's own begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Cuts the first message off a stream: its length in four bytes stands before it. `None` while it is not
/// whole.
pub(crate) fn cut(stream: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = stream.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    Some((rest.get(..length)?, 4 + length))
}

/// The type of a watch's message, and its object.
pub(crate) fn event(message: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let (mut kind, mut object) = ("", &[][..]);
    for field in Fields(message) {
        match field? {
            (1, Value::Bytes(bytes)) => kind = text(bytes)?,
            (2, Value::Bytes(bytes)) => object = first(bytes, 1)?,
            _ => {}
        }
    }
    Ok((kind, object))
}

/// A Node as it is answered to a question for it.
pub(crate) fn node<'a>(
    object: &'a [u8],
    prefix: &AnnotationPrefix,
) -> Result<NodeView<'a>, Malformed> {
    bare_node(unwrap(object)?, prefix)
}

/// A page of a list: its Nodes are told one by one. Returns its version, and where the next page begins.
pub(crate) fn list<'a>(
    object: &'a [u8],
    prefix: &AnnotationPrefix,
    mut tell: impl FnMut(NodeView<'a>),
) -> Result<(String, Option<String>), Malformed> {
    let (mut version, mut next) = (String::new(), None);
    for field in Fields(unwrap(object)?) {
        match field? {
            (1, Value::Bytes(metadata)) => {
                for field in Fields(metadata) {
                    match field? {
                        (2, Value::Bytes(bytes)) => version = text(bytes)?.to_owned(),
                        (3, Value::Bytes(bytes)) => next = Some(text(bytes)?.to_owned()),
                        _ => {}
                    }
                }
            }
            (2, Value::Bytes(item)) => tell(bare_node(item, prefix)?),
            _ => {}
        }
    }
    Ok((version, next.filter(|token| !token.is_empty())))
}

/// What the server says when it says no.
pub(crate) fn status(object: &[u8]) -> Result<Status, Malformed> {
    let mut status = Status::default();
    for field in Fields(unwrap(object)?) {
        match field? {
            (3, Value::Bytes(bytes)) => status.message = text(bytes)?.to_owned(),
            (4, Value::Bytes(bytes)) => status.reason = text(bytes)?.to_owned(),
            (6, Value::Number(code)) => status.code = u16::try_from(code).unwrap_or(0),
            _ => {}
        }
    }
    Ok(status)
}

fn bare_node<'a>(node: &'a [u8], prefix: &AnnotationPrefix) -> Result<NodeView<'a>, Malformed> {
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

fn metadata<'a>(
    bytes: &'a [u8],
    prefix: &AnnotationPrefix,
    view: &mut NodeView<'a>,
) -> Result<(), Malformed> {
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

/// Seconds since 1970 of a time.
fn seconds(time: &[u8]) -> Result<Option<NonZeroU64>, Malformed> {
    for field in Fields(time) {
        if let (1, Value::Number(seconds)) = field? {
            return Ok(NonZeroU64::new(seconds));
        }
    }
    Ok(None)
}

fn spec<'a>(bytes: &'a [u8], view: &mut NodeView<'a>) -> Result<(), Malformed> {
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => view.pod_cidr = Cow::Borrowed(text(bytes)?),
            (7, Value::Bytes(bytes)) => view.pod_cidrs.push(Cow::Borrowed(text(bytes)?)),
            _ => {}
        }
    }
    Ok(())
}

fn status_of_node<'a>(status: &'a [u8], view: &mut NodeView<'a>) -> Result<(), Malformed> {
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

/// An object is wrapped together with the name of its type.
fn unwrap(object: &[u8]) -> Result<&[u8], Malformed> {
    let wrapped = object.strip_prefix(MAGIC).ok_or(Malformed("it is not Kubernetes' protobuf"))?;
    first(wrapped, 2)
}

/// The field of that number; empty when there is none.
fn first(message: &[u8], number: u64) -> Result<&[u8], Malformed> {
    for field in Fields(message) {
        match field? {
            (found, Value::Bytes(bytes)) if found == number => return Ok(bytes),
            _ => {}
        }
    }
    Ok(&[])
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("a text that is not UTF-8"))
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a fixed size, which nothing we read is.
    Fixed,
}

/// The fields of a message, with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Malformed("a field that ends before its end")))
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}
