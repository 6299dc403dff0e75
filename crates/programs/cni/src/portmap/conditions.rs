//! Port mappings in nftables for some connections only, described in the words of `nft`: only `nft` reads these,
//! so it writes those rules. All others are written natively.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flannel_common::SearchPath;
use flannel_nft::fitted_comment;
use ipnet::IpNet;

use super::conf::{Mapping, PortmapConf};
use super::rules;
use crate::nft::Nft;
use crate::protocol::{Call, Error, ErrorContext, Result, internal};
use crate::subprocess;

const NFT_TIMEOUT: Duration = Duration::from_secs(60);

/// Maps the ports to the container's addresses, in place of what was mapped for it before.
pub(super) fn forward(
    nft: &mut Nft,
    call: &Call,
    conf: &PortmapConf,
    addresses: &[IpNet],
) -> Result<()> {
    if addresses.iter().all(|address| conf.conditions(address.addr()).is_empty()) {
        return Ok(rules::forward(nft, call, conf, addresses)?);
    }
    // All but the mappings.
    let mut around = conf.clone();
    around.mappings.clear();
    rules::forward(nft, call, &around, addresses)?;
    let written = write(&script(&call.container_id, conf, addresses));
    if written.is_err() {
        let _ = rules::forward(nft, call, conf, &[]);
    }
    written
}

fn write(script: &str) -> Result<()> {
    let Some(program) = SearchPath::of_environment().find("nft") else {
        let msg = "'conditionsV4' and 'conditionsV6' in the words of nft need the program nft";
        return Err(Error::internal(msg)
            .with_details("install nftables, or say them in the words of iptables, with \"backend\": \"iptables\""));
    };
    let output = subprocess::run_with_us(&program, &["-f", "-"], script.as_bytes(), NFT_TIMEOUT)
        .or_cni(format_args!("could not run {}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.lines().take(2).map(str::trim).collect();
    Err(internal!("nft refused the mappings: {}", said.join(": "))
        .with_details("'conditionsV4' and 'conditionsV6' must be what nft understands in a rule"))
}

/// Each rule goes before all others: the last one is the first to be met.
fn script(id: &str, conf: &PortmapConf, addresses: &[IpNet]) -> String {
    let comment = fitted_comment(id);
    let mut script = String::new();
    for address in addresses {
        let ip = address.addr();
        let family = if ip.is_ipv4() { "ip" } else { "ip6" };
        let conditions = conf.conditions(ip).join(" ");
        let mut insert = |rule: &str| {
            let _ = writeln!(
                script,
                "insert rule {family} {} {} {conditions} {rule} comment \"{comment}\"",
                rules::TABLE,
                rules::PORTS
            );
        };
        let (of_one, of_all): (Vec<&Mapping>, Vec<&Mapping>) =
            conf.for_address(ip).partition(|mapping| mapping.destination().is_some());
        for mapping in of_all.into_iter().chain(of_one) {
            let to_port = to_port(family, mapping);
            insert(&format!("{to_port} dnat to {}", SocketAddr::new(ip, mapping.container_port)));
            if conf.snat {
                let from = match conf.masquerade_all {
                    true => String::new(),
                    false => format!("{family} saddr {} ", address.trunc()),
                };
                insert(&format!("{from}{to_port} meta mark set meta mark or {:#x}", conf.mark));
            }
        }
    }
    script
}

fn to_port(family: &str, mapping: &Mapping) -> String {
    let at = |ip: IpAddr| format!("{family} daddr {ip} ");
    format!(
        "{}{} dport {}",
        mapping.destination().map(at).unwrap_or_default(),
        mapping.protocol.name(),
        mapping.host_port
    )
}
