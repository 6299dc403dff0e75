//! What browsers ask the page for. The input: who asks, method and address on the first line, and a form after it.

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use flannel_lease::{NetworkName, SubnetOrigin};
use flannel_page::{LeaseRow, LeaseTable, LeaseSource, Page};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::runtime::Runtime;

const TOKEN: &str = "the-operator";
/// A node may be called this, and a browser may ask for it. It must never be HTML.
const MARKUP: &str = "<fuzz";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
});

pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (head, form) = text.split_once('\n').unwrap_or((&text, ""));
    let mut words = head.splitn(3, ' ');
    let (Some(who), Some(method), Some(address)) = (words.next(), words.next(), words.next()) else {
        return;
    };
    let Ok(request) = Request::builder().method(method).uri(address).body(()) else { return };
    // A stream goes on for ever.
    if request.uri().path() == "/page/live" {
        return;
    }
    let (request, ()) = request.into_parts();
    let is_operator = who == "operator";
    RUNTIME.block_on(async {
        let page = Page::new(Arc::new(OneLease), None);
        let gate = move |token: Option<&str>| is_operator || token == Some(TOKEN);
        let response = page.respond(&request, form, false, gate).await;
        let status = response.status();
        assert!(!status.is_server_error() || status == StatusCode::BAD_GATEWAY, "{text} → {status}");
        assert!(response.headers().contains_key("content-security-policy"));
        let is_document = response.headers()["content-type"].as_bytes().starts_with(b"text/html");
        let body = response.into_body().collect().await.expect("it cannot fail").to_bytes();
        let body = String::from_utf8(body.into()).expect("text");
        assert!(!is_document || !body.contains(MARKUP), "{text}: {body}");
        if !is_operator {
            assert!(!body.contains("192.0.2.77"), "{text}: leases are shown to anybody");
        }
    });
}

struct OneLease;

#[async_trait]
impl LeaseSource for OneLease {
    fn store(&self) -> String {
        format!("etcd{MARKUP}")
    }

    fn networks(&self) -> Vec<NetworkName> {
        vec![NetworkName::default()]
    }

    async fn read(&self, _: &NetworkName) -> Result<LeaseTable, String> {
        let row = LeaseRow {
            subnet: "10.5.1.0/24".parse().expect("a subnet"),
            name: Some(format!("node{MARKUP}")),
            v4: Some(Ipv4Addr::new(192, 0, 2, 77)),
            v6: None,
            backend: "vxlan".into(),
            ends: None,
        };
        let config = Some(r#"{"Network":"10.5.0.0/16"}"#.to_owned());
        Ok(LeaseTable { config, subnets: SubnetOrigin::Pool, leases: vec![row] })
    }
}
