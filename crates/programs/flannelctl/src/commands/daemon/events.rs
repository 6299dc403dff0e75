//! `flannelctl events`: what happened on this node.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use flannel_cli::table::line;
use flannel_state::HistoryEvent;
use hyper::Method;

use super::client::Daemon;
use super::{Asking, plain};
use crate::commands::output::Format;
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
        let wide = self.asking.output.output == Format::Wide;
        let each = |event: HistoryEvent| -> anyhow::Result<()> {
            let text = self.asking.output.output.one_of_many(&event)?;
            let text = text.unwrap_or_else(|| row(&event, wide) + "\n");
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        };
        block_on(Daemon::Here(&self.asking.socket).lines(Method::GET, &path, each))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// In detail with the number, and with how long what was restored had been away, to the microsecond.
fn row(event: &HistoryEvent, wide: bool) -> String {
    let network = event.network.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    // Milliseconds are enough for people; the rest is in -o json.
    let at = event.at.get(..23).map(|at| format!("{at}Z")).unwrap_or_else(|| event.at.clone());
    let (kind, what) = (plain(&event.kind), plain(&format!("{network}{}", event.what)));
    if !wide {
        return line(&[(&at, 0), (&kind, 16), (&what, 0)]);
    }
    let after = event.after_micros.map_or("-".to_owned(), |micros| format!("{micros}µs"));
    let number = event.number.to_string();
    line(&[(&number, 6), (&at, 0), (&kind, 16), (&after, 12), (&what, 0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_detail_an_event_has_its_number_and_how_long_something_was_away() {
        let event = HistoryEvent {
            number: 7,
            at: "2026-11-17T00:16:55.595504152Z".to_owned(),
            network: Some("blue".to_owned()),
            kind: "entry-restored".to_owned(),
            what: "restored it".to_owned(),
            after_micros: Some(1_234),
            ..HistoryEvent::default()
        };
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let at = "2026-11-17T00:16:55.595Z";
        let short = [at, "entry-restored", "blue:", "restored", "it"];
        assert_eq!(words(row(&event, false)), short);
        let wide = ["7", at, "entry-restored", "1234µs", "blue:", "restored", "it"];
        assert_eq!(words(row(&event, true)), wide);
    }
}
