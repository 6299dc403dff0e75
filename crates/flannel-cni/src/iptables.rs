//! Chains that the Go plugins made with iptables, for containers that they added and we delete.
//!
//! Where iptables itself writes to nftables they are removed natively. Of the older kind of iptables
//! the kernel shows only that there is something at all; then its own program is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::nft::{Batch, Family, Nft, NftError};
use crate::protocol::{Error, ErrorContext};
use crate::subprocess;

const TABLE: &str = "nat";
const PATIENCE: Duration = Duration::from_secs(60);

/// Removes a chain of the table `nat`, of both families, and the rules of `entry` that jump to it.
/// Usually there is none, and to find that out costs a system call or two.
pub(crate) fn remove_chain(nft: &mut Nft, chain: &str, entry: &str) -> Result<(), Error> {
    for family in [Family::Ipv4, Family::Ipv6] {
        remove_from_nft(nft, family, chain, entry)?;
        if has_legacy_table(family) {
            remove_from_legacy(family, chain, entry)?;
        }
    }
    Ok(())
}

fn remove_from_nft(
    nft: &mut Nft,
    family: Family,
    chain: &str,
    entry: &str,
) -> Result<(), NftError> {
    if !nft.has_chain(family, TABLE, chain)? {
        return Ok(());
    }
    let mut batch = Batch::new(family, TABLE);
    for rule in nft.rules(family, TABLE, entry)? {
        if rule.target.as_deref() == Some(chain) {
            batch.delete_rule(entry, rule.handle);
        }
    }
    batch.flush(chain);
    batch.delete_chain(chain);
    match nft.commit(batch) {
        // Somebody else was faster.
        Err(error) if error.is_absence() => Ok(()),
        other => other,
    }
}

fn has_legacy_table(family: Family) -> bool {
    let names = match family {
        Family::Ipv6 => "/proc/self/net/ip6_tables_names",
        _ => "/proc/self/net/ip_tables_names",
    };
    std::fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == TABLE))
}

fn remove_from_legacy(family: Family, chain: &str, entry: &str) -> Result<(), Error> {
    let names = match family {
        Family::Ipv6 => ["ip6tables-legacy", "ip6tables"],
        _ => ["iptables-legacy", "iptables"],
    };
    // Whoever has no such program cannot have made such rules with it.
    let Some(program) = names.iter().find_map(|name| find(name)) else { return Ok(()) };
    let run = |arguments: &[&str]| {
        subprocess::run(&program, arguments, &[], b"", PATIENCE)
            .or_cni(format_args!("could not run {}", program.display()))
    };
    let listed = run(&["-w", "-t", TABLE, "-S"])?;
    let listing = String::from_utf8_lossy(&listed.stdout);
    if !listing.lines().any(|line| line == format!("-N {chain}")) {
        return Ok(());
    }
    for line in listing.lines().filter(|line| line.starts_with(&format!("-A {entry} "))) {
        let mut words = words(line);
        if words.windows(2).any(|pair| pair[0] == "-j" && pair[1] == chain) {
            words[0] = "-D".into();
            let arguments: Vec<&str> =
                ["-w", "-t", TABLE].into_iter().chain(words.iter().map(String::as_str)).collect();
            run(&arguments)?;
        }
    }
    run(&["-w", "-t", TABLE, "-F", chain])?;
    let removed = run(&["-w", "-t", TABLE, "-X", chain])?;
    if !removed.status.success() {
        let why = String::from_utf8_lossy(&removed.stderr).trim().to_owned();
        return Err(Error::internal(format_args!(
            "could not remove the chain {chain} of iptables: {why}"
        )));
    }
    Ok(())
}

/// A line as iptables prints it, cut where a shell would.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut begun) = (false, false);
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            '\\' => word.extend(characters.next()),
            c if c.is_whitespace() && !quoted => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            c => word.push(c),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Runtimes start plugins with a short path, or with none.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .filter(|directory| !directory.is_empty())
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"])
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_iptables_is_cut_where_a_shell_would_cut_it() {
        assert_eq!(
            words(r#"-A X -m comment --comment "dnat name: \"cbr0\" id: \"a b\"" -j "" Y"#),
            [
                "-A",
                "X",
                "-m",
                "comment",
                "--comment",
                "dnat name: \"cbr0\" id: \"a b\"",
                "-j",
                "",
                "Y"
            ]
        );
    }
}
