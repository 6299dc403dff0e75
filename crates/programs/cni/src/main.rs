//! `flannel`: one request of a container runtime, answered. Started under the name of one of the
//! plugins that are built in, as through a link, it is that plugin. `--install` makes these links.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use flannel_cni::arena::Arena;
use flannel_cni::builtin::built_in;
use flannel_cni::flannel::Flannel;
use flannel_cni::install::{Installed, install};
use flannel_cni::protocol::{Environment, Plugin, serve};

#[global_allocator]
static ARENA: Arena = Arena::new();

const USAGE: &str = "\
A CNI plugin: started by container runtimes, which say by CNI_COMMAND what they want.
By hand: flannel --install DIRECTORY [--force]
    writes this program to DIRECTORY, and links for the plugins that are built in;
    --force: also where other programs have their names";

const NOT_STATIC: &str = "\
this program needs the host's C library, and takes twice as long to start as a static one:
scripts/plugin DIRECTORY builds that and installs it";

fn main() -> ExitCode {
    let succeeded = match std::env::args_os().nth(1) {
        Some(option) if option == "--install" => {
            install_into(std::env::args_os().skip(2).collect())
        }
        Some(option) if option == "--help" || option == "-h" => {
            say(USAGE);
            answer(&own_name())
        }
        _ => answer(&own_name()),
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn install_into(arguments: Vec<OsString>) -> bool {
    let force = arguments.iter().any(|argument| argument == "--force");
    let Some(directory) = arguments.iter().find(|argument| *argument != "--force") else {
        say(USAGE);
        return false;
    };
    let installed = std::env::current_exe().map_err(|error| error.to_string()).and_then(|own| {
        install(&own, Path::new(directory), force).map_err(|error| error.to_string())
    });
    match installed {
        Ok(report) => {
            for (name, what) in report {
                say(&match what {
                    Installed::Program => format!("{name}: written"),
                    Installed::Link => format!("{name}: linked to flannel"),
                    Installed::Kept => {
                        format!("{name}: kept, it is not ours (--force replaces it)")
                    }
                });
            }
            if !cfg!(target_feature = "crt-static") {
                say(NOT_STATIC);
            }
            true
        }
        Err(error) => {
            say(&error);
            false
        }
    }
}

fn say(text: &str) {
    // There is nowhere else to say that nobody listens.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn answer(name: &str) -> bool {
    let getenv = |name: &str| std::env::var(name).ok();
    let env = Environment(&getenv);
    let by_exec = matches!(env.get("FLANNEL_CNI_EXEC").as_str(), "1" | "true");
    let flannel = Flannel { by_exec };
    let (name, plugin): (&str, &dyn Plugin) =
        built_in(name).map_or(("flannel", &flannel), |plugin| (name, plugin));
    serve(
        plugin,
        &about(name),
        &env,
        std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
        &mut std::io::stderr().lock(),
    )
}

/// What the program was called by, without its directory.
fn own_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn about(name: &str) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    let commit = option_env!("FLANNEL_COMMIT").unwrap_or("unknown");
    format!(
        "CNI Plugin {name} version v{} ({}/{architecture}) commit {commit}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
    )
}
