//! The `--kube…` options.

use std::path::PathBuf;

use flannel_store::StoreError;

use crate::access::Access;
use crate::annotations::AnnotationPrefix;
use crate::api::Api;

#[derive(Clone, Debug, PartialEq)]
pub struct KubeOptions {
    pub api_url: Option<String>,
    pub kubeconfig: Option<PathBuf>,
    pub annotation_prefix: String,
    pub net_config: PathBuf,
    pub set_node_network_unavailable: bool,
}

impl KubeOptions {
    /// Needs no API server. `variable` reads the environment.
    pub fn api(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Api, StoreError> {
        let wrong = |option: &str, reason: String| StoreError::Misconfigured {
            option: option.to_owned(),
            reason,
        };
        let prefix = AnnotationPrefix::parse(&self.annotation_prefix)
            .map_err(|error| wrong("kube-annotation-prefix", error.to_string()))?;
        let (kubeconfig, url) = (self.kubeconfig.as_deref(), self.api_url.as_deref());
        let access = Access::find(kubeconfig, url, variable)
            .map_err(|reason| wrong("Kubernetes", reason))?;
        Ok(Api::new(access, prefix))
    }
}
