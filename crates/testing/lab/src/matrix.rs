//! Who reaches whom: pings between places, single and all pairs at once.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Context, LabError, Result};
use crate::lab::Lab;
use crate::node::Place;
use crate::parallel::parallel;
use crate::ping::{PingOptions, sweep};

/// Sources that ping at the same time.
const AT_ONCE: usize = 64;
/// How long round trips are measured; large labs have more pairs than anybody reads.
const MEASURE: Duration = Duration::from_secs(2);

/// All pairs of some places.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Matrix {
    /// What the rows and columns are called.
    pub labels: Vec<String>,
    /// `cells[from][to]`: the round trip, or why there is none; nothing where nothing was tried, as
    /// on the diagonal.
    pub cells: Vec<Vec<Option<Result<Duration, String>>>>,
}

impl Matrix {
    /// Whether every pair reached each other.
    pub fn complete(&self) -> bool {
        self.failures().next().is_none()
    }

    /// As a terminal shows it.
    pub fn shown(&self) -> flannel_cli::table::Matrix<'_> {
        flannel_cli::table::Matrix { labels: &self.labels, cells: &self.cells }
    }

    /// The pairs that did not: from, to, and what was seen.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.cells.iter().enumerate().flat_map(move |(from, row)| {
            row.iter().enumerate().filter_map(move |(to, cell)| match cell {
                Some(Err(reason)) => {
                    Some((self.labels[from].as_str(), self.labels[to].as_str(), reason.as_str()))
                }
                _ => None,
            })
        })
    }

    /// An error that names the pairs that did not reach each other.
    pub fn check(&self) -> Result<()> {
        let failures: Vec<String> =
            self.failures().map(|(from, to, reason)| format!("{from} -> {to}: {reason}")).collect();
        if failures.is_empty() {
            return Ok(());
        }
        let shown = failures.iter().take(10).cloned().collect::<Vec<_>>().join("; ");
        Err(LabError::Unreachable {
            from: format!("of {} places", self.labels.len()),
            to: format!("{} pairs", failures.len()),
            reason: shown,
        })
    }
}

impl Lab {
    /// Pings once around: every address family that both places have must answer within two
    /// seconds. Returns the longest round trip.
    pub fn ping(&self, from: &dyn PlaceRef, to: &dyn PlaceRef) -> Result<Duration> {
        self.ping_with(from, to, PingOptions::default())
    }

    /// As [`Self::ping`], with other options.
    pub fn ping_with(
        &self,
        from: &dyn PlaceRef,
        to: &dyn PlaceRef,
        options: PingOptions,
    ) -> Result<Duration> {
        ping(from, &common(from, to), &to.label(), options)
    }

    /// Pings an address.
    pub fn ping_address(
        &self,
        from: &dyn PlaceRef,
        to: IpAddr,
        options: PingOptions,
    ) -> Result<Duration> {
        ping(from, &[to], &to.to_string(), options)
    }

    /// Pings between all pairs of pods, in parallel, each for at most `limit`.
    pub fn matrix(&self, limit: Duration) -> Result<Matrix> {
        let pods = self.pods();
        let places: Vec<&dyn PlaceRef> = pods.iter().map(|pod| pod as &dyn PlaceRef).collect();
        self.matrix_of(&places, limit)
    }

    /// As [`Self::matrix`], between any places.
    pub fn matrix_of(&self, places: &[&dyn PlaceRef], limit: Duration) -> Result<Matrix> {
        self.matrix_where(places, limit, |_, _| true)
    }

    /// As [`Self::matrix_of`], but only for the pairs (from, to) of indices that are wanted.
    pub fn matrix_where(
        &self,
        places: &[&dyn PlaceRef],
        limit: Duration,
        wanted: impl Fn(usize, usize) -> bool + Sync,
    ) -> Result<Matrix> {
        let options = PingOptions { limit, ..PingOptions::default() };
        // First all at once, to know who reaches whom; then one after the other, because a round
        // trip under load says nothing about the path.
        let rows: Vec<usize> = (0..places.len()).collect();
        let first = parallel(&rows, AT_ONCE, |&row| {
            cells(places, row, options, |column| wanted(row, column))
        })?;
        let mut cells_of = first.clone();
        let begin = Instant::now();
        for (row, first) in first.iter().enumerate().take_while(|_| begin.elapsed() < MEASURE) {
            let quick = PingOptions { limit: Duration::from_millis(300), ..options };
            let answered = |column: usize| matches!(first.get(column), Some(Some(Ok(_))));
            for (column, again) in single(places, row, quick, answered)? {
                if let Some(Ok(known)) = &mut cells_of[row][column] {
                    *known = again.min(*known);
                }
            }
        }
        Ok(Matrix { labels: places.iter().map(|place| place.label()).collect(), cells: cells_of })
    }
}

