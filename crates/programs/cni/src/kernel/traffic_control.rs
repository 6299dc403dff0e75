//! Limits to what passes a link: a token bucket at the end by which frames leave, and a detour through a
//! link of its own for those that come in, since only what leaves can be made to wait.

use std::fs;
use std::io;

use flannel_common::Mac;
use flannel_netlink::verbs::{kind_attribute, mac_attribute, named_link};
use flannel_netlink::{AttributeWriter, Attributes, RawRequest, Request};
use libc::{RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, RTM_NEWTFILTER, TCA_KIND, TCA_OPTIONS};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags};

use super::query::number;
use super::{Change, Kernel, KernelError, Link};

const HEADER: usize = 20;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TBF: &str = "tbf";
/// As the Go plugin numbers them.
const BUCKET: u32 = 0x1_0000;
const CLASS: u32 = 0x1_0001;
const INGRESS: u32 = 0xffff_0000;
const AT_ROOT: u32 = 0xffff_ffff;
const AT_INGRESS: u32 = 0xffff_fff1;
const PRIORITY: u32 = 1;
const EVERY_PROTOCOL: u16 = 3;
const TERMINAL: u8 = 1;
const STOLEN: u32 = 4;
const REDIRECT_TO_EGRESS: u32 = 1;
const PARMS: usize = 36;
/// The kernel takes 256 bytes with the end of the text.
const LONGEST_ALIAS: usize = 254;

/// A token bucket, in the kernel's own measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Bytes in a second.
    pub(crate) rate: u64,
    /// How much may wait, in bytes.
    pub(crate) limit: u32,
    /// How long it takes to fill at that rate, in the kernel's ticks.
    pub(crate) buffer: u32,
}

/// A link whose only purpose is that frames pass it.
#[derive(Debug)]
pub(crate) struct Ifb {
    pub(crate) name: String,
    /// Whose it is, from the moment it is made.
    pub(crate) mac: Mac,
    /// Whose it is, for people.
    pub(crate) alias: String,
}

impl Bucket {
    pub(crate) fn ticks_per_microsecond() -> io::Result<f64> {
        const PATH: &str = "/proc/net/psched";
        let text = fs::read_to_string(PATH)?;
        let mut numbers = text.split_whitespace().map(|word| u32::from_str_radix(word, 16));
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(ticks)), Some(Ok(microseconds)), Some(Ok(clock))) if microseconds > 0 => {
                // An old kernel that counts in nanoseconds says so by its clock alone.
                let ticks = if clock == 1_000_000_000 { microseconds } else { ticks };
                Ok(f64::from(ticks) / f64::from(microseconds) * (f64::from(clock) / 1e6))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{PATH} makes no sense"))),
        }
    }
}

impl Kernel {
    /// What leaves by a link is held to the bucket's rate, whatever held it before.
    pub(crate) fn limit(&mut self, link: &Link, bucket: Bucket) -> Result<(), KernelError> {
        let mut parameters = [0; PARMS];
        let rate = u32::try_from(bucket.rate).unwrap_or(bucket.rate as u32);
        parameters[8..12].copy_from_slice(&rate.to_ne_bytes());
        parameters[24..28].copy_from_slice(&bucket.limit.to_ne_bytes());
        parameters[28..32].copy_from_slice(&bucket.buffer.to_ne_bytes());
        let mut options = AttributeWriter::default().bytes(TCA_TBF_PARMS, &parameters);
        if u32::try_from(bucket.rate).is_err() {
            options = options.bytes(TCA_TBF_RATE64, &bucket.rate.to_ne_bytes());
        }
        let attributes = AttributeWriter::default().text(TCA_KIND, TBF).nest(TCA_OPTIONS, &options);
        let header = header(link.index, BUCKET, AT_ROOT, 0);
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let change = RawRequest { flags, ..RawRequest::new(RTM_NEWQDISC, header, attributes) };
        self.change(change, || format!("limit {} to {} bytes a second", link.name, bucket.rate))
    }

