//! Whole tables are sent a few at a time, in the order in which they were asked for.

use flannel_server::Embedded;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flannel_lease::NetworkName;
use flannel_server::lease_state::{Request as Asked, Who};
use flannel_server::{Api, Limits};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Body;
use tokio::time::timeout;

use crate::support::*;

const LIST: &str = "/v1/_/leases";
const STREAM: &str = "/v1/_/events";

const FOR_EVER: Duration = Duration::from_secs(86_400);

type Sending = Pin<Box<dyn Body<Data = Bytes, Error = Infallible>>>;

/// An API that sends two tables at once, and one of more than a single piece.
async fn api(dir: &std::path::Path, snapshot_timeout: Duration) -> Api {
    let limits = Limits { concurrent_snapshots: 2, snapshot_timeout, ..Limits::default() };
    let embedded = Embedded::open(dir, 1).unwrap();
    let set = Asked::SetConfig { text: CONFIG.to_owned(), force: false };
    embedded.ask(&NetworkName::default(), set).await.unwrap();
    for node in 0..40 {
        let data = flannel_lease::RawJson::read(&format!("\"{}\"", "x".repeat(4_000))).unwrap();
        let attrs = flannel_lease::LeaseAttrs { backend_data: data, ..attrs(node) };
        let acquire = Asked::Acquire { attrs, previous: None, who: Who::anybody() };
        embedded.ask(&NetworkName::default(), acquire).await.unwrap();
    }
    Api::new(Arc::new(embedded), limits)
}

/// Asks for a table and takes the first piece of it.
async fn begin(api: &Api, path: &str) -> Sending {
    let request = Request::get(path).body(Empty::<Bytes>::new()).unwrap();
    let response = api.respond(request, Who::anybody()).await;
    assert_eq!(response.status(), 200);
    let mut body: Sending = Box::pin(response.into_body());
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(b"{\"events\":null,\"snapshot\":[{"));
    body
}

/// Takes the rest of the table.
async fn finish(body: &mut Sending) {
    while !body.frame().await.unwrap().unwrap().into_data().unwrap().ends_with(b"}\n") {}
}

/// What is there without waiting for anything but our own tasks.
async fn now<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Option<T> {
    for _ in 0..100 {
        tokio::select! {
            biased;
            done = future.as_mut() => return Some(done),
            () = tokio::task::yield_now() => {}
        }
    }
    None
}

#[tokio::test]
async fn the_first_who_ask_for_the_whole_table_are_done_before_the_next_ones_begin() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(dir.path(), FOR_EVER).await;
    for path in [LIST, STREAM] {
        let mut first = begin(&api, path).await;
        let mut second = begin(&api, path).await;
        let (mut third, mut fourth) = (pin!(begin(&api, path)), pin!(begin(&api, path)));
        let mut fifth = Some(Box::pin(begin(&api, path)));
        let mut sixth = pin!(begin(&api, path));
        assert!(now(&mut third).await.is_none(), "{path}: two are being sent");
        assert!(now(&mut fourth).await.is_none(), "{path}");
        assert!(now(&mut fifth.as_mut().unwrap().as_mut()).await.is_none(), "{path}");
        assert!(now(&mut sixth).await.is_none(), "{path}");

        finish(&mut second).await;
        assert!(now(&mut fourth).await.is_none(), "{path}: it is not this one's turn");
        let third = now(&mut third).await.expect("it is its turn");
        finish(&mut first).await;
        let mut fourth = now(&mut fourth).await.expect("it is its turn");
        // Who goes away, waiting or while it is sent to, leaves its place to the next.
        fifth = None;
        drop((fifth, third));
        let mut sixth = now(&mut sixth).await.expect("it is its turn");
        finish(&mut fourth).await;
        finish(&mut sixth).await;
    }
}

#[tokio::test]
async fn what_is_no_whole_table_waits_for_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(dir.path(), FOR_EVER).await;
    let _two = [begin(&api, LIST).await, begin(&api, STREAM).await];
    for path in ["/v1/_/config", "/v1/_/reservations", "/v1/", "/v1/_/leases?next=40"] {
        let request = Request::get(path).body(Empty::<Bytes>::new()).unwrap();
        let answered = timeout(WAIT_LIMIT, api.respond(request, Who::anybody())).await.unwrap();
        assert_eq!(answered.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn who_does_not_take_its_table_keeps_the_others_waiting_only_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(dir.path(), Duration::from_millis(50)).await;
    let mut lazy = [begin(&api, LIST).await, begin(&api, STREAM).await];
    let mut third = timeout(WAIT_LIMIT, begin(&api, LIST)).await.expect("their turns end");
    finish(&mut third).await;
    for lazy in &mut lazy {
        finish(lazy).await;
    }
}
