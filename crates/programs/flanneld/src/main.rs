//! The command: options, log, runtime, signals and exit status.

use std::io::{self, Write as _};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use flannel_common::run_if_any;
use flannel_node::options::{self, Options, Parsed, Remark};
use flannel_node::verbosity::Verbosity;
use flanneld::cni_conf;
use flanneld::door::Door;
use flanneld::history::History;
use flanneld::joined_networks::{JoinedNetworks, Watched};
use flanneld::stopping::stopping;
use flanneld::{health_server, heap, logging, notify, serve, user_signals};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Service managers give a process 30 seconds or more before they kill it.
const STOP_WITHIN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    if let Err(error) = user_signals::disregard() {
        eprintln!("SIGUSR1 and SIGUSR2 end this process: {error}");
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == flannel_tunnel::SUBCOMMAND) {
        return carry_packets();
    }
    match options::parse(std::env::args_os(), std::env::vars_os()) {
        Ok(Parsed::Run { options, remarks, given }) => start(*options, &remarks, &given),
        Ok(Parsed::Help(usage)) => {
            // Whoever has read enough may close the pipe.
            let _ = write!(io::stderr(), "{usage}");
            ExitCode::SUCCESS
        }
        Ok(Parsed::Version) => {
            let _ = writeln!(io::stderr(), "v{}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Runs as the process that carries packets, instead of as the daemon, if told so.
fn carry_packets() -> ExitCode {
    let _ = logging::init(Verbosity::default(), History::default());
    match flannel_tunnel::run_process() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("The tunnel process ends: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options, remarks: &[Remark], given: &[String]) -> ExitCode {
    heap::return_large_blocks();
    // Nothing else has set one: this is the first thing that runs.
    let history = History::default();
    let _ = logging::init(options.verbosity.clone(), history.clone());
    let with = if given.is_empty() { "no flags".to_owned() } else { given.join(" ") };
    tracing::info!("flanneld {} starts with {with}", env!("CARGO_PKG_VERSION"));
    remarks.iter().for_each(Remark::log);
    match run(options, history) {
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

fn run(options: Options, history: History) -> anyhow::Result<()> {
    tracing::debug!("Options: {options:?}");
    // One thread for everything that waits; the kernel engine has its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let probe_port = options.probe.as_ref().map(|probe| probe.port);
    let serve = options.serve.as_ref();
    let serve = serve.map(|serve| serve::start(serve, probe_port, fastrand::u64(..)));
    let served = serve.transpose()?;
    wait_for_plugins(&options);
    let result = runtime.block_on(live(options, served, history));
    notify::stopping();
    // Nothing needs a clean end, and a look-up of a host name may hang: it is not waited for.
    runtime.shutdown_background();
    flannel_connectivity::wait_until_gone();
    result
}

/// What the kernel makes CNI plugins wait for, this process waits for. They do without, if need be.
fn wait_for_plugins(options: &Options) {
    let Some(directory) = options.networks.first().and_then(|it| it.subnet_file.parent()) else {
        return;
    };
    let made = std::fs::create_dir_all(directory).map_err(|error| error.to_string());
    let serve = || {
        flannel_cni::deferred_kernel_work::serve(
            &directory.join(flannel_cni::deferred_kernel_work::SOCKET),
        )
    };
    if let Err(error) = made.and_then(|()| serve().map_err(|error| error.to_string())) {
        tracing::info!("CNI plugins wait for the kernel themselves, so DEL takes longer: {error}");
    }
}

async fn live(
    options: Options,
    served: Option<serve::Served>,
    history: History,
) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tracing::info!("Installing signal handlers");
    let (probe, cni_conf) = (options.probe.clone(), options.cni_conf.clone());
    if options.networks.is_empty() {
        notify::ready();
        notify::status("serving leases");
        signalled(&mut interrupt, &mut terminate).await;
        return Ok(());
    }
    let (request, stopping) = stopping();
    let socket = options.socket.clone();
    let (Watched { readiness: ready, report }, networks) =
        JoinedNetworks::new(options, served, stopping).run();
    let door = report.map(|report| Door::new(report, history));
    let told = health_server::HealthSources { readiness: ready.clone(), door: door.clone() };
    let health_server = probe.map(|address| health_server::serve(address, told));
    let cni_conf = cni_conf.map(|conf| cni_conf::keep(conf, ready, cni_conf::LOOK_INTERVAL));
    let door = door.map(|door| door.serve(&socket));
    // Whichever ends first ends them all; a daemon may be dropped at any point.
    let mut work = pin!(async {
        tokio::select! {
            result = networks => result,
            never = run_if_any(health_server) => match never {},
            never = run_if_any(cni_conf) => match never {},
            never = run_if_any(door) => match never {},
        }
    });
    tokio::select! {
        result = &mut work => return result,
        () = signalled(&mut interrupt, &mut terminate) => request.stop(),
    }
    tokio::select! {
        result = work => result,
        () = tokio::time::sleep(STOP_WITHIN) => {
            tracing::error!("Cleaning up takes longer than {STOP_WITHIN:?}: ending without it");
            Ok(())
        }
        () = signalled(&mut interrupt, &mut terminate) => Ok(()),
    }
}

async fn signalled(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
