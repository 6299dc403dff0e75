//! The HTTP API as clients of old and people with curl use it.

use serde_json::Value;

use crate::support::*;

const ATTRS: &str = r#"{"PublicIP":"192.0.2.1","BackendType":"vxlan","BackendData":{"VNI":1}}"#;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn the_api_of_old_config_acquire_renew_watch_revoke() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), plain_options(0)).await;
    let at = server.address;
    assert_eq!(http(at, "GET /v1/_/config HTTP/1.1", "").await.0, 404);
    assert_eq!(http(at, "PUT /v1/_/config HTTP/1.1", CONFIG).await.0, 200);
    let (status, config) = http(at, "GET /v1/_/config HTTP/1.1", "").await;
    let config = json(&config);
    assert_eq!((status, &config["SubnetLen"]), (200, &24.into()));
    assert_eq!(
        (&config["SubnetMin"], &config["SubnetMax"]),
        (&"10.5.1.0".into(), &"10.5.255.0".into())
    );
    assert_eq!(config["Backend"]["Type"], "vxlan");

    let (_, head, watch) = http_whole(at, "GET /v1/_/leases HTTP/1.1", "").await;
    assert!(head.contains("application/json; charset=utf-8"), "{head}");
    let watch = json(&watch);
    assert_eq!((&watch["events"], &watch["snapshot"]), (&Value::Null, &Value::Array(vec![])));
    let cursor = watch["cursor"].as_str().unwrap().to_owned();
    let path = format!("GET /v1/_/leases?next={cursor} HTTP/1.1");
    let waiting = tokio::spawn(async move { http(at, &path, "").await });

    let (status, lease) = http(at, "POST /v1/_/leases HTTP/1.1", ATTRS).await;
    assert_eq!(status, 200, "{lease}");
    let lease = json(&lease);
    assert_eq!(lease["Attrs"]["BackendData"]["VNI"], 1);
    let cidr = lease["Subnet"].as_str().unwrap().to_owned();
    let key = cidr.replace('/', "-");
    let events = json(&waiting.await.unwrap().1);
    assert_eq!(events["events"][0]["type"], "added");
    assert_eq!(events["events"][0]["lease"]["Subnet"], *cidr);

    let put = format!("PUT /v1/_/leases/{key} HTTP/1.1");
    let body =
        format!(r#"{{"Subnet":"{cidr}","Attrs":{ATTRS},"Expiration":"2030-01-01T00:00:00Z"}}"#);
    assert_eq!(http(at, &put, &body).await.0, 200);
    let one = json(&http(at, &format!("GET /v1/_/leases/{key} HTTP/1.1"), "").await.1);
    assert_eq!(one["snapshot"][0]["Subnet"], *cidr);
    let cursor = one["cursor"].as_str().unwrap().to_owned();
    assert_eq!(
        http(at, &format!("DELETE /v1/_/leases/{key} HTTP/1.1"), "").await,
        (200, String::new())
    );
    let gone = http(at, &format!("GET /v1/_/leases/{key}?next={cursor} HTTP/1.1"), "").await.1;
    assert_eq!(json(&gone)["events"][0]["type"], "removed");
    assert_eq!(http(at, &put, &body).await.0, 404);
}

#[tokio::test]
async fn a_watch_waits_no_longer_than_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let all = json(&http(at, "GET /v1/_/leases HTTP/1.1", "").await.1);
    let cursor = all["cursor"].as_str().unwrap();
    for path in ["/v1/", "/v1/_/leases", "/v1/_/leases/10.5.1.0-24"] {
        let head = format!("GET {path}?next={cursor}&wait=0 HTTP/1.1");
        let (status, text) = http(at, &head, "").await;
        assert_eq!((status, &json(&text)["events"]), (200, &Value::Array(vec![])), "{path}");
    }
    let (status, text) = http(at, "GET /v1/_/events?wait=0 HTTP/1.1", "").await;
    assert_eq!(status, 200);
    assert!(text.contains("\"snapshot\":[]"), "what there is, and the end: {text}");
    assert_eq!(http(at, "GET /v1/_/events?wait=soon HTTP/1.1", "").await.0, 400);
}

