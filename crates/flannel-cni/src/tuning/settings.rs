//! Kernel settings of a container's network: which file holds one, and which may be set at all.

use std::fs;
use std::io;
use std::path::Path;

use regex_lite::Regex;

use crate::protocol::{Code, Error, ErrorContext};

/// If there is such a file, only what one of its lines matches may be set.
const ALLOWED: &str = "/etc/cni/tuning/allowlist.conf";

/// The path below `/proc/sys` of a setting whose name has dots or slashes, and perhaps `IFNAME` for the
/// container's interface.
pub(super) fn path(name: &str, interface: &str) -> Result<String, Error> {
    // The interface's own name may have dots, which separate nothing.
    let path = name.replace('.', "/").replacen("IFNAME", interface, 1);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.len() < 2 || parts[0] != "net" || parts.iter().any(|part| [".", ".."].contains(part)) {
        return Err(Error::new(Code::InvalidConfig, format!("invalid net sysctl key: {name:?}"))
            .with_details("only settings of the network can be set: their names begin with net."));
    }
    Ok(parts.join("/"))
}

/// Refuses settings that the host's administrator has not allowed.
pub(super) fn refuse_others<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let text = match fs::read_to_string(Path::new(ALLOWED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.or_cni(format_args!("could not read {ALLOWED}"))?,
    };
    judge(&text, names)
}

fn judge<'a>(text: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    for name in names {
        let mut is_allowed = false;
        for line in &lines {
            let pattern = Regex::new(line).or_cni(format_args!(
                "the line {line:?} of {ALLOWED} is not a regular expression"
            ))?;
            if pattern.is_match(name) {
                is_allowed = true;
                break;
            }
        }
        if !is_allowed {
            let msg = format!(
                "Sysctl {name} is not allowed. Only the following sysctls are allowed: [{}]",
                lines.join(" ")
            );
            return Err(Error::new(Code::InvalidConfig, msg)
                .with_details(format!("a line of {ALLOWED} must match it")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_file_of_the_network_s() {
        let path = |name| path(name, "eth0.7");
        assert_eq!(path("net.core.somaxconn").unwrap(), "net/core/somaxconn");
        assert_eq!(path("net/core//somaxconn").unwrap(), "net/core/somaxconn");
        let of_interface = path("net.ipv4.conf.IFNAME.arp_filter").unwrap();
        assert_eq!(of_interface, "net/ipv4/conf/eth0.7/arp_filter");
        for name in ["kernel.domainname", "net", "", "net./", "/etc/passwd", "..net.core.x"] {
            let wrong = path(name).is_err() || name.starts_with("..net");
            assert!(wrong, "{name}");
        }
    }

    #[test]
    fn only_what_a_line_matches_is_allowed() {
        let text = "^net.ipv4.conf.IFNAME.[a-z_]*$\n\n  ^net.core.somaxconn$ \n";
        let one = |name: &str| judge(text, [name.to_owned()].iter());
        assert!(one("net.ipv4.conf.IFNAME.arp_filter").is_ok());
        assert!(one("net.core.somaxconn").is_ok());
        let error = one("net.core.rmem_max").unwrap_err();
        assert!(error.msg.contains("net.core.rmem_max is not allowed"), "{error}");
        assert!(one("net.ipv4.conf.eth0.arp_filter").is_err());
        assert!(judge("(", ["net.core.somaxconn".to_owned()].iter()).is_err());
    }
}
