//! Tables and the counters in them.

use flannel_netlink::Attributes;

use crate::{Nft, Result, TableFamily, of_table, request, wire};

/// Number of chains, sets, counters and flowtables in the table.
const TABLE_USE: u16 = 3;
pub(crate) const DORMANT: u32 = 1;
const OWNER: u32 = 2;
const PERSIST: u32 = 4;

/// Who may change a table besides the connection that has made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableOwnership {
    #[default]
    Shared,
    /// Nobody. The table goes with its owner's connection.
    Owned,
    /// Nobody, as long as its owner's connection lasts; the table stays and can be taken over. Kernels before 6.9
    /// refuse it ([`NftError::is_unsupported`]).
    OwnedAndPersistent,
}

impl TableOwnership {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Shared => 0,
            Self::Owned => OWNER,
            Self::OwnedAndPersistent => OWNER | PERSIST,
        }
    }
}

/// A table, without what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Number of chains, sets, counters and flowtables in it.
    pub objects: u32,
    /// Whether somebody has put its chains out of force.
    pub is_dormant: bool,
    pub ownership: TableOwnership,
}

/// What a counter has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

impl Nft {
    pub fn table(&mut self, family: TableFamily, name: &str) -> Result<Option<Table>> {
        self.get(&request(wire::GET_TABLE, family, of_table(name)), |table| {
            let flags = table.be32(wire::TABLE_FLAGS).unwrap_or_default();
            let ownership = match (flags & OWNER != 0, flags & PERSIST != 0) {
                (false, _) => TableOwnership::Shared,
                (true, false) => TableOwnership::Owned,
                (true, true) => TableOwnership::OwnedAndPersistent,
            };
            let objects = table.be32(TABLE_USE).unwrap_or_default();
            Table { objects, is_dormant: flags & DORMANT != 0, ownership }
        })
    }

    /// What a named counter has counted; `None` if there is no such counter.
    pub fn counter(
        &mut self,
        family: TableFamily,
        table: &str,
        name: &str,
    ) -> Result<Option<Counter>> {
        let names = of_table(table)
            .text(wire::OBJECT_NAME, name)
            .be32(wire::OBJECT_TYPE, wire::OBJECT_COUNTER);
        self.get(&request(wire::GET_OBJECT, family, names), read_counter)
    }

    /// All named counters of a table.
    pub fn counters(&mut self, family: TableFamily, table: &str) -> Result<Vec<(String, Counter)>> {
        let question = of_table(table).be32(wire::OBJECT_TYPE, wire::OBJECT_COUNTER);
        self.get_all(&request(wire::GET_OBJECT, family, question), table, |object| {
            Some((object.text(wire::OBJECT_NAME)?.to_owned(), read_counter(object)))
        })
    }
}

fn read_counter(object: Attributes<'_>) -> Counter {
    let data = object.nested(wire::OBJECT_DATA).unwrap_or_default();
    Counter {
        packets: data.be64(wire::COUNTER_PACKETS).unwrap_or_default(),
        bytes: data.be64(wire::COUNTER_BYTES).unwrap_or_default(),
    }
}
