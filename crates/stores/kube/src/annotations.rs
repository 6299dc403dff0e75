//! The annotations by which the flannels of a cluster know each other, and how their names are made.

/// Prefix of every name: a domain and a slash, and perhaps a word that ends in `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "kube-annotation-prefix {given:?} {problem}: use a domain in lower case, and perhaps a word after a slash, \
     such as flannel.alpha.coreos.com or example.com/flannel"
)]
pub struct PrefixError {
    given: String,
    problem: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `true` marks a node of flannel.
    SubnetManager,
    BackendType,
    BackendData,
    BackendV6Data,
    PublicIp,
    PublicIpv6,
    /// Written by an operator: announced instead of the address that the node has found.
    PublicIpOverwrite,
    PublicIpv6Overwrite,
    /// Written by an operator: as the flags `public-ip` and `public-ipv6`, for this node.
    NodePublicIp,
    NodePublicIpv6,
    /// Port at which the node answers probes of its peers; the Go flannel neither writes nor reads it.
    ProbePort,
    Request,
    Answer,
}

impl Key {
    pub const COUNT: usize = 13;

    /// All of them, in their order, with their names behind the prefix.
    const NAMES: [(Self, &str); Self::COUNT] = [
        (Self::SubnetManager, "kube-subnet-manager"),
        (Self::BackendType, "backend-type"),
        (Self::BackendData, "backend-data"),
        (Self::BackendV6Data, "backend-v6-data"),
        (Self::PublicIp, "public-ip"),
        (Self::PublicIpv6, "public-ipv6"),
        (Self::PublicIpOverwrite, "public-ip-overwrite"),
        (Self::PublicIpv6Overwrite, "public-ipv6-overwrite"),
        (Self::NodePublicIp, "node-public-ip"),
        (Self::NodePublicIpv6, "node-public-ipv6"),
        (Self::ProbePort, "probe-port"),
        (Self::Request, "request"),
        (Self::Answer, "answer"),
    ];

    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().map(|(key, _)| key)
    }

    /// Whether it may say something of the node's lease.
    pub(crate) fn is_of_lease(self) -> bool {
        !matches!(self, Self::Request | Self::Answer)
    }

    pub fn suffix(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

impl AnnotationPrefix {
    /// Reads a prefix as the Go flannel does: a missing end is added.
    pub fn parse(given: &str) -> Result<Self, PrefixError> {
        let wrong = |problem| PrefixError { given: given.chars().take(100).collect(), problem };
        let mut prefix = given.to_owned();
        match given.matches('/').count() {
            0 => prefix.push('/'),
            1 => {}
            _ => return Err(wrong("has more than one slash")),
        }
        if !prefix.ends_with(['/', '-']) {
            prefix.push('-');
        }
        let (domain, word) = prefix.split_once('/').unwrap_or((&prefix, ""));
        let (rest, last) = domain.rsplit_once('.').ok_or_else(|| wrong("is not a domain"))?;
        if !is_word(last) || !rest.chars().next_back().is_some_and(is_plain) {
            return Err(wrong("is not a domain in lower case"));
        }
        let word_is_right = word.is_empty() || word.strip_suffix('-').is_some_and(is_word);
        if !word_is_right {
            return Err(wrong("has something after the slash that is not a word in lower case"));
        }
        Ok(Self(prefix))
    }

    pub fn name(&self, key: Key) -> String {
        format!("{}{}", self.0, key.suffix())
    }

    /// Annotation of this name, if it is one of ours.
    pub fn key(&self, name: &str) -> Option<Key> {
        let suffix = name.strip_prefix(&self.0)?;
        Key::all().find(|key| key.suffix() == suffix)
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_plain)
}

fn is_plain(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_completed_as_the_go_flannel_does_it() {
        for (given, expected) in [
            ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/backend-type"),
            ("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com/backend-type"),
            ("a.b/prefix", "a.b/prefix-backend-type"),
            ("a.b/prefix-", "a.b/prefix-backend-type"),
            ("org.com/9", "org.com/9-backend-type"),
            ("my_org.com/x_y", "my_org.com/x_y-backend-type"),
        ] {
            let prefix = AnnotationPrefix::parse(given).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(prefix.name(Key::BackendType), expected);
            assert_eq!(prefix.key(expected), Some(Key::BackendType));
        }
    }

    #[test]
    fn a_prefix_that_makes_no_names_is_refused() {
        for given in
            ["org", "org/", "org/prefix", "org.COM", "org.com/PREFIX", "a.b/c/d", "", "/", ".com"]
        {
            assert!(AnnotationPrefix::parse(given).is_err(), "{given:?}");
        }
    }

    #[test]
    fn every_key_is_found_by_its_name_and_no_other_name_is_one() {
        let prefix = AnnotationPrefix::parse("example.com/net").expect("a prefix");
        for (place, key) in Key::all().enumerate() {
            assert_eq!(key as usize, place, "{key:?} stands elsewhere in the table");
            assert_eq!(prefix.key(&prefix.name(key)), Some(key));
        }
        for name in ["example.com/net-", "example.com/public-ip", "public-ip", "example.com/net-x"]
        {
            assert_eq!(prefix.key(name), None, "{name}");
        }
    }
}
