//! What an operator asks of the other node of a trace, through the store, and what that node says: it looks at its
//! devices until it is told that all packets were sent, and then says which of them came by.

use flannel_state::DropCount;
use serde::{Deserialize, Serialize};

use super::{LargePacket, Mark, Sighting};

pub const KIND: &str = "marked-packets";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct WatchRequest {
    mark: String,
    /// All packets were sent: it is time to say what was seen.
    #[serde(default)]
    pub ended: bool,
    /// What pods of the asking node may send: packets about as large are sent, too, and counters are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

impl WatchRequest {
    pub fn new(mark: Mark, mtu: Option<u32>) -> Self {
        Self { mark: mark.to_string(), ended: false, mtu }
    }

    pub fn large(&self) -> Option<LargePacket> {
        self.mtu.and_then(LargePacket::of_mtu)
    }

    /// `None` if nobody could have sent packets with it.
    pub fn mark(&self) -> Option<Mark> {
        self.mark.parse().ok()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum WatchReport {
    Looking,
    Seen(Vec<Sighting>),
    /// The same, if the asker sends large packets, too.
    Counted {
        seen: Vec<Sighting>,
        /// Counters of what is dropped that have grown meanwhile.
        dropped: Vec<DropCount>,
    },
    Failed(String),
}

/// So many are told.
pub const COUNTERS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marked::{Direction, Packet, PacketSize, Place};

    #[test]
    fn what_is_asked_and_said_is_read_as_it_was_written() {
        let mark = Mark::between([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
        let asked = WatchRequest { ended: true, ..WatchRequest::new(mark, Some(1450)) };
        let text = serde_json::to_string(&asked).expect("JSON");
        let read: WatchRequest = serde_json::from_str(&text).expect("the same");
        assert_eq!((read.mark(), read.ended), (Some(mark), true));
        let seen = Sighting {
            device: "eth0".to_owned(),
            place: Place::Underlay,
            packet: Packet::Answer,
            direction: Direction::Out,
            count: 3,
            size: PacketSize::Large,
            carried: Some(([192, 0, 2, 2].into(), [192, 0, 2, 1].into())),
        };
        let counted = WatchReport::Counted {
            seen: vec![seen.clone()],
            dropped: vec![DropCount {
                what: "a rule".to_owned(),
                fix: "delete it".to_owned(),
                packets: 2,
                is_exact: true,
            }],
        };
        let failed = WatchReport::Failed("no".to_owned());
        for said in [WatchReport::Looking, WatchReport::Seen(vec![seen]), counted, failed] {
            let text = serde_json::to_string(&said).expect("JSON");
            assert_eq!(serde_json::from_str::<WatchReport>(&text).expect("the same"), said);
        }
    }
}
