//! The page of real nodes, with each store: their names, config and log are written by somebody who means ill.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flannel_lab::{Lab, LabError, Process, Result};

use crate::assert_accessible;
use crate::devtools::Browser;

const LIMIT: Duration = Duration::from_secs(60);
const PAGE: u16 = 8099;
const SERVER: u16 = 10253;
const WHOLE: &str = "document.querySelector('h1').textContent === 'The network is healthy'";
const BAD_NAME: &str = "<img src=x onerror=alert(1)>";
const BAD_KEY: &str = "<script>alert(2)</script>";

/// A way from this machine's loopback to a port of a node's, since the browser is no part of the lab.
fn way_into(lab: &Arc<Lab>, node: u16, port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    let lab = lab.clone();
    std::thread::spawn(move || {
        for from in listener.incoming().flatten() {
            let to = lab.node(node).in_netns(|| TcpStream::connect(("127.0.0.1", port)));
            let Ok(Ok(to)) = to else { continue };
            for (mut one, mut other) in
                [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)]
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut one, &mut other);
                    let _ = other.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    here
}

fn flannelctl() -> PathBuf {
    flannel_lab::find_flanneld(None).unwrap().with_file_name("flannelctl")
}

/// What a command of flannelctl says on a node.
fn says(lab: &Lab, node: u16, words: &[&str]) -> String {
    let program = flannelctl();
    let all = [&[program.to_str().unwrap()], words].concat();
    lab.node(node).exec(&all).unwrap().trim().to_owned()
}

/// `flannelctl page` on node 1, and the address by which the browser comes to it.
fn page(lab: &Arc<Lab>, words: &[&str], token: Option<&str>) -> Result<(Process, String)> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(flannelctl());
    command.args(["page", "--listen", &format!("127.0.0.1:{PAGE}")]).args(words);
    command.stdin(Stdio::null()).stdout(log.reopen().unwrap());
    command.envs(token.map(|token| ("FLANNELD_REMOTE_TOKEN", token)));
    let served = lab.node(1).spawn(command)?;
    let report =
        || BufReader::new(log.reopen().unwrap()).lines().map_while(std::io::Result::ok).next();
    let url = lab.wait_until("an address to open", LIMIT, || {
        report().ok_or_else(|| LabError::Spec("nothing is report yet".to_owned()))
    })?;
    let here = way_into(lab, 1, PAGE);
    Ok((served, url.replace(&format!(":{PAGE}"), &format!(":{here}"))))
}

/// A name that no tool would accept, and that the kernel does.
fn name_badly(lab: &Lab, node: u16) {
    let line = format!("printf '%s' '{BAD_NAME}' >/proc/sys/kernel/hostname");
    lab.node(node).exec(&["sh", "-c", &line]).unwrap();
}

fn configured_badly(config: &str) -> String {
    format!("{}, \"{BAD_KEY}\": 1}}", config.strip_suffix('}').unwrap())
}

/// A node dies and comes back, and each of it is seen without reloading.
fn dies_and_comes_back(lab: &Lab, browser: &mut Browser, node: u16) -> Result<()> {
    let count = lab.nodes().len();
    browser.eval("window.mark = 'not reloaded'");
    lab.node(node).flanneld().kill9();
    browser.until(&format!(
        "document.querySelector('h1').textContent === '1 of {count} nodes needs attention'"
    ));
    let problems = browser.text("#problems");
    let address = lab.node(node).nic().v4.unwrap().addr();
    assert!(
        problems.contains(&format!("{address} port 8081")) && problems.contains("does not answer"),
        "{problems}"
    );
    lab.node(node).flanneld().start()?;
    browser.until(WHOLE);
    assert_eq!(browser.eval("window.mark"), "not reloaded");
    Ok(())
}

/// Opens a node and comes back.
fn a_node_is_opened(browser: &mut Browser, store: &str) {
    browser.eval("document.querySelectorAll('#list tbody a')[1].click()");
    browser.until("document.querySelector('#node')?.textContent.includes('How it sees its peers')");
    // The peers' round trips come with the next probes.
    for part in [store, "up for", "vxlan", "eth0", "all in place", "ms"] {
        browser.until(&format!("document.querySelector('#node').textContent.includes({part:?})"));
    }
    browser.eval("document.querySelector('.brand').click()");
    browser.until(WHOLE);
}

