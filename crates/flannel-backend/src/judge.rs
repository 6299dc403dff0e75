//! Whether nodes can use a network config. Whoever takes one in asks here: the daemon before it uses it,
//! the lease server and the tools before they store it.

use flannel_lease::{ConfigError, NetworkConfig, Remark, SubnetOrigin, remarks};

use crate::{Backend, BackendError, create};

/// A config that nodes can use, as far as that can be told without looking at one.
pub struct Judged {
    pub config: NetworkConfig,
    pub backend: Box<dyn Backend>,
    /// Whether the config itself says which backend it is for.
    pub names_backend: bool,
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

/// The same for whoever writes a config: it must name its backend. One without is udp for nodes of either flannel,
/// and moves a network of any other backend there; whoever writes such a config has forgotten it.
pub fn judge_to_write(text: &str, subnets: SubnetOrigin) -> Result<Judged, BackendError> {
    let judged = judge(text, subnets)?;
    match judged.names_backend {
        true => Ok(judged),
        false => Err(BackendError::Config(ConfigError::missing(
            "Backend",
            "nodes would take that for udp, the slowest one; name it, for example \"Backend\": {\"Type\": \"vxlan\"}",
        ))),
    }
}

/// `subnets`: where those of the network come from, which its store knows.
pub fn judge(text: &str, subnets: SubnetOrigin) -> Result<Judged, BackendError> {
    let config = NetworkConfig::read(text, subnets)?;
    let backend = create(&config.backend)?;
    backend.check_network(&config)?;
    let remarks = remarks(text, backend.options());
    let names_backend = NetworkConfig::names_backend(text);
    Ok(Judged { config, backend, names_backend, remarks })
}
