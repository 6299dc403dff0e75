//! Identity of a client: by its token, else by its certificate.

use std::net::IpAddr;

use flannel_https::certificate;
use flannel_store::remote::{TokenFile, TokenHolder, TokenRights};
use http::HeaderValue;

use crate::answer::Fault;
use crate::lease_state::{Addresses, ClientMachine, Who};
use crate::token_review::TokenVerdict;

/// Name in a certificate that makes its holder an operator.
const OPERATOR: &str = "flannel-admin";

#[derive(Debug)]
pub(crate) struct ClientEvidence<'a> {
    pub(crate) authorization: Option<&'a HeaderValue>,
    /// Verdict of Kubernetes on the token, where there is one.
    pub(crate) reviewed: Option<TokenVerdict>,
    pub(crate) certificate: Option<&'a certificate::Names>,
    pub(crate) machine: &'a ClientMachine,
    pub(crate) source: IpAddr,
}

/// Identifies a client of a server with authentication. `takes_tokens`: those of a file or of Kubernetes.
pub(crate) fn identify(
    tokens: Option<&TokenFile>,
    takes_tokens: bool,
    evidence: ClientEvidence<'_>,
) -> Result<Who, Fault> {
    let unknown = |text: &str| Err(Fault::unknown_client(text));
    let ClientEvidence { authorization, reviewed, certificate, machine, source } = evidence;
    if let Some(header) = authorization.filter(|_| takes_tokens) {
        let holder = bearer(header).and_then(|token| tokens?.holder(token));
        return match (holder, reviewed) {
            (Some(holder), _) => Ok(by_token(holder, source, machine)),
            (None, Some(TokenVerdict::Node(name))) => Ok(Who {
                name: Some(name),
                machine: ClientMachine::Vouched,
                admin: false,
                addresses: Addresses::Only([source].into()),
                source: Some(source),
            }),
            (None, Some(TokenVerdict::Refused(reason))) => unknown(&reason),
            (None, None) => unknown("the token is not known here: get a new one from the operator"),
        };
    }
    match certificate {
        Some(names) => by_certificate(names, source, machine),
        None => unknown("authentication required: send a token, or show a certificate"),
    }
}

pub(crate) fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn by_token(holder: &TokenHolder, source: IpAddr, machine: &ClientMachine) -> Who {
    let (admin, addresses) = match &holder.rights {
        TokenRights::Operator => (true, Addresses::Any),
        TokenRights::Reader => (false, Addresses::Nothing),
        TokenRights::Any => (false, Addresses::Any),
        TokenRights::Source => (false, Addresses::Only([source].into())),
        TokenRights::Only(addresses) => (false, Addresses::Only(addresses.clone())),
    };
    let (name, machine) = (Some(holder.name.clone()), machine.clone());
    Who { name, machine, admin, addresses, source: Some(source) }
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
    use flannel_store::remote::hash_token;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn identify(
        tokens: Option<&TokenFile>,
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
        let tokens = TokenFile::parse(&text).unwrap();
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
