//! What stands in a certificate: the names in a client's (its first DNS name is who it is, its IP
//! addresses are what it may announce), its number and its end. Whether it is to be believed is decided
//! elsewhere; this only reads it.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const EXTENSIONS: u8 = 0xa3;
const DNS: u8 = 0x82;
const IP: u8 = 0x87;
const VERSION: u8 = 0xa0;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub dns: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

pub fn names(certificate: &[u8]) -> Names {
    read(certificate).unwrap_or_default()
}

/// The number its authority has given it.
pub fn serial(certificate: &[u8]) -> Option<Vec<u8>> {
    let (content, _) = element(from_serial(certificate)?, INTEGER)?;
    Some(content.to_vec())
}

/// When it ends.
pub fn not_after(certificate: &[u8]) -> Option<SystemTime> {
    let (_, rest) = element(from_serial(certificate)?, INTEGER)?;
    // The algorithm and the issuer stand before the validity.
    let (_, rest) = element(rest, SEQUENCE)?;
    let (_, rest) = element(rest, SEQUENCE)?;
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_, _, rest) = any(validity)?;
    let (tag, text, _) = any(rest)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

fn from_serial(certificate: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (fields, _) = element(certificate, SEQUENCE)?;
    let (tag, _, rest) = any(fields)?;
    Some(if tag == VERSION { rest } else { fields })
}

/// `YYMMDDhhmmssZ` of the years 1950 to 2049, or `YYYYMMDDhhmmssZ`.
fn time(tag: u8, text: &str) -> Option<SystemTime> {
    let number = |part: &str| part.parse::<i64>().ok();
    let (year, rest) = match tag {
        UTC_TIME => {
            let year = number(text.get(..2)?)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        GENERALIZED_TIME => (number(text.get(..4)?)?, text.get(4..)?),
        _ => return None,
    };
    let part = |at: usize| number(rest.get(at..at + 2)?);
    let (month, day) = (part(0)?, part(2)?);
    let seconds = part(4)? * 3_600 + part(6)? * 60 + part(8)?;
    // Days since 1970, in years that begin in March, so that the odd day is the last one.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let since = u64::try_from(days * 86_400 + seconds).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))
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
    fn number_and_end_are_read_from_a_real_certificate() {
        let key = rcgen::KeyPair::generate().unwrap();
        for (year, month, day, since) in [
            (2026, 2, 28, 1_772_236_800),
            (2028, 2, 29, 1_835_395_200),
            (2049, 12, 31, 2_524_521_600),
            (2050, 1, 1, 2_524_608_000),
            (4096, 1, 1, 67_090_118_400),
            (1999, 12, 31, 946_598_400),
        ] {
            let mut params = rcgen::CertificateParams::new(vec!["node-1".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, month, day);
            params.serial_number = Some(rcgen::SerialNumber::from_slice(&[1, 2, 3]));
            let der = params.self_signed(&key).unwrap().der().to_vec();
            let end = SystemTime::UNIX_EPOCH + Duration::from_secs(since);
            assert_eq!(not_after(&der), Some(end), "{year}-{month}-{day}");
            assert_eq!(serial(&der), Some(vec![1, 2, 3]));
        }
    }

    #[test]
    fn rubbish_has_no_names_and_does_no_harm() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["node-1".to_owned()]).unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        for at in 0..der.len() {
            names(&der[..at]);
            not_after(&der[..at]);
            serial(&der[..at]);
            let mut changed = der.clone();
            changed[at] ^= 0x85;
            names(&changed);
            not_after(&changed);
            serial(&changed);
        }
    }
}
