//! Faults that drop or mislead packets on either node, in pods and between them, planted one after the other in one lab:
//! each is named where it is, with what it is, and nothing else is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

mod bed;
mod table;

use flannel_lab::Lab;
use serde_json::Value;

use bed::{At, Bed, FLANNELCTL, LIMIT, hops, nft, start};

#[test]
fn every_even_fault_of_the_table_is_named_where_it_is_and_nothing_else_is() {
    name_faults_of_half(0);
}

#[test]
fn every_odd_fault_of_the_table_is_named_where_it_is_and_nothing_else_is() {
    name_faults_of_half(1);
}

/// Goes through every second fault of the table, so that two tests beside each other go through all.
fn name_faults_of_half(half: usize) {
    let bed = start();
    bed.assert_nothing_wrong("nothing");
    let ports = table::Ports::find(&bed);
    let faults = table::faults(&bed, &ports);
    assert!(faults.len() >= 24, "{}", faults.len());
    let of_half = faults.iter().skip(half).step_by(2);
    let all = of_half.filter_map(|fault| bed.is_named(fault).err());
    let all: Vec<String> = all.collect();
    assert!(all.is_empty(), "{} of {}:\n{}", all.len(), faults.len(), all.join("\n\n"));
    bed.assert_nothing_wrong("all");
}

