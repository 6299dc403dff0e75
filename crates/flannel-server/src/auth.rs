//! Who a client is: by its token, else by its certificate, else nobody.
//!
//! The file of tokens has a line per client: `sha256:<hash of the token> <name> [addresses…]`. The
//! addresses are those it may announce; `any` stands for all; without any it may announce the one it
//! comes from. `admin` in their place makes it an operator, `read` one who reads and changes nothing. The file holds no secret: a hash of a
//! long random token cannot be turned back.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use flannel_common::hex;
use http::HeaderValue;

use crate::answer::Fault;
use crate::certificate;
use crate::lease_state::{Addresses, ClientMachine, Who};
use crate::token_review::Verdict;

/// A certificate with this name is an operator's.
const OPERATOR: &str = "flannel-admin";

#[derive(Debug, Default)]
pub struct Tokens(HashMap<[u8; 32], Holder>);

#[derive(Clone, Debug)]
struct Holder {
    name: Arc<str>,
    rights: Rights,
}

#[derive(Clone, Debug)]
enum Rights {
    Operator,
    Reader,
    Any,
    Source,
    Only(Arc<[IpAddr]>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: {problem}; a line is: sha256:<64 hexadecimal digits> <name> [address… | any | admin | read]"
)]
pub struct TokensError {
    line: usize,
    problem: &'static str,
}

impl Tokens {
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read the tokens in {}: {error}", file.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    pub fn parse(text: &str) -> Result<Self, TokensError> {
        let mut tokens = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |problem| TokensError { line: index + 1, problem };
            let (hash, holder) = read_line(line).map_err(wrong)?;
            tokens.insert(hash, holder);
        }
        Ok(Self(tokens))
    }
}

fn read_line(line: &str) -> Result<([u8; 32], Holder), &'static str> {
    let mut words = line.split_whitespace();
    let hash = words.next().and_then(|word| word.strip_prefix("sha256:"));
    let hash = hash.and_then(unhex).ok_or("it does not begin with the hash of a token")?;
    let name = words.next().ok_or("the name is missing")?.into();
    let words: Vec<&str> = words.collect();
    let rights = match words[..] {
        [] => Rights::Source,
        ["admin"] => Rights::Operator,
        ["any"] => Rights::Any,
        ["read"] => Rights::Reader,
        _ => {
            let addresses: Result<Vec<IpAddr>, _> = words.iter().map(|word| word.parse()).collect();
            Rights::Only(addresses.map_err(|_| "what follows the name is not an address")?.into())
        }
    };
    Ok((hash, Holder { name, rights }))
}

/// What the file of tokens has of a token.
pub fn hash_token(token: &str) -> String {
    format!("sha256:{}", hex(&digest(token)))
}

pub(crate) fn digest(token: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().unwrap_or_default()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let plain = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte =
            u8::from_str_radix(text.get(2 * index..2 * index + 2).filter(|_| plain)?, 16).ok()?;
    }
    Some(bytes)
}

/// What a client shows of itself with a request, and where the request comes from.
#[derive(Debug)]
pub(crate) struct ClientEvidence<'a> {
    pub(crate) authorization: Option<&'a HeaderValue>,
    /// What Kubernetes says of the token, where it was asked.
    pub(crate) reviewed: Option<Verdict>,
    pub(crate) certificate: Option<&'a certificate::Names>,
    pub(crate) machine: &'a ClientMachine,
    pub(crate) source: IpAddr,
}

/// Who it is, when clients are asked who they are. `takes_tokens`: those of a file or of Kubernetes.
pub(crate) fn identify(
    tokens: Option<&Tokens>,
    takes_tokens: bool,
    evidence: ClientEvidence<'_>,
) -> Result<Who, Fault> {
    let unknown = |text: &str| Err(Fault::unknown_client(text));
    let ClientEvidence { authorization, reviewed, certificate, machine, source } = evidence;
    if let Some(header) = authorization.filter(|_| takes_tokens) {
        // Compared by its hash, so that how long it takes tells nothing about the token.
        let holder = bearer(header).and_then(|token| tokens?.0.get(&digest(token)));
        return match (holder, reviewed) {
            (Some(holder), _) => Ok(holder.who(source, machine)),
            (None, Some(Verdict::Node(name))) => Ok(Who {
                name: Some(name),
                machine: ClientMachine::Vouched,
                admin: false,
                addresses: Addresses::Only([source].into()),
                source: Some(source),
            }),
            (None, Some(Verdict::Refused(reason))) => unknown(&reason),
            (None, None) => unknown("the token is not known here: get a new one from the operator"),
        };
    }
    match certificate {
        Some(names) => by_certificate(names, source, machine),
        None => unknown("say who you are: send a token, or show a certificate"),
    }
}

