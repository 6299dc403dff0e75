//! `flannel`: one request of a container runtime, answered. Started under the name of one of the
//! plugins that are built in, as through a link, it is that plugin.
//!
//! The entry point is C's: what Rust's own does before `main` (looking for the stack's end, handlers
//! for its overflow) takes a fifth of the time that such a short life has left.

#![no_main]

use std::ffi::{CStr, c_char, c_int};

use flannel_cni::builtin::BuiltIn;
use flannel_cni::flannel::Flannel;
use flannel_cni::protocol::{About, Environment, Plugin, serve};

/// # Safety
///
/// To be called by the C runtime alone, with the program's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: the handler is one of the system's; no other thread exists yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // SAFETY: the C runtime hands over `count` pointers to texts that live as long as the process.
    let first = unsafe { (count > 0).then(|| CStr::from_ptr(*arguments)) };
    c_int::from(!answer(&own_name(first)))
}

fn answer(name: &str) -> bool {
    let getenv = |name: &str| std::env::var(name).ok();
    let env = Environment(&getenv);
    let by_exec = matches!(env.get("FLANNEL_CNI_EXEC").as_str(), "1" | "true");
    let flannel = Flannel { by_exec };
    let (name, plugin): (&str, &dyn Plugin) = match BuiltIn::of_kind(name) {
        Some(built_in) => (name, built_in.plugin()),
        None => ("flannel", &flannel),
    };
    let about = about(name);
    serve(
        plugin,
        &About { text: &about },
        &env,
        std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
        &mut std::io::stderr().lock(),
    )
}

/// What the program was called by, without its directory.
fn own_name(first: Option<&CStr>) -> String {
    let path = first.map(|first| first.to_string_lossy().into_owned()).unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
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
