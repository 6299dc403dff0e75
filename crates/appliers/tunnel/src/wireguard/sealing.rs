//! Handles what goes to the underlay: messages, each sealed datagram by datagram into one new run of bytes.

use std::sync::Arc;

use super::device::Wireguard;
use super::messages::{DATA_HEADER, DATA_OVERHEAD};
use super::peer::Peer;
use super::session::Session;
use crate::counters::DropReason;
use crate::outbound::{Message, Outbound, Piece};
use crate::table::Table;

impl Wireguard {
    /// Replaces each message by what is sent for it. Messages to a peer without a session wait, and are removed.
    pub(crate) fn seal(&self, batch: &mut Outbound, table: &Table, read: &[u8]) {
        let now = self.now();
        let (messages, made) = batch.parts();
        let mut unsent = false;
        for message in messages {
            let state = message.state(table);
            let Some(peer) = state.wireguard.clone() else {
                message.packets = 0;
                unsent = true;
                continue;
            };
            match peer.session(now) {
                Some(session) => {
                    self.seal_message(&session, message, read, made);
                    peer.sent(true, now);
                    if session.is_old_to_send(now) {
                        self.initiate(&peer);
                    }
                }
                None => {
                    let lost = self.let_wait(&peer, message, read, made);
                    if lost > 0 {
                        state.counters.dropped(DropReason::NoSession, lost);
                    }
                    message.packets = 0;
                    unsent = true;
                }
            }
        }
        if unsent {
            batch.keep(|message| message.packets > 0);
        }
    }

    /// Lets a message wait. Returns how many packets are lost because too many wait.
    fn let_wait(&self, peer: &Arc<Peer>, message: &Message, read: &[u8], made: &[u8]) -> u64 {
        let mut lost = 0;
        for datagram in message.datagrams() {
            lost += peer.waiting.lock().push(Piece::concat(datagram, read, made));
        }
        self.initiate(peer);
        // A session may have come about in the meantime, and have seen nothing wait.
        self.send_waiting(peer, false);
        lost
    }

    fn seal_message(
        &self,
        session: &Session,
        message: &mut Message,
        read: &[u8],
        made: &mut Vec<u8>,
    ) {
        let counter = session.take_counters(message.packets);
        let start = made.len();
        let padded = self.padded(message.segment);
        made.resize(start + message.packets * (padded + DATA_OVERHEAD), 0);
        let (before, room) = made.split_at_mut(start);
        let mut pieces = Vec::with_capacity(message.packets);
        let mut at = 0;
        for (datagram, number) in message.datagrams().zip(counter..) {
            let len: usize = datagram.iter().map(|piece| piece.len as usize).sum();
            let padded = self.padded(len);
            let sealed = &mut room[at..at + padded + DATA_OVERHEAD];
            let mut to = DATA_HEADER;
            for piece in datagram {
                let bytes = piece.of(read, before);
                sealed[to..to + bytes.len()].copy_from_slice(bytes);
                to += bytes.len();
            }
            session.seal(number, sealed);
            let len = sealed.len();
            pieces.push(Piece { at: (start + at) as u32, len: len as u32, made: true });
            at += len;
        }
        made.truncate(start + at);
        message.segment = padded + DATA_OVERHEAD;
        message.pieces = pieces;
    }
}
