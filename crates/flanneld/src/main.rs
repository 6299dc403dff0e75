//! The command: options, log, runtime, signals and exit status.

use std::process::ExitCode;

use anyhow::Context;
use flannel_kernel::Engine;
use flanneld::daemon::Tools;
use flanneld::options::{Options, Parsed, Remark};
use flanneld::probe::{self, Readiness};
use flanneld::{daemon, logging, machine, notify, options, serve, store, subnet_file};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

fn main() -> ExitCode {
    match options::parse(std::env::args_os(), std::env::vars_os()) {
        Ok(Parsed::Run { options, remarks }) => start(*options, &remarks),
        Ok(Parsed::Help(usage)) => {
            eprint!("{usage}");
            ExitCode::SUCCESS
        }
        Ok(Parsed::Version) => {
            eprintln!("v{}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn start(options: Options, remarks: &[Remark]) -> ExitCode {
    // Nothing else has set one: this is the first thing that runs.
    let _ = logging::init(options.verbosity.clone());
    remarks.iter().for_each(Remark::log);
    match run(options) {
        Ok(()) => {
            tracing::info!("Exiting cleanly...");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    tracing::info!("Options: {options:?}");
    // One thread for everything that waits; the kernel engine has its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let serve = options.serve.as_ref().map(|serve| serve::start(serve, fastrand::u64(..)));
    let served = serve.transpose()?;
    let result = runtime.block_on(live(options, served));
    notify::stopping();
    // Nothing needs a clean end, and a look-up of a host name may hang: it is not waited for.
    runtime.shutdown_background();
    result
}

async fn live(options: Options, served: Option<serve::Served>) -> anyhow::Result<()> {
    let mut rng = fastrand::Rng::new();
    let previous = subnet_file::previous(&options.subnet_file).unwrap_or_else(|error| {
        tracing::warn!("{error}; going on without what it says of the previous subnet");
        Default::default()
    });
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tracing::info!("Installing signal handlers");
    let Some(store) = &options.store else {
        notify::ready("serving leases");
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        return Ok(());
    };
    let store = store::open(store, previous.subnet, rng.u64(..), served.as_ref())?;
    tracing::info!("Created subnet manager: {}", store.name());
    let (readiness, ready) = watch::channel(Readiness::NotReady("starting".to_owned()));
    let probe = options.probe.clone();
    let tools = Tools {
        store,
        engine: Engine::start(rng.u64(..))?,
        readiness,
        machine: machine::seed(&mut rng),
        previous,
        seed: rng.u64(..),
        options,
    };
    // Whichever ends first ends them all; a daemon may be dropped at any point.
    tokio::select! {
        result = daemon::run(tools) => result,
        never = serve_probe(probe, ready) => match never {},
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

async fn serve_probe(
    address: Option<options::ProbeAddress>,
    ready: watch::Receiver<Readiness>,
) -> std::convert::Infallible {
    match address {
        Some(address) => probe::serve(address, ready).await,
        None => std::future::pending().await,
    }
}
