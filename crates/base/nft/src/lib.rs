//! nftables over netlink: changes go to the kernel as one transaction, all or nothing, in a tenth of the time that
//! starting `nft` takes.
//!
//! A [`Batch`] collects changes of tables, chains, rules, sets, maps, counters and flowtables; [`Nft::commit`] carries
//! out all of it or nothing, [`Nft::commit_at`] only if nobody has changed anything since a generation was read. Reading
//! gives the same values back ([`Rule`], [`Chain`], [`Set`], …), so what is wanted and what is there are compared by
//! `==`; [`TableLayout`] does so for chains with fixed rules. [`Monitor`] tells of every change that anybody makes.
//!
//! `iptables` of today (the nft variant) keeps its rules in nftables, too: they are read and removed here. What its programs
//! write is read by [`read_saved`].

mod batch;
mod chain;
mod expression;
mod flowtable;
mod iptables_save;
mod monitor;
mod rule;
mod ruleset;
mod set;
mod table;
mod table_layout;
#[doc(hidden)]
pub mod testing;
mod userdata;
mod wire;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use flannel_netlink::nfnetlink::{self, NFTABLES, Refused};
use flannel_netlink::{
    AttributeWriter, Attributes, Connection, NetlinkError, Protocol, RawRequest,
};

pub use flannel_netlink::text;

pub use batch::{Batch, Spot};
pub use chain::{Chain, ChainKind, Hook, HookPoint};
pub use expression::{
    Comparison, ConnectionKey, Direction, Expression, Expressions, Field, Header, MetaKey, Verdict,
    loaded_network,
};
pub use flowtable::Flowtable;
pub use iptables_save::{SavedLine, SavedRule, read_saved, split_words};
pub use monitor::{Change, Event, EventObject, Heard, Monitor, RuleEvent};
pub use rule::Rule;
pub use ruleset::{KeyPart, KeyRange, SetContents, TableContents};
pub use set::{Element, ElementData, KeyType, Set, SetData};
pub use table::{Counter, Table, TableOwnership};
pub use table_layout::{Flaw, TableLayout};
pub use userdata::{fitted_comment, fitted_owner};

/// Family of a table (`NFPROTO_*`): which packets its chains see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TableFamily {
    Inet = 1,
    Ipv4 = 2,
    Arp = 3,
    Netdev = 5,
    Bridge = 7,
    Ipv6 = 10,
}

impl TableFamily {
    const ALL: [Self; 6] =
        [Self::Inet, Self::Ipv4, Self::Arp, Self::Netdev, Self::Bridge, Self::Ipv6];

    /// As `nft` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ipv4 => "ip",
            Self::Arp => "arp",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ipv6 => "ip6",
        }
    }

    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// Why something could not be read from nftables or written to it.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("could not {what}: {error}")]
    Refused { what: String, error: NetlinkError },
    /// The generation is no longer the one that a transaction was made for.
    #[error("somebody else has changed the firewall meanwhile")]
    Outdated,
    #[error(
        "the table {table} changes faster than it can be read: somebody writes to it without a pause"
    )]
    Restless { table: String },
    #[error("could not talk to nftables: {0}")]
    Io(#[from] io::Error),
}

type Result<T, E = NftError> = std::result::Result<T, E>;

impl NftError {
    /// Whether something that was named is not there.
    pub fn is_absence(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// Whether something is still used by others.
    pub fn is_in_use(&self) -> bool {
        self.errno() == Some(libc::EBUSY)
    }

    /// Whether the kernel does not know what it was asked for, such as a table that outlives its owner.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
    }

    fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } => Some(error.errno),
            _ => None,
        }
    }
}

/// A conversation with nftables, in the network namespace of the thread that opened it.
pub struct Nft {
    connection: Connection,
}

impl Nft {
    pub fn open() -> Result<Self> {
        Ok(Self { connection: Connection::open(Protocol::Netfilter)? })
    }

    /// Carries out the whole batch or nothing of it.
    pub fn commit(&mut self, batch: &Batch) -> Result<()> {
        self.commit_if(None, batch)
    }

    /// The same, if nobody has changed anything since the generation was read: else [`NftError::Outdated`].
    pub fn commit_at(&mut self, generation: u32, batch: &Batch) -> Result<()> {
        self.commit_if(Some(generation), batch)
    }

    fn commit_if(&mut self, generation: Option<u32>, batch: &Batch) -> Result<()> {
        let outcome = self.connection.commit(NFTABLES, generation, &batch.changes)?;
        outcome.map_err(|Refused { at, error }| match at {
            None if error.errno == libc::ERESTART => NftError::Outdated,
            _ => {
                let what = at.and_then(|at| batch.words.get(at)).cloned();
                let what = what.unwrap_or_else(|| "begin a change of the firewall".to_owned());
                NftError::Refused { what, error }
            }
        })
    }

    /// Number of the last transaction that anybody has made.
    pub fn generation(&mut self) -> Result<u32> {
        let question = request(wire::GET_GENERATION, TableFamily::Inet, AttributeWriter::default());
        let generation = self.get(&question, |object| object.be32(wire::GENERATION_ID))?;
        Ok(generation.flatten().unwrap_or_default())
    }

    /// A question that has one answer. `None`: what was asked for is not there.
    fn get<T>(
        &mut self,
        question: &RawRequest,
        read: impl FnOnce(Attributes<'_>) -> T,
    ) -> Result<Option<T>> {
        let answer = self.connection.ask(question, |message| {
            nfnetlink::read(message, NFTABLES).map(|object| read(object.attributes))
        })?;
        match answer {
            Ok(object) => Ok(object),
            Err(error) => absent(error, None),
        }
    }

    /// All objects of a kind in a table, as far as `read` wants them. Nothing, if the table is not there.
    fn get_all<T>(
        &mut self,
        question: &RawRequest,
        table: &str,
        mut read: impl FnMut(Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let answer = self.connection.ask_all(question, |message| {
            let object = nfnetlink::read(message, NFTABLES)?.attributes;
            // Not every kernel filters by what it was asked for.
            (object.text(wire::TABLE) == Some(table)).then(|| read(object)).flatten()
        });
        match answer {
            // What is missing in a torn list would be taken for absent.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(NftError::Restless { table: table.to_owned() })
            }
            answer => answer?.or_else(|error| absent(error, Vec::new())),
        }
    }
}

impl AsFd for Nft {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// A kernel without the family, or without nftables, has nothing of it either.
fn absent<T>(error: NetlinkError, nothing: T) -> Result<T> {
    match error.errno {
        libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP => Ok(nothing),
        errno => Err(io::Error::from_raw_os_error(errno).into()),
    }
}

fn request(kind: u16, family: TableFamily, attributes: AttributeWriter) -> RawRequest {
    nfnetlink::request(NFTABLES, kind, family as u8, attributes)
}

fn of_table(table: &str) -> AttributeWriter {
    AttributeWriter::default().text(wire::TABLE, table)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
