//! Settings of the kernel in the network namespace of the calling thread.

/// By its path below `/proc/sys`.
pub fn setting(path: &str) -> Option<String> {
    let value = std::fs::read_to_string(format!("/proc/sys/{path}")).ok()?;
    Some(value.trim().to_owned())
}

/// Whether `rp_filter` of a device is strict: the larger value of the two counts, and 2 is looser than 1.
pub fn is_reverse_path_strict(device: &str) -> bool {
    let of = |name: &str| setting(&format!("net/ipv4/conf/{name}/rp_filter"));
    of("all").max(of(device)).as_deref() == Some("1")
}

/// Connections that the kernel tracks, and how many it has room for; 0 means no limit.
pub fn tracked_connections() -> Option<(u64, u64)> {
    let number = |name: &str| setting(&format!("net/netfilter/{name}"))?.parse().ok();
    Some((number("nf_conntrack_count")?, number("nf_conntrack_max")?))
}

pub fn more_connections(most: u64) -> String {
    format!("sysctl -w net.netfilter.nf_conntrack_max={}", most * 2)
}

/// A setting as `sysctl` is told it. Names of devices may have dots in them, and then it is written with slashes.
pub fn in_words(path: &str) -> String {
    if path.contains('.') { path.to_owned() } else { path.replace('/', ".") }
}
