//! Whatever comes in through standard input, an answer comes out: never a panic, and an error always
//! in the protocol's form.

use flannel_cni::builtin::BUILT_IN;
use flannel_cni::flannel::Flannel;
use flannel_cni::protocol::{Environment, Outcome, Plugin, Version, serve};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Only commands that change nothing: these run in the test's own process.
fn ask(plugin: &dyn Plugin, command: &str, stdin: &[u8]) -> String {
    let getenv = |name: &str| {
        Some(match name {
            "CNI_COMMAND" => command.to_owned(),
            "CNI_CONTAINERID" => "abc".into(),
            "CNI_IFNAME" => "eth0".into(),
            "CNI_NETNS" | "CNI_PATH" => "/does/not/exist".into(),
            _ => return None,
        })
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let succeeded = serve(plugin, "", &Environment(&getenv), stdin, &mut stdout, &mut stderr);
    let text = String::from_utf8(stdout).unwrap();
    if !succeeded {
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(error["code"].as_u64().unwrap() > 0 && error["msg"].is_string(), "{text}");
    }
    text
}

fn ask_all(stdin: &[u8]) {
    let plugins: Vec<&dyn Plugin> = BUILT_IN.map(|(_, plugin)| plugin).into();
    for plugin in plugins.into_iter().chain([&Flannel { by_exec: false } as &dyn Plugin]) {
        for command in ["STATUS", "CHECK"] {
            ask(plugin, command, stdin);
        }
    }
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[0-9a-f.:/]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "10.0.0.0/24",
            "10.0.0.5",
            "fd00::/64",
            "host-local",
            "bridge",
            "cni0",
            "1.1.0",
            "0.4.0",
            "tcp",
            "255.255.255.255/1",
            "::/0",
            "0.0.0.0/31",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127",
        ])
        .prop_map(Value::from),
    ]
}

const KEYS: [&str; 30] = [
    "cniVersion",
    "name",
    "type",
    "bridge",
    "isGateway",
    "isDefaultGateway",
    "ipMasq",
    "mtu",
    "vlan",
    "ipam",
    "ranges",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "routes",
    "dst",
    "gw",
    "dataDir",
    "delegate",
    "runtimeConfig",
    "portMappings",
    "hostPort",
    "containerPort",
    "prevResult",
    "interfaces",
    "ips",
    "address",
    "interface",
    "cni.dev/valid-attachments",
];

fn tree() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(KEYS.to_vec()), inner), 0..6).prop_map(
                |members| members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            ),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        ask_all(&bytes);
    }

    #[test]
    fn any_configuration_is_answered(value in tree(), version in prop::sample::select(vec!["0.4.0", "1.1.0"])) {
        let mut conf = if value.is_object() { value } else { json!({"ipam": value}) };
        conf["cniVersion"] = version.into();
        conf["name"] = "n".into();
        // Where reservations would be looked for, and where what ADD saved.
        conf["dataDir"] = "/does/not/exist".into();
        if conf["ipam"].is_object() {
            conf["ipam"]["dataDir"] = "/does/not/exist".into();
        }
        ask_all(conf.to_string().as_bytes());
    }

    #[test]
    fn any_result_is_read_or_refused_and_what_is_read_can_be_written(value in tree()) {
        for version in Version::ALL {
            if let Ok((outcome, version)) = Outcome::parse(value.to_string().as_bytes(), version) {
                let _ = outcome.to_json(version);
            }
        }
    }
}
