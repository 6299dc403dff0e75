//! `--net-config-path` beside `--listen`: what a network begins with, and what it says when it is edited.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::support::{LIMIT, flanneld};

const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

struct LeaseServer {
    child: Child,
    log: PathBuf,
}

impl Drop for LeaseServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl LeaseServer {
    fn start(dir: &Path) -> Self {
        let log = dir.join("log");
        let child = Command::new(flanneld())
            .arg("--listen=127.0.0.1:0")
            .arg(format!("--data-dir={}", dir.join("data").display()))
            .arg(format!("--net-config-path={}", dir.join("net-conf.json").display()))
            .env_clear()
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let server = Self { child, log };
        server.says("Lease server listens");
        server
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn says(&self, part: &str) {
        let begin = Instant::now();
        while !self.log().contains(part) {
            assert!(begin.elapsed() < LIMIT, "no {part:?} in {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn an_edited_file_changes_nothing_and_that_is_said_with_the_command_that_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net-conf.json");
    let command = format!("`flannelctl config set {} --remote=127.0.0.1:", file.display());
    fs::write(&file, CONFIG).unwrap();
    let server = LeaseServer::start(dir.path());
    assert!(server.log().contains("begins with the config in"), "{}", server.log());

    // While it runs.
    fs::write(&file, CONFIG.replace("10.5.", "10.6.")).unwrap();
    server.says("differs from the network config that is stored and in force");
    assert!(server.log().contains(&command), "{}", server.log());
    fs::write(&file, CONFIG.replace("vxlan", "vxlam")).unwrap();
    server.says("no node could use it: unknown Backend.Type 'vxlam'");

    // At the next start.
    fs::write(&file, CONFIG.replace("10.5.", "10.7.")).unwrap();
    drop(server);
    let server = LeaseServer::start(dir.path());
    assert!(server.log().contains(&command), "{}", server.log());

    // The same in other words is the same.
    fs::write(&file, CONFIG.replace(',', " ,\n")).unwrap();
    drop(server);
    let server = LeaseServer::start(dir.path());
    assert!(!server.log().contains("differs"), "{}", server.log());

    // A file that is gone is no reason not to start.
    fs::remove_file(&file).unwrap();
    drop(server);
    let server = LeaseServer::start(dir.path());
    assert!(server.log().contains("cannot be read"), "{}", server.log());
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    fs::write(dir.path().join("net-conf.json"), CONFIG).unwrap();
    drop(LeaseServer::start(dir.path()));
    let mounts = [
        (
            format!("mount --bind {at} {at} && mount -o remount,ro,bind {at}"),
            "is read-only: make it",
        ),
        (
            format!("mount -t tmpfs -o size=4k x {at}/data && head -c 8192 /dev/zero >{at}/data/x"),
            "is full",
        ),
    ];
    for (mounts, said) in mounts {
        let start = format!(
            "{{ {mounts}; }}; exec {} --listen=127.0.0.1:0 --data-dir={at}/data",
            flanneld().display()
        );
        let output =
            Command::new("unshare").args(["-m", "sh", "-c", &start]).output().expect("unshare");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.contains(&format!("{at}/data")) && last.contains(said), "{text}");
        assert_eq!(last.matches("os error").count(), 1, "{last}");
    }
}
