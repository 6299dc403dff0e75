//! What goes into a bundle.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use flannel_common::run_program;

use super::{BundleArgs, peers};
use crate::commands::check;
use crate::commands::daemon::client::Daemon;
use crate::commands::daemon::diff;
use crate::commands::daemon_process::DaemonProcess;
use crate::commands::store_args::block_on;

const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LOG_BYTES: u64 = 4 << 20;
const MAX_OUTPUT_BYTES: usize = 4 << 20;

const PODS: &str = "/var/log/pods";
const FLANNELS_PODS: &str = "kube-flannel_";
/// Logs that are taken of those pods: there is one for each time that a container began.
const MAX_POD_LOGS: usize = 6;

/// What is said of the kernel, by the programs that people would use. None of these shows keys.
const COMMANDS: [(&str, &[&str]); 20] = [
    ("kernel/uname.txt", &["uname", "-a"]),
    ("kernel/links.txt", &["ip", "-d", "-s", "link"]),
    ("kernel/addresses.txt", &["ip", "address"]),
    ("kernel/rules.txt", &["ip", "rule"]),
    ("kernel/rules6.txt", &["ip", "-6", "rule"]),
    ("kernel/routes.txt", &["ip", "route", "show", "table", "all"]),
    ("kernel/routes6.txt", &["ip", "-6", "route", "show", "table", "all"]),
    ("kernel/neighbours.txt", &["ip", "neigh"]),
    ("kernel/fdb.txt", &["bridge", "fdb"]),
    ("kernel/bridge-links.txt", &["bridge", "link"]),
    ("kernel/nftables.txt", &["nft", "list", "ruleset"]),
    ("kernel/iptables.txt", &["iptables-save", "-c"]),
    ("kernel/ip6tables.txt", &["ip6tables-save", "-c"]),
    ("kernel/xfrm-policies.txt", &["ip", "xfrm", "policy"]),
    ("kernel/xfrm-states.txt", &["ip", "xfrm", "state", "list", "nokeys"]),
    ("kernel/wireguard.txt", &["wg", "show"]),
    ("kernel/sockets.txt", &["ss", "-lnp", "-u", "-t"]),
    ("kernel/qdiscs.txt", &["tc", "-s", "qdisc"]),
    ("kernel/modules.txt", &["lsmod"]),
    ("kernel/settings.txt", &["sysctl", "-a", "-r", "^net\\.(ipv4|ipv6|bridge|netfilter|core)"]),
];

/// Names and texts. What cannot be had is a text that says why.
pub(super) fn all(args: &BundleArgs) -> impl Iterator<Item = (String, String)> {
    let socket = args.source.socket.as_path();
    let mut files = vec![("versions.txt".to_owned(), versions())];
    for (name, path) in [
        ("state.json", "/v1/state"),
        ("peers.jsonl", "/v1/peers"),
        ("events.jsonl", "/v1/events"),
        ("entries.jsonl", "/v1/entries"),
    ] {
        files.push((name.to_owned(), asked(socket, path)));
    }
    let differs = diff::report(socket);
    files.push(("diff.json".to_owned(), differs.unwrap_or_else(|error| format!("{error:#}\n"))));
    let found = check::report(&args.source, &args.cni_conf_dir);
    files.push(("check.json".to_owned(), found.unwrap_or_else(|error| format!("{error:#}\n"))));
    if let Ok(Some(process)) = DaemonProcess::find() {
        let given = process.given().into_iter();
        let lines = given.map(|(name, value)| format!("{name}={value}\n")).collect();
        files.push(("flags.txt".to_owned(), lines));
    }
    for (number, config) in args.source.configs().iter().enumerate() {
        files.push((format!("config-{number}.json"), format!("{config:#}\n")));
    }
    for directory in ["/run/flannel", "/run/flannel/networks"] {
        files.extend(within(Path::new(directory), "flannel", |name| name.ends_with(".env")));
    }
    files.extend(within(&args.cni_conf_dir, "cni", |name| {
        [".conf", ".conflist", ".json"].iter().any(|end| name.ends_with(end))
    }));
    files.extend(peers::files(args));
    // What may be large comes last, and is cut if all together is too much.
    let named = args.log.iter().enumerate();
    let mut logs: Vec<(String, String)> =
        named.map(|(number, log)| (format!("logs/{number}.log"), end_of(log))).collect();
    if args.log.is_empty() {
        let journal = ["journalctl", "-u", "flanneld", "--no-pager", "-n", "20000"];
        logs.push(("logs/journal.log".to_owned(), said(&journal)));
        let of_pods = logs_of_pods(Path::new(PODS)).into_iter();
        logs.extend(of_pods.map(|(name, log)| (format!("logs/{name}"), end_of(&log))));
    }
    let kernel = COMMANDS.iter().map(|(name, words)| ((*name).to_owned(), said(words)));
    files.into_iter().chain(kernel).chain(logs)
}