    /// The bucket that holds what leaves by a link. `None`: nothing does, or something else.
    pub(crate) fn bucket(&mut self, link: u32) -> Result<Option<Bucket>, KernelError> {
        let found = self.ask_all(RTM_GETQDISC, &header(link, 0, 0, 0), |payload| {
            let (header, attributes) = payload.split_at_checked(HEADER)?;
            let attributes = Attributes(attributes);
            let is_it = number(&header[4..8]) == Some(link)
                && number(&header[12..16]) == Some(AT_ROOT)
                && attributes.text(TCA_KIND) == Some(TBF);
            if !is_it {
                return None;
            }
            let options = attributes.nested(TCA_OPTIONS)?;
            let parameters = options.get(TCA_TBF_PARMS)?;
            let at = |at: usize| number(parameters.get(at..)?);
            let long = options.get(TCA_TBF_RATE64).and_then(|bytes| bytes.try_into().ok());
            let rate = long.map(u64::from_ne_bytes).or_else(|| at(8).map(u64::from))?;
            Some(Bucket { rate, limit: at(24)?, buffer: at(28)? })
        })?;
        Ok(found.into_iter().next())
    }

    /// Makes a link for frames to pass, which is up, and holds none back by itself.
    pub(crate) fn make_ifb(&mut self, ifb: &Ifb, mtu: u32) -> Result<(), KernelError> {
        let attributes = [
            mac_attribute(ifb.mac),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::TxQueueLen(0),
            kind_attribute(InfoKind::Ifb, None),
        ];
        let mut link = named_link(&ifb.name, attributes);
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        let end = ifb.alias.floor_char_boundary(LONGEST_ALIAS);
        let alias = LinkAttribute::IfAlias(ifb.alias[..end].to_owned());
        self.apply(vec![
            Change::new(
                format!("make the link {} (kind ifb)", ifb.name),
                Request::create_link(link),
            ),
            // The kernel does not take it along when it makes a link.
            Change::new(
                format!("note at the link {} whose it is", ifb.name),
                Request::set_link(named_link(&ifb.name, [alias])),
            ),
        ])
    }

    /// All that comes in by a link goes through another first, in place of whatever was done with it.
    pub(crate) fn detour(&mut self, link: &Link, through: u32) -> Result<(), KernelError> {
        let what = || format!("lead what comes in by {} through another link", link.name);
        let ingress = AttributeWriter::default().text(TCA_KIND, "ingress");
        let place = header(link.index, INGRESS, AT_INGRESS, 0);
        // Usually there is none.
        let _ = self.change(RawRequest::new(RTM_DELQDISC, place, ingress.clone()), what);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let change = RawRequest { flags, ..RawRequest::new(RTM_NEWQDISC, place, ingress) };
        self.change(change, what)?;

        let filter = AttributeWriter::default()
            .text(TCA_KIND, "u32")
            .nest(TCA_OPTIONS, &redirection(through));
        let info = PRIORITY << 16 | u32::from(EVERY_PROTOCOL.to_be());
        let place = header(link.index, 0, INGRESS, info);
        self.change(RawRequest { flags, ..RawRequest::new(RTM_NEWTFILTER, place, filter) }, what)
    }
}

/// One key that looks at nothing, and so finds every frame.
fn redirection(to: u32) -> AttributeWriter {
    let mut selector = [0; 32];
    selector[0] = TERMINAL;
    selector[2] = 1;
    let mut mirror = [0; 28];
    mirror[8..12].copy_from_slice(&STOLEN.to_ne_bytes());
    mirror[20..24].copy_from_slice(&REDIRECT_TO_EGRESS.to_ne_bytes());
    mirror[24..28].copy_from_slice(&to.to_ne_bytes());
    let action = AttributeWriter::default()
        .text(TCA_ACT_KIND, "mirred")
        .nest(TCA_ACT_OPTIONS, &AttributeWriter::default().bytes(TCA_MIRRED_PARMS, &mirror));
    AttributeWriter::default()
        .ne32(TCA_U32_CLASSID, CLASS)
        .bytes(TCA_U32_SEL, &selector)
        .nest(TCA_U32_ACT, &AttributeWriter::default().nest(1, &action))
}

fn header(link: u32, handle: u32, parent: u32, info: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    for (at, value) in [(4, link), (8, handle), (12, parent), (16, info)] {
        header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    header
}