#[tokio::test]
async fn networks_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let all = json(&http(at, "GET /v1/ HTTP/1.1", "").await.1);
    assert_eq!(all["snapshot"], Value::from(vec!["_"]));
    let next = format!("GET /v1/?next={} HTTP/1.1", all["cursor"].as_str().unwrap());
    let waiting = {
        let next = next.clone();
        tokio::spawn(async move { http(at, &next, "").await.1 })
    };
    assert_eq!(http(at, "PUT /v1/blue/config HTTP/1.1", CONFIG).await.0, 200);
    let event = json(&waiting.await.unwrap());
    assert_eq!(event["events"][0], serde_json::json!({"type":"added","network":"blue"}));
    assert_eq!(http(at, "DELETE /v1/blue/config HTTP/1.1", "").await.0, 200);
    let events = json(&http(at, &next, "").await.1);
    assert_eq!(events["events"][1], serde_json::json!({"type":"removed","network":"blue"}));
}

#[tokio::test]
async fn reservations_are_added_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let body = r#"{"Subnet":"10.5.9.0/24","PublicIP":"192.0.2.1"}"#;
    assert_eq!(http(at, "POST /v1/_/reservations HTTP/1.1", body).await.0, 200);
    let list = http(at, "GET /v1/_/reservations HTTP/1.1", "").await.1;
    assert_eq!(json(&list), serde_json::from_str::<Value>(&format!("[{body}]")).unwrap());
    let lease = json(&http(at, "POST /v1/_/leases HTTP/1.1", ATTRS).await.1);
    assert_eq!(
        (&lease["Subnet"], &lease["Expiration"]),
        (&"10.5.9.0/24".into(), &"0001-01-01T00:00:00Z".into())
    );
    assert_eq!(http(at, "DELETE /v1/_/leases/10.5.9.0-24 HTTP/1.1", "").await.0, 409);
    assert_eq!(http(at, "DELETE /v1/_/reservations/10.5.9.0-24 HTTP/1.1", "").await.0, 200);
    assert_eq!(http(at, "GET /v1/_/reservations HTTP/1.1", "").await.1.trim(), "[]");
}

