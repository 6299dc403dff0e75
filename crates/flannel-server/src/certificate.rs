//! The names in a client's certificate: its first DNS name is who it is, its IP addresses are what it
//! may announce. The certificate has been verified before; this only reads it.

use std::net::IpAddr;

const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const EXTENSIONS: u8 = 0xa3;
const DNS: u8 = 0x82;
const IP: u8 = 0x87;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) dns: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
}

pub(crate) fn names(certificate: &[u8]) -> Names {
    read(certificate).unwrap_or_default()
}

fn read(der: &[u8]) -> Option<Names> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (mut fields, _) = element(certificate, SEQUENCE)?;
    let extensions = loop {
        let (tag, content, rest) = any(fields)?;
        if tag == EXTENSIONS {
            break element(content, SEQUENCE)?.0;
        }
        fields = rest;
    };
    let mut rest = extensions;
    while !rest.is_empty() {
        let (extension, after) = element(rest, SEQUENCE)?;
        rest = after;
        let (id, mut value) = element(extension, OBJECT_ID)?;
        if id != SUBJECT_ALT_NAME {
            continue;
        }
        // A flag that says whether the extension is critical may stand before the value.
        let content = loop {
            let (tag, content, after) = any(value)?;
            if tag == OCTETS {
                break content;
            }
            value = after;
        };
        return general_names(element(content, SEQUENCE)?.0);
    }
    None
}

fn general_names(mut rest: &[u8]) -> Option<Names> {
    let mut names = Names::default();
    while !rest.is_empty() {
        let (tag, content, after) = any(rest)?;
        rest = after;
        match tag {
            DNS => names.dns.push(std::str::from_utf8(content).ok()?.to_owned()),
            IP => {
                let v4 = <[u8; 4]>::try_from(content).ok().map(IpAddr::from);
                let v6 = <[u8; 16]>::try_from(content).ok().map(IpAddr::from);
                names.addresses.extend(v4.or(v6));
            }
            _ => {}
        }
    }
    Some(names)
}

/// Content and rest of an element that must have this tag.
fn element(der: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = any(der)?;
    (tag == wanted).then_some((content, rest))
}

fn any(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if bytes.is_empty() || bytes.len() > 4 {
            return None;
        }
        (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_read_from_a_real_certificate() {
        let key = rcgen::KeyPair::generate().unwrap();
        let names_of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let params = rcgen::CertificateParams::new(names).unwrap();
            super::names(params.self_signed(&key).unwrap().der())
        };
        let read = names_of(&["node-1", "192.0.2.7", "2001:db8::7", "other"]);
        assert_eq!(read.dns, ["node-1", "other"]);
        assert_eq!(
            read.addresses,
            ["192.0.2.7", "2001:db8::7"].map(|a| a.parse::<IpAddr>().unwrap())
        );
        assert_eq!(names_of(&[]), Names::default());
    }

    #[test]
    fn rubbish_has_no_names_and_does_no_harm() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["node-1".to_owned()]).unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        for at in 0..der.len() {
            names(&der[..at]);
            let mut changed = der.clone();
            changed[at] ^= 0x85;
            names(&changed);
        }
    }
}
