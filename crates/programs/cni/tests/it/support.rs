//! Running the plugin.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub(crate) const FLANNEL: &str = env!("CARGO_BIN_EXE_flannel");

/// What a runtime would set.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) program: PathBuf,
    pub(crate) command: String,
    pub(crate) container_id: String,
    pub(crate) netns: String,
    pub(crate) ifname: String,
    pub(crate) path: String,
    pub(crate) args: String,
    pub(crate) by_exec: bool,
    /// `PATH`, unless it is empty.
    pub(crate) search_path: String,
    /// Where flanneld waits on plugins' behalf, unless it is empty.
    pub(crate) work_socket: String,
}

pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Request {
    pub(crate) fn new(command: &str) -> Self {
        Self {
            program: FLANNEL.into(),
            command: command.into(),
            container_id: "abc123".into(),
            netns: "/does/not/exist".into(),
            ifname: "eth0".into(),
            path: "/does/not/exist".into(),
            args: String::new(),
            by_exec: false,
            search_path: String::new(),
            work_socket: "/does/not/exist".into(),
        }
    }

    pub(crate) fn send(&self, conf: &str) -> Answer {
        let output = self.spawn(conf, Stdio::piped()).wait_with_output().unwrap();
        Answer {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn spawn(&self, conf: &str, stdout: Stdio) -> Child {
        let mut child = self
            .command(stdout)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        // One that fails early does not read it.
        let _ = child.stdin.take().unwrap().write_all(conf.as_bytes());
        child
    }

    /// Ready to be started.
    pub(crate) fn command(&self, stdout: Stdio) -> Command {
        let mut command = Command::new(&self.program);
        for (name, value) in [
            ("CNI_COMMAND", self.command.as_str()),
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_NETNS", &self.netns),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_PATH", &self.path),
            ("CNI_ARGS", &self.args),
            ("FLANNEL_CNI_SOCKET", &self.work_socket),
            ("FLANNEL_CNI_EXEC", if self.by_exec { "1" } else { "" }),
        ] {
            // A runtime does not set what it has nothing to say about.
            if value.is_empty() {
                command.env_remove(name);
            } else {
                command.env(name, value);
            }
        }
        if !self.search_path.is_empty() {
            command.env("PATH", &self.search_path);
        }
        command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
        command
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect_success(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// The code and the message of a refusal.
    #[track_caller]
    pub(crate) fn expect_error(&self) -> (u64, String) {
        assert_eq!(self.code, 1, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        let error = self.json();
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (error["code"].as_u64().unwrap(), text("msg"))
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// A plugin that writes down how it was called and answers with `result`, or fails with it.
pub(crate) fn fake_plugin(directory: &Path, name: &str, log: &Path, result: &str, succeeds: bool) {
    let script = format!(
        "#!/bin/sh\n\
         {{ echo \"--- delegate called as ${{0##*/}}: CNI_COMMAND=$CNI_COMMAND CNI_IFNAME=$CNI_IFNAME \
         CNI_ARGS=$CNI_ARGS CNI_PATH=set\"; cat; echo; }} >>'{}'\n\
         if [ \"$CNI_COMMAND\" = ADD ] || ! {succeeds}; then cat <<'END'\n{result}\nEND\nfi\n{succeeds}\n",
        log.display()
    );
    write_program(&directory.join(name), &script);
}

pub(crate) fn write_program(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Name, mode and content of every file, sorted.
pub(crate) fn files(directory: &Path) -> Vec<(String, u32, String)> {
    let Ok(listing) = fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<_> = listing
        .map(|item| {
            let item = item.unwrap();
            let mode = item.metadata().unwrap().permissions().mode() & 0o777;
            (
                item.file_name().into_string().unwrap(),
                mode,
                fs::read_to_string(item.path()).unwrap_or_default(),
            )
        })
        .collect();
    files.sort();
    files
}
