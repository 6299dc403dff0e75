//! What the switch drops: the traffic of partitioned pairs, and a share of the rest.
//!
//! Each port has at most two small classic BPF programs (`tc … bpf`), one per direction, written
//! again whenever a fault changes. This needs nothing besides `tc` and the kernel's BPF classifier,
//! and it sees every frame, so broken pairs are broken for ARP and tunnels alike.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use crate::plan::Nic;

/// The faults that the switch holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    /// Ports that must not hear each other: (from, to).
    pub(crate) cut: BTreeSet<(String, String)>,
    /// Share of frames lost in both directions of a port, in millionths.
    pub(crate) loss: BTreeMap<String, u32>,
    /// Ports whose packets are delayed.
    pub(crate) delayed: BTreeSet<String>,
    /// Ports that have the hook for programs.
    pub(crate) hooked: BTreeSet<String>,
}

impl Filters {
    /// Cuts every pair of two sides, both ways.
    pub(crate) fn cut(&mut self, left: &[String], right: &[String]) {
        for one in left {
            for other in right.iter().filter(|&other| other != one) {
                self.cut.insert((one.clone(), other.clone()));
                self.cut.insert((other.clone(), one.clone()));
            }
        }
    }

    /// The `tc` commands that make one port drop what it shall.
    pub(crate) fn commands(&mut self, port: &Nic, all: &[Nic]) -> Vec<String> {
        let silenced: Vec<&Nic> = all
            .iter()
            .filter(|from| self.cut.contains(&(from.port.clone(), port.port.clone())))
            .collect();
        let loss = self.loss.get(&port.port).copied().unwrap_or(0);
        let name = &port.port;
        let mut lines = Vec::new();
        if silenced.is_empty() && loss == 0 {
            if self.hooked.remove(name) {
                lines.push(format!("qdisc del dev {name} clsact"));
            }
            return lines;
        }
        if self.hooked.insert(name.clone()) {
            lines.push(format!("qdisc add dev {name} clsact"));
        }
        let replace = |hook: &str, program: &Program| {
            let code = program.text();
            format!("filter replace dev {name} {hook} prio 1 handle 1 bpf da bytecode '{code}'")
        };
        lines.push(replace("egress", &to_port(port, &silenced, loss)));
        lines.push(replace("ingress", &lossy(loss)));
        lines
    }
}

/// What a port lets through towards its participant.
fn to_port(port: &Nic, silenced: &[&Nic], loss: u32) -> Program {
    let mut program = Program::default();
    for from in silenced {
        if from.segment == port.segment {
            let [a, b, c, d, e, f] = from.mac;
            program.load_half(6);
            program.skip_unless(u32::from(u16::from_be_bytes([a, b])), 3);
            program.load_word(8);
            program.skip_unless(u32::from_be_bytes([c, d, e, f]), 1);
            program.drop();
            continue;
        }
        // Between segments the switch routes, so the sender's hardware address is gone.
        for address in from.addresses() {
            let (ethertype, offset, bytes) = match address {
                IpAddr::V4(address) => (0x0800, 26, address.octets().to_vec()),
                IpAddr::V6(address) => (0x86dd, 22, address.octets().to_vec()),
            };
            let words = bytes.chunks_exact(4);
            let mut left = 2 * words.len() as u8 + 1;
            program.load_half(12);
            program.skip_unless(ethertype, left);
            for (index, word) in words.enumerate() {
                left -= 2;
                program.load_word(offset + 4 * index as u32);
                let word = word.try_into().map_or(0, u32::from_be_bytes);
                program.skip_unless(word, left);
            }
            program.drop();
        }
    }
    program.lose(loss);
    program.pass();
    program
}

fn lossy(loss: u32) -> Program {
    let mut program = Program::default();
    program.lose(loss);
    program.pass();
    program
}

/// A classic BPF program in the making: (operation, if true, if false, operand).
#[derive(Debug, Default, PartialEq, Eq)]
struct Program(Vec<(u16, u8, u8, u32)>);

impl Program {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
    const RETURN: u16 = 0x06;
    /// The kernel's random numbers, as an offset that no packet has.
    const RANDOM: u32 = 0xffff_f000 + 56;
    const SHOT: u32 = 2;
    const GO_ON: u32 = u32::MAX;

    fn load_word(&mut self, offset: u32) {
        self.0.push((Self::LOAD_WORD, 0, 0, offset));
    }

    fn load_half(&mut self, offset: u32) {
        self.0.push((Self::LOAD_HALF, 0, 0, offset));
    }

    fn skip_unless(&mut self, value: u32, instructions: u8) {
        self.0.push((Self::JUMP_IF_EQUAL, 0, instructions, value));
    }

    fn drop(&mut self) {
        self.0.push((Self::RETURN, 0, 0, Self::SHOT));
    }

