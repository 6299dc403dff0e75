//! The lease server in front of Kubernetes: nodes have a token and no right in Kubernetes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flannel_kube::testing::NodeSpec;
use flannel_lab::Result;
use serde_json::{Value, json};

use crate::addresses::{V4, V6};
use crate::rights::rules;
use crate::support::{Kube, KubeBuilder, SERVER, cidr, flanneld, go_flanneld, key, kube, name};

const PORT: u16 = 10_253;

fn token(number: u16) -> String {
    format!("the-token-of-node-{number}")
}

/// Beside the API server; gone when dropped.
pub(crate) struct LeaseServer {
    child: Child,
    flags: Vec<String>,
}

impl Drop for LeaseServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(kube: &Kube, flags: &[String]) -> Child {
    let log = std::fs::OpenOptions::new();
    let log = log.clone().create(true).append(true).open(kube.server.file("server.log")).unwrap();
    let mut command = Command::new(flanneld());
    command
        .args(["--store=kube", "--healthz-port=0"])
        .arg(format!("--listen-token-file={}", kube.server.file("tokens").display()))
        .arg(format!("--net-config-path={}", kube.server.file("net-conf.json").display()))
        .args(flags)
        .stdout(Stdio::null())
        .stderr(log);
    kube.server.inside(move || command.spawn().unwrap())
}

impl LeaseServer {
    fn start(kube: &Kube, nodes: u16) -> Self {
        Self::start_with(kube, nodes, PORT, &["--listen-insecure".to_owned()])
    }

    /// With the certificate that the API server has, which is for this machine.
    fn start_with_tls(kube: &Kube, nodes: u16, port: u16) -> Self {
        let flag =
            |name: &str, file: &str| format!("--{name}={}", kube.server.file(file).display());
        let flags = [flag("remote-certfile", "server.crt"), flag("remote-keyfile", "server.key")];
        Self::start_with(kube, nodes, port, &flags)
    }

    /// With no more rights than a node has that speaks with Kubernetes itself.
    fn start_with(kube: &Kube, nodes: u16, port: u16, more: &[String]) -> Self {
        let line = |number: u16| {
            let hash = flannel_store::remote::hash_token(&token(number));
            format!("{hash} {} 192.168.100.{number} fd00:100::{number}\n", name(number))
        };
        let tokens: String = (1..=nodes).map(line).collect();
        std::fs::write(kube.server.file("tokens"), tokens).unwrap();
        let account = kube.server.service_account("flannel", &rules());
        let file = kube.server.kubeconfig("served", &kube.server.url(), json!({"token": account}));
        let mut flags = vec![
            format!("--listen={SERVER}:{port}"),
            format!("--kubeconfig-file={}", file.display()),
        ];
        flags.extend_from_slice(more);
        Self { child: spawn(kube, &flags), flags }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self, kube: &Kube) {
        self.child = spawn(kube, &self.flags);
    }
}

fn log(kube: &Kube) -> String {
    std::fs::read_to_string(kube.server.file("server.log")).unwrap_or_default()
}

/// A node's daemon knows the server and nothing of Kubernetes.
fn by_token(kube: &Kube, number: u16) {
    let daemon = kube.lab.node(number).flanneld();
    let mut flags = daemon.flags();
    let own = ["--kube", "--net-config-path"];
    flags.retain(|flag| !own.iter().any(|own| flag.starts_with(own)));
    flags.push(format!("--remote=http://{SERVER}:{PORT}"));
    flags.push("--remote-insecure".to_owned());
    flags.push(format!("--remote-token={}", token(number)));
    daemon.set_flags(flags);
    daemon.set_env("NODE_NAME", "");
}

pub(crate) fn served(builder: KubeBuilder, nodes: u16) -> Result<(Kube, LeaseServer)> {
    let kube = builder.with_nodes()?;
    (1..=nodes).for_each(|number| by_token(&kube, number));
    let server = LeaseServer::start(&kube, nodes);
    Ok((kube, server))
}

