//! What a daemon and a lease server tell Prometheus, checked by Prometheus' own tool.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flannel_lab::{Lab, LabError, Result, Vandalism};
use serde_json::{Value, json};

use crate::support::{
    LIMIT, connected_pods, lab, lease_path, peer, probe, put_peers, reach_each_other,
};

const LEASE_SERVER: u16 = 10_253;
const PROBES: u16 = 8081;
const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dist/monitoring");

fn promtool() -> PathBuf {
    let cached = || std::env::home_dir().map(|home| home.join(".cache/flannel-rs/bin/promtool"));
    let found = std::env::var_os("FLANNEL_TEST_PROMTOOL").map(PathBuf::from).or_else(cached);
    found.filter(|path| path.exists()).expect("`scripts/deps prometheus` fetches promtool")
}

/// Runs it, and returns what it says if all is well.
fn check(arguments: &[&str], directory: &Path, input: &str) -> String {
    let mut command = Command::new(promtool());
    command.args(arguments).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap()).concat();
    assert!(output.status.success(), "promtool {arguments:?}: {said}\n{input}");
    said
}

fn metrics(lab: &Lab, node: u16) -> String {
    let (status, text) = probe(lab, node, "/metrics").unwrap().expect("the daemon answers");
    assert_eq!(status, 200, "{text}");
    text
}

/// The same with a header, from a port of a node.
fn asked_for(lab: &Lab, port: u16, accept: &str) -> String {
    let answer = lab.node(1).in_netns(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let head = format!("GET /metrics HTTP/1.0\r\nHost: node\r\nAccept: {accept}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    answer.unwrap().split_once("\r\n\r\n").expect("a head and a body").1.to_owned()
}

/// The value of the sample with these labels among others.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let of = |line: &&str| {
        let rest = line.strip_prefix(name).unwrap_or_default();
        (rest.starts_with('{') || rest.starts_with(' '))
            && labels.iter().all(|it| rest.contains(it))
    };
    text.lines().find(of).and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
}

/// Names of metrics, as the head of each says them.
fn names(text: &str) -> BTreeSet<String> {
    let type_of = |line: &str| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned);
    text.lines().filter_map(type_of).collect()
}

/// All that looks like one of our metrics in a file that is shipped.
fn named_in(text: &str) -> BTreeSet<String> {
    let word = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let all = text.split(word).filter(|it| it.starts_with("flannel_"));
    let plain = |it: &str| it.trim_end_matches("_bucket").to_owned();
    all.map(plain).collect()
}

