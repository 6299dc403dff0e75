//! Whether nodes can use a network config is decided in one place: the tool, the lease server and the
//! daemon say the same of every config, and what they refuse is not stored.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use flannel_lab::Lab;

const LIMIT: Duration = Duration::from_secs(20);

/// What is said of it: a part of the reason, or that it can be used.
type Verdict = Result<(), &'static str>;

fn table() -> Vec<(String, Verdict)> {
    let net = |more: &str| format!(r#"{{"Network":"10.244.0.0/16"{more}}}"#);
    let vxlan = |options: &str| net(&format!(r#","Backend":{{"Type":"vxlan"{options}}}"#));
    let dual = r#","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#;
    vec![
        ("{".to_owned(), Err("cannot be read")),
        ("[]".to_owned(), Err("not an object")),
        (net(""), Err("Backend is missing")),
        (net(r#","Backend":null"#), Err("Backend null")),
        (net(r#","Backend":{}"#), Err("Backend.Type is missing")),
        (net(r#","Backend":{"Type":""}"#), Err("not the name of a backend")),
        (net(r#","Backend":{"Type":"vxlam"}"#), Err("did you mean vxlan?")),
        (net(r#","Backend":{"Type":"azure"}"#), Err("not part of this release")),
        (net(r#","Backend":{"Type":"udp","Port":0}"#), Err("Backend.Port")),
        (vxlan(r#","VNI":16777216"#), Err("Backend.VNI")),
        (vxlan(r#","VNI":-1"#), Err("Backend.VNI")),
        (vxlan(r#","VNI":"7""#), Err("Backend.VNI")),
        (vxlan(r#","VNI":10000000"#), Err("Backend.VNI")),
        (vxlan(r#","Port":-1"#), Err("Backend.Port")),
        (vxlan(r#","Port":65536"#), Err("Backend.Port")),
        (vxlan(r#","MTU":70"#), Err("Backend.MTU")),
        (vxlan(r#","DirectRouting":"yes""#), Err("Backend.DirectRouting")),
        (net(&format!(r#"{dual},"Backend":{{"Type":"vxlan","VNI":10000}}"#)), Err("9999 or less")),
        (net(r#","SubnetLen":31,"Backend":{"Type":"vxlan"}"#), Err("SubnetLen 31")),
        (r#"{"Network":"127.0.0.0/16","Backend":{"Type":"vxlan"}}"#.to_owned(), Err("loopback")),
        (vxlan(r#","VNI":7"#), Ok(())),
        (vxlan(r#","vni":8,"PORT":4789,"Learning":null,"DirectRouting":true"#), Ok(())),
        (net(r#","Backend":{"Type":"HOST-GW"}"#), Ok(())),
        (net(r#","Backend":{"Type":"alloc"}"#), Ok(())),
        (net(r#","Backend":{"Type":"udp","Port":8286}"#), Ok(())),
        (vxlan(""), Ok(())),
    ]
}

fn flannelctl(words: &[&str], text: &str, remote: &str) -> JudgeAnswer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
    command.args(words).env("FLANNELD_REMOTE", remote);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// What was said beside it, or why not.
type JudgeAnswer = Result<String, String>;

fn agrees(who: &str, text: &str, expected: Verdict, verdict: &JudgeAnswer) {
    match (expected, verdict) {
        (Ok(()), Ok(_)) => {}
        (Err(part), Err(reason)) if reason.contains(part) => {}
        other => panic!("{who} on {text}: {other:?}"),
    }
}

/// Somebody who does not use our tools.
fn put(server: &str, text: &str) -> JudgeAnswer {
    let mut stream = TcpStream::connect(server).unwrap();
    let length = text.len();
    write!(
        stream,
        "PUT /v1/_/config?force=true HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(answer) }
}

/// A lease server of its own that begins with this config.
fn begin_with(flanneld: &Path, dir: &Path, text: &str) -> JudgeAnswer {
    let (file, data) = (dir.join("net-conf.json"), dir.join("begin"));
    std::fs::write(&file, text).unwrap();
    let _ = std::fs::remove_dir_all(&data);
    let log = dir.join("begin.log");
    let mut child = Command::new(flanneld)
        .args(["--listen=127.0.0.1:0", "--healthz-port=0"])
        .arg(format!("--data-dir={}", data.display()))
        .arg(format!("--net-config-path={}", file.display()))
        .env_clear()
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    let verdict = loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(1), "{}", said());
            break Err(said());
        }
        if said().contains("Lease server listens") {
            break Ok(said());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let _ = child.kill();
    let _ = child.wait();
    verdict
}

/// A node that runs already, whose config changes.
fn follow(lab: &Lab, text: &str) -> JudgeAnswer {
    let daemon = lab.node(1).flanneld();
    let before = daemon.log().len();
    lab.put_config(text).unwrap();
    let said = || daemon.log()[before..].to_owned();
    lab.wait_until("the daemon's word", LIMIT, || {
        said().contains("keeping the network as it was") || said().contains("config has changed")
    })
    .unwrap();
    if said().contains("config has changed") { Ok(said()) } else { Err(said()) }
}

#[test]
fn tool_server_and_daemon_say_the_same_of_every_config() {
    let dir = tempfile::tempdir().unwrap();
    let server = support::serve(&dir.path().join("data"), None, None);
    let lab = Lab::builder().nodes(1).start().unwrap();
    let flanneld = lab.node(1).flanneld().binary().unwrap();
    let stored = || flannelctl(&["config", "get", "--raw"], "", &server).is_ok();
    for (text, expected) in table() {
        let text = text.as_str();
        agrees(
            "config validate",
            text,
            expected,
            &flannelctl(&["config", "validate", "-"], text, ""),
        );
        agrees("PUT", text, expected, &put(&server, text));
        let set = ["config", "set", "--force", "-"];
        agrees("config set", text, expected, &flannelctl(&set, text, &server));
        assert!(expected.is_ok() || !stored(), "{text} is stored");
        agrees("net-config-path", text, expected, &begin_with(&flanneld, dir.path(), text));
        agrees("the daemon", text, expected, &follow(&lab, text));
    }
    assert!(stored());
}

#[test]
fn a_key_that_no_node_looks_at_is_used_and_told_of_by_all_and_refused_by_the_tool() {
    let dir = tempfile::tempdir().unwrap();
    let server = support::serve(&dir.path().join("data"), None, None);
    let lab = Lab::builder().nodes(1).start().unwrap();
    let flanneld = lab.node(1).flanneld().binary().unwrap();
    for (text, told) in [
        (
            r#"{"Network":"10.244.0.0/16","SubnetLenght":26,"Backend":{"Type":"vxlan"}}"#,
            "SubnetLenght is not a key of the network config and is ignored: did you mean SubnetLen?",
        ),
        (
            r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNID":7}}"#,
            "Backend.VNID is not a key of the network config and is ignored: did you mean Backend.VNI?",
        ),
        (
            r#"{"Network":"10.99.0.0/16","network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#,
            "is given more than once and the last one counts",
        ),
    ] {
        for words in [&["config", "validate", "-"], &["config", "set", "-"]] {
            let refused = flannelctl(words, text, &server).unwrap_err();
            assert!(
                refused.contains(told) && refused.contains("--allow-unknown-keys"),
                "{refused}"
            );
            let allowed = [words, &["--allow-unknown-keys"][..]].concat();
            let said = flannelctl(&allowed, text, &server).unwrap();
            assert!(said.contains("warning: ") && said.contains(told), "{said}");
        }
        let daemon_says = begin_with(&flanneld, dir.path(), text).unwrap();
        for said in [put(&server, text).unwrap(), daemon_says, follow(&lab, text).unwrap()] {
            assert!(said.contains(told), "{said}");
        }
    }
}
