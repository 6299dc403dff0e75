//! The page in a real Chromium. What is measured is printed; with FLANNEL_PAGE_SCREENSHOTS=DIRECTORY, pictures of
//! it are left there.

#![allow(clippy::unwrap_used)]

mod devtools;
mod lab;
#[path = "../simulated/mod.rs"]
mod simulated;

use devtools::Browser;
use simulated::{Answering, Simulated};

/// What axe finds wrong for those who use a keyboard or a screen reader.
fn assert_accessible(browser: &mut Browser, what: &str) {
    let file = std::env::var("FLANNEL_TEST_AXE")
        .expect("FLANNEL_TEST_AXE names axe.min.js (scripts/deps)");
    browser.eval(&format!("{}; 0", std::fs::read_to_string(file).unwrap()));
    let found = browser.eval(
        "axe.run().then((found) => found.violations.map((one) => `${one.id}: ${one.help}: ` + \
         one.nodes.map((node) => `${node.target} ${node.failureSummary}`).join('; ')).join('\\n'))",
    );
    assert_eq!(found, "", "{what}: {}", found.as_str().unwrap_or_default());
}

fn busy_network() -> Simulated {
    let simulated = Simulated::new(3);
    for index in 0..3 {
        simulated.change(index, |node| {
            node.events = [
                ("ready", "the network is healthy"),
                ("peer-announced", "10.128.1.0/24 at 127.100.0.2"),
                (
                    "entry-restored",
                    "restored route 10.128.2.0/24 after 412 µs; it was undone by ip (pid 4711)",
                ),
                ("store-lost", "etcd at 10.0.0.1:2379 cannot be reached: connection refused"),
                ("store-found", "The store is back after 3.1 s"),
            ]
            .map(|(kind, what)| (kind.to_owned(), what.to_owned()))
            .to_vec();
        });
    }
    simulated
}

#[test]
fn a_node_that_falls_silent_is_seen_without_reloading_and_so_is_its_return() {
    let simulated = busy_network();
    let url = simulated.serve();
    let mut browser = Browser::start();
    browser.open(&url);
    browser.until("document.querySelector('h1').textContent === 'The network is healthy'");
    browser.until("document.querySelectorAll('#list tbody tr').length === 3");
    browser.until("document.getElementById('live').textContent === 'live'");
    browser.until("!document.getElementById('mesh').hidden");
    for (dark, name) in [(false, "light"), (true, "dark")] {
        browser.dark(dark);
        browser.picture(&format!("three-{name}"));
        assert_accessible(&mut browser, name);
    }
    browser.dark(false);
    browser.eval("window.mark = 'not reloaded'");
    simulated.change(1, |node| node.answer = Answering::Hangs);
    browser.until("document.querySelector('h1').textContent === '1 of 3 nodes needs attention'");
    browser
        .until("document.querySelector('#list tbody tr').textContent.includes('does not answer')");
    assert!(browser.text("#problems").contains("node-0002"), "it is named among what is wrong");
    browser.picture("three-silent");
    assert_accessible(&mut browser, "with a problem");
    // On a phone, what is wrong is above the nodes, and nothing is wider than the screen.
    browser.size(390, 844);
    let top = |browser: &mut Browser, id: &str| {
        let top =
            browser.eval(&format!("document.getElementById('{id}').getBoundingClientRect().top"));
        top.as_f64().unwrap()
    };
    assert!(top(&mut browser, "problems") < top(&mut browser, "nodes"));
    assert_eq!(browser.eval("document.documentElement.scrollWidth <= innerWidth"), true);
    browser.picture("three-narrow");
    browser.size(1_400, 1_000);
    simulated.change(1, |node| node.answer = Answering::Says("ready", None));
    browser.until("document.querySelector('h1').textContent === 'The network is healthy'");
    assert_eq!(browser.eval("window.mark"), "not reloaded");
    browser.fetched_only_from(&url);
}

