//! Who speaks WireGuard on this node: the kernel, or a process of ours where it does not; and where it is reached.

use flannel_backend::WireguardBy;

/// The variable that decides it; without it the kernel does if it can.
const VARIABLE: &str = "WIREGUARD_IMPLEMENTATION";

/// The variable that names the port of a public address that several nodes share.
const PORT_VARIABLE: &str = "WIREGUARD_PUBLIC_PORT";

/// Says who it is, and why. What is wrong is told for people.
pub(crate) fn find_out() -> Result<WireguardBy, String> {
    let wished = std::env::var(VARIABLE).unwrap_or_default();
    let (by, why) = decide(&wished, has_wireguard)?;
    let place = if by == WireguardBy::Kernel { "the kernel" } else { "user space" };
    tracing::info!("WireGuard runs in {place}{why}");
    Ok(by)
}

/// The port of this node's public address, if not ListenPort: nodes behind one address have one each.
pub(crate) fn public_port() -> Result<Option<u16>, String> {
    read_port(&std::env::var(PORT_VARIABLE).unwrap_or_default())
}

fn read_port(text: &str) -> Result<Option<u16>, String> {
    match text.parse::<u16>() {
        _ if text.is_empty() => Ok(None),
        Ok(port) if port != 0 => Ok(Some(port)),
        _ => Err(format!(
            "{PORT_VARIABLE} is '{text}': write the port that is forwarded to this node, 1 to 65535"
        )),
    }
}

fn has_wireguard() -> Result<(), String> {
    match flannel_kernel::has_wireguard() {
        Ok(has) => has.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn decide(
    wished: &str,
    has_wireguard: impl Fn() -> Result<(), String>,
) -> Result<(WireguardBy, String), String> {
    match wished {
        "kernel" => Ok((WireguardBy::Kernel, format!(", as {VARIABLE} says"))),
        "userspace" => Ok((WireguardBy::Process, format!(", as {VARIABLE} says"))),
        "" => Ok(match has_wireguard() {
            Ok(()) => (WireguardBy::Kernel, String::new()),
            Err(why) => (WireguardBy::Process, format!(": the kernel has none ({why})")),
        }),
        other => Err(format!(
            "{VARIABLE} is '{other}': write kernel or userspace, or leave it out, and the kernel's is taken if \
             it has one"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_port_is_a_port() {
        assert_eq!((read_port(""), read_port("51999")), (Ok(None), Ok(Some(51999))));
        for wrong in ["0", "65536", "any"] {
            assert!(read_port(wrong).unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn the_kernel_is_taken_if_it_can_and_nobody_says_otherwise() {
        let (can, cannot) = (|| Ok(()), || Err("no such thing".to_owned()));
        let by = |wished, has: &dyn Fn() -> Result<(), String>| decide(wished, has).map(|it| it.0);
        assert_eq!(by("", &can), Ok(WireguardBy::Kernel));
        assert_eq!(by("", &cannot), Ok(WireguardBy::Process));
        assert_eq!(by("userspace", &can), Ok(WireguardBy::Process));
        assert_eq!(by("kernel", &cannot), Ok(WireguardBy::Kernel));
        let wrong = by("go", &can).unwrap_err();
        assert!(wrong.contains("'go'") && wrong.contains("userspace"), "{wrong}");
    }
}
