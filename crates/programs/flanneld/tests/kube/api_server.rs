//! An API server that is away, slow, unreliable, forgetful, or another one than before.

use std::net::Ipv4Addr;
use std::time::Duration;

use flannel_kube::testing::Proxy;
use flannel_lab::Result;
use serde_json::json;

use crate::support::{Kube, LIMIT, SERVER, kube, name};

fn through(kube: &Kube, number: u16, proxy: &Proxy) {
    let user = json!({"client-certificate": "admin.crt", "client-key": "admin.key"});
    let file = kube.server.kubeconfig("proxied", &proxy.url(), user);
    kube.replace_flag(number, "--kubeconfig-file", file.display().to_string());
}

#[test]
fn an_api_server_that_is_killed_cuts_nobody_off_and_is_followed_again() -> Result<()> {
    let mut kube = kube(2).start()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    kube.server.kill();
    kube.logged(1, &["The store is unreachable", "watch nodes"])?;
    kube.lab.ping(&one, &two)?;
    let before = kube.busy(1);
    std::thread::sleep(Duration::from_secs(5));
    let used = kube.busy(1) - before;
    assert!(used < Duration::from_secs(1), "it is busy while the API server is away: {used:?}");
    kube.server.restart();
    kube.logged(1, &["The store is reachable again"])?;
    kube.add_peer(9);
    kube.wait("the new peer to be known", || kube.knows(1, 9))?;
    kube.lab.ping(&one, &two)?;
    Ok(())
}

#[test]
fn a_daemon_that_starts_before_the_api_server_waits_for_it() -> Result<()> {
    let mut kube = kube(2).with_nodes()?;
    kube.server.kill();
    (1..=2).for_each(|number| kube.lab.node(number).flanneld().start().unwrap());
    kube.logged(1, &["no answer from https://192.168.100.254:6443"])?;
    kube.server.restart();
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    Ok(())
}

#[test]
fn a_watch_from_too_long_ago_is_begun_anew_and_what_was_missed_is_made_good() -> Result<()> {
    let mut kube = kube(2).with_nodes()?;
    let proxy = kube.proxy();
    through(&kube, 1, &proxy);
    kube.add_peer(9);
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    kube.wait("the peer to be known", || kube.knows(1, 9))?;
    proxy.close();
    kube.logged(1, &["The store is unreachable"])?;
    kube.server.delete_node(&name(9));
    kube.add_peer(8);
    // What it remembered of the past is gone.
    kube.server.restart();
    proxy.open();
    kube.logged(1, &["watch of nodes expired", "listing all of them again"])?;
    kube.wait("who came meanwhile", || kube.knows(1, 8))?;
    // A list that lacks somebody may be a mistake of the server: packets are sent there for another minute.
    kube.lab.wait_until("who went meanwhile", 3 * LIMIT, || !kube.knows(1, 9))?;
    kube.lab.ping(&one, &two)?;
    Ok(())
}

#[test]
fn a_watch_that_breaks_goes_on_where_it_was_without_a_list() -> Result<()> {
    let kube = kube(2).with_nodes()?;
    let proxy = kube.proxy();
    through(&kube, 1, &proxy);
    kube.lab.start_daemons()?;
    kube.connected_pods(1, 2)?;
    let lists = || {
        let metrics = kube.server.ask(&http::Method::GET, "/metrics", None).1;
        let metrics = metrics.as_str().unwrap_or_default().to_owned();
        let lines = metrics.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && line.contains("resource=\"nodes\"")
                && line.contains("verb=\"LIST\"")
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let before = lists();
    for peer in [8, 9] {
        proxy.interrupt();
        kube.add_peer(peer);
        kube.wait("the new peer to be known", || kube.knows(1, peer))?;
    }
    assert_eq!(lists(), before);
    assert!(!kube.lab.node(1).flanneld().log().contains("listing all"));
    Ok(())
}

#[test]
fn a_slow_and_unreliable_api_server_is_worked_with() -> Result<()> {
    let kube = kube(2).with_nodes()?;
    let proxy = kube.proxy();
    (1..=2).for_each(|number| through(&kube, number, &proxy));
    proxy.delay(Duration::from_millis(200));
    // A handshake and a few answers, and no more.
    proxy.break_after(30_000);
    kube.lab.start_daemons()?;
    let (one, two) = kube.connected_pods(1, 2)?;
    for peer in 8..12 {
        proxy.interrupt();
        kube.add_peer(peer);
    }
    kube.wait("all peers to be known", || (8..12).all(|peer| kube.knows(1, peer)))?;
    kube.reach(&one, &two)?;
    let before = proxy.connections();
    std::thread::sleep(Duration::from_secs(5));
    let more = proxy.connections() - before;
    assert!(more < 60, "{more} connections in five seconds: that is a busy loop");
    Ok(())
}

#[test]
fn another_certificate_of_another_authority_is_taken_from_the_file() -> Result<()> {
    let mut kube = kube(2).start()?;
    kube.connected_pods(1, 2)?;
    kube.server.replace_authority();
    kube.server.restart();
    kube.add_peer(9);
    kube.wait("the new peer to be known", || kube.knows(1, 9))?;
    Ok(())
}

#[test]
fn another_address_of_the_api_server_is_taken_from_the_file() -> Result<()> {
    let kube = kube(2).with_nodes()?;
    let proxy = kube.proxy();
    through(&kube, 1, &proxy);
    kube.lab.start_daemons()?;
    proxy.close();
    kube.logged(1, &["The store is unreachable"])?;
    let url = kube.server.url();
    let user = json!({"client-certificate": "admin.crt", "client-key": "admin.key"});
    kube.server.kubeconfig("proxied", &url, user);
    kube.add_peer(9);
    kube.wait("the new peer to be known", || kube.knows(1, 9))?;
    assert_eq!(SERVER, Ipv4Addr::new(192, 168, 100, 254));
    Ok(())
}
