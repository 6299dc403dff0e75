//! What is wrong with what was read of the kernel, by subject. Pure.

mod bridge;
mod drops;
mod neighbours;
mod pods;
mod routes;
mod tunnel;

use flannel_state::{Finding, Layer};

pub(crate) use bridge::{
    PortFlags, bridge, bridge_mtu, fdb, port_flood, port_learning, port_state, wrong_port,
};
pub(crate) use drops::{may_drop, some_of_many};
pub(crate) use neighbours::{answers_twice, arp, neighbour, neighbour_on_wire};
pub(crate) use pods::{
    duplicates, has_address_of_others, in_pod, inside_pod, narrowing_port, no_answer, no_veth,
    perhaps_in_pod, veth,
};
pub(crate) use routes::{no_route, route};
pub(crate) use tunnel::{tunnel, underlay};

pub(crate) type HopJudgement = Result<String, Finding>;

pub(crate) fn broken(layer: Layer, what: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding::broken(layer, what, "", fix)
}

fn fault<T>(layer: Layer, what: impl Into<String>, fix: impl Into<String>) -> Result<T, Finding> {
    Err(broken(layer, what, fix))
}