#[test]
fn a_node_has_a_page_with_all_it_says_which_goes_on_by_itself() {
    let simulated = busy_network();
    let url = simulated.serve();
    let mut browser = Browser::start();
    browser.open(&url);
    browser.until("document.querySelectorAll('#list tbody a').length === 3");
    browser.eval("document.querySelectorAll('#list tbody a')[1].click()");
    browser.until("document.querySelector('#node h1').textContent === 'node-0002'");
    browser.until("document.querySelector('#node').textContent.includes('How it sees its peers')");
    let text = browser.text("#node");
    for part in [
        "eth0",
        "MTU 1500",
        "1450 for pods: eth0 has 1500, vxlan takes 50",
        "it has the default route",
        "up for",
        "2 reached",
        "restored route",
        "0.1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (dark, name) in [(true, "node-dark"), (false, "node")] {
        browser.dark(dark);
        assert_accessible(&mut browser, name);
        browser.picture(name);
    }
    simulated.change(1, |node| {
        node.answer = Answering::Says(
            "cut-off",
            Some("ip_forward is 0; sysctl -w net.ipv4.ip_forward=1".to_owned()),
        );
    });
    browser.until("document.querySelector('#node').textContent.includes('Pods are cut off by this host: flanneld: ip_forward is 0')");
    browser.fetched_only_from(&url);
}

