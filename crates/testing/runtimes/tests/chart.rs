//! The Helm chart, as Helm itself renders it.

use std::process::{Command, Output};

use flannel_runtimes::{chart, helm, our_image_as_values, our_manifest, rendered, upstream_chart};
use yaml_rust2::{Yaml, YamlLoader};

#[test]
fn the_chart_installs_by_default_what_the_manifest_does() {
    let mut rendered = objects(&template(&[]));
    let mut applied = objects(&our_manifest("kube-flannel.yml"));
    // Who installs a chart makes its namespace.
    applied.retain(|(name, _)| !name.starts_with("Namespace"));
    rendered.sort();
    applied.sort();
    let names = |of: &[(String, Yaml)]| of.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&rendered), names(&applied));
    for ((name, rendered), (_, applied)) in rendered.iter().zip(&applied) {
        assert_eq!(normal(rendered), normal(applied), "{name}");
    }
}

#[test]
fn values_change_what_they_say_and_nothing_else_is_taken() {
    let lint = run(&["lint", "--strict", &chart()]);
    assert!(lint.status.success(), "{}", said(&lint));
    let k3s = template(&[
        "--set=podCidr=10.42.0.0/16,podCidrv6=fd42::/56",
        "--set=flannel.cniConfDir=/var/lib/rancher/k3s/agent/etc/cni/net.d",
        "--set=flannel.cniBinDir=/var/lib/rancher/k3s/data/cni,flannel.mtu=1400",
        "--set=flannel.extraArgs={--iface=eth1}",
    ]);
    for wanted in [
        "path: /var/lib/rancher/k3s/data/cni",
        "path: /var/lib/rancher/k3s/agent/etc/cni/net.d",
        "\"Network\": \"10.42.0.0/16\"",
        "\"IPv6Network\": \"fd42::/56\"",
        "\"EnableIPv6\": true",
        "\"MTU\": 1400",
        "--iface=eth1",
    ] {
        assert!(k3s.contains(wanted), "{wanted} is missing in:\n{k3s}");
    }
    let ipip = template(&["--set=flannel.backend=ipip,flannel.directRouting=true"]);
    assert!(ipip.contains("\"DirectRouting\": true"), "{ipip}");
    for (wrong, why) in [
        ("--set=flannel.backend=7", "/flannel/backend"),
        ("--set=flannel.cniBinDri=/x", "additional properties 'cniBinDri' not allowed"),
        ("--set=podCidr=everything", "/podCidr"),
    ] {
        let refused = run(&["template", "flannel", &chart(), wrong]);
        assert!(!refused.status.success() && said(&refused).contains(why), "{}", said(&refused));
    }
}

#[test]
fn values_of_the_go_flannels_chart_are_taken_or_refused_by_name() {
    let theirs = format!("--values={}/values.yaml", upstream_chart());
    let output = run(&["template", "flannel", &chart(), &theirs, &our_image_as_values()]);
    let text = said(&output);
    assert!(output.status.success() && !text.contains("warning"), "{text}");
    for wanted in [
        // Their image of the plugin has no installer, and neither has it our links.
        r#"command: ["cp", "-f", "/flannel", "/opt/cni/bin/flannel"]"#,
        r#""cniVersion": "0.3.1""#,
        "initialDelaySeconds: 5",
        "effect: NoExecute",
        "cpu: 100m",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in:\n{text}");
    }

    let only_ipv6 = template(&[
        "--set=podCidr=,podCidrv6=fd00::/56,flannel.backend=wireguard,flannel.psk=cHNr",
        "--set=flannel.tunnelMode=ipv6,flannel.keepaliveInterval=25,flannel.mtu=1400",
        "--set=flannel.backendPort=0,flannel.backendPortv6=51900,flannel.vni=7",
    ]);
    let config = objects(&only_ipv6).into_iter().find(|(name, _)| name.starts_with("ConfigMap"));
    let config = config.expect("a ConfigMap").1["data"]["net-conf.json"].clone();
    let config: serde_json::Value =
        serde_json::from_str(config.as_str().expect("a text")).expect("it is JSON");
    let wireguard = serde_json::json!({
        "Type": "wireguard", "ListenPortV6": 51900, "PSK": "cHNr", "MTU": 1400, "Mode": "ipv6",
        "PersistentKeepaliveInterval": 25,
    });
    let wanted = serde_json::json!({
        "EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00::/56", "EnableNFTables": false,
        "Backend": wireguard,
    });
    assert_eq!(config, wanted);

    for (value, why) in [
        (theirs.as_str(), "does not know the flags of this chart"),
        (
            "--set=netpol.enabled=true",
            "netpol.enabled: this chart does not install network policies",
        ),
        ("--set=podCidr=", "podCidr and podCidrv6 are both empty"),
        ("--set-json=flannel.cniConf=\"nonsense\"", "flannel.cniConf is not a CNI configuration"),
    ] {
        let refused = run(&["template", "flannel", &chart(), value]);
        assert!(!refused.status.success() && said(&refused).contains(why), "{}", said(&refused));
    }
}

fn template(values: &[&str]) -> String {
    rendered(&chart(), "kube-flannel", values)
}

fn run(words: &[&str]) -> Output {
    Command::new(helm()).args(words).output().expect("run helm")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// What a manifest holds, by kind and name.
fn objects(text: &str) -> Vec<(String, Yaml)> {
    let documents = YamlLoader::load_from_str(text).expect("YAML");
    let name = |object: &Yaml| {
        let text = |yaml: &Yaml| yaml.as_str().unwrap_or_default().to_owned();
        format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    documents.into_iter().filter(|it| !it.is_null()).map(|it| (name(&it), it)).collect()
}

/// Without the order of members, with the documents in a ConfigMap read, and without what is said that
/// would be so anyway.
fn normal(yaml: &Yaml) -> String {
    match yaml {
        Yaml::Hash(members) => {
            let mut members: Vec<String> = members
                .iter()
                .filter(|(key, _)| key.as_str() != Some("imagePullPolicy"))
                .map(|(key, value)| format!("{}: {}", normal(key), normal(value)))
                .collect();
            members.sort();
            format!("{{{}}}", members.join(", "))
        }
        Yaml::Array(items) => {
            format!("[{}]", items.iter().map(normal).collect::<Vec<_>>().join(", "))
        }
        Yaml::String(text) if text.trim_start().starts_with('{') => {
            let inner = YamlLoader::load_from_str(text).expect("JSON");
            inner.iter().map(normal).collect()
        }
        other => format!("{other:?}"),
    }
}
