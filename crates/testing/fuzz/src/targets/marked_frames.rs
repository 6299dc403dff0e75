//! Frames of all devices, from whoever can send one: a trace looks for its mark in them.

use flannel_probe::marked::Mark;
use flannel_probe::testing::read_marked_frame;

/// Of the trace in the seeds.
const MARK: &str = "0123456789abcdef";
/// Nothing shorter is a packet with a mark: header of an echo, and the mark.
const SHORTEST: usize = 8 + 16;

pub(crate) fn run(bytes: &[u8]) {
    let mark: Mark = MARK.parse().expect("a mark");
    let found = read_marked_frame(bytes, mark);
    if found.is_none() {
        return;
    }
    assert!(bytes.len() >= SHORTEST);
    // What stands before it changes nothing but where it seems to come from.
    let behind_others = [&[0xff; 3], bytes].concat();
    assert_eq!(read_marked_frame(&behind_others, mark), found);
}
