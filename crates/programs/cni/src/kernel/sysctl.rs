//! Kernel settings under `/proc/sys`, of the namespace this thread is in.

use std::fs;
use std::io;

/// `path` is below `/proc/sys`. An interface's name in it may have dots: slashes separate.
pub(crate) fn set(path: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{path}"), value)
}

/// Sets it to 1 if it is not, as `/proc/sys` may be read-only. Returns whether it was not.
pub(crate) fn enable(path: &str) -> io::Result<bool> {
    if fs::read(format!("/proc/sys/{path}")).is_ok_and(|text| text.trim_ascii() == b"1") {
        return Ok(false);
    }
    set(path, "1").map(|()| true)
}
