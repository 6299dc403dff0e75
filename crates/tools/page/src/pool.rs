//! The address pool: who has what, what is free, how full it is.

use flannel_lease::{Net, NetworkConfig, SubnetSource};

use crate::leases::LeaseRow;
use crate::node_report::brief;

/// Largest number of cells of a picture; each stands for as many subnets as needed.
const CELLS: u128 = 1_024;
/// Largest pool that is drawn: in a larger one a cell would stand for so much that it looks empty whatever is in it.
const LARGEST: u128 = 1 << 24;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PoolView {
    pub(crate) network: String,
    pub(crate) first: String,
    pub(crate) last: String,
    pub(crate) subnet_len: u8,
    pub(crate) capacity: u128,
    pub(crate) leased: usize,
    pub(crate) reserved: usize,
    /// LeaseSource that are not of this pool: of a former config, or assigned by hand.
    pub(crate) outside: usize,
    /// Whether nodes take subnets from it, or something else assigns them.
    pub(crate) is_pool: bool,
    pub(crate) per_cell: u128,
    /// Empty if the pool is too large to draw.
    pub(crate) cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) leased: u32,
    pub(crate) reserved: u32,
    pub(crate) first: String,
    pub(crate) owner: String,
}

impl PoolView {
    pub(crate) fn of(config: &NetworkConfig, is_pool: bool, leases: &[LeaseRow]) -> Vec<Self> {
        let v4 = config.v4.map(|source| view(source, is_pool, leases, |row| row.subnet.v4()));
        let v6 = config.v6.map(|source| view(source, is_pool, leases, |row| row.subnet.v6()));
        v4.into_iter().chain(v6).flatten().collect()
    }

    pub(crate) fn taken(&self) -> usize {
        self.leased + self.reserved
    }

    pub(crate) fn free(&self) -> u128 {
        self.capacity.saturating_sub(self.taken() as u128)
    }

    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.taken() as f64 / self.capacity as f64
    }
}

/// View of a pool; `None` where nothing has been assigned yet and the length of subnets is unknown.
fn view<N: Net>(
    source: SubnetSource<N>,
    is_pool: bool,
    leases: &[LeaseRow],
    of: impl Fn(&LeaseRow) -> Option<N>,
) -> Option<PoolView> {
    let (first, last, subnet_len) = match source.pool() {
        Some(pool) => (pool.first(), pool.last(), pool.subnet_len()),
        None => {
            let network = source.network();
            let len = leases.iter().filter_map(&of).map(|net| net.prefix_len()).max()?;
            let len = len.max(network.prefix_len());
            (N::around(network.start(), len), N::around(network.end(), len), len)
        }
    };
    let shift = N::BITS - subnet_len;
    let index = |address: u128| (address - first.start()) >> shift;
    let capacity = index(last.start()).saturating_add(1);
    let per_cell = capacity.div_ceil(CELLS);
    let count = if capacity <= LARGEST { capacity.div_ceil(per_cell) } else { 0 };
    let cell = |number: u128| {
        let start = first.start() + ((number * per_cell) << shift);
        Cell { first: N::around(start, subnet_len).to_string(), ..Cell::default() }
    };
    let mut view = PoolView {
        network: source.network().to_string(),
        first: first.to_string(),
        last: last.to_string(),
        subnet_len,
        capacity,
        leased: 0,
        reserved: 0,
        outside: 0,
        is_pool,
        per_cell,
        cells: (0..count).map(cell).collect(),
    };
    for row in leases {
        let Some(net) = of(row) else { continue };
        if net.start() < first.start() || net.start() > last.end() || !source.accepts(net) {
            view.outside += 1;
            continue;
        }
        // An assigned subnet has no end, and is not reserved.
        let is_reserved = is_pool && row.ends.is_none();
        *(if is_reserved { &mut view.reserved } else { &mut view.leased }) += 1;
        // A shorter prefix covers several cells.
        let from = (index(net.start()) / per_cell) as usize;
        let to = (index(net.end().min(last.end())) / per_cell) as usize;
        for cell in view.cells.iter_mut().take(to + 1).skip(from) {
            *(if is_reserved { &mut cell.reserved } else { &mut cell.leased }) += 1;
            let address = || row.address().map(|ip| ip.to_string());
            cell.owner = row.name.clone().map(brief).or_else(address).unwrap_or_default();
        }
    }
    Some(view)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use flannel_lease::SubnetOrigin;

    use super::*;

    fn row(key: &str, reserved: bool) -> LeaseRow {
        LeaseRow {
            subnet: key.parse().expect("a key"),
            name: None,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
            backend: "vxlan".to_owned(),
            ends: (!reserved).then_some(SystemTime::UNIX_EPOCH),
        }
    }

    fn views(config: &str, origin: SubnetOrigin, rows: &[LeaseRow]) -> Vec<PoolView> {
        let config = NetworkConfig::read(config, origin).expect("a good config");
        PoolView::of(&config, origin == SubnetOrigin::Pool, rows)
    }

    #[test]
    fn a_small_pool_has_a_cell_for_each_subnet() {
        let config = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.8.0"}"#;
        let rows = [row("10.5.1.0-24", false), row("10.5.3.0-24", true), row("10.6.0.0-24", false)];
        let [pool] = &views(config, SubnetOrigin::Pool, &rows)[..] else { panic!("one family") };
        assert_eq!((pool.capacity, pool.leased, pool.reserved, pool.outside), (8, 1, 1, 1));
        assert_eq!((pool.free(), pool.percent()), (6, 25.0));
        let taken: Vec<(u32, u32)> = pool.cells.iter().map(|c| (c.leased, c.reserved)).collect();
        assert_eq!(taken[..4], [(1, 0), (0, 0), (0, 1), (0, 0)]);
        assert_eq!(
            (pool.cells[2].first.as_str(), &*pool.cells[2].owner),
            ("10.5.3.0/24", "192.0.2.1")
        );
    }

    #[test]
    fn a_large_pool_is_drawn_in_parts_and_a_huge_one_not_at_all() {
        let large =
            views(r#"{"Network":"10.0.0.0/8"}"#, SubnetOrigin::Pool, &[row("10.0.1.0-24", false)]);
        assert!(large[0].cells.len() <= 1_024 && large[0].per_cell == 64, "{}", large[0].per_cell);
        assert_eq!(large[0].cells[0].leased, 1);
        let dual = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/16"}"#;
        let dual = views(dual, SubnetOrigin::Pool, &[row("10.5.1.0-24&fd00:5:1::-64", false)]);
        assert_eq!((dual.len(), dual[1].leased, dual[1].cells.len()), (2, 1, 0));
    }

    #[test]
    fn where_subnets_are_assigned_their_length_makes_the_cells() {
        let config = r#"{"Network":"10.5.0.0/16"}"#;
        assert!(views(config, SubnetOrigin::Store, &[]).is_empty());
        let rows = [row("10.5.0.0-24", true), row("10.5.64.0-22", true)];
        let pool = &views(config, SubnetOrigin::Store, &rows)[0];
        assert_eq!((pool.capacity, pool.leased, pool.reserved), (256, 2, 0));
        assert_eq!(pool.cells.iter().filter(|cell| cell.leased > 0).count(), 5);
    }
}