/// What was meant as markup is there, as text, and has become nothing else.
fn is_shown_as_text(browser: &mut Browser) {
    for (part, text) in [("#list", BAD_NAME), ("#timeline", BAD_KEY)] {
        let text = serde_json::to_string(text).unwrap();
        browser.until(&format!("document.querySelector('{part}').innerText.includes({text})"));
    }
    let made = browser.eval("document.querySelectorAll('img[src=x], main script').length");
    assert_eq!((made, browser.eval("document.title")), (0.into(), "flannel".into()));
}

#[test]
fn with_etcd_flannelctl_shows_all_nodes_one_that_dies_and_who_undid_what() -> Result<()> {
    let lab = Arc::new(Lab::builder().nodes(3).backend("vxlan").start()?);
    name_badly(&lab, 3);
    let endpoints = lab.etcd()?.endpoints();
    let (_page, url) = page(&lab, &["--etcd-endpoints", &endpoints], None)?;
    let mut browser = Browser::start();
    browser.open(&url);
    browser.until(WHOLE);
    browser.until("document.querySelectorAll('#list tbody tr').length === 3");
    browser.until("document.querySelector('#timeline').textContent.includes('peer announced')");
    browser.picture("lab");
    dies_and_comes_back(&lab, &mut browser, 2)?;
    a_node_is_opened(&mut browser, "etcd");

    let route = lab.node(1).exec(&["ip", "-o", "route", "show", "dev", "flannel.1"])?;
    let subnet = route.split_whitespace().next().unwrap().to_owned();
    lab.node(1).exec(&["ip", "route", "del", &subnet])?;
    browser.until("document.querySelector('#timeline').textContent.includes('entry restored')");
    browser.until(&format!(
        "document.querySelector('#timeline').textContent.includes('restored route {subnet}')"
    ));
    let prefix = &lab.spec().etcd_prefix;
    let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
    lab.etcd()?.put(&format!("{prefix}/config"), configured_badly(config))?;
    is_shown_as_text(&mut browser);
    browser.fetched_only_from(&url);
    Ok(())
}

/// What the lease server needs to ask everybody who they are, and the tokens: of an operator, and of each node.
fn with_tokens(lab: &Lab) -> (Vec<String>, String) {
    let address = lab.node(1).nic().v4.unwrap().addr().to_string();
    let pki = |words: &[&str]| says(lab, 1, &[&["pki", "--dir", "/run/pki"], words].concat());
    pki(&["init", &address]);
    let operator = pki(&["token", "boss", "--admin"]);
    for node in lab.nodes().iter().skip(1) {
        let name = format!("node-{}", node.number());
        node.flanneld().set_env("FLANNELD_REMOTE_TOKEN", pki(&["token", &name]));
        let mut flags = node.flanneld().flags();
        flags.retain(|flag| !flag.starts_with("--remote") && !flag.starts_with("--etcd"));
        flags.push(format!("--remote={address}"));
        node.flanneld().set_flags(flags);
    }
    let flags = [
        "--remote-certfile=/run/pki/server.pem",
        "--remote-keyfile=/run/pki/server.key",
        "--listen-token-file=/run/pki/tokens",
    ];
    (flags.map(str::to_owned).to_vec(), operator)
}

/// Opens the page of the lease server on node 1: a form, until the token of an operator is given.
fn enter(browser: &mut Browser, lab: &Arc<Lab>, operator: &str) -> String {
    let url = format!("https://127.0.0.1:{}/", way_into(lab, 1, SERVER));
    browser.open(&url);
    assert!(browser.text("form").contains("Token of an operator"));
    let seen = browser.eval("document.body.innerText");
    assert!(!seen.as_str().unwrap().contains("10.244."), "{seen}");
    for path in ["page/live", "page/seen?node=x", "node/10.244.1.0-24"] {
        let answer = browser.eval(&format!(
            "fetch('/{path}').then(async (got) => `${{got.status}} ${{got.url}} ${{await got.text()}}`)"
        ));
        let answer = answer.as_str().unwrap();
        assert!(answer.starts_with("401 ") && !answer.contains("10.244.0.0"), "{path}: {answer}");
    }
    let node = says(lab, 1, &["pki", "--dir", "/run/pki", "token", "another-node"]);
    browser.fill("#token", &node);
    browser.press("Enter", 13);
    browser.until("document.querySelector('[role=alert]')");
    browser.fill("#token", operator);
    browser.press("Enter", 13);
    browser.until("document.querySelector('#verdict')");
    // That who is not known gets an error is remarked on by the browser.
    browser.complaints.clear();
    assert_eq!(browser.eval("document.cookie"), "", "scripts cannot read it");
    url
}

