//! Nobody is left behind: under a first process that reaps nobody, every process that outlives its
//! plugin would stay for ever, as a zombie.

use serde_json::json;

use crate::node::{Node, Pod, V4, V6, Whose};

/// Those that this process has inherited or started, and has not reaped.
fn children() -> Vec<String> {
    let mut found = Vec::new();
    let own = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
        };
        if field("PPid:") == own && field("Name:") == "flannel" {
            found.push(format!("{} {}", field("Pid:"), field("State:")));
        }
    }
    found
}

/// In a process of its own, which has no other children.
#[test]
fn no_process_outlives_a_plugin() {
    let own = std::env::current_exe().unwrap();
    let arguments = ["--exact", "orphans::in_a_process_that_inherits_orphans", "--ignored"];
    let output = std::process::Command::new(own).args(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
#[ignore = "run by the one above"]
fn in_a_process_that_inherits_orphans() {
    // From now on, orphans among the descendants become children of this process.
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let mut node = Node::new(&format!("{V4}{V6}"));
    node.version = "1.1.0";
    node.delegate["ipMasq"] = true.into();
    let mut pod = Pod::with_ports(
        "pod-1",
        json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8053, "containerPort": 53, "protocol": "udp"},
        ]),
    );
    for plugin_fails in [false, true] {
        node.add(Whose::Ours, &mut pod);
        assert_eq!(children(), [""; 0], "after ADD");
        node.check(Whose::Ours, &pod);
        if plugin_fails {
            node.call(Whose::Ours, "flannel", "ADD", &pod, &node.flannel_conf()).expect_error();
            assert_eq!(children(), [""; 0], "after an ADD that fails");
        }
        node.call(Whose::Ours, "portmap", "DEL", &pod, &node.portmap_conf(&pod)).expect_success();
        assert_eq!(children(), [""; 0], "after DEL by portmap");
        node.call(Whose::Ours, "flannel", "DEL", &pod, &node.flannel_conf()).expect_success();
        assert_eq!(children(), [""; 0], "after DEL by flannel");
    }
    node.assert_clean();
}
