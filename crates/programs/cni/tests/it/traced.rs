//! A plugin that goes from one system call to the next, as a test tells it to.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::Request;

/// A program that stops at every system call, driven by the thread that started it.
pub(crate) struct Traced(Child);

impl Traced {
    pub(crate) fn start(request: &Request, conf: &Value) -> Self {
        let mut command = request.command(Stdio::null());
        // SAFETY: it only asks to be traced, by a system call.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut traced = Self(command.spawn().unwrap());
        let mut stdin = traced.0.stdin.take().unwrap();
        stdin.write_all(conf.to_string().as_bytes()).unwrap();
        assert!(traced.stops(), "it stops before its first instruction");
        traced
    }

    fn pid(&self) -> libc::pid_t {
        self.0.id().try_into().unwrap()
    }

    /// On to where a system call begins or ends. `false`: the program has ended.
    pub(crate) fn go_on(&self) -> bool {
        // SAFETY: the child is ours, and stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.pid(), 0, 0) }, 0);
        self.stops()
    }

    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn stops(&self) -> bool {
        let mut status = 0;
        // SAFETY: the status is ours to be written.
        let waited = unsafe { libc::waitpid(self.pid(), &raw mut status, 0) };
        assert_eq!(waited, self.pid());
        libc::WIFSTOPPED(status)
    }
}
