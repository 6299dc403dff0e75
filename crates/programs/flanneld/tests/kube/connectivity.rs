//! `flannelctl test connectivity` in Kubernetes: by annotations of Nodes, which do not stay.

use std::process::{Command, Stdio};
use std::time::Duration;

use flannel_lab::{Lab, Result};
use serde_json::Value;

use crate::rights::{as_pods, put_token, rules};
use crate::support::{Kube, flanneld};

fn started(nodes: u16) -> Result<Kube> {
    let kube = as_pods(nodes)?;
    let token = kube.server.service_account("flannel", &rules());
    (1..=nodes).try_for_each(|number| put_token(&kube, number, &token))?;
    kube.lab.start_daemons()?;
    Ok(kube)
}

fn command(kube: &Kube) -> Command {
    let mut command = Command::new(flanneld().with_file_name("flannelctl"));
    let kubeconfig = format!("--kubeconfig-file={}", kube.server.admin_kubeconfig().display());
    command.args(["test", "connectivity", "-o", "json", &kubeconfig]).stderr(Stdio::inherit());
    command
}

/// What of it is on any node, or in any Node.
fn left(kube: &Kube) -> Vec<String> {
    let links =
        |lab: &Lab, number| lab.node(number).ip("-o link show type veth").unwrap_or_default();
    let mut left = Vec::new();
    for number in 1..=kube.lab.nodes().len() as u16 {
        let devices = links(&kube.lab, number);
        left.extend(devices.lines().filter(|line| line.contains("flannel-t")).map(str::to_owned));
        for key in ["request", "answer"] {
            left.extend(kube.annotation(number, key).map(|_| format!("{key} of node {number}")));
        }
    }
    left
}

#[test]
fn daemons_with_the_rights_of_the_manifest_make_test_pods_and_no_annotation_stays() -> Result<()> {
    let kube = started(2)?;
    let output = kube.lab.node(1).in_netns(|| command(&kube).output())?.unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report:#}");
    assert_eq!((&report["whole"], &report["testedPairs"]), (&true.into(), &2.into()), "{report:#}");
    assert_eq!(report["nodes"][0]["name"], "node-1", "{report:#}");
    kube.wait("nothing to be left", || left(&kube).is_empty())?;

    let mut begun = command(&kube);
    begun.stdout(Stdio::null());
    let child = kube.lab.node(1).spawn(begun)?;
    kube.wait("test pods", || left(&kube).iter().any(|it| it.contains("flannel-test0")))?;
    child.kill();
    std::thread::sleep(Duration::from_secs(1));
    kube.wait("nothing to be left of what was killed", || left(&kube).is_empty())
}
