//! Decides whether nodes can use a network config. Everything that accepts one asks here: the daemon before it uses
//! it, the lease server and the tools before they store it.

use flannel_lease::{ConfigError, NetworkConfig, SubnetOrigin, remarks};

use crate::{Backend, BackendError, create};

/// A config that nodes can use, as far as that is known without looking at one.
#[derive(Debug)]
pub struct UsableConfig {
    pub config: NetworkConfig,
    pub backend: Box<dyn Backend>,
    pub names_backend: bool,
    /// Remarks for its writer.
    pub remarks: Vec<String>,
}

impl std::fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind())
    }
}

/// Judges a config that is about to be written: it must name its backend. One without is udp for nodes of either
/// flannel, and moves a network of any other backend there; whoever writes such a config has forgotten it.
pub fn judge_config_to_write(
    text: &str,
    subnets: SubnetOrigin,
) -> Result<UsableConfig, BackendError> {
    let judged = judge_config(text, subnets)?;
    match judged.names_backend {
        true => Ok(judged),
        false => Err(BackendError::Config(ConfigError::missing(
            "Backend",
            "nodes would take that for udp, the slowest one; name it, for example \"Backend\": {\"Type\": \"vxlan\"}",
        ))),
    }
}

/// Judges a config. `subnets` is where the network's subnets come from, which its store knows.
pub fn judge_config(text: &str, subnets: SubnetOrigin) -> Result<UsableConfig, BackendError> {
    let config = NetworkConfig::read(text, subnets)?;
    let backend = create(&config.backend)?;
    backend.check_network(&config)?;
    let remarks = remarks(text, backend.options());
    let names_backend = NetworkConfig::names_backend(text);
    Ok(UsableConfig { config, backend, names_backend, remarks })
}
