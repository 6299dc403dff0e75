//! An operator traces a packet from another node: this node says which of its devices the packet comes by.

use std::time::Duration;

use flannel_common::Task;
use flannel_probe::marked::request::{COUNTERS, WatchReport, WatchRequest};
use flannel_probe::marked::{LargePacket, Mark, Watch, WatchEnd};
use flannel_state::DropCount;
use flannel_trace::DropCounters;
use serde::Deserialize as _;
use serde_json::Value;

use super::requests::NodeRequest;

/// Who asks is done in a few seconds.
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn run(mut request: NodeRequest) {
    let wanted = request.read::<WatchRequest>();
    let said = match wanted.and_then(|wanted| Some((wanted.mark()?, wanted.large()))) {
        Some((mark, large)) => look(&mut request, mark, large).await,
        None => WatchReport::Failed("the request cannot be understood".to_owned()),
    };
    request.answer(&said).await;
}

async fn look(request: &mut NodeRequest, mark: Mark, large: Option<LargePacket>) -> WatchReport {
    let node = request.context.node.borrow().clone();
    let devices = node.map(|node| node.devices.clone()).unwrap_or_default();
    let watch = match Watch::open(mark, devices, large) {
        Ok(watch) => watch,
        Err(error) => {
            return WatchReport::Failed(format!("it cannot look at its devices: {error}"));
        }
    };
    let ended = EndsWhenDropped(WatchEnd::default());
    let stop = ended.0.clone();
    let looking =
        Task::spawn_blocking("marked-packets", move || watch.look(&stop, WATCH_TIMEOUT, None));
    // What is dropped is counted where the asker knows what to make of it.
    let before = match large {
        Some(_) => Task::spawn_blocking("drop-counters", DropCounters::read).await.ok(),
        None => None,
    };
    request.answer(&WatchReport::Looking).await;
    let is_over = |body: &Value| WatchRequest::deserialize(body).is_ok_and(|wanted| wanted.ended);
    // Who does not say so before it is gone is not waited for.
    let _ = request.body.wait_for(is_over).await;
    drop(ended);
    match looking.await {
        Ok(Ok(watched)) => match before {
            Some(before) => {
                WatchReport::Counted { seen: watched.sightings, dropped: grown_since(before).await }
            }
            None => WatchReport::Seen(watched.sightings),
        },
        Ok(Err(error)) => WatchReport::Failed(format!("it cannot look at its devices: {error}")),
        Err(_) => WatchReport::Failed("nobody has looked at its devices".to_owned()),
    }
}

async fn grown_since(before: DropCounters) -> Vec<DropCount> {
    let grow = move || DropCounters::read().grown_since(&before);
    let grown = Task::spawn_blocking("drop-counters", grow);
    let mut grown = grown.await.unwrap_or_default();
    grown.truncate(COUNTERS);
    grown
}

/// The thread that looks is not left behind by a request that is gone.
struct EndsWhenDropped(WatchEnd);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.set();
    }
}