#[test]
fn markup_in_names_reasons_and_events_shows_as_text() {
    let bad = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>";
    let simulated = Simulated::new(3);
    simulated.change(0, |node| {
        node.name = bad.to_owned();
        node.answer = Answering::Says("cut-off", Some(format!("reason {bad}")));
        node.events = vec![(format!("kind {bad}"), format!("event {bad}"))];
    });
    let url = simulated.serve();
    let mut browser = Browser::start();
    browser.open(&url);
    let shown = serde_json::to_string(&format!("reason {bad}")).unwrap();
    browser.until(&format!("document.querySelector('#problems').innerText.includes({shown})"));
    browser.until(&format!("document.querySelector('#list').innerText.includes({shown})"));
    let shown = serde_json::to_string(&format!("event {bad}")).unwrap();
    browser.until(&format!("document.querySelector('#timeline').innerText.includes({shown})"));
    browser.eval("document.querySelector('#list tbody a').click()");
    browser.until("document.querySelector('#node h1')");
    assert_eq!(browser.text("#node h1"), bad);
    assert!(browser.text("#node").contains(&format!("event {bad}")));
    simulated.configure(r#"{"Network":"<img src=x onerror=alert(1)>"}"#);
    browser.open(&url);
    browser.until(
        "document.querySelector('#verdict').innerText.includes('<img src=x onerror=alert(1)>')",
    );
    let made = browser.eval("document.querySelectorAll('img[src=x], main script').length");
    assert_eq!((made, browser.eval("document.title")), (0.into(), "flannel".into()));
    browser.fetched_only_from(&url);
}

#[test]
fn the_overview_needs_no_scripts() {
    let simulated = busy_network();
    simulated.change(2, |node| node.answer = Answering::NotFound);
    let url = simulated.serve();
    let mut browser = Browser::start();
    browser.scripts(false);
    browser.open(&url);
    let text = browser.text("body");
    for part in [
        "The network is healthy",
        "node-0003",
        "reports no state",
        "10.128.0.0/16",
        "restored route",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(browser.eval("getComputedStyle(document.getElementById('map')).display !== 'none' && document.getElementById('map').offsetParent !== null"), false);
    browser.open(&format!("{}/?q=node-0002#nodes", url.split("/page/").next().unwrap()));
    let text = browser.text("#list tbody");
    assert!(text.contains("node-0002") && !text.contains("node-0001"), "{text}");
    browser.picture("no-scripts");
}

#[test]
fn who_has_no_key_sees_a_form_and_who_has_one_comes_in_by_it() {
    let url = Simulated::new(1).serve();
    let (origin, key) = (url.split("/page/").next().unwrap(), url.split('=').nth(1).unwrap());
    let mut browser = Browser::start();
    browser.open(origin);
    assert!(browser.text("form").contains("Token of an operator"));
    browser.picture("form");
    // The answer to one who is not known is an error, which the browser remarks on.
    browser.complaints.clear();
    assert_accessible(&mut browser, "the form");
    browser.fill("#token", "wrong");
    browser.press("Enter", 13);
    browser.until("document.querySelector('[role=alert]')");
    browser.complaints.clear();
    browser.fill("#token", key);
    browser.press("Enter", 13);
    browser.until("document.querySelector('h1').textContent === 'The network is healthy'");
    assert_eq!(browser.eval("document.cookie"), "", "scripts cannot read it");
    browser.fetched_only_from(&url);
}

#[test]
fn five_thousand_nodes_stay_legible_and_bounded() {
    const COUNT: usize = 5_000;
    let simulated = Simulated::new(COUNT);
    for index in (0..COUNT).step_by(997) {
        simulated.change(index, |node| {
            node.answer = Answering::Says(
                "not-ready",
                Some("the store is away: connection refused".to_owned()),
            );
            node.events = vec![(
                "store-lost".to_owned(),
                "etcd at 10.0.0.1:2379 cannot be reached".to_owned(),
            )];
        });
    }
    for index in 2_000..2_024 {
        simulated.change(index, |node| node.answer = Answering::Hangs);
    }
    for index in 3_500..3_600 {
        simulated.change(index, |node| node.answer = Answering::NotFound);
    }
    let url = simulated.serve();
    let mut browser = Browser::start();
    browser.open(&url);
    browser.until("performance.getEntriesByName('first-contentful-paint').length");
    let paint =
        browser.eval("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1");
    browser
        .until("document.getElementById('map').getAttribute('aria-label').includes('5,000 nodes')");
    let drawn = browser.eval("performance.now()");
    // As many as can be seen, not five thousand.
    let lines =
        browser.eval("document.querySelectorAll('#list tbody tr').length").as_f64().unwrap();
    assert!(lines > 10.0 && lines < 100.0, "{lines} rows");

    browser.fill("#q", "node-4321");
    browser.until("document.querySelectorAll('#list tbody tr').length === 1");
    assert!(browser.text("#list tbody").contains("node-4321"));
    browser.eval("document.getElementById('q').value = ''; document.getElementById('q').dispatchEvent(new Event('input')); document.activeElement.blur()");

    browser.until("document.querySelector('#verdict').textContent.includes('30 of 5,000 nodes need attention')");
    browser.until("!document.querySelector('#verdict').textContent.includes('so far')");
    for (dark, name) in [(false, "light"), (true, "dark")] {
        browser.dark(dark);
        browser.picture(&format!("many-{name}"));
    }
    assert_accessible(&mut browser, "5,000 nodes");
    let problems = browser.text("#problems");
    assert!(problems.find("connection refused") < problems.find("do not answer"), "{problems}");
    let (early, messages) =
        (browser.heap(), browser.eval("Number(document.documentElement.dataset.messages)"));
    browser.until(&format!("Number(document.documentElement.dataset.messages) > {messages} + 10"));
    let late = browser.heap();
    println!(
        "page with {COUNT} nodes: first paint {:.0} ms, all drawn {:.0} ms, scripts' memory {:.1} MB, \
         ten messages later {:.1} MB",
        paint.as_f64().unwrap_or_default(),
        drawn.as_f64().unwrap_or_default(),
        early as f64 / 1e6,
        late as f64 / 1e6
    );
    assert!(late < 64 << 20, "{late} bytes of memory");

    // By keyboard alone: to the second node of the map, and into it.
    browser.eval("document.getElementById('map').focus()");
    browser.press("ArrowRight", 39);
    browser.press("ArrowRight", 39);
    assert!(browser.text("#pointed").starts_with("node-0002"), "{}", browser.text("#pointed"));
    browser.press("Enter", 13);
    browser.until("document.querySelector('#node h1')?.textContent === 'node-0002'");
    browser.eval("document.querySelector('#node a.button').click()");
    browser.until("document.getElementById('view').textContent.includes('as node-0002 sees them')");
    browser.picture("many-seen");
    browser.fetched_only_from(&url);
}
