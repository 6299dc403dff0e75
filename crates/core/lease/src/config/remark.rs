//! Remarks about a usable config: Go ignores unknown members and takes the last of several; writers meant more.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::nearest::nearest;
use crate::raw_json::Members;

const KNOWN_MEMBERS: [&str; 14] = [
    "EnableIPv4",
    "EnableIPv6",
    "EnableNFTables",
    "Network",
    "SubnetLen",
    "SubnetMin",
    "SubnetMax",
    "IPv6Network",
    "IPv6SubnetLen",
    "IPv6SubnetMin",
    "IPv6SubnetMax",
    "MasqueradeExclude",
    "Replaces",
    "Backend",
];
/// Members of the Go flannel on Windows, in configs that nodes with Linux share; they mean nothing there.
const WINDOWS_MEMBERS: [&str; 3] = ["MacPrefix", "Name", "DNSServerList"];
/// Most characters of a name that are shown, and most remarks.
const MAX_SHOWN_CHARS: usize = 60;
const MAX_REMARKS: usize = 16;

/// Remarks about a readable config and the `options` of its backend, for operators: they quote names, never values.
pub fn remarks(text: &str, options: &[&str]) -> Vec<String> {
    let Ok(members) = serde_json::from_str::<Members<'_>>(text) else { return Vec::new() };
    let mut remarks = remarks_of(&members.0, "", &KNOWN_MEMBERS, &[]);
    let backend = members.last("Backend").map(|raw| serde_json::from_str(raw.get()));
    if let Some(Ok(Members(members))) = backend {
        let known: Vec<&str> = options.iter().copied().chain(["Type"]).collect();
        remarks.extend(remarks_of(&members, "Backend.", &known, &WINDOWS_MEMBERS));
    }
    remarks
}

fn remarks_of(
    members: &[(String, &RawValue)],
    prefix: &str,
    known: &[&str],
    passed: &[&str],
) -> Vec<String> {
    let among = |name: &str, list: &[&str]| list.iter().any(|of| of.eq_ignore_ascii_case(name));
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let remark = |(name, _): &(String, &RawValue)| {
        let key =
            || format!("{prefix}{}", name.escape_debug().take(MAX_SHOWN_CHARS).collect::<String>());
        let times = times.entry(name.to_ascii_lowercase()).or_default();
        *times += 1;
        match *times {
            1 if !among(name, known) && !among(name, passed) => {
                let fix = match nearest_of(name, known) {
                    Some(near) => format!("did you mean {prefix}{near}?"),
                    None => "leave it out".to_owned(),
                };
                Some(format!("{} is not a key of the network config and is ignored: {fix}", key()))
            }
            2 => Some(format!(
                "{} is given more than once and the last one counts: leave the others out",
                key()
            )),
            _ => None,
        }
    };
    members.iter().filter_map(remark).take(MAX_REMARKS).collect()
}

/// Case does not matter, so it is not a slip either.
fn nearest_of<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded: Vec<String> = known.iter().map(|of| of.to_ascii_lowercase()).collect();
    let near = nearest(&name.to_ascii_lowercase(), folded.iter().map(String::as_str))?;
    known.iter().copied().find(|of| of.eq_ignore_ascii_case(near))
}