/// A place that threads may share; every [`Place`] of the lab is one.
pub trait PlaceRef: Place + Sync {}

impl<T: Place + Sync> PlaceRef for T {}

fn ping(
    from: &dyn PlaceRef,
    addresses: &[IpAddr],
    to: &str,
    options: PingOptions,
) -> Result<Duration> {
    let label = from.label();
    let unreachable =
        |reason: String| LabError::Unreachable { from: label.clone(), to: to.to_owned(), reason };
    if addresses.is_empty() {
        return Err(unreachable("they have no address family in common".into()));
    }
    let answers = from
        .namespace()
        .run(|| sweep(addresses, options))?
        .context(|| format!("ping from {label}"))?;
    let mut longest = Duration::ZERO;
    for (address, answer) in addresses.iter().zip(answers) {
        let round_trip = answer.map_err(|reason| {
            unreachable(format!("{address}: {reason} within {:.1?}", options.limit))
        })?;
        longest = longest.max(round_trip);
    }
    Ok(longest)
}

type Row = Vec<Option<Result<Duration, String>>>;

/// One row of the matrix: all targets at once.
fn cells(
    places: &[&dyn PlaceRef],
    row: usize,
    options: PingOptions,
    wanted: impl Fn(usize) -> bool,
) -> Result<Row> {
    let from = places[row];
    let mut targets = Vec::new();
    let mut owners = Vec::new();
    let mut cells: Row = vec![None; places.len()];
    for (column, to) in places.iter().enumerate() {
        if column == row || !wanted(column) {
            continue;
        }
        let addresses = common(from, *to);
        cells[column] =
            Some(if addresses.is_empty() { Err("no address".into()) } else { Ok(Duration::ZERO) });
        owners.extend(std::iter::repeat_n(column, addresses.len()));
        targets.extend(addresses);
    }
    let answers = from
        .namespace()
        .run(|| sweep(&targets, options))?
        .context(|| format!("ping from {}", from.label()))?;
    for ((column, target), answer) in owners.into_iter().zip(targets).zip(answers) {
        let cell = &mut cells[column];
        *cell = match (cell.take(), answer) {
            (Some(Ok(known)), Ok(round_trip)) => Some(Ok(known.max(round_trip))),
            (Some(Ok(_)), Err(reason)) => Some(Err(format!("{target}: {reason}"))),
            (other, _) => other,
        };
    }
    Ok(cells)
}

/// One row of the matrix again, one target after the other on one thread.
fn single(
    places: &[&dyn PlaceRef],
    row: usize,
    options: PingOptions,
    wanted: impl Fn(usize) -> bool,
) -> Result<Vec<(usize, Duration)>> {
    let from = places[row];
    let targets: Vec<(usize, Vec<IpAddr>)> = (0..places.len())
        .filter(|&column| column != row && wanted(column))
        .map(|column| (column, common(from, places[column])))
        .collect();
    from.namespace().run(|| {
        let mut found = Vec::new();
        for (column, addresses) in targets {
            let answers = sweep(&addresses, options);
            let answers = answers.context(|| format!("ping from {}", from.label()))?;
            if let Ok(trips) = answers.into_iter().collect::<Result<Vec<_>, _>>() {
                found.push((column, trips.into_iter().max().unwrap_or_default()));
            }
        }
        Ok(found)
    })?
}

/// The addresses of `to` in families that `from` has too.
pub(crate) fn common(from: &dyn PlaceRef, to: &dyn PlaceRef) -> Vec<IpAddr> {
    let own = from.addresses();
    let has = |v4: bool| own.iter().any(|address| address.is_ipv4() == v4);
    to.addresses().into_iter().filter(|address| has(address.is_ipv4())).collect()
}
