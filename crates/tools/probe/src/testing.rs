//! What is read of frames, without a socket, for fuzzers and tests.

use std::net::IpAddr;

use crate::marked::{Mark, MarkedFrame, Packet};

/// What a frame says, if it bears the mark: which packet it is, its number, and from where to where a tunnel carries it.
pub fn read_marked_frame(
    frame: &[u8],
    mark: Mark,
) -> Option<(Packet, u16, Option<(IpAddr, IpAddr)>)> {
    let MarkedFrame { packet, number, carried } = MarkedFrame::find(frame, mark)?;
    Some((packet, number, carried))
}