#[test]
fn a_daemon_counts_what_it_has_done_and_promtool_has_nothing_to_say() -> Result<()> {
    let lab = lab(2).start()?;
    connected_pods(&lab)?;
    put_peers(&lab, 200..210)?;
    let other = r#"{"PublicIP":"192.168.100.211","BackendType":"ipip"}"#;
    lab.etcd()?.put(&lease_path(&lab, "10.244.211.0-24"), other)?;
    // Half of a subnet that another one has: their tunnels end at one address.
    lab.etcd()?.put(&lease_path(&lab, "10.244.209.0-25"), peer(212).1)?;
    let counted = |text: &str, state: &str| {
        value(text, "flannel_peers", &[&format!("state=\"{state}\"")]).unwrap()
    };
    let text = lab.wait_until("all to be counted", LIMIT, || {
        let text = metrics(&lab, 1);
        let all = ["programmed", "incomplete", "unusable"].map(|state| counted(&text, state));
        if all == [11.0, 1.0, 1.0] { Ok(text) } else { Err(LabError::Spec(text)) }
    })?;
    assert_eq!(check(&["check", "metrics"], Path::new("/"), &text), "", "{text}");
    let of = |name: &str, labels: &[&str]| value(&text, name, labels);
    assert_eq!(of("flannel_ready", &[]), Some(1.0));
    assert_eq!(of("flannel_store_up", &[]), Some(1.0));
    assert_eq!(of("flannel_peers_unusable", &["reason=\"other-backend\""]), Some(1.0));
    assert_eq!(of("flannel_entries_wanted", &["kind=\"route\""]), Some(12.0));
    assert_eq!(of("flannel_entries_programmed", &["kind=\"route\""]), Some(12.0));
    assert_eq!(of("flannel_entries_contested", &["applier=\"kernel\""]), Some(1.0));
    assert_eq!(of("flannel_entries_repaired_total", &["kind=\"route\""]), Some(0.0));
    let rules = ["applier=\"traffic-rules\"", "kind=\"forward\""];
    assert_eq!(of("flannel_entries_programmed", &rules), Some(1.0));
    assert_eq!(of("flannel_traffic_rules_ok", &[]), Some(1.0));
    assert_eq!(of("flannel_traffic_rules_repaired_total", &["family=\"ipv4\""]), Some(0.0));
    let pool = [of("flannel_pool_subnets", &[]), of("flannel_pool_subnets_used", &[])];
    // Two nodes, ten peers, two more; of which all but those written by hand lie in the pool.
    assert!(pool[0] >= Some(100.0) && pool[1] >= Some(2.0), "{pool:?}");
    let now = jiff::Timestamp::now().as_second() as f64;
    let end = of("flannel_lease_end_timestamp_seconds", &[]).unwrap() - now;
    assert!((80_000.0..=86_500.0).contains(&end), "{end}");
    let contact = now - of("flannel_store_last_contact_timestamp_seconds", &[]).unwrap();
    assert!((-1.0..120.0).contains(&contact), "{contact}");
    assert!(of("flannel_store_to_kernel_duration_seconds_count", &[]) >= Some(1.0));

    lab.node(1).vandalize(&Vandalism::RouteDelete("10.244.203.0/24".to_owned()))?;
    lab.etcd()?.kill();
    lab.wait_until("what happened to be counted", LIMIT, || {
        let text = metrics(&lab, 1);
        let repaired = value(&text, "flannel_entries_repaired_total", &["kind=\"route\""]);
        let up = value(&text, "flannel_store_up", &[]);
        let said = (repaired, up) == (Some(1.0), Some(0.0));
        if said { Ok(()) } else { Err(LabError::Spec(text)) }
    })?;
    lab.etcd()?.restart()?;
    lab.wait_until("the store to be back", LIMIT, || {
        let text = metrics(&lab, 1);
        let restarts = value(&text, "flannel_store_watch_restarts_total", &[]);
        let up = value(&text, "flannel_store_up", &[]);
        if up == Some(1.0) && restarts >= Some(1.0) { Ok(()) } else { Err(LabError::Spec(text)) }
    })
}

/// With more peers there are longer numbers, and nothing else.
#[test]
fn how_much_there_is_to_read_does_not_depend_on_the_number_of_peers() -> Result<()> {
    let config = json!({"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan"}});
    let lab = lab(1).config_json(&config.to_string()).start()?;
    let lease = |n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        let value = json!({
            "PublicIP": format!("172.{}.{b}.{c}", 16 + a),
            "BackendType": "vxlan",
            "BackendData": {"VNI": 1, "VtepMAC": format!("02:00:00:{a:02x}:{b:02x}:{c:02x}")},
        });
        (lease_path(&lab, &format!("10.{}.{}.0-24", 16 + (n >> 8), n & 255)), value.to_string())
    };
    let known = |count: f64| {
        lab.wait_until("the peers to be known", LIMIT, || {
            let text = metrics(&lab, 1);
            let programmed = value(&text, "flannel_peers", &["state=\"programmed\""]);
            if programmed == Some(count) { Ok(text) } else { Err(LabError::Spec(text)) }
        })
    };
    lab.etcd()?.put_many(&[lease(1)])?;
    let few = known(1.0)?;
    let many: Vec<_> = (1..=10_000).map(lease).collect();
    for some in many.chunks(1_000) {
        lab.etcd()?.put_many(some)?;
    }
    let many = known(10_000.0)?;
    assert_eq!(few.lines().count(), many.lines().count());
    assert!(many.len() < few.len() + 500, "{} {}", few.len(), many.len());
    assert!(many.len() < 100_000, "{}", many.len());
    Ok(())
}

