//! Whether pods reach each other: what an operator asks of nodes, the test pod that a node makes for it, what is found.
//!
//! Pure: requests and reports ([`protocol`]), packets and their content (`packet`, `exchange`), one conversation each
//! (`udp_trial`, `tcp_trial`), all conversations of a pod (`pod`), what is wrong when one fails ([`cause`]). At the
//! rim: the pod's devices (`in_kernel`), and the thread that it lives in ([`TestPod`]).
//!
//! A test pod is a pair of veth devices whose far end is this process. To the kernel it is a pod: what it sends is
//! forwarded, filtered and masqueraded as any pod's is. It takes no namespace and no further rights.

pub mod cause;
mod exchange;
mod in_kernel;
mod packet;
mod pod;
pub mod protocol;
mod tcp_trial;
mod test_pod;
pub mod testing;
mod udp_trial;

pub use in_kernel::sweep;
pub use test_pod::{PodEvent, PodPlan, TestPod, wait_until_gone};

pub const KIND: &str = "connectivity";

/// Where test pods listen, unless the request says otherwise. They are alone at their addresses.
pub const PORT: u16 = 8476;
