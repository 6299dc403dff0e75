//! An operator traces a packet from another node: this node looks which of its devices the packet comes by, and says so
//! when it is told that all were sent.

use std::time::Duration;

use flannel_probe::marked::request::{Asked as Wanted, Said};
use flannel_probe::marked::{Ended, Mark, Watch};
use serde_json::Value;

use super::requests::Asked;

/// Who asks is done in a few seconds.
const LONGEST: Duration = Duration::from_secs(60);

/// Goes on until it is dropped.
pub(super) async fn run(mut asked: Asked) {
    let mark = read(&asked.body.borrow_and_update()).and_then(|wanted| wanted.mark());
    let said = match mark {
        Some(mark) => look(&mut asked, mark).await,
        None => Said::Failed("the request cannot be understood".to_owned()),
    };
    asked.answer(&said).await;
}

async fn look(asked: &mut Asked, mark: Mark) -> Said {
    let node = asked.means.node.borrow().clone();
    let devices = node.map(|node| node.devices.clone()).unwrap_or_default();
    let watch = match Watch::open(mark, devices) {
        Ok(watch) => watch,
        Err(error) => return Said::Failed(format!("it cannot look at its devices: {error}")),
    };
    let ended = EndsWhenDropped(Ended::default());
    let stop = ended.0.clone();
    let looking = tokio::task::spawn_blocking(move || watch.look(&stop, LONGEST, None));
    asked.answer(&Said::Looking).await;
    let is_over = |body: &Value| read(body).is_some_and(|wanted| wanted.ended);
    // Who does not say so before it is gone is not waited for.
    let _ = asked.body.wait_for(is_over).await;
    drop(ended);
    match looking.await {
        Ok(Ok(seen)) => Said::Seen(seen),
        Ok(Err(error)) => Said::Failed(format!("it cannot look at its devices: {error}")),
        Err(_) => Said::Failed("nobody has looked at its devices".to_owned()),
    }
}

/// The thread that looks is not left behind by a request that is gone.
struct EndsWhenDropped(Ended);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.set();
    }
}

fn read(body: &Value) -> Option<Wanted> {
    serde_json::from_value(body.clone()).ok()
}
