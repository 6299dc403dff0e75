//! The wish that the process ends. Nothing needs a clean end; but an applier may have something to do then.

use tokio::sync::watch;

pub struct StopRequest(watch::Sender<bool>);

#[derive(Clone)]
pub struct Stopping(watch::Receiver<bool>);

pub fn stopping() -> (StopRequest, Stopping) {
    let (request, stopping) = watch::channel(false);
    (StopRequest(request), Stopping(stopping))
}

impl StopRequest {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stopping {
    pub async fn requested(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            // Nobody is left who could ask.
            std::future::pending().await
        }
    }
}
