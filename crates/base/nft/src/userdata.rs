//! What nftables keeps with an object without looking at it: a comment, which `nft` shows, and an owner.

use std::borrow::Cow;

const COMMENT: u8 = 0;
/// Ours, where others have left room.
const OWNER: u8 = 0xf1;
/// As long as `nft` allows a comment to be.
const COMMENT_LIMIT: usize = 127;
/// The kernel keeps 256 bytes of both together.
const OWNER_LIMIT: usize = 100;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Userdata {
    pub(crate) comment: Option<String>,
    pub(crate) owner: Option<String>,
}

pub(crate) fn encode(comment: Option<&str>, owner: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |kind: u8, value: &str| {
        bytes.extend_from_slice(&[kind, value.len() as u8 + 1]);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    };
    if let Some(comment) = comment {
        put(COMMENT, &fitted_comment(comment));
    }
    if let Some(owner) = owner {
        put(OWNER, &fitted_owner(owner));
    }
    bytes
}

pub(crate) fn decode(mut bytes: &[u8]) -> Userdata {
    let mut userdata = Userdata::default();
    while let [kind, len, rest @ ..] = bytes {
        let Some(value) = rest.get(..usize::from(*len)) else { break };
        let text = || flannel_netlink::text(value).unwrap_or_default().to_owned();
        match *kind {
            COMMENT => userdata.comment = Some(text()),
            OWNER => userdata.owner = Some(text()),
            _ => {}
        }
        bytes = &rest[usize::from(*len)..];
    }
    userdata
}

/// A comment, as the firewall can hold it.
pub fn fitted_comment(text: &str) -> Cow<'_, str> {
    fitted(text, COMMENT_LIMIT)
}

/// An owner, as the firewall can hold it.
pub fn fitted_owner(text: &str) -> Cow<'_, str> {
    fitted(text, OWNER_LIMIT)
}

/// Cuts what is too long, and tells it apart from others that begin alike.
fn fitted(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let hash = format!("~{:016x}", hash(text.as_bytes()));
    let end = text.floor_char_boundary(limit - hash.len());
    Cow::Owned(format!("{}{hash}", &text[..end]))
}

/// A number that other texts hardly have, by the method of Fowler, Noll and Vo.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_and_still_told_apart() {
        let [a, b] = ["a", "b"].map(|last| format!("{}{last}", "c".repeat(199)));
        let (a, b) = (fitted_comment(&a), fitted_comment(&b));
        assert_eq!((a.len(), b.len()), (COMMENT_LIMIT, COMMENT_LIMIT));
        assert_ne!(a, b);
        assert_eq!(fitted_comment("short"), "short");
        assert_eq!(fitted_comment(&a), a, "it stays as it is");
        let all = encode(Some(&"c".repeat(300)), Some(&"n".repeat(300)));
        assert!(all.len() <= 256, "the kernel keeps no more: {}", all.len());
    }

    #[test]
    fn userdata_is_decoded_as_it_was_encoded() {
        let read = decode(&encode(Some("abc"), Some("net")));
        assert_eq!((read.comment.as_deref(), read.owner.as_deref()), (Some("abc"), Some("net")));
    }
}
