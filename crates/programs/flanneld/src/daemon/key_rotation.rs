//! Another WireGuard key for this node, without a packet lost.
//!
//! The device gets the new key first and peers are told of it then. In between, and it is not long, what this node
//! sends waits in the device for sessions that need the new key; what peers send with sessions of the old one is
//! still read. A peer that is told replaces the old key by the new one in one step and begins a session at
//! once. Should the store fail just then, the device gets the old key back, which all peers still know. The file is
//! replaced last: a daemon that is killed half way starts with the old key, and finds the next one waiting.

use std::time::{Duration, Instant};

use flannel_common::PrivateKey;

use super::Daemon;
use super::event::Action;
use super::network::{JoinedNetwork, OnLan};
use super::now::Now;

const NEXT_KEY_POLL: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// When a new key is looked for, how far its change has come, and why the last change failed.
#[derive(Default)]
pub(super) struct KeyRotation {
    due: Option<Instant>,
    stage: Stage,
    last_error: Option<String>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    /// The file of the next key is being read, or put in the place of the old one.
    AwaitingFile,
    /// It is asked whether the store answers: nobody could be told of the key while it is away.
    CheckingStore { next: PrivateKey },
    /// The device has the next key, and peers are being told.
    TellingPeers { former: PrivateKey },
}

pub(super) enum KeyEvent {
    Timer,
    Next(Result<Option<PrivateKey>, String>),
    Announced(Result<(), String>),
    Refused(String),
    /// Whether the file of the next key is the one in use now.
    Adopted(Result<(), String>),
}

#[derive(Debug, PartialEq)]
pub(super) enum KeyAction {
    ReadNext,
    /// Announces the node as it is, to see whether the store answers.
    CheckStore,
    Use(PrivateKey),
    /// Gives the device the key back that peers know.
    Restore(PrivateKey),
    Adopt {
        is_new: bool,
    },
}

impl KeyRotation {
    /// `None` while an answer is awaited.
    pub(super) fn next_wake(&self, now: &Now) -> Option<Instant> {
        matches!(self.stage, Stage::Idle).then(|| self.due.unwrap_or(now.instant))
    }

    pub(super) fn step(
        &mut self,
        event: KeyEvent,
        current: &PrivateKey,
        now: &Now,
    ) -> Option<KeyAction> {
        match (std::mem::take(&mut self.stage), event) {
            (Stage::Idle, KeyEvent::Timer) => {
                let is_due = self.due.is_none_or(|due| due <= now.instant);
                is_due.then(|| self.enter(Stage::AwaitingFile, KeyAction::ReadNext))
            }
            (Stage::AwaitingFile, KeyEvent::Next(Ok(Some(next)))) if next == *current => {
                Some(self.enter(Stage::AwaitingFile, KeyAction::Adopt { is_new: false }))
            }
            (Stage::AwaitingFile, KeyEvent::Next(Ok(Some(next)))) => {
                Some(self.enter(Stage::CheckingStore { next }, KeyAction::CheckStore))
            }
            (Stage::AwaitingFile, KeyEvent::Next(Ok(None))) => self.wait(NEXT_KEY_POLL, now),
            (Stage::AwaitingFile, KeyEvent::Next(Err(why))) => self.fail(why, now),
            (Stage::CheckingStore { next }, KeyEvent::Announced(Ok(()))) => {
                let former = current.clone();
                Some(self.enter(Stage::TellingPeers { former }, KeyAction::Use(next)))
            }
            (Stage::CheckingStore { .. }, KeyEvent::Announced(Err(why))) => {
                let what = "Cannot rotate this node's WireGuard key: no peer can be told of it";
                self.fail(format!("{what}: {why}; trying again every {RETRY_PAUSE:?}"), now)
            }
            (Stage::TellingPeers { .. }, KeyEvent::Announced(Ok(()))) => {
                let public = current.public();
                tracing::info!("This node has a new WireGuard key: its public part is {public}");
                Some(self.enter(Stage::AwaitingFile, KeyAction::Adopt { is_new: true }))
            }
            (Stage::TellingPeers { former }, KeyEvent::Announced(Err(why))) => {
                let what = "No peer could be told of this node's new WireGuard key";
                self.fail(format!("{what}: {why}; using the old one for now"), now);
                Some(KeyAction::Restore(former))
            }
            (_, KeyEvent::Refused(why)) => {
                self.fail(format!("Cannot rotate this node's WireGuard key: {why}"), now)
            }
            (Stage::AwaitingFile, KeyEvent::Adopted(Ok(()))) => {
                self.last_error = None;
                self.wait(NEXT_KEY_POLL, now)
            }
            (Stage::AwaitingFile, KeyEvent::Adopted(Err(why))) => {
                let what = "Cannot replace the file of this node's WireGuard key";
                self.fail(format!("{what}: {why}; trying again every {RETRY_PAUSE:?}"), now)
            }
            // An answer to what is not waited for any more, or a timer of something else.
            (stage, _) => {
                self.stage = stage;
                None
            }
        }
    }

    fn enter(&mut self, stage: Stage, action: KeyAction) -> KeyAction {
        self.stage = stage;
        action
    }

    fn wait(&mut self, pause: Duration, now: &Now) -> Option<KeyAction> {
        self.due = Some(now.instant + pause);
        None
    }

