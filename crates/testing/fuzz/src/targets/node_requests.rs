//! Requests that operators place at nodes through a store, and what nodes answer.

use std::collections::BTreeSet;

use flannel_connectivity::protocol::{TestReport, TestRequest, confine};
use flannel_store::{NodeAnswer, NodeRequest, read_answer_body, requests_json};
use ipnet::IpNet;

pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(request) = NodeRequest::read(&text) {
        assert_eq!(NodeRequest::read(&request.to_json()).as_ref(), Ok(&request), "read as another");
        assert!(request.nodes.iter().all(|node| request.concerns(node)));
        // A name with anything else in it would be a part of a key or of a path.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        assert!(request.id.as_str().bytes().chain(request.kind.bytes()).all(plain), "{request:?}");
        assert!(requests_json(std::slice::from_ref(&request)).contains(&request.to_json()));
        if let Ok(test) = serde_json::from_value::<TestRequest>(request.body) {
            send_within_leases(test);
        }
    }
    if let Ok(answers) = NodeAnswer::read_list(&text) {
        let written = NodeAnswer::list_to_json(&answers);
        assert_eq!(NodeAnswer::read_list(&written), Ok(answers), "read as others");
    }
    if let Ok(answer) = NodeAnswer::read(&text) {
        assert_eq!(NodeAnswer::read(&answer.to_json()).as_ref(), Ok(&answer), "read as another");
    }
    let Ok(body) = read_answer_body(&text) else { return };
    if let Ok(report) = serde_json::from_value::<TestReport>(body) {
        let written = serde_json::to_value(&report).expect("a report is JSON");
        assert_eq!(serde_json::from_value::<TestReport>(written).ok(), Some(report));
    }
}

/// Whoever writes a request must not have nodes send to any host.
fn send_within_leases(test: TestRequest) {
    let leases: BTreeSet<IpNet> = ["10.5.1.0/24", "fd05:1::/64"]
        .map(|net| net.parse().expect("a subnet"))
        .into();
    let count = test.pods.len();
    let (tried, refused) = confine(test.pods, &leases);
    assert!(tried.len() + refused.len() <= count);
    for ip in tried.iter().flat_map(|pod| pod.addresses()) {
        assert!(leases.iter().any(|net| net.contains(&ip)), "{ip} is in no lease");
    }
}