    fn pass(&mut self) {
        self.0.push((Self::RETURN, 0, 0, Self::GO_ON));
    }

    fn lose(&mut self, millionths: u32) {
        if millionths == 0 {
            return;
        }
        let threshold = u64::from(millionths) * u64::from(u32::MAX) / 1_000_000;
        self.load_word(Self::RANDOM);
        let threshold = u32::try_from(threshold).unwrap_or(u32::MAX);
        self.0.push((Self::JUMP_IF_GREATER_OR_EQUAL, 1, 0, threshold));
        self.drop();
    }

    fn text(&self) -> String {
        let mut text = self.0.len().to_string();
        for (operation, yes, no, operand) in &self.0 {
            let _ = write!(text, ",{operation} {yes} {no} {operand}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::spec::LabSpec;

    fn nics(segments: u8) -> Vec<Nic> {
        let plan = Plan::new(&LabSpec { nodes: 4, segments, ..LabSpec::default() }).unwrap();
        (1..=4).map(|node| plan.node(node)).collect()
    }

    /// Runs a program on a frame as the kernel would; the random number is given.
    fn dropped(program: &Program, frame: &[u8], random: u32) -> bool {
        let (mut accumulator, mut at) = (0, 0);
        loop {
            let (operation, yes, no, operand) = program.0[at];
            let offset = operand as usize;
            at += 1;
            match operation {
                Program::LOAD_WORD if operand == Program::RANDOM => accumulator = random,
                Program::LOAD_WORD => match frame.get(offset..offset + 4) {
                    Some(bytes) => accumulator = u32::from_be_bytes(bytes.try_into().unwrap()),
                    None => return false,
                },
                Program::LOAD_HALF => match frame.get(offset..offset + 2) {
                    Some(bytes) => {
                        accumulator = u16::from_be_bytes(bytes.try_into().unwrap()).into();
                    }
                    None => return false,
                },
                Program::JUMP_IF_EQUAL => {
                    at += usize::from(if accumulator == operand { yes } else { no });
                }
                Program::JUMP_IF_GREATER_OR_EQUAL => {
                    at += usize::from(if accumulator >= operand { yes } else { no });
                }
                Program::RETURN => return operand == Program::SHOT,
                other => panic!("operation {other}"),
            }
        }
    }

    fn frame(mac: [u8; 6], address: IpAddr) -> Vec<u8> {
        let mut frame = vec![0; 64];
        frame[6..12].copy_from_slice(&mac);
        match address {
            IpAddr::V4(address) => {
                frame[12..14].copy_from_slice(&[8, 0]);
                frame[26..30].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
                frame[22..38].copy_from_slice(&address.octets());
            }
        }
        frame
    }

    #[test]
    fn a_port_drops_the_frames_of_silenced_neighbours_and_no_others() {
        let nics = nics(1);
        let program = to_port(&nics[0], &[&nics[1], &nics[2]], 0);
        let hears = |nic: &Nic| !dropped(&program, &frame(nic.mac, nic.addresses()[0]), 0);
        assert!(!hears(&nics[1]));
        assert!(!hears(&nics[2]));
        assert!(hears(&nics[3]));
    }

    #[test]
    fn a_port_drops_what_was_routed_from_a_silenced_node() {
        let nics = nics(2);
        let router = [2, 0xfa, 0, 0xfe, 0, 0];
        let program = to_port(&nics[0], &[&nics[2]], 0);
        for address in nics[2].addresses() {
            assert!(dropped(&program, &frame(router, address), 0), "{address}");
        }
        for address in nics[3].addresses() {
            assert!(!dropped(&program, &frame(router, address), 0), "{address}");
        }
    }

    #[test]
    fn loss_is_a_share_of_the_random_numbers() {
        let program = lossy(250_000);
        let mut rng = fastrand::Rng::with_seed(7);
        let lost = (0..10_000).filter(|_| dropped(&program, &[], rng.u32(..))).count();
        assert!((2_300..2_700).contains(&lost), "{lost} of 10000");
    }

    #[test]
    fn a_cut_works_both_ways_and_healing_removes_every_hook() {
        let nics = nics(1);
        let mut filters = Filters::default();
        filters.cut(&["p1".into()], &["p2".into(), "p3".into()]);
        assert!(filters.cut.contains(&("p1".into(), "p3".into())));
        assert!(filters.cut.contains(&("p3".into(), "p1".into())));
        assert!(!filters.cut.contains(&("p2".into(), "p3".into())));
        assert_eq!(filters.commands(&nics[0], &nics).len(), 3);
        assert!(filters.commands(&nics[3], &nics).is_empty());
        filters.cut.clear();
        assert_eq!(filters.commands(&nics[0], &nics), ["qdisc del dev p1 clsact"]);
        assert!(filters.commands(&nics[0], &nics).is_empty());
    }
}
