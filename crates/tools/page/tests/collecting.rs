//! What the page asks of nodes and of the store, and what it says of them; without a browser.

#![allow(clippy::unwrap_used)]

mod simulated;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use simulated::{Answering, Simulated};

/// A browser without scripts: it keeps its cookie.
struct Visitor {
    address: String,
    cookie: String,
}

impl Visitor {
    fn nobody(url: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
        Self { address, cookie: String::new() }
    }

    fn enter(url: &str) -> Self {
        let mut visitor = Self::nobody(url);
        let path = url.split_once(&visitor.address).unwrap().1;
        let answer = visitor.get(path);
        assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
        let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        visitor.cookie = cookie.split(';').next().unwrap().to_owned();
        visitor
    }

    fn get(&self, path: &str) -> String {
        self.send("GET", path, "")
    }

    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncookie: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            self.cookie,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Looks again until the page says so.
    fn until(&self, path: &str, part: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.get(path);
            if answer.contains(part) {
                return answer;
            }
            assert!(Instant::now() < until, "never report: {part}\n{answer}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_network_that_is_whole_is_said_to_be() {
    let simulated = Simulated::new(3);
    simulated.change(1, |node| node.reserved = true);
    let page = Visitor::enter(&simulated.serve()).until("/", "The network is healthy");
    for part in
        ["All 3 nodes say so", "node-0001", "10.128.2.0/24", "reserved for node-0002", "vxlan"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn what_is_wrong_comes_first_and_each_node_is_called_what_it_is() {
    let simulated = Simulated::new(6);
    simulated.change(1, |node| node.answer = Answering::Hangs);
    simulated.change(2, |node| node.answer = Answering::NotFound);
    simulated.change(3, |node| {
        node.answer = Answering::Says("not-ready", Some("no lease: the pool is full".to_owned()));
    });
    simulated.change(4, |node| {
        node.answer = Answering::Says("ready-but", Some("two leases want one MAC".to_owned()));
    });
    simulated.change(5, |node| node.answer = Answering::Endless);
    let visitor = Visitor::enter(&simulated.serve());
    let page = visitor.until("/", "2 of 6 nodes need attention");
    let problems = page.split("<h2>What is wrong</h2>").nth(1).unwrap();
    let place = |text: &str| problems.find(text).unwrap_or_else(|| panic!("{text}: {problems}"));
    assert!(place("no lease: the pool is full") < place("does not answer"));
    assert!(place("does not answer") < place("two leases want one MAC"));
    assert!(
        page.contains("reports no state") || page.contains("report no state"),
        "the Go flannel is not broken"
    );

    let node = visitor.get("/node/10.128.3.0-24");
    for part in [
        "The network is not ready",
        "no lease: the pool is full",
        "eth0",
        "1450 for pods",
        "flanneld 0.1.0",
    ] {
        assert!(node.contains(part), "{part}: {node}");
    }
    assert!(visitor.get("/node/10.9.9.0-24").starts_with("HTTP/1.1 404"));
}

#[test]
fn the_page_is_not_green_before_every_node_was_asked() {
    let simulated = Simulated::new(3);
    simulated.change(1, |node| node.answer = Answering::Hangs);
    let page = Visitor::enter(&simulated.serve()).until("/", "2 of 3 nodes have been asked");
    assert!(!page.contains("banner good"), "{page}");
    assert!(page.contains("Asking the nodes"), "{page}");
}

#[test]
fn a_node_that_most_others_do_not_reach_is_named_as_the_common_cause() {
    let simulated = Simulated::new(5);
    simulated.change(2, |node| node.answer = Answering::CutOff);
    let visitor = Visitor::enter(&simulated.serve());
    let page = visitor.until("/", "4 nodes do not reach node-0003: look at that node first");
    let problems = page.split("<h2>What is wrong</h2>").nth(1).unwrap();
    let place = |text: &str| problems.find(text).unwrap_or_else(|| panic!("{text}: {problems}"));
    assert!(place("look at that node first") < place("nothing comes back"), "{problems}");
}

#[test]
fn requests_of_operators_are_told_on_the_page_of_the_node_alone() {
    let simulated = Simulated::new(2);
    simulated.change(0, |node| {
        let event = |kind: &str, what: &str| (kind.to_owned(), what.to_owned());
        node.events = vec![event("request", "asked for a trace"), event("ready", "it is ready")];
    });
    let visitor = Visitor::enter(&simulated.serve());
    let page = visitor.until("/", "it is ready");
    assert!(!page.contains("asked for a trace"), "{page}");
    visitor.until("/node/10.128.0.0-24", "asked for a trace");
}

#[test]
fn a_long_list_has_pages_which_keep_to_what_is_looked_for() {
    let visitor = Visitor::enter(&Simulated::new(250).serve());
    let rows = |path: &str| visitor.get(path).matches("<th scope=\"row\">").count();
    visitor.until("/", "250");
    assert_eq!([rows("/"), rows("/?page=2"), rows("/?page=9")], [100, 50, 0]);
    assert_eq!(rows("/?q=node-010"), 10);
    let found = visitor.get("/?q=node-0");
    assert!(found.contains("/?page=1&amp;q=node-0&amp;state=#nodes"), "{found}");
}

#[test]
fn text_of_nodes_is_text() {
    let bad = "<img src=x onerror=alert(1)>\"'&";
    let simulated = Simulated::new(2);
    simulated.change(0, |node| {
        node.name = bad.to_owned();
        node.answer = Answering::Says("cut-off", Some(format!("why {bad}")));
        node.events = vec![(format!("kind {bad}"), format!("what {bad}"))];
    });
    let visitor = Visitor::enter(&simulated.serve());
    for path in ["/", "/node/10.128.0.0-24", "/?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"] {
        let page = visitor.until(path, "why &lt;img");
        assert!(!page.contains("<img src=x"), "{page}");
        assert!(page.contains("what &lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;"), "{page}");
    }
    simulated.configure(&format!("{{\"Network\":\"{}\"}}", bad.replace('"', "\\\"")));
    let page = visitor.until("/", "There is no network");
    assert!(page.contains("&lt;img") && !page.contains("<img src=x"), "{page}");
}

#[test]
fn without_the_key_there_is_nothing_to_see() {
    let simulated = Simulated::new(2);
    let url = simulated.serve();
    let nobody = Visitor::nobody(&url);
    for path in [
        "/",
        "/node/10.128.0.0-24",
        "/page/live",
        "/page/seen?node=10.128.0.0-24",
        "/page/enter?token=x",
    ] {
        let answer = nobody.get(path);
        let status = answer.lines().next().unwrap();
        assert!(status.contains("401") || status.contains("303"), "{path}: {answer}");
        assert!(
            !answer.contains("10.128.0.0") && !answer.contains("node-0001"),
            "{path}: {answer}"
        );
    }
    let wrong = nobody.send("POST", "/page/enter", "token=wrong");
    assert!(wrong.contains("401") && wrong.contains("not the token of an operator"), "{wrong}");
    assert!(nobody.send("DELETE", "/", "").starts_with("HTTP/1.1 405"));
    assert_eq!((simulated.asked(), simulated.reads()), (0, 0), "nobody was asked for nobody");

    let visitor = Visitor::enter(&url);
    visitor.until("/", "node-0001");
    visitor.send("POST", "/page/leave", "");
    assert!(visitor.get("/").starts_with("HTTP/1.1 401"), "who has left is out");
}

#[test]
fn every_answer_forbids_what_is_from_elsewhere() {
    let url = Simulated::new(1).serve();
    let visitor = Visitor::enter(&url);
    for path in [
        "/",
        "/page/page.js",
        "/page/page.css",
        "/page/icon.svg",
        "/page/nothing",
        "/node/10.128.0.0-24",
    ] {
        let answer = visitor.get(path).to_lowercase();
        for part in [
            "content-security-policy: default-src 'none'",
            "nosniff",
            "referrer-policy: same-origin",
            "frame-ancestors 'none'",
        ] {
            assert!(answer.contains(part), "{path}: {part}: {answer}");
        }
        assert!(!answer.contains("unsafe"), "{path}: {answer}");
    }
}

#[test]
fn many_nodes_are_asked_at_a_pace_and_only_while_somebody_looks() {
    let simulated = Simulated::new(1_000);
    for index in 0..300 {
        simulated.change(index, |node| node.answer = Answering::Hangs);
    }
    let url = simulated.serve();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((simulated.asked(), simulated.reads()), (0, 0), "nobody looks");
    let visitor = Visitor::enter(&url);
    let began = Instant::now();
    visitor.get("/");
    std::thread::sleep(Duration::from_secs(3));
    let (asked, pace) = (simulated.asked(), 200.0 * began.elapsed().as_secs_f64() + 40.0);
    assert!(
        asked > 0 && (asked as f64) <= pace,
        "{asked} nodes were asked, at most {pace} should be"
    );
    assert!(simulated.most_at_once() <= 64, "{} at once", simulated.most_at_once());
}
