//! Rules of this host that drop packets. Those of nftables and of iptables are read, and packets are taken through them.
//! What cannot be told from outside (a mark, a limit, a set that changes) may match or not: only what is dropped either
//! way counts as dropped.

mod guards;
mod iptables;
mod nft;
mod path;

use std::process::Command;
use std::time::Duration;

use flannel_common::run_program;

pub use path::{Drop, Hook, Packet};

pub const UDP: u8 = 17;
pub const TCP: u8 = 6;
const PATIENCE: Duration = Duration::from_secs(5);

/// All rules of this host, as far as they can be read.
#[derive(Default)]
pub struct Rules {
    nft: nft::Ruleset,
    v4: iptables::Tables,
    v6: iptables::Tables,
    unread: Vec<&'static str>,
}

impl Rules {
    /// Of this host, as they are now.
    pub fn read() -> Self {
        let mut unread = Vec::new();
        let mut said = |program: &'static str, arguments: &[&str]| {
            output(program, arguments).unwrap_or_else(|| {
                unread.push(program);
                String::new()
            })
        };
        let nft = nft::Ruleset::read(&said("nft", &["-j", "list", "ruleset"]));
        let v4 = iptables::Tables::read(&said("iptables-save", &[]));
        let v6 = iptables::Tables::read(&said("ip6tables-save", &[]));
        Self { nft, v4, v6, unread }
    }

    /// Programs that could not say them.
    pub fn unread(&self) -> &[&'static str] {
        &self.unread
    }

    /// Who drops such a packet, whatever is not known of it.
    pub fn drops(&self, packet: &Packet) -> Option<Drop> {
        let (tables, program) = match packet.dst.is_ipv4() {
            true => (&self.v4, "iptables"),
            false => (&self.v6, "ip6tables"),
        };
        let by_iptables = tables.drops(packet, program);
        // Those that iptables has made are read by it; nft shows them without their meaning.
        let found = by_iptables.or_else(|| self.nft.drops(packet, !tables.is_empty()));
        found.map(|drop| guards::keep_guards(drop, packet))
    }
}

/// What a program prints, if it is there and succeeds.
pub fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut text = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/sbin"].map(std::path::PathBuf::from));
    let found =
        directories.iter().map(|directory| directory.join(program)).find(|path| path.is_file())?;
    let ended = run_program(Command::new(found).args(arguments), b"", PATIENCE, |piece| {
        text.extend_from_slice(piece)
    });
    ended.ok()?.status.success().then(|| String::from_utf8_lossy(&text).into_owned())
}
