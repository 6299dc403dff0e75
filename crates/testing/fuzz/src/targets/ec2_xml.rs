//! Answers of EC2, or of whoever stands between it and a node.

use flannel_cloud::testing::rewrite_xml;

pub(crate) fn run(bytes: &[u8]) {
    match rewrite_xml(&String::from_utf8_lossy(bytes)) {
        Ok(written) => assert_eq!(rewrite_xml(&written).as_ref(), Ok(&written), "read as another"),
        Err(error) => assert!(!error.is_empty()),
    }
}
