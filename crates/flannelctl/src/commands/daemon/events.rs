//! `flannelctl events`: what happened on this node.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use flannel_state::HistoryEvent;

use super::{Asking, client, plain};
use crate::commands::store_args::block_on;

/// What happened on this node: peers that came and went, entries restored and who undid them
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Go on showing what happens
    #[arg(short, long)]
    follow: bool,
    /// Begin with the last so many, instead of all that the daemon remembers
    #[arg(short = 'n', long, value_name = "NUMBER")]
    last: Option<u64>,
    #[command(flatten)]
    asking: Asking,
}

impl EventsArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let last = self.last.map(|last| format!("last={last}"));
        let follow = self.follow.then(|| "follow=1".to_owned());
        let query: Vec<String> = last.into_iter().chain(follow).collect();
        let path = format!("/v1/events?{}", query.join("&"));
        let mut out = std::io::stdout().lock();
        let each = |event: HistoryEvent| -> anyhow::Result<()> {
            match self.asking.output.output.one_of_many(&event)? {
                Some(text) => out.write_all(text.as_bytes())?,
                None => writeln!(out, "{}", row(&event))?,
            }
            Ok(out.flush()?)
        };
        block_on(client::lines(&self.asking.socket, &path, each))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn row(event: &HistoryEvent) -> String {
    let network = event.network.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    // Milliseconds are enough for people; the rest is in -o json.
    let at = event.at.get(..23).map(|at| format!("{at}Z")).unwrap_or_else(|| event.at.clone());
    format!("{at} {:<16} {}{}", event.kind, plain(&network), plain(&event.what))
}