#[test]
fn the_lease_server_shows_its_nodes_to_operators_and_flannelctl_shows_them_too() -> Result<()> {
    let lab =
        Arc::new(Lab::builder().nodes(3).backend("vxlan").lease_server().no_daemons().start()?);
    let (tls, operator) = with_tokens(&lab);
    let server = lab.node(1).flanneld();
    let mut flags = server.flags();
    flags.retain(|flag| flag != "--listen-insecure");
    flags.extend(tls);
    server.set_flags(flags);
    lab.start_daemons()?;
    name_badly(&lab, 3);

    let mut browser = Browser::start();
    let url = enter(&mut browser, &lab, &operator);
    browser.until(WHOLE);
    browser.until("document.querySelectorAll('#list tbody tr').length === 3");
    assert!(browser.text("#about").contains("lease server"), "{}", browser.text("#about"));
    assert!(browser.text("#list").contains("node-2"), "it is called as its token is");
    dies_and_comes_back(&lab, &mut browser, 2)?;
    a_node_is_opened(&mut browser, "lease server");
    assert_accessible(&mut browser, "the lease server's");
    browser.fetched_only_from(&url);

    // The same by an operator's own tool, from a node.
    let remote = format!("--remote={}", lab.node(1).nic().v4.unwrap().addr());
    let (_page, own) = page(&lab, &[&remote], Some(&operator))?;
    browser.open(&own);
    browser.until(WHOLE);
    browser.until("document.querySelectorAll('#list tbody tr').length === 3");

    // Who is no operator any more is out, also where he is looking.
    browser.open(&url);
    browser.until(WHOLE);
    says(&lab, 1, &["pki", "--dir", "/run/pki", "revoke", "boss"]);
    browser.until("document.querySelector('form')?.textContent.includes('Token of an operator')");
    Ok(())
}

#[test]
fn in_front_of_etcd_each_of_several_networks_is_shown() -> Result<()> {
    let builder = Lab::builder().nodes(2).no_daemons().flag("--networks=blue,green");
    let lab = Arc::new(builder.start()?);
    let (tls, operator) = with_tokens(&lab);
    let put = |name: &str, network: &str, vni: u32| {
        let config =
            format!(r#"{{"Network": "{network}", "Backend": {{"Type": "vxlan", "VNI": {vni}}}}}"#);
        let key = format!("{}/{name}/config", lab.spec().etcd_prefix);
        lab.etcd().unwrap().put(&key, configured_badly(&config)).unwrap();
    };
    // The lab's own, which nobody joins.
    lab.etcd()?.delete(&format!("{}/config", lab.spec().etcd_prefix))?;
    put("blue", "10.1.0.0/16", 1);
    put("green", "10.2.0.0/16", 2);
    let server = lab.node(1).flanneld();
    server.add_flag(format!("--listen=:{SERVER}"));
    server.add_flag("--store=etcd");
    server.add_flag("--remote=self");
    tls.into_iter().for_each(|flag| server.add_flag(flag));
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    name_badly(&lab, 1);

    let mut browser = Browser::start();
    let url = enter(&mut browser, &lab, &operator);
    let looks_right = |browser: &mut Browser, network: &str| {
        browser.until(WHOLE);
        browser.until("document.querySelectorAll('#list tbody tr').length === 2");
        let shown = format!("document.querySelector('#about').textContent.includes('{network}')");
        browser.until(&shown);
    };
    let other = "document.querySelector('.networks a:not([aria-current])').click()";
    browser.until("document.querySelectorAll('.networks a').length === 2");
    looks_right(&mut browser, "10.1.0.0/16");
    is_shown_as_text(&mut browser);
    browser.picture("networks");
    assert_accessible(&mut browser, "several networks");
    browser.eval(other);
    looks_right(&mut browser, "10.2.0.0/16");
    // On the page of a node the network stays the same.
    browser.eval("document.querySelectorAll('#list tbody a')[0].click()");
    browser.until("document.querySelector('#node')?.textContent.includes('10.2.')");
    browser.eval("document.querySelector('.brand').click()");
    looks_right(&mut browser, "10.2.0.0/16");
    dies_and_comes_back(&lab, &mut browser, 2)?;
    browser.fetched_only_from(&url);

    let endpoints = lab.etcd()?.endpoints();
    let words = ["--etcd-endpoints", &endpoints, "--networks=blue,green"];
    let (_page, own) = page(&lab, &words, None)?;
    browser.open(&own);
    looks_right(&mut browser, "10.1.0.0/16");
    browser.eval(other);
    looks_right(&mut browser, "10.2.0.0/16");
    Ok(())
}
