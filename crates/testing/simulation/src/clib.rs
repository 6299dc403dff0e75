//! Functions of the C library that a simulated host has its own version of: clocks, random bytes, pauses, some paths of
//! the file system, and what a disk does when it is synced or full. They are linked into the programs of this crate alone,
//! in place of the library's, and do as the library does on every thread that simulates nothing.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::rc::Rc;
use std::time::Duration;

use libc::{clockid_t, mode_t, size_t, ssize_t, timespec};

use crate::host::Host;

/// What a thread begins with by the clock that nobody sets.
const MONOTONIC_START: Duration = Duration::from_secs(1_000_000);
/// 2026-01-01.
const WALL_START: Duration = Duration::from_secs(1_767_225_600);

/// Paths that are a host's own.
const OWN_PATHS: [&str; 5] =
    ["/proc/sys/", "/proc/thread-self/", "/sys/", "/etc/machine-id", "/var/lib/dbus/"];

thread_local! {
    static SIMULATES: Cell<bool> = const { Cell::new(false) };
    static BEGAN: Cell<Option<tokio::time::Instant>> = const { Cell::new(None) };
    static READING: Cell<bool> = const { Cell::new(false) };
    static ELAPSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    static HOST: RefCell<Option<Rc<Host>>> = const { RefCell::new(None) };
}

/// Makes the calling thread one that simulates, from a seed. Its clocks stand still until [`begin`].
pub(crate) fn simulate_from(seed: u64) {
    // Referred to, so that the linker takes these and not the library's.
    let ours: [*const (); 9] = [
        clock_gettime as *const (),
        getrandom as *const (),
        nanosleep as *const (),
        clock_nanosleep as *const (),
        open64 as *const (),
        open as *const (),
        write as *const (),
        fsync as *const (),
        fdatasync as *const (),
    ];
    std::hint::black_box(ours);
    RANDOM.set(seed);
    SIMULATES.set(true);
}

/// From now on the clocks follow those of the runtime that the calling thread is in.
pub(crate) fn begin() {
    BEGAN.set(Some(tokio::time::Instant::now()));
}

/// Time since the simulation began.
pub(crate) fn elapsed() -> Duration {
    if !READING.replace(true) {
        if let Some(began) = BEGAN.get() {
            ELAPSED.set(tokio::time::Instant::now() - began);
        }
        READING.set(false);
    }
    ELAPSED.get()
}

/// The host whose task runs.
pub(crate) fn current_host() -> Option<Rc<Host>> {
    HOST.try_with(|host| host.try_borrow().ok().and_then(|host| host.clone())).ok().flatten()
}

/// Sets the host whose task runs; returns the one before.
pub(crate) fn enter_host(host: Option<Rc<Host>>) -> Option<Rc<Host>> {
    HOST.replace(host)
}

fn simulates() -> bool {
    SIMULATES.try_with(Cell::get).unwrap_or(false)
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The time by this clock, for the host whose task runs.
fn time(clock: clockid_t) -> Option<Duration> {
    let elapsed = elapsed();
    let host = current_host();
    match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
            let wall = WALL_START + elapsed;
            let offset = host.map_or(0, |host| host.wall_offset_ms(elapsed));
            let by = Duration::from_millis(offset.unsigned_abs());
            Some(if offset < 0 { wall.saturating_sub(by) } else { wall + by })
        }
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_BOOTTIME => Some(MONOTONIC_START + elapsed),
        _ => None,
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    if simulates()
        && let Some(now) = time(clock)
    {
        let now = timespec {
            tv_sec: now.as_secs().cast_signed(),
            tv_nsec: c_long::from(now.subsec_nanos()),
        };
        // SAFETY: the caller gives a valid pointer.
        unsafe { to.write(now) };
        return 0;
    }
    // SAFETY: the caller's arguments are passed on.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, to) as c_int }
}

/// Fills bytes by the seed of the thread.
pub(crate) fn fill_with_random(bytes: &mut [u8]) {
    for piece in bytes.chunks_mut(8) {
        let next = RANDOM.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        RANDOM.set(next);
        let mut mixed = next;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        piece.copy_from_slice(&mixed.to_le_bytes()[..piece.len()]);
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(to: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if simulates() {
        // SAFETY: the caller gives a buffer of this length.
        fill_with_random(unsafe { std::slice::from_raw_parts_mut(to.cast(), length) });
        return length.cast_signed();
    }
    // SAFETY: the caller's arguments are passed on.
    unsafe { libc::syscall(libc::SYS_getrandom, to, length, flags) as ssize_t }
}

/// Nobody sleeps on the one thread of a simulation: that would stop all hosts, and no time.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(pause: *const timespec, left: *mut timespec) -> c_int {
    if simulates() {
        return 0;
    }
    // SAFETY: the caller's arguments are passed on.
    unsafe { libc::syscall(libc::SYS_nanosleep, pause, left) as c_int }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    pause: *const timespec,
    left: *mut timespec,
) -> c_int {
    if simulates() {
        return 0;
    }
    // SAFETY: the caller's arguments are passed on. Unlike others this returns its error.
    let result =
        unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, pause, left) as c_int };
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

/// The third argument is there or not; passed in a register, it can be passed on in either case.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's arguments are passed on.
    unsafe { open(path, flags, mode) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller gives a path that ends with a zero.
    let own = simulates().then(|| own_path(unsafe { CStr::from_ptr(path) })).flatten();
    let path = own.as_ref().map_or(path, |own| own.as_ptr());
    // SAFETY: the path lives until the call returns; the rest is passed on.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int }
}

/// Where the host whose task runs has this file.
fn own_path(path: &CStr) -> Option<CString> {
    let text = path.to_str().ok()?;
    OWN_PATHS.iter().any(|own| text.starts_with(own)).then_some(())?;
    let host = current_host()?;
    CString::new(format!("{}{text}", host.root().display())).ok()
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    if fd > libc::STDERR_FILENO
        && simulates()
        && let Some(errno) = current_host().and_then(|host| host.write_error())
        && is_file(fd)
    {
        return fail(errno) as ssize_t;
    }
    // SAFETY: the caller's arguments are passed on.
    unsafe { libc::syscall(libc::SYS_write, fd, bytes, length) as ssize_t }
}

/// Whether a descriptor is a file on a disk.
fn is_file(fd: c_int) -> bool {
    // SAFETY: all zeros are a valid `stat`, which outlives the call.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut about) == 0 && about.st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd)
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd)
}

/// Nothing has to survive this process, so nothing is synced; a simulated disk notes what would have been.
fn sync(fd: c_int) -> c_int {
    if simulates() {
        return match current_host().map_or(Ok(()), |host| host.synced(fd)) {
            Ok(()) => 0,
            Err(errno) => fail(errno),
        };
    }
    // SAFETY: a number and nothing else.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

/// What the process has used so far: not simulated.
fn usage() -> libc::rusage {
    // SAFETY: all zeros are a valid `rusage`, which outlives the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    }
}

/// Time of the processor.
pub(crate) fn processor_time() -> Duration {
    let libc::rusage { ru_utime: user, ru_stime: system, .. } = usage();
    let time = |it: libc::timeval| {
        Duration::from_secs(it.tv_sec.unsigned_abs())
            + Duration::from_micros(it.tv_usec.unsigned_abs())
    };
    time(user) + time(system)
}

/// Largest memory at any time.
pub(crate) fn peak_memory_kb() -> u64 {
    usage().ru_maxrss.unsigned_abs()
}
