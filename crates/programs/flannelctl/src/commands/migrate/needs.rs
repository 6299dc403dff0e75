//! What a backend must find out before it can say what it wants, as far as that can be had without changing anything.

use flannel_backend::{Answers, Need, WireguardBy};
use flannel_common::{PrivateKey, Secret};

use super::Findings;
use super::MigrationVerdict::NotKnown;
use crate::commands::store_args::block_on;

/// `None`: nothing can be said of devices and routes, and the findings say why.
pub(super) fn find_out(findings: &mut Findings, needs: Vec<Need>) -> Option<Answers> {
    let mut answers = Answers::default();
    for need in needs {
        match need {
            Need::Output(command) => {
                let text = format!(
                    "{} is run when flannel-rs starts: what it does is not looked at",
                    command.name
                );
                findings.add("commands", NotKnown, text);
            }
            // Devices and routes are the same with every key.
            Need::WireguardKey => answers.private_key = Some(PrivateKey::from_random([1; 32])),
            // So they are with every secret; whether the file is there is looked at when flannel-rs starts.
            Need::SecretFile(file) => answers.secret = Some((file, Secret::new("x".repeat(96)))),
            Need::WireguardBy => {
                let has = matches!(flannel_kernel::has_wireguard(), Ok(Ok(())));
                let by = if has { WireguardBy::Kernel } else { WireguardBy::Process };
                answers.wireguard_by = Some(by);
            }
            Need::CloudNode(query) => {
                match block_on(async { Ok(flannel_cloud::query_node(&query).await?) }) {
                    Ok(node) => answers.cloud_node = Some((query, node)),
                    Err(error) => {
                        findings.add("backend", NotKnown, format!("{error:#}"));
                        return None;
                    }
                }
            }
        }
    }
    Some(answers)
}
