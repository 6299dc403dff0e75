//! SIGUSR1 and SIGUSR2 ask for nothing here: sent as to a daemon that rotates its log, they must not end a network.

use std::io;

/// From now on, they do nothing to this process. Programs that it starts have them as every program has.
pub fn disregard() -> io::Result<()> {
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: an all-zero sigaction is valid; what it lacks is set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        // Whatever waits in the kernel goes on waiting.
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: both point to an action that lives as long as the call, or nowhere; the handler does nothing, so
        // that it may run at any moment.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Not `SIG_IGN`, which programs that are started would inherit.
extern "C" fn nothing(_signal: libc::c_int) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_goes_on_after_either_signal() {
        disregard().expect("they can be caught");
        for signal in [libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: no pointers; the handlers are installed.
            assert_eq!(unsafe { libc::raise(signal) }, 0);
        }
    }
}
