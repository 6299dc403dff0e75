//! What start-up needed goes back to the system: a node with ten thousand peers holds a list of them for an instant, and
//! their entries for good; and most of the program runs once.

/// What is larger than this is given back to the system when it is freed, whichever thread frees it.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 * 1024;

/// To be called before there are threads. Else the C library learns from the large lists of start-up to keep as much
/// for good, for each thread.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Returns freed memory to the system, and pages of the program: those that are used again come back by themselves, and
/// the others do not count as this process's any more.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    for line in std::fs::read_to_string("/proc/self/maps").iter().flat_map(|maps| maps.lines()) {
        let Some((begin, end)) = pages_of_program(line) else { continue };
        let pages = std::ptr::without_provenance_mut(begin);
        // SAFETY: nobody has written to them: one that is touched again is read from its file again.
        unsafe { libc::madvise(pages, end - begin, libc::MADV_DONTNEED) };
    }
}

/// Where code of a file lies, or what a file begins with, by a line of `/proc/self/maps`. What may be written to holds
/// more than the file does; the same goes for read-only data that the loader wrote to first.
fn pages_of_program(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let (access, offset) = (words.next()?, words.next()?);
    let is_of_file = words.nth(1)? != "0";
    let is_as_in_file = access == "r-xp" || access == "r--p" && offset.bytes().all(|it| it == b'0');
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    (is_of_file && is_as_in_file).then_some((address(begin)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_as_in_their_file_are_given_back() {
        let code = "55863b8c8000-55863c5e4000 r-xp 00326000 fe:00 326269   /opt/bin/flanneld";
        assert_eq!(pages_of_program(code), Some((0x5586_3b8c_8000, 0x5586_3c5e_4000)));
        let constants = "55863b5a1000-55863b8c8000 r--p 00000000 fe:00 326269   /opt/bin/flanneld";
        assert_eq!(pages_of_program(constants), Some((0x5586_3b5a_1000, 0x5586_3b8c_8000)));
        for other in [
            "55863c5e4000-55863c65b000 r--p 01041000 fe:00 326269   /opt/bin/flanneld",
            "55863c65b000-55863c660000 rw-p 010b7000 fe:00 326269   /opt/bin/flanneld",
            "55863b8c8000-55863c5e4000 rwxp 00326000 fe:00 326269   /opt/bin/flanneld",
            "7fe9b80c5000-7fe9b80c7000 r-xp 00000000 00:00 0        [vdso]",
            "558655560000-558655b7b000 rw-p 00000000 00:00 0        [heap]",
            "",
        ] {
            assert_eq!(pages_of_program(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_goes_on_when_it_has_given_back_its_pages() {
        let kept: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
        give_back();
        assert!(kept.iter().enumerate().all(|(n, text)| *text == n.to_string()));
    }
}
