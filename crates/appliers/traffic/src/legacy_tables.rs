//! The tables of iptables-legacy, read from the kernel without running anything: whether they mention a
//! chain, and whether they have changed. The kernel announces no changes of these.

use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use flannel_common::Family;

const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// The table may grow between asking for its size and for itself.
const TRIES: u32 = 5;

/// Legacy tables in this thread's network namespace. The kernel makes another that is asked for.
pub(crate) fn names(family: Family) -> Vec<String> {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    let names = std::fs::read_to_string(file).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

pub(crate) struct LegacyTable {
    family: Family,
    bytes: Vec<u8>,
}

const NAME_LEN: usize = 32;
/// `struct ipt_getinfo`: the name, eleven numbers about hooks, the number of entries, their size.
const INFO_LEN: usize = 84;
const INFO_SIZE_AT: usize = 80;
/// What precedes the entries: the name and their size, padded, because the counters in them are aligned.
const HEAD_LEN: usize = 40;

impl LegacyTable {
    pub(crate) fn read(family: Family, table: &str) -> io::Result<Option<Self>> {
        if !names(family).iter().any(|name| name == table) {
            return Ok(None);
        }
        let (domain, level) = match family {
            Family::V4 => (AddressFamily::INET, libc::SOL_IP),
            Family::V6 => (AddressFamily::INET6, libc::SOL_IPV6),
        };
        let socket =
            socket_with(domain, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
        let mut name = [0; NAME_LEN];
        name[..table.len()].copy_from_slice(table.as_bytes());
        for _ in 0..TRIES {
            let mut info = [0; INFO_LEN];
            info[..NAME_LEN].copy_from_slice(&name);
            get_option(&socket, level, GET_INFO, &mut info)?;
            let size = *info[INFO_SIZE_AT..].first_chunk().unwrap_or(&[0; 4]);
            let mut bytes = vec![0; HEAD_LEN + u32::from_ne_bytes(size) as usize];
            bytes[..NAME_LEN].copy_from_slice(&name);
            bytes[NAME_LEN..NAME_LEN + 4].copy_from_slice(&size);
            match get_option(&socket, level, GET_ENTRIES, &mut bytes) {
                Ok(()) => {
                    bytes.drain(..HEAD_LEN);
                    return Ok(Some(Self { family, bytes }));
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Whether a chain's name begins so, or something else is called so.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// The same for the same rules, however many packets they have counted.
    pub(crate) fn fingerprint(&self) -> u64 {
        // Before the counters: source, destination, masks, devices, then two lengths.
        let (next_offset, counters) = match self.family {
            Family::V4 => (90, 96),
            Family::V6 => (142, 152),
        };
        let mut rest = self.bytes.as_slice();
        let mut hasher = DefaultHasher::new();
        while let Some(length) = rest.get(next_offset..next_offset + 2) {
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            if length < counters + 16 || length > rest.len() {
                break;
            }
            let (entry, following) = rest.split_at(length);
            // `comefrom`, just before the counters, is the kernel's scratch space.
            hasher.write(&entry[..next_offset + 2]);
            hasher.write(&entry[counters + 16..]);
            rest = following;
        }
        hasher.write(rest);
        hasher.finish()
    }
}

/// The kernel reads what is asked for from `buffer`, and fills it.
fn get_option(socket: &OwnedFd, level: i32, option: i32, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: pointer and length describe `buffer`, which is borrowed mutably for the call.
    let result = unsafe {
        let into = buffer.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(counter: u8, target: u8) -> Vec<u8> {
        let mut entry = vec![0; 120];
        entry[90..92].copy_from_slice(&120u16.to_ne_bytes());
        entry[96] = counter;
        entry[119] = target;
        entry
    }

    fn fingerprint(entries: &[Vec<u8>]) -> u64 {
        LegacyTable { family: Family::V4, bytes: entries.concat() }.fingerprint()
    }

    #[test]
    fn counters_do_not_matter_and_all_else_does() {
        let one = fingerprint(&[entry(1, 1), entry(1, 2)]);
        assert_eq!(one, fingerprint(&[entry(9, 1), entry(0, 2)]));
        assert_ne!(one, fingerprint(&[entry(1, 2), entry(1, 1)]));
        assert_ne!(one, fingerprint(&[entry(1, 1)]));
        assert_ne!(one, fingerprint(&[entry(1, 1), entry(1, 3)]));
    }

    #[test]
    fn a_broken_table_does_no_harm() {
        let table = |bytes: &[u8]| LegacyTable { family: Family::V6, bytes: bytes.to_vec() };
        assert_ne!(table(&[]).fingerprint(), table(&[0; 200]).fingerprint());
        assert!(!table(b"short").mentions("FLANNEL-POSTRTG"));
    }
}
