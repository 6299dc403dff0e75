//! Nodes that have reported that their network works. Their condition may be changed later: by a controller of a cloud, or
//! when the Node is created again.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::node::NodeView;

#[derive(Debug)]
pub(crate) struct WorkingNodes {
    names: Mutex<BTreeSet<Box<str>>>,
    contradicted: mpsc::Sender<String>,
}

impl WorkingNodes {
    /// Sends the names of Nodes whose condition says otherwise to `contradicted`.
    pub(crate) fn new(contradicted: mpsc::Sender<String>) -> Self {
        Self { names: Mutex::default(), contradicted }
    }

    pub(crate) fn set(&self, name: &str, works: bool) {
        match works {
            true => self.names().insert(name.into()),
            false => self.names().remove(name),
        };
    }

    pub(crate) fn check(&self, node: &NodeView<'_>) {
        let fine = node.network_unavailable.as_deref() == Some("False");
        if !fine && self.names().contains(&*node.name) {
            // One that does not fit is seen again with the next heartbeat.
            let _ = self.contradicted.try_send(node.name.clone().into_owned());
        }
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<Box<str>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
