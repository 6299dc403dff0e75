//! What flannel reads of a Node. A Node is 12 kB of text, of which some 500 bytes matter here, and it is
//! written again and again by its kubelet: so what is read stays where it was received, and only what is
//! new is ever copied.

use std::borrow::Cow;
use std::num::NonZeroU64;

use flannel_lease::LARGEST_DATA;

use crate::annotations::Key;

/// More than a lease may carry, wherever a character begins.
const KEPT_OF_TOO_LONG: usize = LARGEST_DATA + 8;

/// A Node as it was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView<'a> {
    pub name: Cow<'a, str>,
    /// Another one when the Node was deleted and made again.
    pub uid: Cow<'a, str>,
    pub resource_version: Cow<'a, str>,
    /// When the API server made it, in seconds since 1970; nobody can change that.
    pub created: Option<NonZeroU64>,
    pub annotations: Annotations<'a>,
    pub pod_cidr: Cow<'a, str>,
    pub pod_cidrs: Vec<Cow<'a, str>>,
    /// Of the machine id that its kubelet has told.
    pub machine: Option<NonZeroU64>,
    /// The status of the condition `NetworkUnavailable`: `True`, `False` or `Unknown`.
    pub network_unavailable: Option<Cow<'a, str>>,
    /// A bookmark that says: that was all there is, from now on it is news.
    pub ends_initial_events: bool,
}

/// Our annotations of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations<'a>([Option<Cow<'a, str>>; Key::ALL.len()]);

impl<'a> Annotations<'a> {
    pub fn get(&self, key: Key) -> Option<&str> {
        self.0[key as usize].as_deref()
    }

    /// As [`Self::get`]; an empty one says nothing.
    pub fn text(&self, key: Key) -> Option<&str> {
        self.get(key).filter(|text| !text.is_empty())
    }

    /// Of what a lease cannot carry, no more is kept than shows that it is too long.
    pub fn set(&mut self, key: Key, value: Cow<'a, str>) {
        let is_too_long = key.is_of_lease() && value.len() > KEPT_OF_TOO_LONG;
        let value = match value {
            Cow::Borrowed(text) if is_too_long => {
                Cow::Borrowed(&text[..text.floor_char_boundary(KEPT_OF_TOO_LONG)])
            }
            Cow::Owned(mut text) if is_too_long => {
                text.truncate(text.floor_char_boundary(KEPT_OF_TOO_LONG));
                text.shrink_to_fit();
                Cow::Owned(text)
            }
            value => value,
        };
        self.0[key as usize] = Some(value);
    }

    pub fn into_owned(self) -> Annotations<'static> {
        Annotations(self.0.map(|value| value.map(|text| Cow::Owned(text.into_owned()))))
    }
}

impl NodeView<'_> {
    /// The networks of its pods, of whichever family and in whichever order.
    pub fn networks(&self) -> impl Iterator<Item = &str> {
        let single = self.pod_cidrs.is_empty() && !self.pod_cidr.is_empty();
        let single = single.then_some(&*self.pod_cidr);
        self.pod_cidrs.iter().map(|cidr| &**cidr).chain(single)
    }

    pub fn into_owned(self) -> NodeView<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        NodeView {
            name: own(self.name),
            uid: own(self.uid),
            resource_version: own(self.resource_version),
            created: self.created,
            annotations: self.annotations.into_owned(),
            pod_cidr: own(self.pod_cidr),
            pod_cidrs: self.pod_cidrs.into_iter().map(own).collect(),
            machine: self.machine,
            network_unavailable: self.network_unavailable.map(own),
            ends_initial_events: self.ends_initial_events,
        }
    }
}