/// What the daemon of a node says of its one peer.
fn probe(bed: &Bed, node: u16) -> Value {
    let output = bed.lab.node(node).output(&[FLANNELCTL, "peers", "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(output.stdout.lines().next().unwrap()).unwrap()["probe"].clone()
}

#[test]
fn losses_and_a_narrow_path_are_known_to_both_nodes_by_one_number_and_requests_pass_it() {
    let bed = start();
    let wait = |what: &str, holds: &dyn Fn() -> Result<(), String>| {
        bed.lab.wait_until(what, LIMIT, holds).unwrap();
    };
    // Large packets vanish on their way to the second node, whatever they are.
    let hole = nft("bridge", "hook forward", "ip daddr 192.168.100.2 ip length \\> 1200 drop");
    bed.run(At::Between, &hole);
    for node in [1, 2] {
        wait("both to know", &|| {
            let probe = probe(&bed, node);
            let known = probe["verdict"] == "mtu-black-hole" && probe["mtu"] == 1150;
            if known { Ok(()) } else { Err(format!("{node}: {probe:#}")) }
        });
        let found = bed.check(bed.lab.node(node));
        let told: Vec<&(String, String, String)> =
            found.iter().filter(|(_, what, _)| what.contains("bytes")).collect();
        let [(subject, what, fix)] = told.as_slice() else { panic!("{node}: {found:#?}") };
        assert!(subject == "mtu" && what.contains("carries 1200 bytes"), "{node}: {found:#?}");
        assert!(fix.contains("`ip link set dev eth0 mtu 1200`"), "{node}: {found:#?}");
        let said = probe(&bed, node)["fix"].as_str().unwrap().to_owned();
        assert_eq!(*fix, said, "one fix, whoever is asked");
    }
    // Requests and answers come through all the same.
    bed.run(At::Between, "nft delete table bridge planted; for port in p1 p2 s0; do ip link set $port mtu 1200; done");
    let traced = bed.trace(&[]);
    let hops = traced["hops"].as_array().unwrap();
    assert!(hops.iter().any(|hop| hop["node"] == "node2"), "{traced:#}");
    bed.run(At::Between, "for port in p1 p2 s0; do ip link set $port mtu 1500; done");
    wait("the path to be well", &|| match probe(&bed, 1)["verdict"] == "reached" {
        true => Ok(()),
        false => Err(probe(&bed, 1).to_string()),
    });

    // A share of packets is lost.
    bed.run(
        At::There,
        &nft("inet", "hook input", "udp dport 8472 numgen random mod 10 \\< 3 counter drop"),
    );
    wait("losses to be told", &|| {
        let output = bed.lab.node(1).output(&[FLANNELCTL, "status"]).unwrap();
        let says = ["on which side is not known", "probes lost", "round trip"];
        match says.iter().find(|words| !output.stdout.contains(**words)) {
            None => Ok(()),
            Some(words) => Err(format!("{words}: {}", output.stdout)),
        }
    });
    // Where the rule is, it is named.
    wait("the cause to be named", &|| {
        let output = bed.lab.node(2).output(&[FLANNELCTL, "status"]).unwrap();
        let named = output.stdout.contains("on this node: the nftables rule");
        if named { Ok(()) } else { Err(output.stdout) }
    });
}

#[test]
fn an_ipv6_address_given_out_twice_and_a_wrong_ipv6_neighbour_are_named() {
    let lab = Lab::builder().nodes(2).backend("vxlan").ipv6(true).start().unwrap();
    let (one, two, beside) = (lab.pod(1).unwrap(), lab.pod(2).unwrap(), lab.pod(1).unwrap());
    lab.wait_until("pods to reach each other", LIMIT, || lab.ping(&one, &two)).unwrap();
    let (from, to) = (one.v6().unwrap().to_string(), two.v6().unwrap().to_string());
    let says = |place: &str, words: &str| {
        let named = || {
            let words_of = [FLANNELCTL, "trace", &from, &to, "-o", "json"];
            let told = lab.node(1).output(&words_of).map_err(|error| error.to_string())?.stdout;
            let traced: Value = serde_json::from_str(&told).map_err(|error| error.to_string())?;
            let wrong = hops(&traced, "wrong");
            match wrong.first() {
                Some(first) if first.place == place && first.what.contains(words) => Ok(()),
                None if words.is_empty() => Ok(()),
                _ => Err(told),
            }
        };
        lab.wait_until(words, LIMIT, named).unwrap();
    };
    says("", "");
    beside.exec(&["ip", "addr", "add", &format!("{from}/128"), "dev", "eth0", "nodad"]).unwrap();
    says("here there pod", "the address is given out twice");
    beside.exec(&["ip", "addr", "del", &format!("{from}/128"), "dev", "eth0"]).unwrap();
    let wrong = format!("neigh replace {to} lladdr 02:00:00:00:00:99 dev cni0 nud permanent");
    lab.node(2).ip(&wrong).unwrap();
    says("node2 there neighbour", "02:00:00:00:00:99 on cni0");
}

#[test]
#[ignore = "needs a kernel with netem: scripts/vm has one"]
fn delays_and_losses_made_by_netem_are_named_as_slow_and_lossy_with_their_queue() {
    let bed = start();
    let verdict_is = |wanted: &str| {
        let holds = || {
            let probe = probe(&bed, 1);
            if probe["verdict"] == wanted { Ok(()) } else { Err(probe.to_string()) }
        };
        bed.lab.wait_until(wanted, LIMIT, holds).unwrap();
    };
    let status = |node: u16| bed.lab.node(node).output(&[FLANNELCTL, "status"]).unwrap().stdout;
    verdict_is("reached");

    let delay = "the queue netem of eth0 delays all that it sends by 400.0 ms";
    bed.run(At::There, "tc qdisc add dev eth0 root netem delay 400ms");
    verdict_is("slow");
    let said = status(1);
    assert!(said.contains("on which side is not known"), "{said}");
    assert!(said.contains("nothing was found that drops or delays packets"), "{said}");
    let found = bed.check(bed.lab.node(2));
    let is_it = |(of, what, fix): &(String, String, String)| {
        of == "queues" && what.contains(delay) && fix == "tc qdisc del dev eth0 root"
    };
    assert!(found.iter().any(is_it), "{found:#?}");
    let traced = bed.trace(&[]);
    let told = hops(&traced, "unknown");
    assert!(told.iter().any(|hop| hop.what.contains(delay)), "{told:#?}");
    assert!(hops(&traced, "wrong").is_empty(), "{traced:#}");

    bed.run(At::There, "tc qdisc replace dev eth0 root netem loss 30%");
    verdict_is("lossy");
    // The other node finds it out by probes of its own.
    let named = || {
        let said = status(2);
        let is_named = said.contains("netem of eth0, which drops 30.0 % of what it sends");
        if is_named { Ok(()) } else { Err(said) }
    };
    bed.lab.wait_until("its queue to be named", LIMIT, named).unwrap();
    bed.run(At::There, "tc qdisc del dev eth0 root");
    verdict_is("reached");
}
