//! Finds and removes tables and chains of nftables. Each removal is one transaction.

use std::io;

use flannel_netlink::nfnetlink::{self, NFTABLES, NetfilterRequest};
use flannel_netlink::{AttributeWriter, Connection, Protocol};

use super::wire::{self, request};
use crate::Family;

pub(crate) struct Objects {
    connection: Connection,
}

impl Objects {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { connection: Connection::open(Protocol::Netfilter)? })
    }

    pub(crate) fn has_table(&mut self, family: Family, table: &str) -> io::Result<bool> {
        self.has(&request(wire::GET_TABLE, family, table_name(table)))
    }

    pub(crate) fn has_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> io::Result<bool> {
        let names = table_name(table).text(wire::CHAIN_NAME, chain);
        self.has(&request(wire::GET_CHAIN, family, names))
    }

    /// With all that is in it. Returns whether it was there.
    pub(crate) fn remove_table(&mut self, family: Family, table: &str) -> io::Result<bool> {
        if !self.has_table(family, table)? {
            return Ok(false);
        }
        self.commit(&[request(wire::DELETE_TABLE, family, table_name(table))])?;
        Ok(true)
    }

    /// With all that is in it and the jumps to it from `base`. If somebody else's rules jump to it
    /// too, it stays, empty. Returns whether it was there.
    pub(crate) fn remove_chain(
        &mut self,
        family: Family,
        table: &str,
        base: &str,
        chain: &str,
    ) -> io::Result<bool> {
        if !self.has_chain(family, table, chain)? {
            return Ok(false);
        }
        let jumps = self.jumps(family, table, base, chain)?;
        match self.commit(&removal(family, table, base, chain, &jumps, true)) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                self.commit(&removal(family, table, base, chain, &jumps, false))?;
            }
            other => other?,
        }
        Ok(true)
    }

    /// The handles of the rules in `base` that jump to `chain`.
    fn jumps(
        &mut self,
        family: Family,
        table: &str,
        base: &str,
        chain: &str,
    ) -> io::Result<Vec<Vec<u8>>> {
        let filter = table_name(table).text(wire::RULE_CHAIN, base);
        let question = request(wire::GET_RULE, family, filter);
        let handles = self.connection.ask_all(&question, |message| {
            let rule = nfnetlink::read(message, NFTABLES)?.attributes;
            // Older kernels do not heed the filter.
            let here = rule.text(wire::TABLE) == Some(table)
                && rule.text(wire::RULE_CHAIN) == Some(base)
                && wire::jumps_to(rule, chain) == Some(true);
            here.then(|| rule.get(wire::RULE_HANDLE).map(<[u8]>::to_vec)).flatten()
        })?;
        handles.map_err(|error| io::Error::from_raw_os_error(error.errno))
    }

    fn has(&mut self, question: &NetfilterRequest) -> io::Result<bool> {
        match self.connection.ask(question, |_| ())? {
            Ok(()) => Ok(true),
            // A kernel without the family, or without nftables, has none either.
            Err(error)
                if matches!(error.errno, libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP) =>
            {
                Ok(false)
            }
            Err(error) => Err(io::Error::from_raw_os_error(error.errno)),
        }
    }

    fn commit(&mut self, changes: &[NetfilterRequest]) -> io::Result<()> {
        self.connection
            .commit(NFTABLES, changes)?
            .map_err(|refused| io::Error::from_raw_os_error(refused.error.errno))
    }
}

fn table_name(table: &str) -> AttributeWriter {
    AttributeWriter::default().text(wire::TABLE, table)
}

fn removal(
    family: Family,
    table: &str,
    base: &str,
    chain: &str,
    jumps: &[Vec<u8>],
    whole: bool,
) -> Vec<NetfilterRequest> {
    let mut changes = Vec::new();
    for handle in jumps {
        let jump = table_name(table).text(wire::RULE_CHAIN, base).bytes(wire::RULE_HANDLE, handle);
        changes.push(request(wire::DELETE_RULE, family, jump));
    }
    let rules = table_name(table).text(wire::RULE_CHAIN, chain);
    changes.push(request(wire::DELETE_RULE, family, rules));
    if whole {
        let names = table_name(table).text(wire::CHAIN_NAME, chain);
        changes.push(request(wire::DELETE_CHAIN, family, names));
    }
    changes
}
