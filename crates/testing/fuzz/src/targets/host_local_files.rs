//! The directory in which host-local keeps what it has given out, with whatever in it. The input is a
//! list of files with empty lines between them: a name on the first line, and what is in it on those
//! that follow. A name that ends in `/` is a directory's, one that ends in `|` a pipe's, one that ends
//! in `@` a link's to the name that follows.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::SystemTime;

use flannel_cni::ipam::audit::{self, Evidence};
use flannel_cni::ipam::{self, HostLocal, Reservation, Store};
use flannel_cni::protocol::{Call, Environment, Plugin as _};
use rustix::fs::{CWD, FileType, Mode};

/// Fewer than there are addresses, so that there is always one to give out.
const FILES: usize = 60;

pub(crate) fn run(text: &[u8]) {
    let root = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let directory = root.path().join("net");
    std::fs::create_dir(&directory).expect("a directory");
    for file in split(text, b"\n\n").into_iter().take(FILES) {
        make(&directory, file);
    }
    let store = Store::open(&directory).expect("it opens").expect("it is there");
    let before = store.reservations();
    let _ = store.of_attachment("abc", "eth0");
    for set in 0..3 {
        let _ = store.last_reserved(set);
    }
    if let Ok(before) = &before {
        inspect(&store, root.path());
        add_and_del(&store, root.path(), before);
    }
}

fn make(directory: &Path, file: &[u8]) {
    let mut parts = file.splitn(2, |byte| *byte == b'\n');
    let (name, content) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (plain, kind) = match name.split_last() {
        Some((kind @ (b'/' | b'|' | b'@'), plain)) => (plain, *kind),
        _ => (name, b' '),
    };
    // Nothing may lead out of the directory. That there is no such file then is fine, too.
    let inside = |name: &[u8]| !name.contains(&b'/') && !name.contains(&0) && name != b"..";
    if !inside(plain) || !inside(content) && kind == b'@' {
        return;
    }
    let path = directory.join(OsStr::from_bytes(plain));
    let _ = match kind {
        b'/' => std::fs::create_dir(path),
        b'|' => rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(Into::into),
        b'@' => std::os::unix::fs::symlink(OsStr::from_bytes(content), path),
        _ if path.exists() => Ok(()),
        _ => std::fs::write(path, content),
    };
}

fn inspect(store: &Store, root: &Path) {
    let evidence = Evidence { addresses: Default::default(), results: root.join("results") };
    let findings = audit::inspect(store, "net", &evidence, SystemTime::now()).expect("as before");
    let _ = audit::fix(store, "net", &findings);
}

/// Whatever is there: nobody gets what is another's, and who ends leaves nothing behind.
fn add_and_del(store: &Store, root: &Path, before: &[Reservation]) {
    let call = call(root);
    let mine = store.of_attachment("abc", "eth0").expect("as before");
    let Ok(given) = ipam::add(&call) else { return };
    let ips: Vec<IpAddr> = given.outcome.ips.iter().map(|ip| ip.address.addr()).collect();
    assert_eq!(ips.len(), 2, "one of every set");
    let own = store.of_attachment("abc", "eth0").expect("as before");
    for ip in &ips {
        assert!(own.iter().any(|reservation| reservation.ip == *ip), "{ip} is reserved");
        let taken = before.iter().find(|reservation| reservation.ip == *ip);
        assert!(taken.is_none_or(|taken| mine.contains(taken)), "{taken:?}");
    }
    HostLocal.check(&call).expect("it is there");
    HostLocal.del(&call).expect("what was reserved is set free");
    let after = store.reservations().expect("as before");
    assert!(ips.iter().all(|ip| !after.iter().any(|reservation| reservation.ip == *ip)));
}

fn call(root: &Path) -> Call {
    let getenv = |name: &str| {
        Some(match name {
            "CNI_COMMAND" => "ADD".to_owned(),
            "CNI_CONTAINERID" => "abc".into(),
            "CNI_IFNAME" => "eth0".into(),
            "CNI_NETNS" | "CNI_PATH" => "/does/not/exist".into(),
            _ => return None,
        })
    };
    let conf = serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "ipam": {
            "type": "host-local",
            "dataDir": root,
            "ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]],
        },
    });
    let call = Call::read(&Environment(&getenv), conf.to_string().as_bytes());
    call.expect("a call as a runtime makes it").expect("with a command")
}

fn split<'a>(text: &'a [u8], separator: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(separator.len()).position(|window| window == separator) {
        parts.push(&rest[..at]);
        rest = &rest[at + separator.len()..];
    }
    parts.push(rest);
    parts
}
