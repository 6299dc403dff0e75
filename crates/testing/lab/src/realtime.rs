//! Threads and processes that get the processor as soon as they want it, whatever else runs on the machine: what counts
//! packets or milliseconds counts those of the network, and not those of its neighbours.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the calling thread, and what it starts, run before all ordinary ones. Fails without the right to.
pub(crate) fn enter() -> io::Result<()> {
    let lowest: libc::c_int = 1;
    let call = libc::SYS_sched_setscheduler;
    // The function of that name does nothing in musl.
    // SAFETY: the kernel's parameter is one number, which lives through the call; 0 is the calling thread.
    match unsafe { libc::syscall(call, 0, libc::SCHED_RR, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a command, with all that it starts, such a process.
pub(crate) fn apply(command: &mut Command) {
    // SAFETY: one system call, which is allowed between fork and exec.
    unsafe { command.pre_exec(enter) };
}
