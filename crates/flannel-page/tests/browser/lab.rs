//! The page of real nodes: `flannelctl page` beside a lab's etcd.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use flannel_lab::{Lab, Result};

use crate::devtools::Browser;
use crate::{assert_calm, screenshot};

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

#[test]
fn flannelctl_shows_a_lab_and_a_daemon_that_is_killed_and_comes_back() -> Result<()> {
    let lab = Arc::new(Lab::builder().nodes(3).backend("vxlan").start()?);
    let program = flannel_lab::find_flanneld(None)?.with_file_name("flannelctl");
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(program);
    command
        .args(["page", "--listen", "127.0.0.1:8099", "--etcd-endpoints", &lab.etcd()?.endpoints()])
        .stdin(Stdio::null())
        .stdout(log.reopen().unwrap());
    if let Some(prefix) =
        lab.node(1).flanneld().flags().iter().find(|flag| flag.starts_with("--etcd-prefix"))
    {
        command.arg(prefix);
    }
    let _page = lab.node(1).spawn(command)?;
    let said =
        || BufReader::new(log.reopen().unwrap()).lines().map_while(std::io::Result::ok).next();
    lab.wait_until("an address to open", std::time::Duration::from_secs(20), || {
        said().ok_or_else(|| flannel_lab::LabError::Spec("nothing is said yet".to_owned()))
    })?;
    let url = said().unwrap();
    let url = url.replace(":8099", &format!(":{}", way_into(&lab, 1, 8099)));

    let mut browser = Browser::start();
    browser.open(&url);
    browser.until("document.querySelector('h1').textContent === 'The network is whole'");
    browser.until("document.querySelectorAll('#list tbody tr').length === 3");
    browser.until("document.querySelector('#timeline').textContent.includes('peer announced')");
    screenshot(&mut browser, "lab");
    lab.node(2).flanneld().kill9();
    browser.until("document.querySelector('h1').textContent === '1 of 3 nodes needs attention'");
    let problems = browser.text("#problems");
    assert!(
        problems.contains("192.168.100.2 port 8081") && problems.contains("does not answer"),
        "{problems}"
    );
    lab.node(2).flanneld().start()?;
    browser.until("document.querySelector('h1').textContent === 'The network is whole'");

    let route = lab.node(1).exec(&["ip", "-o", "route", "show", "dev", "flannel.1"])?;
    let subnet = route.split_whitespace().next().unwrap().to_owned();
    lab.node(1).exec(&["ip", "route", "del", &subnet])?;
    browser.until("document.querySelector('#timeline').textContent.includes('entry restored')");
    browser.until(&format!(
        "document.querySelector('#timeline').textContent.includes('restored route {subnet}')"
    ));
    assert_calm(&mut browser, &url);
    Ok(())
}
