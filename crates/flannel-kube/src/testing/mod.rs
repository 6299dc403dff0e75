//! For tests, of this crate and of others: a real API server with an etcd of its own. Panics instead of
//! returning errors, as tests do.

mod api_server;
mod bulk;
mod certificates;
mod nodes;
mod proxy;
mod tokens;

pub use api_server::{ApiServer, ApiServerBuilder};
pub use bulk::keep_whole_nodes;
pub use nodes::{NodeSpec, manifest_rules};
pub use proxy::Proxy;
