//! Needs of a backend: what it must know before it can be asked anything. The daemon finds it out, so that backends
//! stay pure. A new kind of need is another variant of [`Need`] and a field in [`Answers`]; the compiler then names
//! the place where the daemon finds it out.

use std::path::{Path, PathBuf};

use flannel_common::{PrivateKey, Secret};
use flannel_entries::cloud::{CloudNode, NodeQuery};
use flannel_entries::commands::Command;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    Output(Command),
    /// This node's WireGuard key, made when there is none.
    WireguardKey,
    CloudNode(NodeQuery),
    /// Whether the kernel or a process of ours speaks WireGuard.
    WireguardBy,
    /// Text of a file of this node, without white space around it.
    SecretFile(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireguardBy {
    Kernel,
    /// A process of ours, where the kernel has no WireGuard.
    Process,
}

/// Answers to the needs of a backend, valid as long as the needs are the same.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Answers {
    pub outputs: Vec<(Command, String)>,
    pub private_key: Option<PrivateKey>,
    pub cloud_node: Option<(NodeQuery, CloudNode)>,
    pub wireguard_by: Option<WireguardBy>,
    pub secret: Option<(PathBuf, Secret)>,
    /// Port at which this node is reached, if it shares its public address with others.
    pub public_port: Option<u16>,
    /// Packets of this node were found to have wrong checksums when the card or its driver makes them.
    pub checksum_is_broken: bool,
}

impl Answers {
    pub fn output(&self, of: &Command) -> Option<&str> {
        self.outputs.iter().find(|(command, _)| command == of).map(|(_, output)| output.as_str())
    }

    pub fn cloud_node(&self, query: &NodeQuery) -> Option<&CloudNode> {
        self.cloud_node.as_ref().filter(|(asked, _)| asked == query).map(|(_, node)| node)
    }

    pub fn secret(&self, file: &Path) -> Option<&Secret> {
        self.secret.as_ref().filter(|(read, _)| read == file).map(|(_, secret)| secret)
    }

    pub fn wireguard_by(&self) -> WireguardBy {
        self.wireguard_by.unwrap_or(WireguardBy::Kernel)
    }

    pub fn are_of(&self, needs: &[Need]) -> bool {
        let Self {
            outputs,
            private_key,
            cloud_node,
            wireguard_by,
            secret,
            public_port: _,
            checksum_is_broken: _,
        } = self;
        let known =
            [private_key.is_some(), cloud_node.is_some(), wireguard_by.is_some(), secret.is_some()];
        let others = known.into_iter().filter(|known| *known).count();
        outputs.len() + others == needs.len()
            && needs.iter().all(|need| match need {
                Need::Output(command) => self.output(command).is_some(),
                Need::WireguardKey => private_key.is_some(),
                Need::CloudNode(query) => self.cloud_node(query).is_some(),
                Need::WireguardBy => wireguard_by.is_some(),
                Need::SecretFile(file) => self.secret(file).is_some(),
            })
    }
}

/// Leaves out the answers: a command may have written a key.
impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outputs: Vec<&str> = self.outputs.iter().map(|(command, _)| command.name).collect();
        f.debug_struct("Answers")
            .field("outputs", &outputs)
            .field("has_private_key", &self.private_key.is_some())
            .field("cloud_node", &self.cloud_node)
            .finish()
    }
}
