//! How long something takes.

use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// From a tenth of a millisecond, which is a lease written alone, to half a minute.
const SHORTEST: f64 = 0.000_1;
const STEP: f64 = 4.0;
const BUCKETS: u16 = 10;

/// A handle: clones count together.
#[derive(Clone, Debug)]
pub struct Latency(pub(crate) Histogram);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(SHORTEST, STEP, BUCKETS)))
    }
}

impl Latency {
    pub fn observe(&self, took: Duration) {
        self.0.observe(took.as_secs_f64());
    }

    /// What has begun then has ended now.
    pub fn since(&self, begin: Instant) {
        self.observe(begin.elapsed());
    }
}
