//! Which iptables to use: there are two, and rules of one are invisible to the other.

use std::path::PathBuf;

use flannel_common::{Family, SearchPath};

use crate::TrafficError;
use crate::process::Runner;
use crate::programs::Version;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Nft,
    Legacy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) variant: Variant,
    pub(crate) version: Version,
    pub(crate) save: PathBuf,
    pub(crate) restore: PathBuf,
}

/// What one variant's tables hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    pub(crate) kube: bool,
    pub(crate) flannel: bool,
}

impl Variant {
    /// The variant to use so that all rules of the node are in one; `None`: the node has no say.
    pub(crate) fn preferred(nft: Signs, legacy: Signs) -> Option<Self> {
        match (nft.kube, legacy.kube, nft.flannel, legacy.flannel) {
            (true, ..) => Some(Self::Nft),
            (_, true, ..) => Some(Self::Legacy),
            (_, _, true, false) => Some(Self::Nft),
            (_, _, false, true) => Some(Self::Legacy),
            _ => None,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Nft => "-nft",
            Self::Legacy => "-legacy",
        }
    }
}

impl Tool {
    /// Without a preference, what `iptables` is on this machine.
    pub(crate) fn find(
        path: &SearchPath,
        runner: &mut dyn Runner,
        family: Family,
        preferred: Option<Variant>,
    ) -> Result<Self, TrafficError> {
        let suffixes = match preferred {
            Some(variant) => [variant.suffix(), ""].into_iter(),
            None => ["", "-nft"].into_iter(),
        };
        let name = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        for suffix in suffixes {
            let find = |end: &str| path.find(&format!("{name}{suffix}{end}"));
            let (Some(program), Some(save), Some(restore)) =
                (find(""), find("-save"), find("-restore"))
            else {
                continue;
            };
            let answer = runner.run(&program, &["--version"], "", &[])?;
            let variant = if answer.contains("nf_tables") { Variant::Nft } else { Variant::Legacy };
            // One that hides its version is a recent one.
            let version = Version::parse(&answer).unwrap_or(Version([1, 8, 0]));
            return Ok(Self { variant, version, save, restore });
        }
        Err(TrafficError::Missing { program: name })
    }
}
