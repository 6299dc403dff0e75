//! `flannelctl` as a plugin of kubectl, its completion and its man pages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use flannel_kube::testing::{ApiServer, NodeSpec};

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The real one.
fn kubectl() -> PathBuf {
    let kept = std::env::var_os("FLANNEL_TEST_KUBERNETES_DIR").map(PathBuf::from);
    let kept = kept.unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/flannel-rs/bin/kubernetes")
    });
    let kubectl = kept.join("kubectl");
    assert!(kubectl.exists(), "no kubectl at {}: run `scripts/deps`", kubectl.display());
    kubectl
}

#[test]
fn kubectl_finds_the_plugin_and_it_asks_the_cluster_that_kubectl_asks() {
    let bin = tempfile::tempdir().unwrap();
    symlink(FLANNELCTL, bin.path().join("kubectl-flannel")).unwrap();
    let server = ApiServer::start();
    let spec =
        NodeSpec::new("node-1").cidr("10.244.1.0/24").vxlan("192.0.2.1", "02:00:00:00:00:01");
    server.create_node(&spec);
    let run = |words: &[&str]| {
        let mut command = Command::new(kubectl());
        command.arg("flannel").args(words).env("PATH", bin.path());
        command.env("KUBECONFIG", server.admin_kubeconfig()).output().unwrap()
    };
    let leases = text(&run(&["leases"]));
    assert!(leases.contains("10.244.1.0/24") && leases.contains("node-1"), "{leases}");
    let help = text(&run(&["--help"]));
    assert!(help.contains("Usage: kubectl flannel <COMMAND>"), "{help}");
    assert_eq!(run(&["leases", "--no-such-flag"]).status.code(), Some(2));
    let list =
        Command::new(kubectl()).args(["plugin", "list"]).env("PATH", bin.path()).output().unwrap();
    assert!(text(&list).contains("kubectl-flannel"));
}

#[test]
fn completion_and_man_pages_know_every_command() {
    let help = text(&Command::new(FLANNELCTL).arg("--help").output().unwrap());
    let commands: Vec<&str> = help
        .lines()
        .take_while(|line| *line != "Options:")
        // Below the headings of their groups.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"check") && commands.len() > 10, "{help}");
    let pages = tempfile::tempdir().unwrap();
    text(&Command::new(FLANNELCTL).arg("man").arg(pages.path()).output().unwrap());
    for name in &commands {
        let page = std::fs::read_to_string(pages.path().join(format!("flannelctl-{name}.1")));
        assert!(page.is_ok_and(|page| page.contains(".SH NAME")), "no page for {name}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&Command::new(FLANNELCTL).args(["completion", shell]).output().unwrap());
        for name in &commands {
            assert!(script.contains(name), "{shell} does not know {name}");
        }
    }
    // bash itself takes it, and completes.
    let typed = "source <(\"$0\" completion bash); COMP_WORDS=(flannelctl che); COMP_CWORD=1; \
                 _flannelctl flannelctl che flannelctl; echo \"${COMPREPLY[@]}\"";
    let completed = Command::new("bash").args(["-c", typed, FLANNELCTL]).output().unwrap();
    assert_eq!(text(&completed).trim(), "check");
}
