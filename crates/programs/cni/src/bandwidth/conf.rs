//! The bandwidth plugin's configuration: how fast a container may receive and send.

use crate::kernel::Bucket;
use crate::protocol::{Call, Error, ErrorContext, FieldError, Fields, Result};

/// How long what exceeds the rate may wait, in milliseconds.
const LATENCY: f64 = 25.0;
const MICROSECONDS: f64 = 1e6;

/// In bits, and bits in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    rate: u64,
    burst: u64,
}

/// `None`: as fast as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bandwidth {
    pub(super) receiving: Option<Limit>,
    pub(super) sending: Option<Limit>,
}

impl Bandwidth {
    /// What the configuration says for all containers goes before what the runtime says for this one.
    pub(super) fn read(call: &Call) -> Result<Self> {
        let failed = |error: FieldError| {
            Error::config(format!("failed to parse network configuration: {error}"))
        };
        let fields = call.conf.fields();
        let runtime = fields.object("runtimeConfig").and_then(|it| it.object("bandwidth"));
        let runtime = runtime.map_err(failed)?;
        let of_all = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
        let is_static = of_all.iter().any(|key| fields.get(key).is_some());
        let fields = if is_static { fields } else { runtime };
        Ok(Self {
            receiving: limit(fields, "ingressRate", "ingressBurst", failed)?,
            sending: limit(fields, "egressRate", "egressBurst", failed)?,
        })
    }

    pub(super) fn is_unlimited(self) -> bool {
        self == Self::default()
    }
}

impl Limit {
    /// Numbers that are too large are cut as the Go plugin cuts them: its CHECK compares them.
    pub(super) fn bucket(self) -> Result<Bucket> {
        let ticks = Bucket::ticks_per_microsecond().or_cni("could not read the kernel's clock")?;
        Ok(self.bucket_of(ticks))
    }

    fn bucket_of(self, ticks_per_microsecond: f64) -> Bucket {
        let cut = |number: f64| number as u64 as u32;
        let (rate, burst) = (self.rate / 8, (self.burst / 8) as u32);
        let filling = cut(f64::from(burst) * MICROSECONDS / rate as f64);
        let waiting = cut(rate as f64 * (LATENCY / 1000.0));
        Bucket {
            rate,
            limit: waiting.wrapping_add(burst),
            buffer: cut(f64::from(filling) * ticks_per_microsecond),
        }
    }
}

fn limit(
    fields: Fields<'_>,
    rate: &str,
    burst: &str,
    failed: impl Fn(FieldError) -> Error + Copy,
) -> Result<Option<Limit>> {
    let number = |key| fields.unsigned(key).map(Option::unwrap_or_default).map_err(failed);
    let refuse = |msg: &str| Err(Error::config(msg));
    let limit = Limit { rate: number(rate)?, burst: number(burst)? };
    match limit {
        Limit { rate: 0, burst: 0 } => Ok(None),
        Limit { burst: 0, .. } => refuse("if rate is set, burst must also be set"),
        Limit { rate: 0, .. } => refuse("if burst is set, rate must also be set"),
        Limit { burst, .. } if burst / 8 >= u64::from(u32::MAX) => {
            refuse("burst cannot be more than 4GB")
        }
        Limit { rate: ..8, .. } => refuse("a rate is in bits a second, and 8 at least"),
        limit => Ok(Some(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_become_the_buckets_that_the_go_plugin_makes() {
        // As `tc` shows them of the Go plugin: 1 MB/s with a burst of 2 MB.
        let limit = Limit { rate: 8_000_000, burst: 16_000_000 };
        assert_eq!(
            limit.bucket_of(15.625),
            Bucket { rate: 1_000_000, limit: 2_025_000, buffer: 31_250_000 }
        );
    }
}
