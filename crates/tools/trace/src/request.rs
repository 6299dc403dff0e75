//! What an operator asks of the other node of a trace, through the store, and what that node says: its hops.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Hop, Peer};

pub const KIND: &str = "trace";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TraceRequest {
    pub from: IpAddr,
    pub to: IpAddr,
    /// The node that asks, as it is now: what leads to it is compared with that.
    pub asker: Peer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum TraceAnswer {
    /// The node has heard, and needs a few seconds.
    Looking,
    Walked {
        node: String,
        hops: Vec<Hop>,
    },
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hops, Way};

    #[test]
    fn what_is_asked_and_said_is_read_as_it_was_written() {
        let asked = TraceRequest {
            from: [10, 244, 1, 2].into(),
            to: [10, 244, 2, 2].into(),
            asker: Peer {
                subnets: vec!["10.244.1.0/24".parse().unwrap()],
                public: vec![[192, 0, 2, 1].into()],
                macs: vec!["02:00:00:00:00:01".to_owned()],
                ..Peer::default()
            },
        };
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(serde_json::from_str::<TraceRequest>(&text).unwrap(), asked);
        let mut hops = Hops::new(Way::There);
        hops.good("bridge", "cni0 is up");
        hops.wrong("pod", flannel_state::Layer::Unknown, "it is gone", "look for it");
        // What a node has found is told in words.
        hops.all.iter_mut().for_each(|hop| hop.finding = None);
        let walked = TraceAnswer::Walked { node: "node2".to_owned(), hops: hops.all };
        for said in [TraceAnswer::Looking, walked, TraceAnswer::Failed("no".to_owned())] {
            let text = serde_json::to_string(&said).unwrap();
            assert_eq!(serde_json::from_str::<TraceAnswer>(&text).unwrap(), said);
        }
    }
}
