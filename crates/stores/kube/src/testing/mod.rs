//! For tests, of this crate and of others: a real API server with an etcd of its own. Panics instead of
//! returning errors, as tests do.

mod api_server;
mod bulk;
mod certificates;
mod manifest;
mod nodes;
mod proxy;
mod tokens;

pub use api_server::{ApiServer, ApiServerBuilder};
pub use bulk::keep_whole_nodes;
pub use manifest::manifest_rules;
pub use nodes::NodeSpec;
pub use proxy::Proxy;
