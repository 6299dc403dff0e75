//! `lab fault`: everything that can be broken, as words of the command line.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Subcommand, ValueEnum};
use flannel_lab::Participant;
use serde::{Deserialize, Serialize};

use crate::client;
use crate::protocol::{Answer, Request};
use crate::state::LabName;
use flannel_cli::time;

/// What to break. Participants are node numbers, `etcd` (all its members) or `etcd1` to `etcd3`.
#[derive(Clone, Debug, PartialEq, Subcommand, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// Cut two sides off from each other, e.g. `partition 1 2,3` or `partition 2 etcd`
    Partition {
        /// One side, separated by commas
        #[arg(value_delimiter = ',', num_args = 1, required = true)]
        left: Vec<Participant>,
        /// The other side, separated by commas
        #[arg(value_delimiter = ',', num_args = 1, required = true)]
        right: Vec<Participant>,
    },
    /// End all partitions, losses and delays, and plug all cables in
    Heal,
    /// Lose a share of the packets of a participant, in both directions; 0 ends it
    Loss { participant: Participant, percent: f64 },
    /// Delay all packets to a participant (needs a kernel with netem)
    Delay {
        participant: Participant,
        /// 500ms, 2s; a bare number counts milliseconds
        #[arg(value_name = "TIME", value_parser = time::milliseconds)]
        milliseconds: u64,
    },

    /// Pull a node's cable: its eth0 loses the carrier
    Unplug { node: u16 },
    /// Plug a node's cable in again
    Plug { node: u16 },
    /// Set a node's eth0 down
    NicDown { node: u16 },
    /// Set a node's eth0 up again, with its addresses and routes
    NicUp { node: u16 },
    /// Delete a node's eth0 and recreate it: same addresses, another index
    NicReplace { node: u16 },
    /// Give a node another underlay address (IPv4 or IPv6)
    Address { node: u16, address: IpAddr },
    /// Change the MTU of a node's eth0
    Mtu { node: u16, mtu: u32 },

    /// Kill a node's flanneld (SIGKILL)
    Kill { node: u16 },
    /// Stop a node's flanneld (SIGTERM)
    Stop { node: u16 },
    /// Freeze a node's flanneld (SIGSTOP)
    Pause { node: u16 },
    /// Let a frozen flanneld go on (SIGCONT)
    Resume { node: u16 },
    /// Start a node's flanneld again, and stop it before if it runs
    Restart {
        node: u16,
        /// Run another program from now on
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Do something to etcd
    Etcd {
        #[arg(value_enum)]
        deed: EtcdDeed,
    },

    /// Delete a route on a node, e.g. `route-del 1 10.244.5.0/24`
    RouteDel { node: u16, to: String },
    /// Delete a neighbour entry on a node
    NeighDel { node: u16, address: IpAddr, device: String },
    /// Delete a forwarding entry on a node
    FdbDel { node: u16, mac: String, device: String },
    /// Delete an address on a node, e.g. `addr-del 1 10.244.5.0/32 flannel.1`
    AddrDel { node: u16, address: String, device: String },
    /// Delete a device on a node
    LinkDel { node: u16, device: String },
    /// Set a device on a node down
    LinkDown { node: u16, device: String },
    /// Set a device on a node up
    LinkUp { node: u16, device: String },
    /// Set a device on a node down and up again
    LinkBounce { node: u16, device: String },
    /// Change the hardware address of a device on a node
    SetMac { node: u16, device: String, mac: String },
    /// Change the MTU of a device on a node
    SetMtu { node: u16, device: String, mtu: u32 },
    /// Do something bad, chosen at random, to what flannel has made on a node
    Vandal {
        node: u16,
        /// Choose the same again
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum EtcdDeed {
    /// Kill all members (SIGKILL)
    Kill,
    /// Stop all members (SIGTERM)
    Stop,
    /// Start all members again on their data
    Restart,
    /// Freeze all members
    Pause,
    /// Let frozen members go on
    Resume,
    /// Keep a copy of the data
    Snapshot,
    /// Go back to the copy
    Restore,
}

pub(crate) fn run(name: &LabName, fault: Fault) -> anyhow::Result<ExitCode> {
    let fault = match fault {
        // The supervisor has another working directory.
        Fault::Restart { node, binary: Some(binary) } => {
            Fault::Restart { node, binary: Some(std::path::absolute(binary)?) }
        }
        other => other,
    };
    let Answer::Done(text) = client::ask(name, &Request::Fault(fault))? else {
        bail!("an answer to another question");
    };
    writeln!(io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
