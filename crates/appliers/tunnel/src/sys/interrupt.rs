//! Wakes threads that sleep in a system call, by a signal that does nothing else.

use std::io;
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::OnceLock;
use std::thread::JoinHandle;

use super::check;

extern "C" fn nothing(_signal: libc::c_int) {}

fn signal() -> libc::c_int {
    // The C library reserves the first few for itself.
    libc::SIGRTMIN() + 5
}

/// Installs the handler. Called once, before any thread is to be woken.
pub(crate) fn prepare() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        // SAFETY: all zeroes are valid, the handler touches nothing; without SA_RESTART a sleeping call gets EINTR.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(signal(), &raw const action, std::ptr::null_mut())
        };
        check(set).map(|_| ()).map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))
    });
    done.map_err(io::Error::from_raw_os_error)
}

pub(crate) fn wake<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle has not been joined, so the thread's identity is valid, be it running or not.
    unsafe { libc::pthread_kill(thread.as_pthread_t() as _, signal()) };
}
