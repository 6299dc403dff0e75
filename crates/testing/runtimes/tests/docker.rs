//! Docker without any orchestrator, as the oldest users run flannel: flanneld writes `subnet.env`,
//! `mk-docker-opts.sh` makes Docker's options of it, and Docker's own bridge does the rest.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use flannel_lab::{Lab, Place as _};
use flannel_runtimes::{Docker, Outside, Runtime as _, flanneld, measured, say_hello_to};

const WORLD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

fn lab() -> Lab {
    let builder = Lab::builder().nodes(2).flanneld(flanneld()).flag("--ip-masq");
    builder.start().expect("start a lab")
}

#[test]
fn containers_of_two_dockers_reach_each_other_and_the_world() {
    let lab = lab();
    // As a fresh machine has it. Docker switches it on, and then drops what nobody accepts: it is
    // flannel's forward rules that let containers through.
    for node in lab.nodes() {
        node.namespace().sysctl("net/ipv4/ip_forward", "0").expect("no forwarding yet");
    }
    let begun = Instant::now();
    let (one, two) = (Docker::on(lab.node(1)), Docker::on(lab.node(2)));
    measured(format_args!("two dockerds ready: {:?}", begun.elapsed()));
    let policy = lab.node(2).exec(&["iptables", "-S", "FORWARD"]).expect("list the forward chain");
    assert!(policy.contains("-P FORWARD DROP"), "Docker has changed its ways: {policy}");

    one.start("client", &[], &["sleep", "1000"]);
    // Shows whoever calls the connection as the server sees it.
    two.serve("server", &[], 80, &["/bin/netstat", "-tn"]);
    two.serve("web", &["--publish", "8080:81"], 81, &["/bin/echo", "hello"]);

    let (client, server) = (one.address("client"), two.address("server"));
    let env = lab.node(1).subnet_env().expect("subnet.env");
    assert!(env.subnet.expect("IPv4").contains(&client), "{client} is not of node 1's subnet");
    let device = one.exec("client", &["ip", "link", "show", "eth0"]).expect("look at its device");
    assert!(device.contains(&format!("mtu {} ", env.mtu)), "not flannel's MTU: {device}");

    one.exec("client", &["ping", "-c", "1", "-W", "5", &server.to_string()]).expect("1 to 2");
    two.exec("server", &["ping", "-c", "1", "-W", "5", &client.to_string()]).expect("2 to 1");
    let answer = one.exec("client", &["nc", &server.to_string(), "80"]).expect("TCP from 1 to 2");
    assert!(answer.contains(&format!("{client}:")), "the server does not see {client}: {answer}");

    let address = |number| lab.node(number).addresses().into_iter().find(IpAddr::is_ipv4);
    let (first, second) = (address(1).expect("IPv4"), address(2).expect("IPv4"));
    assert_eq!(say_hello_to(lab.switch(), second, 8080).expect("a published port"), "hello");
    let [world, port] = Outside::serve(&lab, WORLD).for_nc();
    let seen = one.exec("client", &["nc", &world, &port]).expect("reach the world");
    assert_eq!(seen.trim(), first.to_string(), "the world does not see the node");
}
