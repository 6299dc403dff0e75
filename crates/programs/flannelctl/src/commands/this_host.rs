//! This node as a daemon would see it before it writes anything, for those who judge it by a network config.

use std::sync::Arc;

use anyhow::Context as _;
use flannel_backend::{Answers, Connected, Node, Stack, Underlay, UsableConfig, WantedBy};
use flannel_common::IfName;
use flannel_entries::facts::Facts;
use flannel_kernel::Engine;
use flannel_node::iface::{self, Selection};

use super::store_args::block_on;

pub(crate) struct ThisHost {
    engine: Engine<WantedBy>,
    pub(crate) facts: Arc<Facts>,
}

impl ThisHost {
    pub(crate) fn look() -> anyhow::Result<Self> {
        // It opens sockets, and writes nothing before it is told what is wanted.
        let engine = Engine::start(fastrand::u64(..)).context("ask the kernel")?;
        let facts = engine.facts.borrow().clone();
        Ok(Self { engine, facts })
    }

    pub(crate) fn select(
        &self,
        selection: &Selection,
        stacks: &[Stack],
        uses: Stack,
    ) -> Result<Underlay, String> {
        let towards = selection.can_reach.map(|address| vec![address]).unwrap_or_default();
        let path = block_on(async { Ok(self.engine.lookup(towards).await?) })
            .map_err(|error| error.to_string())?
            .into_iter()
            .next()
            .flatten();
        let select = |stack| iface::select(selection, stack, &self.facts, &|_| path.clone());
        iface::select_one_of(stacks, uses, select).map_err(|error| error.to_string())
    }

    /// The node in a network, as far as it is known without asking anybody, and flannel's devices on it.
    pub(crate) fn node(&self, judged: &UsableConfig, underlay: Underlay) -> (Node, Vec<IfName>) {
        let mut node = Node {
            network: judged.config.clone(),
            underlay,
            kernel: self.facts.kernel,
            paths: Default::default(),
            connected: Vec::new(),
            answers: Answers::default(),
        };
        let devices = judged.backend.devices(&node);
        let networks: Vec<_> = node.network.networks().collect();
        node.connected = Connected::of(&self.facts, &networks, &devices);
        (node, devices)
    }
}
