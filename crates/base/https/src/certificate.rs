//! Fields of an X.509 certificate. Nothing here decides whether it is trusted.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Alternative names. A lease server knows a client by the first DNS name, and lets it announce the addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub dns: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

/// Returns no names at all if one of them cannot be read: with one left out, another would be the first.
pub fn names(certificate: &[u8]) -> Names {
    read(certificate).and_then(|certificate| names_of(&certificate)).unwrap_or_default()
}

pub fn serial(certificate: &[u8]) -> Option<Vec<u8>> {
    Some(read(certificate)?.raw_serial().to_vec())
}

pub fn not_after(certificate: &[u8]) -> Option<SystemTime> {
    let since = u64::try_from(read(certificate)?.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))
}

pub fn is_for_servers_alone(certificate: &[u8]) -> bool {
    read(certificate).is_some_and(|certificate| {
        let usage = certificate.extended_key_usage().ok().flatten();
        usage.is_some_and(|usage| usage.value.server_auth && !usage.value.client_auth)
    })
}

fn read(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    rest.is_empty().then_some(certificate)
}

fn names_of(certificate: &X509Certificate<'_>) -> Option<Names> {
    let mut names = Names::default();
    for name in &certificate.subject_alternative_name().ok()??.value.general_names {
        match name {
            GeneralName::DNSName(name) => names.dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from);
                let v6 = <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from);
                names.addresses.push(v4.or(v6)?);
            }
            GeneralName::Invalid(..) => return None,
            _ => {}
        }
    }
    Some(names)
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

    /// A certificate, and where in it its alternative names stand.
    fn certificate(names: &[&str]) -> (Vec<u8>, std::ops::Range<usize>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let der = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let der = der.der().to_vec();
        let id = [0x06, 0x03, 0x55, 0x1d, 0x11];
        let begin = der.windows(id.len()).position(|window| window == id).unwrap();
        // The extension's own head is before its id; its value is an OCTET STRING right behind it.
        let length = usize::from(der[begin + id.len() + 1]);
        (der, begin - 2..begin + id.len() + 2 + length)
    }

    #[test]
    fn a_part_of_a_certificate_or_more_than_one_says_nothing() {
        let (der, _) = certificate(&["node-1", "192.0.2.7"]);
        for end in 0..der.len() {
            let part = &der[..end];
            assert_eq!(
                (names(part), serial(part), not_after(part)),
                (Names::default(), None, None)
            );
        }
        let more = [&der[..], &[0]].concat();
        assert_eq!((names(&more), serial(&more), not_after(&more)), (Names::default(), None, None));
    }

    #[test]
    fn a_byte_changed_elsewhere_makes_no_other_names() {
        let (der, san) = certificate(&["node-1", "192.0.2.7"]);
        let (right, mut unread) = (names(&der), 0);
        assert_eq!(right.dns, ["node-1"]);
        for at in (0..der.len()).filter(|at| !san.contains(at)) {
            for change in [0x01, 0x80, 0x85, 0xff] {
                let mut changed = der.clone();
                changed[at] ^= change;
                let read = names(&changed);
                assert!(read == right || read == Names::default(), "byte {at}: {read:?}");
                unread += usize::from(read != right);
            }
        }
        assert!(unread > 0, "some of them matter");
    }

    #[test]
    fn a_name_that_cannot_be_read_does_not_make_the_next_one_the_first() {
        let (mut der, _) = certificate(&["node-1", "flannel-admin"]);
        let at = der.windows(6).position(|window| window == b"node-1").unwrap();
        der[at] = 0xff;
        assert_eq!(names(&der), Names::default());
    }

    #[test]
    fn an_address_of_an_odd_length_is_no_address() {
        let (mut der, _) = certificate(&["node-1", "192.0.2.7", "198.51.100.77"]);
        // Two addresses of four bytes become one of ten: what is between them is its tag and length.
        let at = der.windows(6).position(|window| window == [0x87, 4, 192, 0, 2, 7]).unwrap();
        der[at + 1] = 10;
        assert_eq!(names(&der), Names::default());
    }
}
