//! Rules in nftables: the only place that runs `nft`.

pub(crate) mod text;

use std::path::PathBuf;

use text::{Features, Listing, protocol, table};

use crate::firewall::{Firewall, Kind, Wish};
use crate::process::Runner;
use crate::programs::{SearchPath, Version};
use crate::rule::Purpose;
use crate::{Family, Mode, TrafficError};

const LEAST: Version = Version([1, 0, 1]);
const ALL_FEATURES: Features = Features { comments: true, random: true };

pub(crate) struct Nft {
    runner: Box<dyn Runner>,
    program: PathBuf,
    features: Features,
}

impl Nft {
    pub(crate) fn open(
        path: &SearchPath,
        mut runner: Box<dyn Runner>,
    ) -> Result<Self, TrafficError> {
        let Some(program) = path.find("nft") else {
            return Err(match path.find("iptables") {
                Some(_) => TrafficError::Missing {
                    program: "nft",
                    package: "nftables",
                    other: Mode::Iptables,
                },
                None => TrafficError::NoneInstalled { program: "nft" },
            });
        };
        let answer = runner.run(&program, &["--version"], "", &[])?;
        // A version that cannot be read is not known to be too old.
        match Version::parse(&answer) {
            Some(version) if version < LEAST => Err(TrafficError::Old {
                program: "nft".to_owned(),
                version: version.to_string(),
                least: "1.0.1",
                package: "nftables",
            }),
            _ => Ok(Self { runner, program, features: ALL_FEATURES }),
        }
    }

    fn list(&mut self, family: Family) -> Result<String, TrafficError> {
        let arguments = ["-s", "list", "table", protocol(family), table(family)];
        match self.runner.run(&self.program, &arguments, "", &[]) {
            Err(TrafficError::Failed { reason, .. })
                if reason.contains("No such file or directory") =>
            {
                Ok(String::new())
            }
            other => other,
        }
    }
}

impl Firewall for Nft {
    fn kind(&self) -> Kind {
        Kind::Nftables
    }

    fn look(&mut self, family: Family, wish: &Wish<'_>) -> Result<Option<String>, TrafficError> {
        let listing = Listing::parse(family, &self.list(family)?);
        let wanted: Vec<_> = Purpose::ALL
            .into_iter()
            .filter(|purpose| wish.wants(*purpose))
            .map(|purpose| {
                let now = listing.rules(purpose).unwrap_or_default();
                (purpose, wish.chain(purpose, now, self.features.random))
            })
            .collect();
        Ok(listing.change(family, &wanted, self.features))
    }

    fn write(&mut self, _family: Family, change: &str) -> Result<(), TrafficError> {
        self.runner.run(&self.program, &["-f", "-"], change, &[]).map(drop)
    }

    fn settle_for_less(&mut self) -> bool {
        let less = match (self.features.comments, self.features.random) {
            (true, true) => (false, true),
            (false, true) => (true, false),
            (true, false) => (false, false),
            // It was not for these.
            (false, false) => {
                self.features = ALL_FEATURES;
                return false;
            }
        };
        self.features = Features { comments: less.0, random: less.1 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::fake::{Answer, Recorder};
    use crate::rule::Keep;
    use crate::rules::samples::{family, node};

    fn directory_with(programs: &[&str]) -> (tempfile::TempDir, SearchPath) {
        crate::programs::samples::directory_with(programs)
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let open = |programs: &[&str]| {
            let (_directory, path) = directory_with(programs);
            let recorder = Recorder::answering(|_, _, _| Answer::Output("nftables v0.9.8".into()));
            match Nft::open(&path, Box::new(recorder)) {
                Ok(_) => panic!("it must not open"),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(
            open(&["iptables"]),
            "nft is not installed: install the package nftables, or use iptables \
             (\"EnableNFTables\": false in the network config)"
        );
        assert!(open(&[]).starts_with("neither nft nor any other program"), "{}", open(&[]));
        assert_eq!(
            open(&["nft"]),
            "nft is version 0.9.8, and 1.0.1 is needed: update the package nftables"
        );
    }

    #[test]
    fn a_missing_table_is_an_empty_one_and_is_made_by_one_command() {
        let (_directory, path) = directory_with(&["nft"]);
        let recorder = Recorder::answering(|_, arguments, _| match arguments {
            ["--version"] => Answer::Output("nftables v1.0.6".into()),
            ["-s", "list", "table", "ip", "flannel-ipv4"] => {
                Answer::Failure("Error: No such file or directory".into())
            }
            _ => Answer::Output(String::new()),
        });
        let log = recorder.log();
        let mut nft = Nft::open(&path, Box::new(recorder)).unwrap();
        let rules = node(crate::Mode::Nftables).v4.unwrap();
        let wish = Wish {
            rules: &rules,
            masquerade: true,
            forward: true,
            random: true,
            keep: Keep::AllBut(Vec::new()),
        };
        let change = nft.look(Family::V4, &wish).unwrap().unwrap();
        nft.write(Family::V4, &change).unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 3);
        assert_eq!(log[2], format!("nft -f -\n{change}"));
    }

    #[test]
    fn what_kernel_or_nft_cannot_do_is_left_out_step_by_step() {
        let (_directory, path) = directory_with(&["nft"]);
        let recorder = Recorder::answering(|_, arguments, _| match arguments {
            ["--version"] => Answer::Output("nftables v1.0.1".into()),
            _ => Answer::Output(String::new()),
        });
        let mut nft = Nft::open(&path, Box::new(recorder)).unwrap();
        let rules = family("10.244.0.0/16", "10.244.1.0/24");
        let wish = Wish {
            rules: &rules,
            masquerade: true,
            forward: false,
            random: true,
            keep: Keep::AllBut(Vec::new()),
        };
        let mut seen = Vec::new();
        loop {
            let script = nft.look(Family::V4, &wish).unwrap().unwrap();
            seen.push((script.contains("comment"), script.contains("fully-random")));
            if !nft.settle_for_less() {
                break;
            }
        }
        assert_eq!(seen, [(true, true), (false, true), (true, false), (false, false)]);
    }
}
