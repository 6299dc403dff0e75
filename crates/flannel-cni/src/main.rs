//! `flannel`: one request of a container runtime, answered.

use std::process::ExitCode;

use flannel_cni::flannel::Flannel;
use flannel_cni::protocol::{About, Environment, serve};

fn main() -> ExitCode {
    let getenv = |name: &str| std::env::var(name).ok();
    let env = Environment(&getenv);
    let by_exec = matches!(env.get("FLANNEL_CNI_EXEC").as_str(), "1" | "true");
    let about = about("flannel");
    serve(
        &Flannel { by_exec },
        &About { text: &about },
        &env,
        std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
        &mut std::io::stderr().lock(),
    )
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