    fn fail(&mut self, why: String, now: &Now) -> Option<KeyAction> {
        if self.last_error.as_ref() != Some(&why) {
            tracing::error!("{why}");
        }
        self.last_error = Some(why);
        self.wait(RETRY_PAUSE, now)
    }
}

impl Daemon {
    /// Hands an event to the rotation of this node's key, if its network has one.
    pub(super) fn rotate_key(&mut self, event: KeyEvent, now: &Now) {
        let Some(current) = self.network.node.answers.private_key.clone() else {
            self.key_rotation = KeyRotation::default();
            return;
        };
        match self.key_rotation.step(event, &current, now) {
            None => {}
            Some(KeyAction::ReadNext) => self.act(Action::ReadNextKey),
            Some(KeyAction::CheckStore) => self.own.announce_tentatively(self.attrs()),
            Some(KeyAction::Use(key)) => match self.replace_key(key, now) {
                Ok(()) => self.own.announce_tentatively(self.attrs()),
                Err(error) => self.rotate_key(KeyEvent::Refused(error.to_string()), now),
            },
            Some(KeyAction::Restore(key)) => {
                if let Err(error) = self.replace_key(key, now) {
                    self.rotate_key(KeyEvent::Refused(error.to_string()), now);
                }
            }
            Some(KeyAction::Adopt { is_new }) => {
                if is_new {
                    self.config.answers = self.network.node.answers.clone();
                }
                self.act(Action::AdoptNextKey);
            }
        }
    }

    fn replace_key(&mut self, key: PrivateKey, now: &Now) -> anyhow::Result<()> {
        let mut answers = self.network.node.answers.clone();
        answers.private_key = Some(key);
        let config = self.network.config().clone();
        self.network = JoinedNetwork::new(&self.setup, config, answers, &self.host, OnLan::Warn)?;
        self.program(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(byte: u8) -> PrivateKey {
        PrivateKey::from_random([byte; 32])
    }

    /// A rotation that has found key 2 in the file while key 1 is in use, and asks whether the store answers.
    fn found_next_key(now: &Now) -> KeyRotation {
        let mut rotation = KeyRotation::default();
        assert_eq!(rotation.step(KeyEvent::Timer, &key(1), now), Some(KeyAction::ReadNext));
        assert_eq!(rotation.next_wake(now), None, "the file is being read");
        let found = KeyEvent::Next(Ok(Some(key(2))));
        assert_eq!(rotation.step(found, &key(1), now), Some(KeyAction::CheckStore));
        rotation
    }

    #[test]
    fn a_key_is_rotated_ten_seconds_after_the_store_was_unreachable() {
        let begin = Now::for_test();
        let mut rotation = found_next_key(&begin);
        let away = KeyEvent::Announced(Err("it does not answer".to_owned()));
        assert_eq!(rotation.step(away, &key(1), &begin), None);
        assert_eq!(rotation.next_wake(&begin), Some(begin.instant + 10 * SECOND));
        let early = begin.later(9 * SECOND);
        assert_eq!(rotation.step(KeyEvent::Timer, &key(1), &early), None);
        let now = begin.later(10 * SECOND);
        assert_eq!(rotation.step(KeyEvent::Timer, &key(1), &now), Some(KeyAction::ReadNext));
        rotation.step(KeyEvent::Next(Ok(Some(key(2)))), &key(1), &now);
        let heard = || KeyEvent::Announced(Ok(()));
        assert_eq!(rotation.step(heard(), &key(1), &now), Some(KeyAction::Use(key(2))));
        assert_eq!(rotation.next_wake(&now), None, "peers are being told");
        let adopt = KeyAction::Adopt { is_new: true };
        assert_eq!(rotation.step(heard(), &key(2), &now), Some(adopt));
        assert_eq!(rotation.step(KeyEvent::Adopted(Ok(())), &key(2), &now), None);
        assert_eq!(rotation.next_wake(&now), Some(now.instant + NEXT_KEY_POLL));
    }

    #[test]
    fn the_former_key_comes_back_if_peers_cannot_be_told_of_the_new_one() {
        let now = Now::for_test();
        let mut rotation = found_next_key(&now);
        rotation.step(KeyEvent::Announced(Ok(())), &key(1), &now);
        let away = KeyEvent::Announced(Err("it does not answer".to_owned()));
        assert_eq!(rotation.step(away, &key(2), &now), Some(KeyAction::Restore(key(1))));
        assert_eq!(rotation.next_wake(&now), Some(now.instant + RETRY_PAUSE));
    }

    #[test]
    fn a_key_that_the_device_refuses_is_tried_again_after_a_pause() {
        let now = Now::for_test();
        let mut rotation = found_next_key(&now);
        rotation.step(KeyEvent::Announced(Ok(())), &key(1), &now);
        rotation.step(KeyEvent::Refused("no interface".to_owned()), &key(1), &now);
        // Nobody is told of a key that is not in use.
        assert_eq!(rotation.step(KeyEvent::Announced(Ok(())), &key(1), &now), None);
        let again = now.later(RETRY_PAUSE);
        assert_eq!(rotation.step(KeyEvent::Timer, &key(1), &again), Some(KeyAction::ReadNext));
    }
}
