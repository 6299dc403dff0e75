//! What flannelctl sends to another machine: a peer there writes down every byte, and no secret is
//! among them unless that was asked for by name.

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flannel_lab::Lab;

const PEER: &str = "192.168.100.2";
const SECRET: &str = "5ec7e75ec7e75ec7e7";

/// Where it listens, and what it has heard.
fn record(lab: &Lab) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = lab.node(2).in_netns(|| TcpListener::bind((PEER, 0)).unwrap()).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let writes = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, writes) = (stream.unwrap(), writes.clone());
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    writes.lock().unwrap().extend_from_slice(&bytes[..count]);
                    let _ =
                        stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    (at, heard)
}

#[test]
fn no_secret_goes_to_another_machine_in_clear_text_unless_asked_for() {
    let lab = Lab::builder().nodes(2).bare().start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let whole = format!("fl1.{}.{SECRET}", "ab".repeat(32));
    let file = dir.path().join("token");
    std::fs::write(&file, &whole).unwrap();
    let file = file.to_str().unwrap();
    let quoted = format!("\"{whole}\"");
    type Given<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], bool);
    let cases: &[Given<'_>] = &[
        (&["--remote=PEER", "--remote-token-file", file], &[], false),
        (&["--remote=http://PEER", "--remote-token-file", file], &[], false),
        (&["--remote=PEER", "--remote-token", &whole], &[], false),
        (&["--remote=PEER", "--remote-token", SECRET], &[], false),
        (&["--remote=http://PEER", "--remote-token", SECRET], &[], false),
        (&["--remote=PEER"], &[("FLANNELD_REMOTE_TOKEN", &quoted)], false),
        (&["--remote=PEER"], &[("FLANNELD_REMOTE_TOKEN", &whole[1..])], false),
        (&["--remote=PEER"], &[("FLANNELD_REMOTE_TOKEN_FILE", file)], false),
        (
            &["--remote=http://PEER"],
            &[("FLANNELD_REMOTE_TOKEN", SECRET), ("FLANNELD_REMOTE_INSECURE", "false")],
            false,
        ),
        (&["--etcd-endpoints=PEER", "--etcd-username=f", "--etcd-password", SECRET], &[], false),
        (&["--remote=PEER", "--remote-token", SECRET, "--remote-insecure"], &[], true),
        (
            &["--remote=http://PEER"],
            &[("FLANNELD_REMOTE_TOKEN", SECRET), ("FLANNELD_REMOTE_INSECURE", "true")],
            true,
        ),
    ];
    for (words, env, asked_for) in cases {
        let (at, heard) = record(&lab);
        let mut command = Command::new(env!("CARGO_BIN_EXE_flannelctl"));
        command.arg("leases").args(words.iter().map(|word| word.replace("PEER", &at)));
        command.envs(env.iter().copied()).stderr(Stdio::null());
        let done = lab.node(1).spawn(command).unwrap().wait(Duration::from_secs(60)).unwrap();
        assert!(done.is_some_and(|status| !status.success()), "{words:?} {env:?}");
        let heard = heard.lock().unwrap();
        let told = heard.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        assert_eq!(told, *asked_for, "{words:?} {env:?}");
    }
}