/// The token in the header `Authorization`.
pub(crate) fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl Holder {
    fn who(&self, source: IpAddr, machine: &ClientMachine) -> Who {
        let (admin, addresses) = match &self.rights {
            Rights::Operator => (true, Addresses::Any),
            Rights::Reader => (false, Addresses::Nothing),
            Rights::Any => (false, Addresses::Any),
            Rights::Source => (false, Addresses::Only([source].into())),
            Rights::Only(addresses) => (false, Addresses::Only(addresses.clone())),
        };
        let (name, machine) = (Some(self.name.clone()), machine.clone());
        Who { name, machine, admin, addresses, source: Some(source) }
    }
}

fn by_certificate(
    names: &certificate::Names,
    source: IpAddr,
    machine: &ClientMachine,
) -> Result<Who, Fault> {
    let Some(name) = names.dns.first() else {
        let text = "the certificate has no DNS name to know its holder by";
        return Err(Fault::unknown_client(text));
    };
    let allowed = match &names.addresses[..] {
        [] => [source].into(),
        addresses => addresses.into(),
    };
    let admin = names.dns.iter().any(|name| name == OPERATOR);
    let addresses = if admin { Addresses::Any } else { Addresses::Only(allowed) };
    let (name, machine) = (Some(name.as_str().into()), machine.clone());
    Ok(Who { name, machine, admin, addresses, source: Some(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn identify(
        tokens: Option<&Tokens>,
        certificate: Option<&certificate::Names>,
        authorization: Option<&HeaderValue>,
        source: IpAddr,
    ) -> Result<Who, Fault> {
        let machine = &ClientMachine::Unknown;
        let evidence =
            ClientEvidence { authorization, reviewed: None, certificate, machine, source };
        super::identify(tokens, tokens.is_some(), evidence)
    }

    fn header(authorization: &str) -> HeaderValue {
        authorization.parse().unwrap()
    }

    #[test]
    fn a_token_tells_who_it_is_and_what_it_may_announce() {
        let text = format!(
            "# comment\n{} node-1\n{} node-2 192.0.2.9 2001:db8::9\n{} boss admin # me\n\n{} nat any\n",
            hash_token("one"),
            hash_token("two"),
            hash_token("three"),
            hash_token("four"),
        );
        let tokens = Tokens::parse(&text).unwrap();
        let who = |token: &str| {
            identify(Some(&tokens), None, Some(&header(&format!("Bearer {token}"))), HERE).unwrap()
        };
        assert_eq!(who("one").name.as_deref(), Some("node-1"));
        assert!(who("one").may_announce(HERE) && !who("two").may_announce(HERE));
        assert!(who("two").may_announce("2001:db8::9".parse().unwrap()));
        assert!(who("three").admin && !who("four").admin);
        assert!(who("four").may_announce("203.0.113.1".parse().unwrap()));
        for wrong in ["Bearer five", "Bearer", "Basic b25l", "one", ""] {
            let refused = identify(Some(&tokens), None, Some(&header(wrong)), HERE).unwrap_err();
            assert_eq!(refused.status, http::StatusCode::UNAUTHORIZED, "{wrong}");
        }
        assert!(identify(Some(&tokens), None, None, HERE).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_read_says_where() {
        for (text, line) in [
            ("one node-1".to_owned(), 1),
            (format!("\n{}", hash_token("one")), 2),
            (format!("{} node-1 here", hash_token("one")), 1),
        ] {
            assert_eq!(Tokens::parse(&text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn a_certificate_tells_by_its_names() {
        let names = |dns: &[&str], addresses: &[IpAddr]| certificate::Names {
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            addresses: addresses.to_vec(),
        };
        let who = |names: certificate::Names| identify(None, Some(&names), None, HERE);
        let other: IpAddr = "192.0.2.9".parse().unwrap();
        let node = who(names(&["node-1"], &[other])).unwrap();
        assert!(node.may_announce(other) && !node.may_announce(HERE) && !node.admin);
        assert!(who(names(&["node-1"], &[])).unwrap().may_announce(HERE));
        assert!(who(names(&["me", OPERATOR], &[])).unwrap().admin);
        assert!(who(names(&[], &[other])).is_err());
    }
}
