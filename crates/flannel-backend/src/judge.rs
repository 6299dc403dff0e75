//! Whether nodes can use a network config. Whoever takes one in asks here: the daemon before it uses it,
//! the lease server and the tools before they store it.

use flannel_lease::{NetworkConfig, Remark, SubnetOrigin, remarks};

use crate::{Backend, BackendError, create};

/// A config that nodes can use, as far as that can be told without looking at one.
pub struct Judged {
    pub config: NetworkConfig,
    pub backend: Box<dyn Backend>,
    /// What its writer should be told all the same.
    pub remarks: Vec<Remark>,
}

impl std::fmt::Debug for Judged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judged")
            .field("config", &self.config)
            .field("remarks", &self.remarks)
            .finish()
    }
}

/// `subnets`: where those of the network come from, which its store knows.
pub fn judge(text: &str, subnets: SubnetOrigin) -> Result<Judged, BackendError> {
    let config = NetworkConfig::read(text, subnets)?;
    let backend = create(&config.backend)?;
    backend.check_network(&config)?;
    let remarks = remarks(text, backend.options());
    Ok(Judged { config, backend, remarks })
}
