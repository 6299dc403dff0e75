//! Kubernetes' JSON, as much of it as is needed; all else is stepped over without being kept.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::message::{Malformed, Status};

/// Each message is a line.
pub(crate) fn cut(stream: &[u8]) -> Option<(&[u8], usize)> {
    let end = stream.iter().position(|byte| *byte == b'\n')?;
    Some((&stream[..end], end + 1))
}

/// The type of a watch's message, and its object.
pub(crate) fn event(message: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let message: Message<'_> = read(message)?;
    Ok((message.kind, message.object.get().as_bytes()))
}

pub(crate) fn list<'a>(
    object: &'a [u8],
    mut tell: impl FnMut(&'a [u8]) -> Result<(), Malformed>,
) -> Result<(String, Option<String>), Malformed> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(default)]
        metadata: ListMeta,
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct ListMeta {
        #[serde(rename = "resourceVersion")]
        version: String,
        #[serde(rename = "continue")]
        next: String,
    }
    let List { metadata: ListMeta { version, next }, items } = read(object)?;
    items.into_iter().flatten().try_for_each(|item| tell(item.get().as_bytes()))?;
    Ok((version, Some(next).filter(|token| !token.is_empty())))
}

pub(crate) fn status(object: &[u8]) -> Result<Status, Malformed> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct RawStatus {
        code: u16,
        reason: String,
        message: String,
    }
    let RawStatus { code, reason, message } = read(object)?;
    Ok(Status { code, reason, message })
}

pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(json).map_err(|_| Malformed("it is not the JSON that was expected"))
}

/// Seconds since 1970 of a time in RFC 3339.
pub(crate) fn seconds(time: &str) -> Option<NonZeroU64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    NonZeroU64::new(u64::try_from(time.as_second()).ok()?)
}

/// Stays where it was received, unless something in it is written as an escape. `null` is empty.
#[derive(Default)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Cow::default())
    }
}

/// The members of an object, in their order.
pub(crate) struct Pairs<'a>(pub(crate) Vec<(Text<'a>, Text<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor).map(Self)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Vec<(Text<'de>, Text<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names and texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}
