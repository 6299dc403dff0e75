//! The image of all containers: busybox, and the names under which it answers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use flannel_lab::Node;

use crate::programs::busybox;

/// Where the image lies on a node, as a tar file of a root file system.
pub(crate) const IMAGE_TAR: &str = "/run/busybox.tar";

/// Makes the image. No registry is involved.
pub(crate) fn make(node: &Node) {
    let program = fs::read(busybox()).expect("read busybox");
    node.in_netns(|| {
        let bin = Path::new("/run/image/bin");
        fs::create_dir_all(bin)?;
        fs::write(bin.join("busybox"), program)?;
        ["sh", "ip", "nc", "netstat", "ping", "sleep", "echo"]
            .iter()
            .try_for_each(|name| symlink("busybox", bin.join(name)))
    })
    .expect("enter the node")
    .expect("write the image's files");
    node.exec(&["chmod", "0755", "/run/image/bin/busybox"]).expect("make busybox executable");
    node.exec(&["tar", "-C", "/run/image", "-cf", IMAGE_TAR, "."]).expect("make the image's tar");
}
