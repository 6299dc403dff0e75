//! `flannelctl test connectivity`: asks nodes, through the store, for test pods, and has each try all others.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use flannel_connectivity::protocol::{Pod, TestReport, TestRequest, TestState};
use flannel_connectivity::{KIND, PORT};
use flannel_lease::Lease;
use flannel_store::{NodeAnswer, NodeRequest, OperatorStore, REQUEST_RENEWAL_INTERVAL, RequestId};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::choice::{Chosen, choose};
use super::junit;
use super::report::{Report, said_by};
use crate::commands::output::OutputArgs;
use crate::commands::store_args::{StoreArgs, block_on};
use crate::commands::{progress, usage};
use flannel_cli::table::Paint;
use flannel_cli::time;

const POLL_INTERVAL: Duration = Duration::from_millis(400);
const POD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a daemon may take of which nothing says that it makes pods.
const SHORT_POD_TIMEOUT: Duration = Duration::from_secs(3);
/// Time after the end of a test in which nodes undo by themselves what they have done.
const CLEANUP_GRACE: Duration = Duration::from_secs(30);

/// Whether pods of every node reach those of every other
///
/// The daemons make a test pod on each node and try all others, in every family: TCP, UDP, a packet of full size, and
/// what the node itself sends, as to a NodePort. Anybody may ask for it who may change the network config: with the
/// lease server an operator's token, with etcd who may write below the prefix, with Kubernetes who may patch
/// nodes/status. Nodes that do not answer, as those with the Go flannel, are not tested. Ends with 0 if all that was
/// tested passed, 1 if something did not (with --require-all also if a node was not tested), 2 if it was typed wrongly.
#[derive(Debug, Args)]
pub(crate) struct ConnectivityArgs {
    /// Only these nodes, by name, address or subnet
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    nodes: Vec<String>,
    /// So many nodes, chosen at random; 32 unless all are fewer, or named
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(2..=500))]
    sample: Option<u16>,
    /// Time after which what has not been found out is given up: 90s, 5m; a bare number counts seconds
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = time::test_limit)]
    timeout: Duration,
    /// Fail if a node could not be tested
    #[arg(long)]
    require_all: bool,
    /// Write the result to this file as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The port of test pods, where a firewall between nodes lets only some pass
    #[arg(long, default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl ConnectivityArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let store = self.store.open()?;
        block_on(self.ask(&*store))
    }

    async fn ask(&self, store: &dyn OperatorStore) -> anyhow::Result<ExitCode> {
        let began = Instant::now();
        let leases = store.snapshot().await?.leases;
        let leases: Vec<Lease> = leases.into_iter().map(|stored| stored.lease).collect();
        let mut rng = fastrand::Rng::new();
        let chosen = choose(&leases, &self.nodes, self.sample.map(usize::from), &mut rng);
        let unknown = |name| format!("no node is called {name}: `flannelctl leases` shows them");
        let chosen = chosen.map_err(|name| usage(unknown(name)))?;
        if let count @ 0..2 = chosen.nodes.len() {
            return Err(usage(format!("{count} of two nodes or more: one cannot reach itself")));
        }
        let limit = self.timeout;
        let test = Test {
            store,
            chosen: &chosen,
            request: NodeRequest {
                id: RequestId::random(&mut rng),
                kind: KIND.to_owned(),
                nodes: chosen.nodes.iter().map(|node| node.subnet).collect(),
                limit: limit + CLEANUP_GRACE,
                body: serde_json::to_value(TestRequest { port: self.port, pods: Vec::new() })?,
            },
            port: self.port,
            until: began + limit,
            progress: Progress::new(),
        };
        let id = test.request.id.clone();
        // A terminal shows each step.
        let waits =
            "still testing: nodes are asked through the store, and their test pods try each other";
        let waiting = (!test.progress.shown).then(|| progress::Progress::of(waits));
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let ended = tokio::select! {
            ended = test.run() => Some(ended),
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
        };
        drop(waiting);
        let withdrawn = store.requests().withdraw(&id).await;
        if let Err(error) = &withdrawn {
            let text = "nodes stop by themselves within half a minute";
            writeln!(io::stderr(), "warning: {error}; {text}")?;
        }
        let Some(said) = ended else {
            writeln!(io::stderr(), "interrupted: the test pods are being removed")?;
            return Ok(ExitCode::FAILURE);
        };
        let report = Report::new(&chosen, &said?);
        if let Some(file) = &self.junit {
            let text = junit::write(&report, began.elapsed().as_secs_f64());
            std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        }
        let paint = Paint::for_stdout();
        self.output.output.show(&report, |wide| report.text(wide, paint))?;
        let are_tested = !self.require_all || report.nodes.iter().all(|node| node.tested);
        let passed = report.whole && are_tested;
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

struct Test<'a> {
    store: &'a dyn OperatorStore,
    chosen: &'a Chosen,
    request: NodeRequest,
    port: u16,
    until: Instant,
    progress: Progress,
}

