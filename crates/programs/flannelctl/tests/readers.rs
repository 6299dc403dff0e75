//! Every command that reads answers people and programs, and ends as scripts rely on: 0 whole, 1 broken, 2 typed
//! wrongly.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

use std::time::Duration;

use flannel_lab::{Lab, Node};
use serde_json::Value;
use yaml_rust2::YamlLoader;

const FLANNELCTL: &str = env!("CARGO_BIN_EXE_flannelctl");
const LIMIT: Duration = Duration::from_secs(60);

struct CommandOutput {
    code: i32,
    text: String,
    errors: String,
}

fn flannelctl(node: &Node, words: &[String], form: Option<&str>) -> CommandOutput {
    let mut command = vec![FLANNELCTL];
    command.extend(words.iter().map(String::as_str));
    command.extend(form.iter().flat_map(|form| ["-o", form]));
    let output = node.output(&command).unwrap();
    let code = output.status.code().unwrap();
    CommandOutput { code, text: output.stdout, errors: output.stderr }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Those that ask the daemon, the kernel or the store of a node whose network is whole. `PODS` are two of them.
const READERS: [&str; 13] = [
    "status",
    "peers",
    "events",
    "diff",
    "repair",
    "check --cni-bin-dir /run/plugins",
    "trace PODS",
    "bundle -f FILE",
    "leases STORE",
    "leases",
    "config get STORE",
    "config get",
    "ipam check",
];

struct Case {
    lab: Lab,
    pods: String,
    store: String,
}

impl Case {
    fn start() -> Self {
        let lab = Lab::builder().nodes(2).start().unwrap();
        let (one, two) = (lab.pod(1).unwrap(), lab.pod(2).unwrap());
        lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
        let pods = format!("{} {}", one.v4().unwrap(), two.v4().unwrap());
        let endpoints = lab.etcd().unwrap().endpoints();
        let store =
            format!("--etcd-endpoints {endpoints} --etcd-prefix {}", lab.spec().etcd_prefix);
        Self { lab, pods, store }
    }

    fn ask(&self, reader: &str, form: Option<&str>) -> CommandOutput {
        let file = format!("/run/bundle-{}.tar.gz", form.unwrap_or("plain"));
        let words = words(
            &reader
                .replace("PODS", &self.pods)
                .replace("STORE", &self.store)
                .replace("FILE", &file),
        );
        flannelctl(self.lab.node(1), &words, form)
    }

    #[track_caller]
    fn ends_with(&self, code: i32, reader: &str) -> CommandOutput {
        let said = self.ask(reader, None);
        assert_eq!(said.code, code, "{reader}: {}{}", said.text, said.errors);
        said
    }
}

#[test]
fn every_reader_answers_in_every_form_and_ends_as_documented() {
    let case = Case::start();
    case.lab
        .wait_until("all to be whole", LIMIT, || {
            let said = ["status", "check --cni-bin-dir /run/plugins", "trace PODS"]
                .map(|reader| case.ask(reader, None));
            let broken = said.iter().find(|said| said.code != 0);
            broken.map_or(Ok(()), |said| Err(format!("{}{}", said.text, said.errors)))
        })
        .unwrap();
    for reader in READERS {
        let [plain, wide, json, yaml] =
            [None, Some("wide"), Some("json"), Some("yaml")].map(|form| case.ask(reader, form));
        for said in [&plain, &wide, &json, &yaml] {
            assert_eq!(said.code, 0, "{reader}: {}{}", said.text, said.errors);
            assert!(!said.text.contains('\u{1b}'), "{reader}: colour is for terminals");
        }
        assert!(!plain.text.is_empty() && !wide.text.is_empty(), "{reader}");
        let documents: Vec<Value> = serde_json::Deserializer::from_str(&json.text)
            .into_iter()
            .map(|value| value.unwrap_or_else(|error| panic!("{reader}: {error}: {}", json.text)))
            .collect();
        let read = YamlLoader::load_from_str(&yaml.text);
        let read = read.unwrap_or_else(|error| panic!("{reader}: {error}: {}", yaml.text));
        assert!(!documents.is_empty(), "{reader}: {}", json.text);
        // Something may happen between the two.
        if reader != "events" {
            assert_eq!(documents.len(), read.len(), "{reader}: {}{}", json.text, yaml.text);
        }
        for key in documents[0].as_object().into_iter().flat_map(|members| members.keys()) {
            assert!(!read[0][key.as_str()].is_badvalue(), "{reader}: {key}: {}", yaml.text);
        }
    }

    // What is not there was typed wrongly.
    let said = case.ends_with(2, "peers no-such-node");
    assert!(said.errors.contains("this node knows no peer no-such-node"), "{}", said.errors);
    assert_eq!(said.text, "");
    case.ends_with(2, "status -o xml");
    case.ends_with(0, "peers 192.168.100.2");

    // A peer that cannot be used.
    let lease = r#"{"PublicIP":"192.168.100.77","PublicIPv6":null,"BackendType":"host-gw"}"#;
    let path = format!("{}/subnets/10.244.250.0-24", case.lab.spec().etcd_prefix);
    case.lab.etcd().unwrap().put(&path, lease).unwrap();
    for reader in ["status", "peers", "peers 192.168.100.77"] {
        case.lab
            .wait_until("it to be broken", LIMIT, || match case.ask(reader, Some("json")) {
                CommandOutput { code: 1, .. } => Ok(()),
                said => Err(format!("{reader}: {}{}", said.text, said.errors)),
            })
            .unwrap();
    }
    case.ends_with(0, "peers 192.168.100.2");
    assert!(case.lab.etcd().unwrap().delete(&path).unwrap());

    // Nobody is there to be asked.
    let node = case.lab.node(1);
    node.flanneld().kill9();
    for reader in ["status", "peers", "events", "diff", "repair"] {
        let said = case.ends_with(1, reader);
        assert!(said.text.is_empty() && said.errors.contains("is it running"), "{}", said.errors);
    }
    node.exec(&["sysctl", "-qw", "net.ipv4.ip_forward=0"]).unwrap();
    let said = case.ends_with(1, &format!("check --cni-bin-dir /run/plugins {}", case.store));
    assert!(said.text.contains("ip_forward"), "{}", said.text);
    case.ends_with(1, &format!("trace PODS {}", case.store));
    case.lab.etcd().unwrap().kill();
    for reader in ["leases STORE", "config get STORE"] {
        assert_eq!(case.ends_with(1, reader).text, "", "{reader}");
    }
}
