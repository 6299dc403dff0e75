//! Memory that start-up needed goes back to the system: a node with ten thousand peers holds a list of them for an instant,
//! and their entries for good.

/// What is larger than this is given back to the system when it is freed, whichever thread frees it.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: libc::c_int = 128 * 1024;

/// To be called before there are threads. Else the C library learns from the large lists of start-up to keep as much
/// for good, for each thread.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

/// Returns freed memory to the system.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