#[tokio::test]
async fn a_config_that_would_strand_leases_is_refused_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    http(at, "POST /v1/_/leases HTTP/1.1", ATTRS).await;
    let other = r#"{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}"#;
    let (status, text) = http(at, "PUT /v1/_/config HTTP/1.1", other).await;
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("1 live leases do not fit"), "{text}");
    let (status, text) =
        http(at, "PUT /v1/_/config HTTP/1.1", r#"{"Network":"10.6.0.0/30"}"#).await;
    assert_eq!(status, 400, "{text}");
    assert_eq!(http(at, "PUT /v1/_/config?force=true HTTP/1.1", other).await.0, 200);
    // Nodes that run are told that it is meant.
    let stored = http(at, "GET /v1/_/config?raw=true HTTP/1.1", "").await.1;
    assert!(stored.starts_with(r#"{"Replaces":["10.5.0.0/16"],"Network""#), "{stored}");
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_reasons_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let before = http(at, "GET /v1/_/leases HTTP/1.1", "").await.1;
    for (head, body, status) in [
        ("GET /nowhere HTTP/1.1", "", 404),
        ("GET /v1/no-such/leases HTTP/1.1", "", 404),
        ("POST /v1/no-such/leases HTTP/1.1", ATTRS, 404),
        ("PATCH /v1/_/leases HTTP/1.1", "", 405),
        ("DELETE /v1/_/leases HTTP/1.1", "", 405),
        ("GET /v1/%ff/leases HTTP/1.1", "", 400),
        ("GET /v1/_/leases?next=x HTTP/1.1", "", 400),
        ("GET /v1/_/leases/10.5.1.0 HTTP/1.1", "", 400),
        ("DELETE /v1/_/leases/10.5.1.0-24 HTTP/1.1", "", 404),
        ("POST /v1/_/leases HTTP/1.1", "", 400),
        ("POST /v1/_/leases HTTP/1.1", "[]", 400),
        ("POST /v1/_/leases HTTP/1.1", "{}", 400),
        ("POST /v1/_/leases HTTP/1.1", r#"{"PublicIP":"node"}"#, 400),
        (
            "PUT /v1/_/leases/10.5.1.0-24 HTTP/1.1",
            r#"{"Subnet":"10.5.2.0/24","Attrs":{"PublicIP":"192.0.2.1"}}"#,
            400,
        ),
        ("PUT /v1/_/leases/10.5.1.0-24 HTTP/1.1", r#"{"Attrs":1}"#, 400),
        (
            "POST /v1/_/reservations HTTP/1.1",
            r#"{"Subnet":"10.5.9.1/24","PublicIP":"192.0.2.1"}"#,
            400,
        ),
        (
            "POST /v1/_/reservations HTTP/1.1",
            r#"{"Subnet":"10.7.9.0/24","PublicIP":"192.0.2.1"}"#,
            400,
        ),
        ("POST /v1/_/reservations HTTP/1.1", r#"{"Subnet":"10.5.9.0/24"}"#, 400),
        ("DELETE /v1/_/reservations/10.5.9.0-24 HTTP/1.1", "", 404),
        ("PUT /v1/_/config HTTP/1.1", "{", 400),
        ("PUT /v1/_/leases/10.5.1.0-24?import=true HTTP/1.1", r#"{"Attrs":{}}"#, 400),
        (
            "PUT /v1/_/leases/10.5.1.0-24?import=true HTTP/1.1",
            r#"{"Attrs":{},"Expiration":"0001-01-01T00:00:00Z"}"#,
            400,
        ),
    ] {
        let (got, text) = http(at, head, body).await;
        assert_eq!(got, status, "{head} {body}: {text}");
        assert!(text.trim().len() > 10, "{head}: {text:?}");
        assert!(!text.contains("etcd"), "there is none here: {text}");
    }
    assert_eq!(http(at, "GET /v1/_/leases HTTP/1.1", "").await.1, before);
    let (_, text) = http(at, "GET /v1/x/config HTTP/1.1\r\nAccept: application/json", "").await;
    assert_eq!(json(&text)["code"], "no-network");
}

#[tokio::test]
async fn the_description_of_the_api_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), plain_options(0)).await;
    let (status, text) = http(server.address, "GET /openapi.json HTTP/1.1", "").await;
    let paths = json(&text)["paths"].as_object().unwrap().len();
    assert_eq!((status, paths), (200, 14));
    assert_eq!(http(server.address, "GET /healthz HTTP/1.1", "").await.0, 200);
}

#[tokio::test]
async fn data_nested_too_deeply_is_not_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    let data = |deep: usize| format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    let attrs = |deep| format!(r#"{{"PublicIP":"192.0.2.1","BackendData":{}}}"#, data(deep));
    assert_eq!(http(at, "POST /v1/_/leases HTTP/1.1", &attrs(32)).await.0, 200);
    let (_, leases) = http(at, "GET /v1/_/leases HTTP/1.1", "").await;
    let of = json(&leases)["snapshot"][0]["Subnet"].as_str().unwrap().replace('/', "-");
    for deep in [33, 4_000] {
        let lease = format!(r#"{{"Attrs":{}}}"#, attrs(deep));
        for (head, body) in [
            ("POST /v1/_/leases HTTP/1.1".to_owned(), attrs(deep)),
            (format!("PUT /v1/_/leases/{of} HTTP/1.1"), lease.clone()),
            ("PUT /v1/_/leases/10.5.77.0-24?import=true HTTP/1.1".to_owned(), lease),
        ] {
            let (status, text) = http(at, &head, &body).await;
            assert_eq!(status, 400, "{head}: {text}");
            assert!(text.contains(&format!("BackendData is nested {deep} deep")), "{text}");
        }
    }
    assert_eq!(http(at, "GET /v1/_/leases HTTP/1.1", "").await.1, leases, "nothing has changed");
}

#[tokio::test]
async fn a_config_that_no_node_can_use_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_default(dir.path()).await;
    let at = server.address;
    for backend in [
        r#","Backend":{"Type":"vxlam"}"#,
        r#","Backend":{"Type":"azure"}"#,
        r#","Backend":{"Type":"vxlan","VNI":"one"}"#,
        r#","Backend":{"Type":"vxlan","Port":-1}"#,
        "",
    ] {
        let text = format!(r#"{{"Network":"10.5.0.0/16"{backend}}}"#);
        for head in ["PUT /v1/_/config HTTP/1.1", "PUT /v1/_/config?force=true HTTP/1.1"] {
            let (status, said) = http(at, head, &text).await;
            assert!(status == 400 && said.contains("Backend"), "{text}: {status} {said}");
        }
        assert_eq!(http(at, "GET /v1/_/config?raw=true HTTP/1.1", "").await.1, CONFIG);
    }
    // One that nodes use, with a slip of the pen, is stored as it is; and the writer is told.
    let slip = r#"{ "Network": "10.5.0.0/16", "SubnetLenght": 26, "Backend": {"Type":"vxlan"} }"#;
    let (status, said) = http(at, "PUT /v1/_/config HTTP/1.1", slip).await;
    assert!(status == 200 && said.contains("did you mean SubnetLen?"), "{status} {said}");
    assert_eq!(http(at, "GET /v1/_/config?raw=true HTTP/1.1", "").await.1, slip);
}
