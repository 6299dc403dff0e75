//! Shared by `flannelctl` and `flannel-lab`: tables and colours ([`table`]), times as people type them ([`time`]).

pub mod table;
pub mod time;

use std::io;

/// Whether output failed because its reader stopped reading, which is not a failure of the command.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_it = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(is_it)
}
