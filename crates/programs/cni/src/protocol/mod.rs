//! The CNI protocol: what a runtime asks (environment and standard input), and what it gets back
//! (a result or an error, as JSON on standard output). Nothing in here knows a plugin.

mod call;
mod error;
mod fields;
mod go_json;
mod result;
mod result_json;
mod serve;
mod version;

pub use call::{Attachment, Call, Command, Conf, Environment};
pub(crate) use error::internal;
pub use error::{Code, Error, ErrorContext, Result};
pub use fields::{FieldError, Fields, each_of};
pub use go_json::{compact, indented};
pub use result::{Added, Dns, Interface, IpConfig, Outcome, Route};
pub(crate) use result_json::network;
pub use serve::{Plugin, serve};
pub use version::Version;
