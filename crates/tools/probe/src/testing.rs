//! What is read of frames, without a socket, for fuzzers and tests.

use crate::marked::{Mark, MarkedFrame, Packet};

/// What a frame says, if it bears the mark: which packet it is, and its number.
pub fn read_marked_frame(frame: &[u8], mark: Mark) -> Option<(Packet, u16)> {
    let MarkedFrame { packet, number, .. } = MarkedFrame::find(frame, mark)?;
    Some((packet, number))
}
