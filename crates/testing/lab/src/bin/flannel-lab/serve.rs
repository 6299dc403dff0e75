//! The supervisor: makes a lab, owns it, and answers until it is told to go.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use flannel_common::replace_file;
use flannel_lab::{Lab, LabSpec};

use crate::client;
use crate::protocol::{Order, Progress, Request, receive, send};
use crate::requests::LeaseService;
use crate::state::{LabName, StateDir};

/// A lab that is just being removed may still hold its directory.
const TAKE_LIMIT: Duration = Duration::from_secs(3);

pub(crate) fn run(name: &LabName) -> anyhow::Result<ExitCode> {
    // Interrupts from the terminal and its end are not for us. We lead no group, so this works.
    let _ = rustix::process::setsid();
    let mut input = BufReader::new(io::stdin());
    let Some(Order::Make(spec)) = receive(&mut input).context("read the order")? else {
        bail!("`lab serve` is started by `lab up`");
    };
    match make(name, *spec, input) {
        Ok(never) => match never {},
        Err(error) => {
            send(io::stdout(), &Progress::Failed(format!("{error:#}")))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Does not return once the lab is up.
enum Never {}

fn make(name: &LabName, mut spec: LabSpec, input: BufReader<io::Stdin>) -> anyhow::Result<Never> {
    let dir = Arc::new(take(name)?);
    watch(input, &dir)?;
    let tell = |step: &str| {
        let _ = send(io::stdout(), &Progress::Step(step.to_owned()));
    };
    spec.log_dir = Some(name.log_dir());
    let made = (|| {
        let lab = Lab::start(spec, &tell)?;
        if lab.spec().daemon.run {
            tell("making a pod on every node");
            lab.pod_on_every_node()?;
        }
        if let Ok(kubernetes) = lab.kubernetes() {
            let kubeconfig = kubernetes.kubeconfig_of_host()?;
            replace_file(&name.kubeconfig(), kubeconfig.as_bytes(), 0o600)
                .context("write the kubeconfig")?;
        }
        let listener = UnixListener::bind(name.socket()).context("listen for commands")?;
        anyhow::Ok((lab, listener))
    })();
    let (lab, listener) = match made {
        Ok(made) => made,
        Err(error) => {
            dir.remove();
            return Err(error);
        }
    };
    let service = Arc::new(LeaseService::new(lab));
    send(io::stdout(), &Progress::Ready)?;
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        let (service, dir) = (Arc::clone(&service), Arc::clone(&dir));
        std::thread::Builder::new()
            .name("lab-request".into())
            .spawn(move || serve(&stream, &service, &dir))
            .context("start a thread")?;
    }
    bail!("the control socket is closed")
}

fn take(name: &LabName) -> anyhow::Result<StateDir> {
    let begin = Instant::now();
    loop {
        if let Some(dir) = StateDir::take(name)? {
            return Ok(dir);
        }
        if client::connect(name)?.is_some() || begin.elapsed() > TAKE_LIMIT {
            let option = name.option();
            bail!(
                "lab `{name}` is running already: `flannel-lab status{option}` shows it, \
                 `flannel-lab down{option}` removes it, --name starts another one beside it"
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes the lab if whoever ordered it goes away before saying that it shall stay.
fn watch(mut input: BufReader<io::Stdin>, dir: &Arc<StateDir>) -> anyhow::Result<()> {
    let dir = Arc::clone(dir);
    std::thread::Builder::new()
        .name("lab-orders".into())
        .spawn(move || {
            if let Ok(Some(Order::Keep)) = receive(&mut input) {
                detach();
            } else {
                leave(&dir, 1);
            }
        })
        .context("start a thread")?;
    Ok(())
}

/// Lets go of the terminal, so that pipes behind `lab up` end.
fn detach() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

fn serve(stream: &UnixStream, service: &LeaseService, dir: &StateDir) {
    let Ok(Some(request)) = receive::<Request>(BufReader::new(stream)) else { return };
    let down = matches!(request, Request::Down);
    if down {
        service.lab.end();
    }
    let _ = send(stream, &service.answer(request));
    if down {
        leave(dir, 0);
    }
}

/// What is left of the lab goes with this process.
fn leave(dir: &StateDir, code: i32) -> ! {
    dir.remove();
    std::process::exit(code)
}
