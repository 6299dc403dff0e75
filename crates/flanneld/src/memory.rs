//! What start-up needed goes back to the system: a node with ten thousand peers holds a list of them for an instant, and
//! their entries for good; and most of the program runs once.

/// Returns freed memory to the system, and pages of the program: those that are used again come back by themselves, and
/// the others do not count as this process's any more.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    for code in std::fs::read_to_string("/proc/self/maps").iter().flat_map(|maps| maps.lines()) {
        let Some((begin, end)) = pages_of_code(code) else { continue };
        let pages = std::ptr::without_provenance_mut(begin);
        // SAFETY: code that nobody has written to: a page that is touched again is read from its file again.
        unsafe { libc::madvise(pages, end - begin, libc::MADV_DONTNEED) };
    }
}

/// Where a file's code lies, by a line of `/proc/self/maps`. What may be written to holds more than the file does; so
/// does what may not be any more, as the loader has done so first.
fn pages_of_code(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let is_code = words.next()? == "r-xp";
    let is_of_file = words.nth(2)? != "0";
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    (is_code && is_of_file).then_some((address(begin)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_that_is_as_in_its_file_is_given_back() {
        let of = |line: &str| pages_of_code(line);
        let code = "55863b8c8000-55863c5e4000 r-xp 00326000 fe:00 326269   /opt/bin/flanneld";
        assert_eq!(of(code), Some((0x5586_3b8c_8000, 0x5586_3c5e_4000)));
        for other in [
            "55863b5a1000-55863b8c8000 r--p 00000000 fe:00 326269   /opt/bin/flanneld",
            "55863c5e4000-55863c65b000 r--p 01041000 fe:00 326269   /opt/bin/flanneld",
            "55863c65b000-55863c660000 rw-p 010b7000 fe:00 326269   /opt/bin/flanneld",
            "55863b8c8000-55863c5e4000 rwxp 00326000 fe:00 326269   /opt/bin/flanneld",
            "7fe9b80c5000-7fe9b80c7000 r-xp 00000000 00:00 0        [vdso]",
            "558655560000-558655b7b000 rw-p 00000000 00:00 0        [heap]",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_program_goes_on_when_it_has_given_back_its_pages() {
        let kept: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
        give_back();
        assert!(kept.iter().enumerate().all(|(n, text)| *text == n.to_string()));
    }
}
