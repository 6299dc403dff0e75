//! Nodes that have reported that their network works. Their condition may be changed later: by a controller of a cloud, or
//! when the Node is created again.

use parking_lot::Mutex;
use std::collections::BTreeSet;

use tokio::sync::mpsc;

use crate::node::NodeView;

#[derive(Debug)]
pub(crate) struct WorkingNodes {
    pub(crate) names: Mutex<BTreeSet<Box<str>>>,
    /// Gets the names of Nodes whose condition says otherwise.
    pub(crate) contradicted: mpsc::Sender<String>,
}

impl WorkingNodes {
    pub(crate) fn set(&self, name: &str, works: bool) {
        match works {
            true => self.names.lock().insert(name.into()),
            false => self.names.lock().remove(name),
        };
    }

    pub(crate) fn check(&self, node: &NodeView<'_>) {
        let fine = node.network_unavailable.as_deref() == Some("False");
        if !fine && self.names.lock().contains(&*node.name) {
            // One that does not fit is seen again with the next heartbeat.
            let _ = self.contradicted.try_send(node.name.clone().into_owned());
        }
    }
}
