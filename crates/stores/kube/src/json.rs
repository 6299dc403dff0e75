//! Kubernetes' JSON, as much of it as is needed; all else is stepped over without being kept.

use std::borrow::Cow;
use std::num::NonZeroU64;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::message::{Malformed, Result};

/// Each message is a line.
pub(crate) fn cut(stream: &[u8]) -> Option<(&[u8], usize)> {
    let end = stream.iter().position(|byte| *byte == b'\n')?;
    Some((&stream[..end], end + 1))
}

pub(crate) fn event(message: &[u8]) -> Result<(&str, &[u8])> {
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
    mut tell: impl FnMut(&'a [u8]) -> Result<()>,
) -> Result<(String, Option<String>)> {
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

pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|_| Malformed("it is not the JSON that was expected"))
}

/// Seconds since 1970 of a time in RFC 3339.
pub(crate) fn seconds(time: &str) -> Option<NonZeroU64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    NonZeroU64::new(u64::try_from(time.as_second()).ok()?)
}

/// Stays where it was received, unless something in it is written as an escape. `null` is empty.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);
        let text = Option::<Borrowed<'de>>::deserialize(deserializer)?;
        Ok(Self(text.map_or_else(Cow::default, |text| text.0)))
    }
}
