//! What goes out on the wire: a peer on another machine writes down every byte it is sent, and no
//! secret is among them, however it was given and however it was spoiled on the way.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flannel_lab::{Lab, Result};

use crate::support::{LIMIT, flanneld, lab};

const PEER: &str = "192.168.100.2";
/// What is searched for; no part of it occurs in anything else that is said.
const SECRET: &str = "5ec7e75ec7e75ec7e7";

/// Writes down what it is sent. To HTTP it answers with a redirect to itself, to all else with
/// something that is no TLS, as a server without TLS would.
struct Recorder {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    fn start(lab: &Lab) -> Result<Self> {
        let listener = lab.node(2).in_netns(|| TcpListener::bind((PEER, 0)).unwrap())?;
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let writes = heard.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, writes) = (stream.unwrap(), writes.clone());
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count) = stream.read(&mut bytes) {
                        if count == 0 {
                            return;
                        }
                        writes.lock().unwrap().extend_from_slice(&bytes[..count]);
                        let location = format!("http://{PEER}:{port}/elsewhere");
                        let answer = format!(
                            "HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
                        );
                        let _ = stream.write_all(answer.as_bytes());
                    }
                });
            }
        });
        Ok(Self { port, heard })
    }

    fn has_heard(&self, text: &str) -> bool {
        let heard = self.heard.lock().unwrap();
        heard.windows(text.len()).any(|part| part == text.as_bytes())
    }
}

struct Case {
    what: String,
    flags: Vec<String>,
    env: Vec<(String, String)>,
    /// It is sent after all: that was asked for by name.
    asked_for: bool,
}

impl Case {
    fn new(what: impl Into<String>, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { what: what.into(), flags, env: Vec::new(), asked_for: false }
    }
}

/// Tokens as they are made, and as they arrive when somebody was careless.
fn tokens() -> Vec<(&'static str, String)> {
    let print = "ab".repeat(32);
    let whole = format!("fl1.{print}.{SECRET}");
    vec![
        ("whole", whole.clone()),
        ("in quotes", format!("\"{whole}\"")),
        ("in single quotes", format!("'{whole}'")),
        ("without its first character", whole[1..].to_owned()),
        ("without its beginning", whole[10..].to_owned()),
        ("the secret alone", SECRET.to_owned()),
        ("with a space", format!(" {whole} ")),
        ("in capitals", format!("FL1.{print}.{SECRET}")),
    ]
}

/// Every flag that carries a secret, in every way to give it.
fn cases(dir: &std::path::Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for (index, (form, token)) in tokens().into_iter().enumerate() {
        let file = dir.join(format!("token-{index}"));
        std::fs::write(&file, format!("{token}\n")).unwrap();
        let file = format!("--remote-token-file={}", file.display());
        for remote in ["--remote=PEER", "--remote=tcp://PEER", "--remote=http://PEER"] {
            let by_flag = format!("--remote-token={token}");
            cases.push(Case::new(format!("token {form}, {remote}"), &[remote, &by_flag]));
            cases.push(Case::new(format!("file, token {form}, {remote}"), &[remote, &file]));
            let mut by_variable = Case::new(format!("variable, token {form}, {remote}"), &[remote]);
            by_variable.env.push(("FLANNELD_REMOTE_TOKEN".to_owned(), token.clone()));
            cases.push(by_variable);
        }
    }
    let key = dir.join("key");
    std::fs::write(
        &key,
        format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"),
    )
    .unwrap();
    let key = key.display();
    for remote in ["--remote=PEER", "--remote=http://PEER"] {
        let flags =
            [remote, &format!("--remote-keyfile={key}"), &format!("--remote-certfile={key}")];
        cases.push(Case::new(format!("key, {remote}"), &flags));
    }
    for etcd in ["--etcd-endpoints=PEER", "--etcd-endpoints=https://PEER"] {
        let password = format!("--etcd-password={SECRET}");
        let login = [etcd, "--etcd-username=flannel", &password];
        cases.push(Case::new(format!("password, {etcd}"), &login));
        let flags = [etcd, &format!("--etcd-keyfile={key}"), &format!("--etcd-certfile={key}")];
        cases.push(Case::new(format!("key, {etcd}"), &flags));
    }
    let plain = [
        vec!["--remote=PEER".to_owned(), format!("--remote-token={SECRET}")],
        vec!["--remote=http://PEER".to_owned(), format!("--remote-token={SECRET}")],
    ];
    for mut flags in plain {
        flags.push("--remote-insecure".to_owned());
        cases.push(Case { what: "asked for".to_owned(), flags, env: Vec::new(), asked_for: true });
    }
    // Even where it was asked for, a password goes to nobody who has not said which etcd cluster it is of.
    let http = ["--etcd-endpoints=http://PEER", "--etcd-username=f"];
    let mut etcd = Case::new("password to who does not answer", &http);
    etcd.flags.push(format!("--etcd-password={SECRET}"));
    cases.push(etcd);
    cases
}

#[test]
fn no_secret_goes_to_another_machine_in_clear_text_however_it_was_given() -> Result<()> {
    let lab = lab(2).bare().start()?;
    let dir = tempfile::tempdir().unwrap();
    let cases = cases(dir.path());
    for some in cases.chunks(16) {
        let mut running = Vec::new();
        for case in some {
            let recorder = Recorder::start(&lab)?;
            let at = format!("{PEER}:{}", recorder.port);
            let mut command = Command::new(flanneld());
            command.args(case.flags.iter().map(|flag| flag.replace("PEER", &at)));
            command.args(["--iface=eth0", "--v=4"]).envs(case.env.iter().cloned());
            command.stderr(Stdio::null());
            running.push((case, recorder, lab.node(1).spawn(command)?));
        }
        let begin = Instant::now();
        for (case, recorder, daemon) in running {
            // Until it has ended, or has had time to say what it has to say.
            let enough = if case.asked_for { LIMIT } else { Duration::from_secs(3) };
            while begin.elapsed() < enough
                && !recorder.has_heard(SECRET)
                && daemon.wait(Duration::from_millis(20))?.is_none()
            {}
            assert_eq!(
                recorder.has_heard(SECRET),
                case.asked_for,
                "{}: {:?}",
                case.what,
                case.flags
            );
        }
    }
    Ok(())
}

/// A flag that is added later is not forgotten here.
#[test]
fn every_flag_that_names_a_secret_is_looked_for_on_the_wire() {
    let output = Command::new(flanneld()).arg("-help").env_clear().output().unwrap();
    let usage = String::from_utf8(output.stderr).unwrap();
    let names = usage.lines().filter_map(|line| line.strip_prefix("  -"));
    let names = names.map(|line| line.split(' ').next().unwrap_or_default());
    let telling = ["token", "password", "keyfile", "secret", "kubeconfig"];
    let secret: Vec<&str> =
        names.filter(|name| telling.iter().any(|word| name.contains(word))).collect();
    let dir = tempfile::tempdir().unwrap();
    let used: Vec<String> = cases(dir.path()).into_iter().flat_map(|case| case.flags).collect();
    // Hashes of tokens are no secret, and there is no Kubernetes store that would use the other.
    let harmless = ["listen-token-file", "kubeconfig-file"];
    for name in secret.iter().filter(|name| !harmless.contains(*name)) {
        let tried = used.iter().any(|flag| flag.starts_with(&format!("--{name}=")));
        assert!(tried, "-{name} carries a secret: add it to the cases");
    }
    assert!(secret.len() >= 6, "{secret:?}");
}