fn versions() -> String {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let programs =
        [["nft", "--version"], ["iptables", "--version"], ["ip", "-V"]].map(|words| said(&words));
    format!("flannelctl {}\n{}\n{system}", env!("CARGO_PKG_VERSION"), programs.concat())
}

fn asked(socket: &Path, path: &str) -> String {
    let mut text = Vec::new();
    let answer = block_on(async {
        let asked = Daemon::Here(socket).text(path, |piece| take(&mut text, piece));
        tokio::time::timeout(PROGRAM_TIMEOUT, asked).await?
    });
    written(text, answer)
}

pub(super) fn take(text: &mut Vec<u8>, piece: &[u8]) -> anyhow::Result<()> {
    let room = MAX_OUTPUT_BYTES.saturating_sub(text.len());
    text.extend_from_slice(&piece[..piece.len().min(room)]);
    Ok(())
}

pub(super) fn written(text: Vec<u8>, ended: anyhow::Result<()>) -> String {
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if let Err(error) = ended {
        text += &format!("{error:#}\n");
    }
    text
}

fn within(directory: &Path, under: &str, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| wanted(name))?;
        Some((format!("{under}/{name}"), end_of(&entry.path())))
    });
    files.collect()
}

/// Latest logs of flannel's pods on this node: `/var/log/pods/NAMESPACE_POD_UID/CONTAINER/0.log`, with names.
fn logs_of_pods(directory: &Path) -> Vec<(String, PathBuf)> {
    let list = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let is_flannels = |name: &str| name.starts_with(FLANNELS_PODS);
    let pods = list(directory).filter(|pod| pod.file_name().to_str().is_some_and(is_flannels));
    let containers = pods.flat_map(|pod| list(&pod.path()));
    let logs = containers.flat_map(|container| list(&container.path()));
    let mut logs: Vec<(SystemTime, PathBuf)> = logs
        .filter(|log| log.path().extension().is_some_and(|end| end == "log"))
        .filter_map(|log| Some((fs::metadata(log.path()).ok()?.modified().ok()?, log.path())))
        .collect();
    logs.sort();
    let latest = logs.into_iter().rev().take(MAX_POD_LOGS).map(|(_, log)| {
        let name = log.strip_prefix(directory).unwrap_or(&log);
        (name.to_string_lossy().replace('/', "_"), log)
    });
    latest.collect()
}

fn end_of(file: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(file)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(MAX_LOG_BYTES)))?;
        let mut text = Vec::new();
        file.take(MAX_LOG_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!("{}: {error}\n", file.display()),
    }
}

fn said(words: &[&str]) -> String {
    let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
    let (mut text, mut command) = (Vec::new(), Command::new(program));
    command.args(arguments).env("LC_ALL", "C");
    let ended = run_program(&mut command, b"", PROGRAM_TIMEOUT, |piece| _ = take(&mut text, piece));
    let text = String::from_utf8_lossy(&text);
    let failed = match ended {
        Ok(ended) if ended.status.success() => return text.into_owned(),
        Ok(ended) => format!("{}\n{}", ended.status, String::from_utf8_lossy(&ended.errors)),
        Err(error) => format!("{error}\n"),
    };
    format!("{text}{}: {failed}", words.join(" "))
}