type Answers = Vec<(NodeAnswer, TestReport)>;

impl Test<'_> {
    async fn run(mut self) -> anyhow::Result<Answers> {
        let (began, nodes) = (Instant::now(), &self.chosen.nodes);
        let is_ready = |answers: &Answers| {
            let mut likely = nodes.iter().filter(|node| node.is_likely).peekable();
            let is_known = likely.peek().is_some();
            let answered = is_known && likely.all(|node| said_by(node, answers).is_some());
            let patience = if answered { SHORT_POD_TIMEOUT } else { POD_TIMEOUT };
            answers.len() >= nodes.len() || began.elapsed() >= patience
        };
        let words = |answers: &Answers| {
            format!("making test pods: {} of {} nodes", answers.len(), nodes.len())
        };
        let ready = self.poll(words, is_ready).await?;
        let pods: Vec<Pod> = ready.iter().filter_map(|(_, said)| said.pod.clone()).collect();
        let count = pods.len();
        if count < 2 {
            self.progress.end();
            return Ok(ready);
        }
        self.request.body = serde_json::to_value(TestRequest { port: self.port, pods })?;
        let words = |answers: &Answers| {
            let tried: usize = answers.iter().map(|(_, said)| said.found.len()).sum();
            format!("{count} nodes try each other: {tried} tried")
        };
        let ended = |said: &TestReport| matches!(said.state, TestState::Done | TestState::Failed);
        let answers = self.poll(words, |answers| answers.iter().all(|(_, said)| ended(said))).await;
        self.progress.end();
        answers
    }

    /// Waits for answers that are enough, or for the end of the time.
    async fn poll(
        &mut self,
        words: impl Fn(&Answers) -> String,
        is_enough: impl Fn(&Answers) -> bool,
    ) -> anyhow::Result<Answers> {
        let mut placed: Option<Instant> = None;
        loop {
            // Nodes stop unless they hear, in time, that it is still wanted.
            if placed.is_none_or(|at| at.elapsed() >= REQUEST_RENEWAL_INTERVAL) {
                self.store.requests().place(&self.request).await?;
                placed = Some(Instant::now());
            }
            let answers = self.answers().await?;
            self.progress.say(&words(&answers));
            if is_enough(&answers) || Instant::now() >= self.until {
                return Ok(answers);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn answers(&self) -> anyhow::Result<Answers> {
        let answers = self.store.requests().answers(&self.request.id).await?;
        // What a newer daemon says and nobody here understands is as if it said nothing.
        let read = |answer: NodeAnswer| {
            let said = serde_json::from_value(answer.body.clone()).ok()?;
            Some((answer, said))
        };
        Ok(answers.into_iter().filter_map(read).collect())
    }
}

/// On a terminal, one line that says how far it has come.
struct Progress {
    shown: bool,
    last: String,
}

impl Progress {
    fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), last: String::new() }
    }

    fn say(&mut self, text: &str) {
        if self.shown && self.last != text {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
            text.clone_into(&mut self.last);
        }
    }

    fn end(&mut self) {
        if self.shown && !self.last.is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
