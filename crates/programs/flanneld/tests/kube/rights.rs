//! Who flannel is to Kubernetes, and what it may do there.

use std::time::Duration;

use flannel_lab::Result;
use http::Method;
use serde_json::{Value, json};

use crate::support::{Kube, PROXY_PORT, key, kube, name};

const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Those of the manifest, and no more.
pub(crate) fn rules() -> Value {
    flannel_kube::testing::manifest_rules()
}

/// Puts a token where a pod has it.
pub(crate) fn put_token(kube: &Kube, number: u16, token: &str) -> Result<()> {
    let ca = std::fs::read_to_string(kube.server.authority_file()).unwrap();
    kube.lab.node(number).in_netns(|| {
        std::fs::create_dir_all(ACCOUNT).unwrap();
        std::fs::write(format!("{ACCOUNT}/ca.crt"), ca).unwrap();
        std::fs::write(format!("{ACCOUNT}/token"), token).unwrap();
    })
}

/// Nodes whose daemons are told nothing but what a pod is told.
pub(crate) fn as_pods(nodes: u16) -> Result<Kube> {
    let in_pod = |lab: flannel_lab::LabBuilder| {
        lab.env("KUBERNETES_SERVICE_HOST", "192.168.100.254").env("KUBERNETES_SERVICE_PORT", "6443")
    };
    let kube = kube(nodes).lab(in_pod).with_nodes()?;
    for node in kube.lab.nodes() {
        let mut flags = node.flanneld().flags();
        flags.retain(|flag| !flag.starts_with("--kubeconfig-file="));
        node.flanneld().set_flags(flags);
    }
    Ok(kube)
}

#[test]
fn as_a_pod_with_the_least_of_rights_it_works_and_a_token_that_is_replaced_is_used() -> Result<()> {
    let kube = as_pods(2)?;
    let token = kube.server.service_account("flannel", &rules());
    (1..=2).try_for_each(|number| put_token(&kube, number, &token))?;
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    for number in 1..=2 {
        kube.wait("the condition to be set", || {
            kube.server.network_unavailable(&name(number)).as_deref() == Some("False")
        })?;
    }

    // The token is worth nothing any more.
    kube.server.delete_service_account("flannel");
    kube.wait("the API server to forget the token", || {
        kube.server.status_for(&token, "/api/v1/nodes") == 401
    })?;
    let daemon = kube.lab.node(1).flanneld();
    daemon.stop()?;
    daemon.start()?;
    kube.logged(1, &["does not know us", "serviceaccount/token"])?;
    assert!(!daemon.log().contains(&token), "a token is a secret");
    kube.lab.ping(&one, &two)?;
    let another = kube.server.service_account("flannel", &rules());
    put_token(&kube, 1, &another)?;
    daemon.wait_ready()?;
    kube.reach(&one, &two)
}

/// The kubelet replaces it long before; but a kubelet may be away, too.
#[test]
fn a_token_that_ends_under_a_running_daemon_is_said_and_the_next_one_in_the_file_is_used()
-> Result<()> {
    let kube = as_pods(2)?;
    let proxy = kube.proxy();
    let token = kube.server.service_account("flannel", &rules());
    for number in 1..=2 {
        put_token(&kube, number, &token)?;
        let port = PROXY_PORT.to_string();
        kube.lab.node(number).flanneld().set_env("KUBERNETES_SERVICE_PORT", port);
    }
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;

    let ends = kube.server.token_that_ends(&token, Duration::from_secs(5));
    let status = || kube.server.status_for(&ends, "/api/v1/nodes");
    assert_eq!(status(), 200, "it is a good one");
    put_token(&kube, 1, &ends)?;
    kube.wait("the token to end", || status() == 401)?;
    // Whoever is watching may go on; a new watch needs a new answer.
    proxy.interrupt();
    kube.logged(1, &["The store is unreachable", "does not know us", "serviceaccount/token"])?;
    let daemon = kube.lab.node(1).flanneld();
    assert!(!daemon.log().contains(&ends), "a token is a secret");
    kube.add_peer(9);
    kube.wait("node 2 to know the new peer", || kube.knows(2, 9))?;
    assert!(!kube.knows(1, 9), "nobody has told node 1");
    kube.lab.ping(&one, &two)?;
    assert!(daemon.is_running());

    put_token(&kube, 1, &token)?;
    kube.logged(1, &["The store is reachable again"])?;
    kube.wait("node 1 to know the new peer", || kube.knows(1, 9))?;
    kube.reach(&one, &two)
}

