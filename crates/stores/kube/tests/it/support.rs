//! Nodes as they might be, without a server.

use flannel_backend::Stack;
use flannel_kube::annotations::{AnnotationPrefix, Key};
use flannel_kube::node::NodeView;

pub(crate) const V4: Stack = Stack { v4: true, v6: false };
pub(crate) const V6: Stack = Stack { v4: false, v6: true };
pub(crate) const DUAL: Stack = Stack { v4: true, v6: true };

pub(crate) fn prefix() -> AnnotationPrefix {
    AnnotationPrefix::parse("flannel.alpha.coreos.com").unwrap()
}

pub(crate) fn node(name: &str, cidrs: &[&str]) -> NodeView<'static> {
    NodeView {
        name: name.to_owned().into(),
        uid: format!("uid of {name}").into(),
        resource_version: "1".into(),
        pod_cidr: cidrs.first().copied().unwrap_or_default().to_owned().into(),
        pod_cidrs: cidrs.iter().map(|cidr| (*cidr).to_owned().into()).collect(),
        ..NodeView::default()
    }
}

pub(crate) fn annotate(mut node: NodeView<'static>, pairs: &[(Key, &str)]) -> NodeView<'static> {
    for (key, value) in pairs {
        node.annotations.set(*key, (*value).to_owned().into());
    }
    node
}

/// A Node that runs flannel with vxlan on both families.
pub(crate) fn dual(name: &str, number: u8) -> NodeView<'static> {
    let (v4, v6) = (format!("10.244.{number}.0/24"), format!("fd00:244:0:{number}::/64"));
    annotate(
        node(name, &[&v4, &v6]),
        &[
            (Key::SubnetManager, "true"),
            (Key::BackendType, "vxlan"),
            (Key::BackendData, r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#),
            (Key::BackendV6Data, r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:06"}"#),
            (Key::PublicIp, &format!("192.0.2.{number}")),
            (Key::PublicIpv6, &format!("2001:db8::{number}")),
        ],
    )
}
