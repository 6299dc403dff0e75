//! Kubernetes' protobuf, as much of it as is needed: fields are looked at where they lie, and a field that
//! is not needed is stepped over by its length. The numbers are those of `k8s.io/api/core/v1` and
//! `k8s.io/apimachinery`, which Kubernetes never changes.

use std::num::NonZeroU64;

use crate::message::{Malformed, Result, Status};

/// Prefix of every message outside a stream.
const MAGIC: &[u8] = b"k8s\0";

/// Cuts the first message off a stream: four bytes of length come first. `None` while it is incomplete.
pub(crate) fn cut(stream: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = stream.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    Some((rest.get(..length)?, 4 + length))
}

pub(crate) fn event(message: &[u8]) -> Result<(&str, &[u8])> {
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

/// Reads a page of a list object by object. Returns its version, and where the next page begins.
pub(crate) fn list<'a>(
    object: &'a [u8],
    mut tell: impl FnMut(&'a [u8]) -> Result<()>,
) -> Result<(String, Option<String>)> {
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
            (2, Value::Bytes(item)) => tell(item)?,
            _ => {}
        }
    }
    Ok((version, next.filter(|token| !token.is_empty())))
}

pub(crate) fn status(object: &[u8]) -> Result<Status> {
    let mut status = Status::default();
    for field in Fields(unwrap(object)?) {
        match field? {
            (3, Value::Bytes(bytes)) => status.message = text(bytes)?.to_owned(),
            (6, Value::Number(code)) => status.code = u16::try_from(code).unwrap_or(0),
            _ => {}
        }
    }
    Ok(status)
}

/// Seconds since 1970 of a time.
pub(crate) fn seconds(time: &[u8]) -> Result<Option<NonZeroU64>> {
    for field in Fields(time) {
        if let (1, Value::Number(seconds)) = field? {
            return Ok(NonZeroU64::new(seconds));
        }
    }
    Ok(None)
}

/// An object is wrapped together with the name of its type.
pub(crate) fn unwrap(object: &[u8]) -> Result<&[u8]> {
    let wrapped = object.strip_prefix(MAGIC).ok_or(Malformed("it is not Kubernetes' protobuf"))?;
    first(wrapped, 2)
}

/// The field of that number; empty when there is none.
pub(crate) fn first(message: &[u8], number: u64) -> Result<&[u8]> {
    for field in Fields(message) {
        match field? {
            (found, Value::Bytes(bytes)) if found == number => return Ok(bytes),
            _ => {}
        }
    }
    Ok(&[])
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("a text that is not UTF-8"))
}

pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A field of a fixed size, which is never read.
    Fixed,
}

pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>)>;

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
