//! Tables.

use crate::{Nft, NftError, TableFamily, of_table, request, wire};

const TABLE_USE: u16 = 3;
pub(crate) const DORMANT: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Number of chains, sets, counters and flowtables in it.
    pub objects: u32,
    /// Whether somebody has put its chains out of force.
    pub is_dormant: bool,
}

impl Nft {
    pub fn table(&mut self, family: TableFamily, name: &str) -> Result<Option<Table>, NftError> {
        self.get(&request(wire::GET_TABLE, family, of_table(name)), |table| {
            let flags = table.be32(wire::TABLE_FLAGS).unwrap_or_default();
            let objects = table.be32(TABLE_USE).unwrap_or_default();
            Table { objects, is_dormant: flags & DORMANT != 0 }
        })
    }
}
