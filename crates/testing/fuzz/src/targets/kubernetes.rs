//! What an API server says, in either encoding, and what stands in a kubeconfig.

use std::path::Path;

use flannel_backend::Stack;
use flannel_kube::annotations::AnnotationPrefix;
use flannel_kube::kubeconfig::Kubeconfig;
use flannel_kube::lease::attrs;
use flannel_kube::message::{Encoding, Event, EventKind};
use flannel_kube::node::NodeResource;
use flannel_kube::table::NodeTable;

pub(crate) fn run(bytes: &[u8]) {
    let prefix = AnnotationPrefix::parse("flannel.alpha.coreos.com").expect("a prefix");
    let nodes = NodeResource::new(prefix);
    let _ = Kubeconfig::parse(&String::from_utf8_lossy(bytes), Path::new("/"));
    for encoding in [Encoding::Protobuf, Encoding::Json] {
        let mut table = NodeTable::new("node-1", Stack { v4: true, v6: true });
        table.begin_list();
        let _ = encoding.status(bytes);
        let _ = encoding.list(bytes, &nodes, |node| table.listed(&node));
        if let Ok(node) = encoding.object(bytes, &nodes) {
            let again = node.clone().into_owned();
            assert_eq!(again, node);
            table.put(&node);
            // What is known already is no news.
            assert!(table.put(&again).is_empty());
            if let Ok(attrs) = attrs(&node.annotations) {
                table.announce(attrs);
            }
        }
        table.end_list();
        let mut rest = bytes;
        while let Some((message, length)) = encoding.cut(rest) {
            assert!(length > 0 && length <= rest.len());
            match encoding.event(message, &nodes) {
                Ok(Event::Object(EventKind::Deleted, node)) => drop(table.deleted(&node.name)),
                Ok(Event::Object(_, node)) => drop(table.put(&node)),
                Ok(Event::Error(_)) | Err(_) => {}
            }
            rest = &rest[length..];
        }
        let subnets: Vec<_> =
            table.leases().into_iter().map(|stored| stored.lease.subnet).collect();
        assert!(subnets.is_sorted_by(|one, two| one < two), "each has one holder: {subnets:?}");
    }
}