#[test]
fn a_right_that_is_missing_is_named_with_verb_and_resource_and_works_once_it_is_given() -> Result<()>
{
    let kube = as_pods(1)?;
    let missing: [(&[&str], &[&str], &[&str]); 4] = [
        (&["list", "watch"], &["patch"], &["get nodes", "verbs: [get, list, watch]"]),
        (&["get", "list"], &["patch"], &["watch nodes", "verbs: [get, list, watch]"]),
        (
            &["get", "list", "watch"],
            &[],
            &["patch nodes/status", "resources: [nodes/status], verbs: [patch]"],
        ),
        (&["get", "list", "watch"], &["patch"], &[]),
    ];
    for (nodes, status, said) in missing {
        let rules = json!([
            {"apiGroups": [""], "resources": ["nodes"], "verbs": nodes},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": if status.is_empty() { &["get"] } else { status }},
        ]);
        let token = kube.server.service_account("flannel", &rules);
        put_token(&kube, 1, &token)?;
        let daemon = kube.lab.node(1).flanneld();
        daemon.start()?;
        if said.is_empty() {
            daemon.wait_ready()?;
        } else {
            kube.logged(1, said)?;
        }
    }
    Ok(())
}

/// The manifest's roles and its admission policy, on the API server itself.
#[test]
fn a_node_s_token_writes_into_its_own_node_what_is_flannel_s_and_nothing_else() -> Result<()> {
    const MERGE: &str = "application/merge-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    let kube = as_pods(2)?;
    kube.server.apply_rights();
    let tokens = [1, 2].map(|number| kube.server.token_of_pod_on(&name(number)));
    for (number, token) in (1..).zip(&tokens) {
        put_token(&kube, number, token)?;
    }
    let write = |token: &str, node: u16, kind, patch: &Value| {
        let path = format!("/api/v1/nodes/{}/status", name(node));
        kube.server.ask_as(token, &Method::PATCH, &path, Some((kind, &patch.to_string())))
    };
    let annotation = |name: &str| json!({"metadata": {"annotations": {name: "x"}}});
    let ours = annotation("flannel.alpha.coreos.com/answer");
    kube.wait("the policy to hold", || write(&tokens[0], 2, MERGE, &ours).0 != 200)?;

    // All that flanneld writes it may write.
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    for number in 1..=2 {
        kube.wait("the condition to be set", || {
            kube.server.network_unavailable(&name(number)).as_deref() == Some("False")
        })?;
    }
    let condition =
        |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
    let strange = annotation("example.com/other");
    let label = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    let capacity = json!({"status": {"capacity": {"example.com/gold": "9"}}});
    let own = |kind, patch: &Value| write(&tokens[0], 1, kind, patch);
    assert_eq!(own(MERGE, &ours).0, 200);
    assert_eq!(own(STRATEGIC, &condition("NetworkUnavailable")).0, 200);
    for (what, (status, said), why) in [
        ("another Node", write(&tokens[0], 2, MERGE, &ours), "into that Node alone"),
        ("a foreign annotation", own(MERGE, &strange), "no annotations but those below"),
        ("a label", own(MERGE, &label), "no labels and no metadata"),
        ("another condition", own(STRATEGIC, &condition("Ready")), "NetworkUnavailable"),
        ("the capacity", own(STRATEGIC, &capacity), "NetworkUnavailable"),
        (
            "a token of no pod",
            write(&kube.server.token_of_no_pod(), 1, MERGE, &ours),
            "on which node it is used",
        ),
    ] {
        assert!(status == 422 && said.contains(why), "{what}: {status} {said}");
    }
    // Nobody else is concerned.
    kube.server.annotate(&name(1), "example.com/other", Some("y"));
    // Events on Nodes are in the namespace default.
    for (namespace, status) in [("default", 201), ("kube-system", 403)] {
        let event = json!({
            "metadata": {"name": "e1", "namespace": namespace}, "reason": "Test", "type": "Normal",
            "involvedObject": {"kind": "Node", "name": name(1), "namespace": namespace},
        });
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let content = Some(("application/json", event.to_string()));
        let content = content.as_ref().map(|(kind, text)| (*kind, text.as_str()));
        let (said, text) = kube.server.ask_as(&tokens[0], &Method::POST, &path, content);
        assert_eq!(said, status, "{namespace}: {text}");
    }
    Ok(())
}

