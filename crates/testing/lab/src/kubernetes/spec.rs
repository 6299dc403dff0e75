//! What a cluster shall be like: plain data, as the rest of a lab's description.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};

/// A Kubernetes cluster on the lab's nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesSpec {
    /// A directory with Kubernetes' programs and its etcd.
    pub programs: PathBuf,
    /// A directory into which containerd and runc were unpacked.
    pub containerd: PathBuf,
    /// Archives of images that every node has from the beginning.
    pub images: Vec<PathBuf>,
    /// What is applied to it when it stands; its nodes are then waited for.
    pub manifests: Vec<PathBuf>,
    /// A directory of CNI plugins that nodes have from the beginning, as distributions bring them.
    pub cni_plugins: Option<PathBuf>,
    /// Where containerd looks for CNI plugins, and for their configuration.
    pub cni_bin_dir: String,
    pub cni_conf_dir: String,
    /// How kube-proxy programs the nodes.
    pub proxy: ProxyMode,
    /// The addresses of all pods; of both families, divided by a comma, for both.
    pub pods: String,
    /// Whether every node is given its part of them by the controller-manager.
    pub allocate: bool,
}

/// The ways of kube-proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    /// Rules of iptables.
    Iptables,
    /// A table of nftables.
    #[default]
    Nftables,
}

impl ProxyMode {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

impl KubernetesSpec {
    /// With the programs where `scripts/deps kubernetes containerd pod-image` puts them, unless the
    /// environment names other places.
    pub fn find() -> Result<Self> {
        let found = |variable: &str, name: &str, piece: &str| {
            let path = std::env::var_os(variable).map(PathBuf::from).or_else(|| {
                let home = std::env::var_os("HOME")?;
                Some(Path::new(&home).join(".cache/flannel-rs/bin").join(name))
            });
            let path = path.filter(|path| path.exists()).ok_or_else(|| {
                LabError::Spec(format!("no {name}: run `scripts/deps {piece}`, or set {variable}"))
            })?;
            path.canonicalize().map_err(|source| LabError::System {
                what: format!("find {}", path.display()),
                source,
            })
        };
        Ok(Self {
            programs: found("FLANNEL_TEST_KUBERNETES_DIR", "kubernetes", "kubernetes")?,
            containerd: found("FLANNEL_TEST_CONTAINERD_ROOT", "containerd-root", "containerd")?,
            images: vec![found("FLANNEL_TEST_POD_IMAGE", "pod-image.tar", "pod-image")?],
            manifests: Vec::new(),
            cni_plugins: None,
            cni_bin_dir: "/opt/cni/bin".into(),
            cni_conf_dir: "/etc/cni/net.d".into(),
            proxy: ProxyMode::default(),
            pods: "10.244.0.0/16".into(),
            allocate: true,
        })
    }

    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        crate::programs::executable(&self.programs.join(name))
    }
}
