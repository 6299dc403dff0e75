//! Returns memory to the system that start-up needed: a list of ten thousand peers for an instant, their entries for good.

/// What is larger than this is given back to the system when it is freed, whichever thread frees it.
#[cfg(target_env = "gnu")]
const LARGE_BLOCK: libc::c_int = 128 * 1024;

/// Before there are threads: else the C library learns from the lists of start-up to keep as much for each thread.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
    }
}

pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
