//! Streams between two pods, in both directions and every family, to count what an event costs.

use std::time::Duration;

use flannel_lab::{Lab, PingOptions, Pod, Result, Stream, StreamOptions, StreamReport};

use super::{LIMIT, is_emulated};

/// A datagram every millisecond: an outage of a millisecond is seen. An emulated machine cannot send and
/// receive as many while it does anything else.
fn rate() -> u32 {
    if is_emulated() { 50 } else { 1_000 }
}

/// Packets a second of a stream that a process carries. On a busy machine it does not run for a while, and the queue of
/// its device holds what comes meanwhile.
const RATE_THROUGH_PROCESS: u32 = 1_000;

/// Streams that run.
pub(crate) struct Traffic {
    rate: u32,
    streams: Vec<(String, Stream)>,
}

/// A pod on node 1 and one on node 2, when they reach each other.
pub(crate) fn connected_pods(lab: &Lab) -> Result<(Pod, Pod)> {
    let (one, two) = (lab.pod(1)?, lab.pod(2)?);
    reach_each_other(lab, &one, &two)?;
    Ok((one, two))
}

/// Waits until two pods reach each other.
pub(crate) fn reach_each_other(lab: &Lab, one: &Pod, two: &Pod) -> Result<()> {
    let quick = PingOptions { limit: Duration::from_millis(300), ..PingOptions::default() };
    lab.wait_until("the pods to reach each other", LIMIT, || {
        lab.ping_with(one, two, quick)?;
        lab.ping_with(two, one, quick)
    })?;
    Ok(())
}

/// Streams both ways between two pods, in all families that they have. Returns when they flow.
pub(crate) fn both_ways(lab: &Lab, one: &Pod, two: &Pod) -> Result<Traffic> {
    both_ways_at(rate(), lab, one, two)
}

/// The same over a backend whose packets a process carries, so few that it loses none on a busy machine.
pub(crate) fn both_ways_through_process(lab: &Lab, one: &Pod, two: &Pod) -> Result<Traffic> {
    both_ways_at(rate().min(RATE_THROUGH_PROCESS), lab, one, two)
}

fn both_ways_at(rate: u32, lab: &Lab, one: &Pod, two: &Pod) -> Result<Traffic> {
    reach_each_other(lab, one, two)?;
    let mut streams = Vec::new();
    for (from, to, arrow) in [(one, two, "->"), (two, one, "<-")] {
        for (ipv6, there) in [(false, one.v4().is_some()), (true, one.v6().is_some())] {
            if there {
                let options = StreamOptions { packets_per_second: rate, payload: 64, ipv6 };
                let label = format!("{arrow} {}", if ipv6 { "IPv6" } else { "IPv4" });
                streams.push((label, lab.stream_with(from, to, options)?));
            }
        }
    }
    let traffic = Traffic { rate, streams };
    traffic.flow(lab)?;
    Ok(traffic)
}

impl Traffic {
    /// Waits until every stream delivers (again).
    pub(crate) fn flow(&self, lab: &Lab) -> Result<()> {
        for (label, stream) in &self.streams {
            let before = stream.received();
            lab.wait_until(&format!("the stream {label} to flow"), LIMIT, || {
                if stream.received() > before + u64::from(self.rate / 20) {
                    return Ok(());
                }
                Err(format!("{} sent, {} arrived", stream.sent(), stream.received()))
            })?;
        }
        Ok(())
    }

    /// Ends all streams and tells what became of them.
    pub(crate) fn stop(self) -> Reports {
        let rate = self.rate;
        let streams = self.streams.into_iter().map(|(label, stream)| (label, stream.stop()));
        Reports { rate, streams: streams.collect() }
    }
}

/// What became of all streams.
pub(crate) struct Reports {
    rate: u32,
    streams: Vec<(String, StreamReport)>,
}

impl Reports {
    /// Fails unless everything arrived.
    pub(crate) fn nothing_is_lost(&self) {
        for (label, report) in &self.streams {
            assert!(report.sent > u64::from(self.rate / 10), "{label}: {report:?}");
            assert_eq!(report.lost, 0, "{label}: {report:?}");
        }
    }

    /// The longest time in which nothing arrived on some stream.
    pub(crate) fn longest_gap(&self) -> Duration {
        self.streams.iter().map(|(_, report)| report.longest_gap).max().unwrap_or_default()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.streams.iter().map(|(_, report)| report.lost).sum()
    }
}

impl std::fmt::Display for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sent: u64 = self.streams.iter().map(|(_, report)| report.sent).sum();
        let (streams, lost, gap) = (self.streams.len(), self.lost(), self.longest_gap());
        write!(f, "{lost} of {sent} packets lost on {streams} streams, longest silence {gap:.1?}")
    }
}