/// All that a dashboard asks Prometheus.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("expr").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|it| expressions(it, found));
        }
        Value::Array(items) => items.iter().for_each(|it| expressions(it, found)),
        _ => {}
    }
}

/// Grafana's variables have values by then; as the expressions of rules promtool reads them.
#[test]
fn promtool_understands_what_the_dashboard_asks() {
    let dashboard =
        std::fs::read_to_string(format!("{MONITORING}/flannel-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut asked = Vec::new();
    expressions(&dashboard, &mut asked);
    assert!(asked.len() > 30, "{asked:?}");
    let rules: Vec<Value> = asked
        .iter()
        .enumerate()
        .map(|(number, expression)| {
            let mut expression = expression.replace("$__rate_interval", "5m");
            for variable in ["$instance", "$network"] {
                expression = expression.replace(variable, ".*");
            }
            assert!(!expression.contains('$'), "{expression}");
            json!({"record": format!("dashboard:{number}"), "expr": expression})
        })
        .collect();
    let count = rules.len();
    let directory = tempfile::tempdir().unwrap();
    // JSON is YAML.
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    std::fs::write(directory.path().join("rules.yml"), groups.to_string()).unwrap();
    let said = check(&["check", "rules", "rules.yml"], directory.path(), "");
    assert!(said.contains(&format!("{count} rules found")), "{said}");
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() -> Result<()> {
    let directory = Path::new(MONITORING);
    check(&["check", "rules", "flannel.rules.yml"], directory, "");
    check(&["test", "rules", "flannel.rules.test.yml"], directory, "");
    let [rules, tests] = ["flannel.rules.yml", "flannel.rules.test.yml"]
        .map(|name| std::fs::read_to_string(directory.join(name)).unwrap());
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("alertname: {alert}\n    exp_alerts:\n    - exp_labels");
        assert!(tests.contains(&fires), "{alert} is not seen to fire");
    }
    let server = lab(2).lease_server().backend("udp").start()?;
    let (one, two) = connected_pods(&server)?;
    reach_each_other(&server, &one, &two)?;
    // Both formats, of both.
    let mut there = BTreeSet::new();
    for port in [PROBES, LEASE_SERVER] {
        let text = asked_for(&server, port, "*/*");
        assert_eq!(check(&["check", "metrics"], directory, &text), "", "{text}");
        let open = asked_for(&server, port, "application/openmetrics-text;version=1.0.0");
        let blocks = tempfile::tempdir().unwrap();
        let file = blocks.path().join("metrics");
        // Without a time they are not taken in; this is how they are read, and that they can be.
        let timed = |line: &str| match line.starts_with('#') {
            true => format!("{line}\n"),
            false => format!("{line} 1700000000\n"),
        };
        std::fs::write(&file, open.lines().map(timed).collect::<String>()).unwrap();
        let (file, to) = (file.to_str().unwrap(), blocks.path().to_str().unwrap());
        check(&["tsdb", "create-blocks-from", "openmetrics", file, to], directory, "");
        there.extend(names(&text));
        if port == PROBES {
            let sent = value(&text, "flannel_tunnel_packets_total", &["direction=\"sent\""]);
            assert!(sent >= Some(1.0), "{text}");
        }
    }
    let all = flannel_metrics::node::ALL.iter().chain(flannel_metrics::server::ALL);
    let missing: Vec<_> = all.map(|it| it.name).filter(|name| !there.contains(*name)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "every metric that is documented is told");
    for file in ["flannel.rules.yml", "flannel-dashboard.json"] {
        let text = std::fs::read_to_string(directory.join(file)).unwrap();
        let named = named_in(&text);
        assert!(named.len() > 15, "{file}: {named:?}");
        let unknown: Vec<_> = named.into_iter().filter(|it| !there.contains(it)).collect();
        assert_eq!(unknown, Vec::<String>::new(), "{file}");
    }
    Ok(())
}
