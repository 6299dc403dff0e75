//! Another WireGuard key for this node, without a packet lost.
//!
//! The device gets the new key first and peers are told of it then. In between, and it is not long, what this node
//! sends waits in the device for sessions that need the new key; what peers send with sessions of the old one is
//! still read. A peer that is told replaces the old key by the new one in one step and begins a session at
//! once. Should the store fail just then, the device gets the old key back, which all peers still know. The file is
//! replaced last: whoever is killed half way begins anew with the old key, and finds the next one waiting.

use std::time::{Duration, Instant};

use flannel_kernel::PrivateKey;

use super::Daemon;
use super::network::{JoinedNetwork, OnLan};
use crate::wireguard_key;

/// Between two looks for a new key.
const LOOK: Duration = Duration::from_secs(1);
/// After a failure.
const RETRY: Duration = Duration::from_secs(10);
/// How long peers may take to be told: all that this node sends waits for it.
const TELL: Duration = Duration::from_secs(2);

/// When a new key is looked for, and what was said of the last one.
#[derive(Default)]
pub(super) struct KeyRotation {
    due: Option<Instant>,
    said: Option<String>,
}

impl KeyRotation {
    pub(super) fn next_look(&self) -> Instant {
        self.due.unwrap_or_else(Instant::now)
    }

    fn later(&mut self, pause: Duration) {
        self.due = Some(Instant::now() + pause);
    }

    fn failed(&mut self, why: String) {
        if self.said.as_ref() != Some(&why) {
            tracing::error!("{why}");
        }
        self.said = Some(why);
        self.later(RETRY);
    }
}

impl Daemon {
    /// Looks for a new key, if this network has one and it is time.
    pub(super) async fn rotate_key_in_time(&mut self, now: Instant) -> anyhow::Result<()> {
        let Some(key) = self.network.answers().private_key() else {
            self.key_rotation = KeyRotation::default();
            return Ok(());
        };
        if self.key_rotation.due.is_some_and(|due| due > now) {
            return Ok(());
        }
        match wireguard_key::next() {
            Ok(Some(next)) if next == *key => self.keep_key(),
            Ok(Some(next)) => self.rotate_key(next).await?,
            Ok(None) => self.key_rotation.later(LOOK),
            Err(why) => self.key_rotation.failed(why),
        }
        Ok(())
    }

    async fn rotate_key(&mut self, next: PrivateKey) -> anyhow::Result<()> {
        let public = next.public();
        let facts = self.facts.borrow().clone();
        // Nobody could be told of it while the store is away.
        if let Err(why) = self.tell_store(&facts).await {
            self.key_rotation.failed(format!(
                "This node is to have another WireGuard key, and nobody can be told: {why}; trying again"
            ));
            return Ok(());
        }
        let mut answers = self.network.answers().clone();
        answers.set_private_key(next);
        let config = self.network.config().clone();
        let network =
            match JoinedNetwork::new(&self.setup, config, answers.clone(), &facts, OnLan::Warn)
                .await
            {
                Ok(network) => network,
                Err(error) => {
                    self.key_rotation.failed(format!("No other WireGuard key now: {error}"));
                    return Ok(());
                }
            };
        let former = std::mem::replace(&mut self.network, network);
        self.program().await?;
        if let Err(why) = self.tell_store(&facts).await {
            self.network = former;
            self.program().await?;
            self.key_rotation.failed(format!(
                "Nobody could be told of this node's new WireGuard key: {why}; it keeps the old one for now"
            ));
            return Ok(());
        }
        self.answers = answers;
        tracing::info!("This node has a new WireGuard key: its public part is {public}");
        self.keep_key();
        Ok(())
    }

    /// The key in use is the one of the file.
    fn keep_key(&mut self) {
        match wireguard_key::adopt_next() {
            Ok(()) => {
                self.key_rotation.said = None;
                self.key_rotation.later(LOOK);
            }
            Err(error) => self.key_rotation.failed(format!(
                "cannot put the new WireGuard key in the place of the old one: {error}; trying again"
            )),
        }
    }

    async fn tell_store(&mut self, facts: &flannel_kernel::Facts) -> Result<(), String> {
        let told = self.own.try_announce(&self.setup, &self.network, facts);
        match tokio::time::timeout(TELL, told).await {
            Ok(told) => told.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store has not answered for {TELL:?}")),
        }
    }
}
