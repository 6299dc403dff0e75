//! `flannelctl trace`: a packet's way from pod to pod and back, as both kernels would decide it; names the bad hop.

mod ends;
mod half;
mod live;
mod other_node;
mod peer;
mod pod_names;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use flannel_trace::{Condition, End, Hop, Way};
use serde::Serialize;

use self::ends::Ends;
use self::live::Live;
use super::check::node_context::{NetworkSource, NodeContext};
use super::daemon::plain;
use super::output::OutputArgs;
use super::progress::Progress;
use super::usage;
use flannel_cli::table::{Colour, Paint, painted_line};

/// The way of a packet from pod to pod, hop by hop, as the kernel would decide it now
///
/// Run it on the node of either pod; the daemon of the other node is asked for its half of the way, through the store.
/// Ends with 0 if nothing is wrong on the way, 1 if something is, 2 if an end is not known.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// An address, or a pod by its name: NAMESPACE/NAME, or NAME. Pods of other nodes are known by name where the store
    /// is Kubernetes, or --kubeconfig is given
    from: String,
    /// The same
    to: String,
    /// Send real packets, with a mark, and say at which device of both nodes they were last seen
    #[arg(long)]
    live: bool,
    /// On the other node, while --live is run on this one: say which of those packets come by here. Only needed where
    /// that node cannot be asked through the store
    #[arg(long, requires = "live")]
    listen: bool,
    /// With --listen: for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "listen")]
    seconds: u64,
    /// Where the daemon of the other node says how it is (its --healthz-port), if not where this node's does
    #[arg(long, value_name = "PORT")]
    probe_port: Option<u16>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    source: NetworkSource,
}

#[derive(Serialize)]
struct Traced {
    from: String,
    to: String,
    verdict: &'static str,
    hops: Vec<Hop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<Live>,
}

impl TraceArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            rustix::process::geteuid().is_root(),
            "rules and entries of this node are looked at: run this as root, on the node of one of the pods"
        );
        let (context, _) = NodeContext::gather(&self.source)?;
        let from = pod_names::addresses(&self.from, &self.source)?;
        let to = pod_names::addresses(&self.to, &self.source)?;
        let (from, to) = pod_names::of_one_family(&from, &to).ok_or_else(|| {
            usage(format!(
                "{} and {} are of different families: no packet goes from one to the other",
                self.from, self.to
            ))
        })?;
        let ends = Ends::place(&context, from, to)?;
        if self.listen {
            let (became, hops) = live::listen(&ends, Duration::from_secs(self.seconds))?;
            return self.tell(from, to, hops, Some(became));
        }
        let progress = Progress::of("still tracing: the other node is asked, through the store");
        let mut hops = flannel_trace::walk(&ends.network.node(), ends.from, ends.to)?;
        if let Some(End::Peer(peer)) = ends.far() {
            let asked = half::ask(&context, &ends, peer, &self.source);
            let daemons = peer::entries(&context, peer);
            match asked {
                Ok(its) => {
                    let begins_here = !matches!(ends.from.1, End::Peer(_));
                    hops = half::in_order(hops, its, begins_here);
                    hops.extend(daemons);
                }
                Err(why) => {
                    hops.extend(daemons);
                    let why = format!("{why:#}");
                    hops.extend(peer::ask(&why, ends.network, peer, self.probe_port));
                }
            }
        }
        let mut live = None;
        if self.live {
            let (became, seen) = live::trace(&ends, &self.source)?;
            hops.extend(seen);
            live = Some(became);
        }
        drop(progress);
        self.tell(from, to, hops, live)
    }

    fn tell(
        &self,
        from: IpAddr,
        to: IpAddr,
        hops: Vec<Hop>,
        live: Option<Live>,
    ) -> anyhow::Result<ExitCode> {
        let wrong = hops.iter().any(|hop| hop.condition == Condition::Wrong);
        let verdict = if wrong { "broken" } else { "whole" };
        let traced = Traced { from: from.to_string(), to: to.to_string(), verdict, hops, live };
        let paint = Paint::for_stdout();
        self.output.output.show(&traced, |_| screen(&traced, paint))?;
        Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn screen(traced: &Traced, paint: Paint) -> String {
    let mut text = String::new();
    let mut section = None;
    for hop in &traced.hops {
        if section != Some((hop.way, &hop.node)) {
            section = Some((hop.way, &hop.node));
            let (from, to, place) = (&traced.from, &traced.to, place(hop));
            let _ = match hop.way {
                Way::There => writeln!(text, "{place}: {from} -> {to}"),
                Way::Back => writeln!(text, "{place}: {to} -> {from}"),
                Way::Peer => writeln!(text, "what daemons say of the other node"),
                Way::Live => writeln!(text, "live: packets that were sent now"),
            };
        }
        let (colour, word) = match hop.condition {
            Condition::Good => (Colour::Good, "ok"),
            Condition::Unknown => (Colour::Faint, "?"),
            Condition::Wrong => (Colour::Bad, "WRONG"),
        };
        let (name, what) = (plain(&hop.hop), plain(&hop.what));
        let cells = [(colour, word, 5), (Colour::Plain, &name, 10), (Colour::Plain, &what, 0)];
        let _ = writeln!(text, "{}", painted_line(paint, 2, &cells));
        if !hop.fix.is_empty() {
            // What another node advises is not advice of ours.
            let label = if hop.node.is_some() { "it says:" } else { "fix:" };
            let fix = plain(&hop.fix);
            let cells = [(Colour::Plain, label, 10), (Colour::Plain, &fix, 0)];
            let _ = writeln!(text, "{}", painted_line(paint, 8, &cells));
        }
    }
    let first = traced.hops.iter().find(|hop| hop.condition == Condition::Wrong);
    let (colour, conclusion) = match first {
        Some(hop) => (Colour::Bad, format!("WRONG at {} ({})", plain(&hop.hop), place(hop))),
        None if traced.live.as_ref().is_some_and(|live| live.lost_before.is_none()) => {
            (Colour::Good, "nothing is wrong on the way: packets go there and come back".to_owned())
        }
        None => {
            let both = traced.hops.iter().any(|hop| hop.node.is_some());
            let who = if both { "both nodes" } else { "this node" };
            (Colour::Good, format!("nothing is wrong on the way, as far as {who} can tell"))
        }
    };
    let _ = writeln!(text, "{}", paint.text(colour, &conclusion));
    text
}

/// On which way a hop is, and on which node if not on this one.
fn place(hop: &Hop) -> String {
    let way = match hop.way {
        Way::There => "there",
        Way::Back => "back",
        Way::Peer => "peer",
        Way::Live => "live",
    };
    match &hop.node {
        Some(node) => format!("{way}, at {}", plain(node)),
        None => way.to_owned(),
    }
}