/// Status and body of a request with a node's token.
fn http(kube: &Kube, number: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let token = token(number);
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = kube.server.inside(|| {
        let mut stream = TcpStream::connect((SERVER, PORT)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn nodes_with_a_token_alone_are_served_while_api_server_and_lease_server_come_and_go() -> Result<()>
{
    let (mut kube, mut server) = served(kube(2), 2)?;
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    for number in 1..=2 {
        assert_eq!(kube.annotation(number, "kube-subnet-manager").as_deref(), Some("true"));
        let address = format!("192.168.100.{number}");
        assert_eq!(kube.annotation(number, "public-ip"), Some(address));
        kube.wait("the condition to be set", || {
            kube.server.network_unavailable(&name(number)).as_deref() == Some("False")
        })?;
    }

    kube.server.kill();
    kube.wait("the server to notice", || log(&kube).contains("cannot watch nodes"))?;
    kube.lab.ping(&one, &two)?;
    kube.server.restart();
    kube.add_peer(8);
    kube.wait("the new peer to be known", || kube.knows(1, 8) && kube.knows(2, 8))?;

    server.kill();
    kube.logged(1, &["The store is unreachable"])?;
    kube.lab.ping(&one, &two)?;
    kube.add_peer(9);
    server.restart(&kube);
    kube.wait("who came meanwhile", || kube.knows(1, 9))?;
    kube.server.delete_node(&name(8));
    kube.wait("who goes now", || !kube.knows(1, 8))?;
    kube.reach(&one, &two)?;
    let log = kube.lab.node(1).flanneld().log();
    let lost: Vec<&str> = log.lines().filter(|line| line.contains("taking it back")).collect();
    assert_eq!(lost, Vec::<&str>::new(), "nobody has lost anything: {log}");
    Ok(())
}

#[test]
fn a_node_writes_its_own_node_object_and_no_other() -> Result<()> {
    let (kube, _server) = served(kube(2), 2)?;
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    let others = kube.server.annotations(&name(2));
    let attrs = |address: &str| json!({"PublicIP": address, "BackendType": "vxlan"});
    let lease = |address: &str| json!({"Attrs": attrs(address)}).to_string();

    // Node 1's token, node 2's subnet.
    let path = "/v1/_/leases/10.244.2.0-24";
    let (status, said) = http(&kube, 1, "PUT", path, &lease("192.168.100.1"));
    assert_eq!(status, 404, "{said}");
    let (status, said) = http(&kube, 1, "DELETE", path, "");
    assert!(status == 409 && said.contains("kubectl delete node node-2"), "{status} {said}");
    // And node 2's address.
    for (method, path, body) in [
        ("PUT", "/v1/_/leases/10.244.1.0-24", lease("192.168.100.2")),
        ("POST", "/v1/_/leases", attrs("192.168.100.2").to_string()),
    ] {
        let (status, said) = http(&kube, 1, method, path, &body);
        assert!(status == 403 && said.contains("192.168.100.2"), "{status} {said}");
    }
    // And node 2's MAC.
    let data = &others["flannel.alpha.coreos.com/backend-data"];
    let data: Value = serde_json::from_str(data.as_str().unwrap()).unwrap();
    let copied = json!({"PublicIP": "192.168.100.1", "BackendType": "vxlan", "BackendData": data});
    for (method, path, body) in [
        ("PUT", "/v1/_/leases/10.244.1.0-24", json!({"Attrs": copied})),
        ("POST", "/v1/_/leases", copied.clone()),
    ] {
        let (status, said) = http(&kube, 1, method, path, &body.to_string());
        assert!(status == 409 && said.contains("10.244.2.0-24"), "{status} {said}");
    }
    // What it may do, it does to its own.
    let (status, said) =
        http(&kube, 1, "POST", "/v1/_/leases", &attrs("192.168.100.1").to_string());
    let lease: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (status, &lease["Subnet"], &lease["Owner"]),
        (200, &json!(cidr(1)), &json!("node-1"))
    );
    assert_eq!(kube.server.annotations(&name(2)), others, "node 2 is as it was");

    // What is Kubernetes' to do is said, and not done.
    let reservation = r#"{"Subnet":"10.244.9.0/24","PublicIP":"192.168.100.9"}"#;
    let config = r#"{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}"#;
    let operator = format!("{} boss admin\n", flannel_store::remote::hash_token(&token(9)));
    let tokens = std::fs::read_to_string(kube.server.file("tokens")).unwrap();
    std::fs::write(kube.server.file("tokens"), tokens + &operator).unwrap();
    kube.wait("the operator's token to be known", || {
        http(&kube, 9, "GET", "/v1/_/config", "").0 == 200
    })?;
    for (method, path, body, words) in [
        ("POST", "/v1/_/reservations", reservation, "spec.podCIDRs"),
        ("PUT", "/v1/_/config", config, "kubectl -n kube-flannel edit configmap"),
    ] {
        let (status, said) = http(&kube, 9, method, path, body);
        assert!(status == 409 && said.contains(words), "{status} {said}");
    }
    Ok(())
}

#[test]
fn a_served_node_follows_what_becomes_of_its_node_object() -> Result<()> {
    let (kube, _server) = served(kube(2), 2)?;
    kube.server.delete_node(&name(2));
    kube.lab.node(1).flanneld().start()?;
    kube.lab.node(2).flanneld().start()?;
    kube.logged(2, &["no subnet assigned yet", "there is no Node \"node-2\"", "pki token"])?;
    kube.server.create_node(&NodeSpec::new(&name(2)));
    // Of a length that no pool of this network would hand out.
    kube.server.assign(&name(2), &["10.244.2.0/25"]);
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;

    for suffix in ["kube-subnet-manager", "backend-data"] {
        kube.server.annotate(&name(2), &key(suffix), None);
        kube.wait("it to be written again", || kube.annotation(2, suffix).is_some())?;
        kube.reach(&one, &two)?;
    }

    // Made anew with another subnet, under a daemon that runs.
    kube.server.delete_node(&name(2));
    kube.server.create_node(&NodeSpec::new(&name(2)).cidr("10.244.22.0/24"));
    kube.server.set_network_unavailable(&name(2));
    kube.wait("node 2 to be known by its new subnet", || {
        kube.routes(1).is_ok_and(|it| it.contains("10.244.22.0/24") && !it.contains("10.244.2.0"))
    })?;
    kube.wait("the condition to be set anew", || {
        kube.server.network_unavailable(&name(2)).as_deref() == Some("False")
    })?;
    kube.wait_for_subnet_file(2, "10.244.22.0/24")?;
    kube.connected_pods(1, 2)?;

    // The config is edited.
    kube.put_config(&json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 7}}));
    kube.wait("the nodes to follow", || kube.lab.node(2).ip("link show flannel.7").is_ok())?;
    kube.connected_pods(1, 2)?;
    Ok(())
}

