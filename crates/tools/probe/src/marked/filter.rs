//! Filter of the kernel for frames about as long as a marked packet, in the clear or in a tunnel. Others cost little.

use flannel_link::{ECHO_HEADER, instruction};

use super::{LargePacket, PAYLOAD};

/// An IPv4 packet without anything around it, as on a TUN device.
const SHORTEST: u32 = (20 + ECHO_HEADER + PAYLOAD) as u32;
/// An IPv6 packet with Ethernet, VXLAN over IPv6 and VLANs around it; and some to spare.
const LONGEST: u32 = SHORTEST + 160;

/// What may be around an IP packet: nothing, Ethernet, a VLAN, and of tunnels IPv4 or IPv6 with UDP and VXLAN.
const AROUND: [u32; 15] = [0, 14, 18, 20, 28, 34, 38, 42, 46, 48, 62, 64, 68, 84, 88];
/// Bytes that are looked at of each frame: all headers, and the mark.
const SHOWN: u32 = 512;

pub(super) fn program(large: Option<LargePacket>) -> Vec<libc::sock_filter> {
    let lengths: Vec<u32> =
        large.iter().flat_map(|large| AROUND.map(|around| large.bytes() + around)).collect();
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0)];
    // Each leads to the last instruction but one.
    for (number, length) in lengths.iter().enumerate() {
        let behind = (lengths.len() - number - 1 + 2) as u8;
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *length, behind, 0));
    }
    program.extend([
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, SHORTEST, 0, 2),
        instruction(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, LONGEST, 1, 0),
        instruction(libc::BPF_RET | libc::BPF_K, SHOWN, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]);
    program
}