/// With the manifest's policy the API server itself refuses it, to whoever may write the Node.
#[test]
fn the_policy_refuses_a_mac_or_key_that_another_node_announces() -> Result<()> {
    const MERGE: &str = "application/merge-patch+json";
    let kube = as_pods(2)?;
    kube.server.apply_rights();
    for number in [1, 2] {
        put_token(&kube, number, &kube.server.token_of_pod_on(&name(number)))?;
    }
    // Its Node is older than the victim's announcement.
    let kubelet_rules = json!([
        {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch", "update"]},
    ]);
    let kubelet = kube.server.service_account("kubelet", &kubelet_rules);
    let announce = |path: &str, kind: &str, field: &str, data: &str| {
        let path = format!("/api/v1/nodes/{}{path}", name(2));
        let annotations = json!({key("backend-type"): kind, key(field): data});
        let patch = json!({"metadata": {"annotations": annotations}}).to_string();
        kube.server.ask_as(&kubelet, &Method::PATCH, &path, Some((MERGE, &patch)))
    };
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    kube.lab.nodes().iter().for_each(|node| node.flanneld().kill9());
    let theirs = kube.annotation(1, "backend-data").expect("what node 1 announces");
    let own = kube.annotation(2, "backend-data").expect("what node 2 announces");
    let escaped = theirs.replacen("VtepMAC\":\"", "VtepMAC\":\"\\u0030", 1);
    let dashes = theirs.replace("VNI\":1", "VNI\":2").replacen(':', "\u{1}", 2).replace(':', "-");
    let dashes = dashes.replace('\u{1}', ":");
    // Before it holds the MAC is taken, and a write that changes nothing is nobody's concern: so it is given back each time.
    kube.wait("the policy to hold", || {
        assert_eq!(announce("", "vxlan", "backend-data", &own).0, 200);
        announce("", "vxlan", "backend-data", &theirs).0 != 200
    })?;
    for (path, kind, field, data) in [
        ("", "vxlan", "backend-data", theirs.as_str()),
        ("/status", "vxlan", "backend-data", &theirs),
        ("", "VXLAN", "backend-data", &theirs.to_uppercase()),
        ("", "vxlan", "backend-v6-data", &theirs),
        ("", "vxlan", "backend-data", &format!("{} {theirs}", own)),
        ("", "vxlan", "backend-data", &escaped),
        ("", "vxlan", "backend-data", &dashes),
    ] {
        let (status, said) = announce(path, kind, field, data);
        assert!(status == 422 && said.contains("flannel-link-identity"), "{data}: {status} {said}");
    }
    let (status, said) = announce("", "vxlan", "backend-data", &theirs);
    assert!(status == 422 && said.contains("the Node node-1 announces the same MAC"), "{said}");
    // Whoever prepares it with a backend that has no MACs cannot change to one that has.
    assert_eq!(announce("", "extension", "backend-data", &theirs).0, 200);
    assert_eq!(announce("", "vxlan", "backend-data", &theirs).0, 422);
    // What nobody else has may be announced.
    let new = r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:56"}"#;
    assert_eq!(announce("", "vxlan", "backend-data", new).0, 200);
    assert_eq!(announce("", "vxlan", "backend-data", &own).0, 200);

    let secret = |last: char| {
        format!(r#"{{"PublicKey":"{}{last}="}}"#, "Ab3/+".repeat(9).get(..42).unwrap())
    };
    let victim = format!("/api/v1/nodes/{}", name(1));
    let patch = json!({"metadata": {"annotations": {
        key("backend-type"): "wireguard", key("backend-data"): secret('A')}}});
    let (status, said) =
        kube.server.ask_as(&kubelet, &Method::PATCH, &victim, Some((MERGE, &patch.to_string())));
    assert_eq!(status, 200, "{said}");
    kube.wait("the API server to know it", || {
        assert_eq!(announce("", "vxlan", "backend-data", &own).0, 200);
        announce("", "wireguard", "backend-data", &secret('A')).0 == 422
    })?;
    // The last character of a key carries two bits that nobody reads.
    assert_eq!(announce("", "wireguard", "backend-data", &secret('B')).0, 422);
    Ok(())
}

#[test]
fn a_pod_that_is_not_told_its_node_asks_for_it() -> Result<()> {
    let kube = as_pods(1)?;
    let namespaces = "/api/v1/namespaces/kube-system/pods";
    // Without one no pod can be made.
    kube.server.ask(
        &Method::POST,
        "/api/v1/namespaces/kube-system/serviceaccounts",
        Some(("application/json", &json!({"metadata": {"name": "default"}}).to_string())),
    );
    let pod = json!({
        "metadata": {"name": "kube-flannel-ds-x"},
        "spec": {"nodeName": name(1), "containers": [{"name": "c", "image": "x"}],
                 "automountServiceAccountToken": false},
    });
    kube.server.create(namespaces, &pod);
    let token = kube.server.service_account("flannel", &rules());
    put_token(&kube, 1, &token)?;
    let daemon = kube.lab.node(1).flanneld();
    daemon.set_env("NODE_NAME", "");
    daemon.start()?;
    kube.wait("it to say what is missing and end", || !daemon.is_running())?;
    assert!(daemon.log().contains("NODE_NAME"), "{}", daemon.log());

    daemon.set_env("POD_NAME", "kube-flannel-ds-x");
    daemon.set_env("POD_NAMESPACE", "kube-system");
    daemon.start()?;
    kube.logged(1, &["get pods kube-system/kube-flannel-ds-x", "set NODE_NAME"])?;
    let mut more = rules();
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    more.as_array_mut().unwrap().push(pods);
    kube.server.service_account("flannel", &more);
    daemon.wait_ready()?;
    assert!(daemon.log().contains("Kubernetes Subnet Manager - node-1"));
    Ok(())
}

/// The condition is what lets pods be placed here, so it is said until it stands.
#[test]
fn a_condition_that_is_refused_at_first_is_set_once_it_may_be() -> Result<()> {
    let kube = kube(1).with_nodes()?;
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    let works = "has(object.status.conditions) && object.status.conditions.exists(c, \
                 c.type == 'NetworkUnavailable' && c.status == 'False')";
    let policy = json!({
        "metadata": {"name": "not-yet"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["nodes/status"],
            }]},
            "validations": [{"expression": format!("!({works})"), "message": "not yet"}],
        },
    });
    kube.server.create(policies, &policy);
    let binding = json!({"metadata": {"name": "not-yet"},
                         "spec": {"policyName": "not-yet", "validationActions": ["Deny"]}});
    kube.server.create(bindings, &binding);
    // It takes the server a moment to go by it.
    let patch =
        json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False"}]}});
    let strategic = "application/strategic-merge-patch+json";
    kube.wait("the policy to hold", || {
        let path = format!("/api/v1/nodes/{}/status", name(1));
        kube.server.ask(&Method::PATCH, &path, Some((strategic, &patch.to_string()))).0 == 422 || {
            kube.server.set_network_unavailable(&name(1));
            false
        }
    })?;
    kube.lab.start_daemons()?;
    kube.logged(1, &["Cannot set NetworkUnavailable=False on Node", "not yet", "next try in"])?;
    assert!(kube.annotation(1, "public-ip").is_some(), "all else goes on");
    assert_ne!(kube.server.network_unavailable(&name(1)).as_deref(), Some("False"));
    kube.server.must(&Method::DELETE, &format!("{bindings}/not-yet"), None);
    kube.wait("the condition to be set", || {
        kube.server.network_unavailable(&name(1)).as_deref() == Some("False")
    })
}