#[test]
fn an_address_that_an_operator_has_written_is_announced_for_a_served_node_and_taken_back()
-> Result<()> {
    let (kube, _server) = served(kube(2).dual(), 2)?;
    for known in [V4, V6] {
        known.add_other(&kube)?;
    }
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    for known in [V4, V6] {
        known.overwrite(&kube, Some(known.other));
        known.wait_for(&kube, known.other)?;
        kube.reach(&one, &two)?;
        // Long before the node says again who it is.
        known.overwrite(&kube, None);
        known.wait_for(&kube, known.own)?;
        kube.reach(&one, &two)?;
    }
    std::thread::sleep(Duration::from_secs(3));
    let taken_back = kube.lab.node(2).flanneld().log().matches("taking it back").count();
    assert!(taken_back <= 4, "it fights with the operator: {taken_back}");
    Ok(())
}

/// How many watches of Nodes the API server serves.
fn watches(kube: &Kube) -> f64 {
    let metrics = kube.server.ask(&http::Method::GET, "/metrics", None).1;
    let metrics = metrics.as_str().unwrap_or_default().to_owned();
    let of_nodes = metrics.lines().filter(|line| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("resource=\"nodes\"")
            && line.contains("verb=\"WATCH\"")
    });
    of_nodes.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn of_two_servers_with_tls_one_may_go_and_the_api_server_is_watched_by_servers_alone() -> Result<()>
{
    let kube = kube(3).with_nodes()?;
    // The API server itself is one of those who watch.
    let before = watches(&kube);
    let mut servers = [PORT, PORT + 1].map(|port| LeaseServer::start_with_tls(&kube, 3, port));
    for number in 1..=3 {
        by_token(&kube, number);
        let remotes = format!("https://{SERVER}:{PORT},https://{SERVER}:{}", PORT + 1);
        kube.replace_flag(number, "--remote", remotes);
        let authority = kube.server.authority_file().display().to_string();
        kube.replace_flag(number, "--remote-cafile", authority);
        let daemon = kube.lab.node(number).flanneld();
        let mut flags = daemon.flags();
        flags.retain(|flag| flag != "--remote-insecure");
        daemon.set_flags(flags);
    }
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    kube.connected_pods(1, 3)?;
    kube.wait("two servers and three nodes to be two watches", || watches(&kube) == before + 2.0)?;

    // Whichever server a node speaks with, it hears of others when that one is gone.
    for (gone, peer) in [(0, 8), (1, 9)] {
        servers[gone].kill();
        kube.wait("one watch less", || watches(&kube) == before + 1.0)?;
        kube.add_peer(peer);
        kube.wait("all nodes to know the new peer", || (1..=3).all(|it| kube.knows(it, peer)))?;
        kube.lab.ping(&one, &two)?;
        servers[gone].restart(&kube);
        kube.wait("the other watch again", || watches(&kube) == before + 2.0)?;
    }
    // One that does not know a node's token does not serve it.
    kube.replace_flag(1, "--remote-token", "a-token-that-nobody-knows");
    kube.lab.node(1).flanneld().stop()?;
    kube.lab.node(1).flanneld().start()?;
    kube.logged(1, &["token"])?;
    assert!(!kube.lab.node(1).flanneld().is_ready());
    Ok(())
}

#[test]
fn served_nodes_and_the_go_flannel_are_one_network() -> Result<()> {
    for dual in [false, true] {
        let builder = kube(2).node_flanneld(2, go_flanneld());
        let builder = if dual { builder.dual() } else { builder };
        let kube = builder.with_nodes()?;
        by_token(&kube, 1);
        let _server = LeaseServer::start(&kube, 1);
        kube.lab.start_daemons()?;
        let (one, two) = kube.connected_pods(1, 2)?;
        kube.lab.node(2).flanneld().restart()?;
        kube.reach(&one, &two)?;
    }
    Ok(())
}
