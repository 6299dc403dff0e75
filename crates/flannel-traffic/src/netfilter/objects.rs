//! Finds and removes tables and chains of nftables. Each removal is one transaction.

use std::io;

use super::socket::Socket;
use super::wire::{self, Message, Request, name};
use crate::Family;

/// A question interrupted by somebody's change is asked again, this often.
const TRIES: u32 = 5;

pub(crate) struct Objects {
    socket: Socket,
}

impl Objects {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open()? })
    }

    pub(crate) fn has_table(&mut self, family: Family, table: &str) -> io::Result<bool> {
        self.has(wire::GET_TABLE, family, &[(wire::TABLE, &name(table))])
    }

    pub(crate) fn has_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> io::Result<bool> {
        let (table, chain) = (name(table), name(chain));
        self.has(wire::GET_CHAIN, family, &[(wire::TABLE, &table), (wire::CHAIN_NAME, &chain)])
    }

    /// With all that is in it. Returns whether it was there.
    pub(crate) fn remove_table(&mut self, family: Family, table: &str) -> io::Result<bool> {
        if !self.has_table(family, table)? {
            return Ok(false);
        }
        let mut batch = Request::begin();
        batch.change(wire::DELETE_TABLE, family.protocol(), &[(wire::TABLE, &name(table))]);
        self.commit(batch)?;
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
        match self.commit(removal(family, table, base, chain, &jumps, true)) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                self.commit(removal(family, table, base, chain, &jumps, false))?;
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
        let (table_name, base_name) = (name(table), name(base));
        let filter: &[(u16, &[u8])] = &[(wire::TABLE, &table_name), (wire::RULE_CHAIN, &base_name)];
        for _ in 0..TRIES {
            let mut handles = Vec::new();
            let request = Request::dump(wire::GET_RULE, family.protocol(), filter);
            match self.ask(&request, |attributes| {
                // Older kernels do not heed the filter.
                let here = attributes.text(wire::TABLE) == Some(table)
                    && attributes.text(wire::RULE_CHAIN) == Some(base);
                if here && attributes.jumps_to(chain) == Some(true) {
                    handles.extend(attributes.get(wire::RULE_HANDLE).map(<[u8]>::to_vec));
                }
            }) {
                Ok(()) => return Ok(handles),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn has(&mut self, kind: u16, family: Family, attributes: &[(u16, &[u8])]) -> io::Result<bool> {
        match self.ask(&Request::get(kind, family.protocol(), attributes), |_| {}) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            // A kernel without the family, or without nftables, has none.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn commit(&mut self, mut batch: Request) -> io::Result<()> {
        let last = batch.last_number();
        batch.end();
        self.socket.send(batch.bytes())?;
        let mut result = Ok(());
        let mut answered = false;
        // Every change is answered, in order. A transaction that fails as a whole is answered at its
        // beginning.
        while !answered {
            for message in wire::messages(self.socket.receive(true)?) {
                let Message::Answer { number, error } = message else { continue };
                if error != 0 && result.is_ok() {
                    result = Err(io::Error::from_raw_os_error(-error));
                }
                answered |= number >= last || (error != 0 && number <= 1);
            }
        }
        // Nothing of this conversation must be taken for the answer to the next.
        while self.socket.receive(false).is_ok() {}
        result
    }

    /// Asks once and takes every answer to its end.
    fn ask(
        &mut self,
        request: &Request,
        mut answer: impl FnMut(wire::Attributes<'_>),
    ) -> io::Result<()> {
        self.socket.send(request.bytes())?;
        let mut result = Ok(());
        loop {
            for message in wire::messages(self.socket.receive(true)?) {
                match message {
                    Message::Object { attributes, .. } => answer(attributes),
                    Message::Interrupted => result = Err(io::ErrorKind::Interrupted.into()),
                    Message::Answer { error: 0, .. } | Message::Done { error: 0 } => return result,
                    Message::Answer { error, .. } | Message::Done { error } => {
                        return Err(io::Error::from_raw_os_error(-error));
                    }
                    Message::Other => {}
                }
            }
        }
    }
}

fn removal(
    family: Family,
    table: &str,
    base: &str,
    chain: &str,
    jumps: &[Vec<u8>],
    whole: bool,
) -> Request {
    let (table, base, chain) = (name(table), name(base), name(chain));
    let family = family.protocol();
    let mut batch = Request::begin();
    for handle in jumps {
        let jump: [(u16, &[u8]); 3] =
            [(wire::TABLE, &table), (wire::RULE_CHAIN, &base), (wire::RULE_HANDLE, handle)];
        batch.change(wire::DELETE_RULE, family, &jump);
    }
    batch.change(wire::DELETE_RULE, family, &[(wire::TABLE, &table), (wire::RULE_CHAIN, &chain)]);
    if whole {
        batch.change(
            wire::DELETE_CHAIN,
            family,
            &[(wire::TABLE, &table), (wire::CHAIN_NAME, &chain)],
        );
    }
    batch
}
