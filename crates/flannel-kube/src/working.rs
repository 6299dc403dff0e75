//! Nodes that have said that their network works. Somebody else may say otherwise later in their condition: a
//! controller of a cloud, or whoever has made the Node anew.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::node::NodeView;

#[derive(Debug)]
pub(crate) struct WorkingNodes {
    names: Mutex<BTreeSet<Box<str>>>,
    doubted: mpsc::Sender<String>,
}

impl WorkingNodes {
    /// Tells `doubted` the names of those of whom somebody says otherwise.
    pub(crate) fn new(doubted: mpsc::Sender<String>) -> Self {
        Self { names: Mutex::default(), doubted }
    }

    pub(crate) fn set(&self, name: &str, works: bool) {
        match works {
            true => self.names().insert(name.into()),
            false => self.names().remove(name),
        };
    }

    pub(crate) fn look(&self, node: &NodeView<'_>) {
        let fine = node.network_unavailable.as_deref() == Some("False");
        if !fine && self.names().contains(&*node.name) {
            // One that is left out is seen again with the next heartbeat.
            let _ = self.doubted.try_send(node.name.clone().into_owned());
        }
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<Box<str>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
