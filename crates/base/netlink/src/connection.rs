//! A conversation with the kernel: questions with one answer or many, and acknowledged changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::message::{self, DONE, DUMP, DUMP_INTERRUPTED, ERROR, Message, messages};
use crate::{AttributeWriter, NetlinkError, Protocol, Socket};

/// Messages of one `send`. Larger ones gain nothing: each costs the kernel one allocation of this size.
const BATCH_BYTES: usize = 64 * 1024;
/// How many bytes one `send` may hold with the default send buffer.
const USUAL_BYTES: usize = 128 * 1024;
/// How many answers fit into the default receive queue.
const USUAL_ANSWERS: usize = 100;
/// What a short answer takes in the queue.
const ANSWER: usize = 1024;
/// Room for the errors of a batch in which every message fails.
const RECEIVE_MEMORY: usize = 4 << 20;
/// After each torn dump this much longer.
const TORN_PAUSE: Duration = Duration::from_millis(2);

pub trait Writable {
    fn kind(&self) -> u16;

    /// Beyond those that say that it is a request, a dump, or to be acknowledged.
    fn flags(&self) -> u16 {
        0
    }

    /// Appends what follows the header.
    fn write(&self, bytes: &mut Vec<u8>);
}

/// A question or a change as bytes. It has no `Debug`: attributes may be secrets.
#[derive(Clone)]
pub struct RawRequest {
    pub kind: u16,
    pub flags: u16,
    pub fixed: Vec<u8>,
    pub attributes: AttributeWriter,
}

impl RawRequest {
    pub fn new(kind: u16, fixed: impl Into<Vec<u8>>, attributes: AttributeWriter) -> Self {
        Self { kind, flags: 0, fixed: fixed.into(), attributes }
    }
}

impl Writable for RawRequest {
    fn kind(&self) -> u16 {
        self.kind
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.fixed);
        bytes.extend_from_slice(self.attributes.as_bytes());
    }
}

pub struct Connection {
    pub(crate) socket: Socket,
    pub(crate) sequence: u32,
    /// How many answers find room in the queue.
    answers: usize,
    /// The kernel has been asked to filter dumps, or there is nothing to be asked.
    filters: bool,
}

impl Connection {
    /// In the network namespace of the calling thread.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let filters = protocol != Protocol::Route;
        Ok(Self { filters, ..Self::over(Socket::open(protocol)?) })
    }

    /// Over a socket that somebody else has opened, and no longer uses.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        Socket::adopt(fd).map(Self::over)
    }

    fn over(socket: Socket) -> Self {
        Self { socket, sequence: 0, answers: USUAL_ANSWERS, filters: true }
    }

    /// The kernel's name for this socket.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Carries out all requests in order, going on past those that fail, and hands every failure to
    /// `failed` with the position of its request. Requests are taken as they are sent, so that
    /// thousands of them never stand in memory at once. An `Err` means the state of the kernel is
    /// unknown.
    pub fn apply<W: Writable>(
        &mut self,
        requests: impl IntoIterator<Item = W>,
        mut failed: impl FnMut(usize, NetlinkError),
    ) -> io::Result<()> {
        let mut requests = requests.into_iter().peekable();
        let mut bytes = Vec::new();
        let mut done = 0;
        while requests.peek().is_some() {
            bytes.clear();
            let first = self.sequence.wrapping_add(1);
            let (mut count, mut last) = (0, 0);
            while bytes.len() < BATCH_BYTES
                && let Some(request) = requests.next()
            {
                last = self.append(&mut bytes, &request, 0);
                count += 1;
            }
            // Its answer closes the batch.
            message::ask_for_acknowledgement(&mut bytes, last);
            self.make_room(bytes.len(), count)?;
            self.socket.send(&bytes)?;
            self.collect_errors(first, count, |at, error| failed(done + at, error))?;
            done += count;
        }
        Ok(())
    }

    /// A question that the kernel answers with one message.
    pub fn ask<T>(
        &mut self,
        question: &impl Writable,
        read: impl FnOnce(Message<'_>) -> T,
    ) -> io::Result<Result<T, NetlinkError>> {
        self.send(question, 0)?;
        loop {
            for message in messages(self.socket.receive()?) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                if message.kind != ERROR {
                    return Ok(Ok(read(message)));
                }
                if let Err(error) = NetlinkError::parse(message.payload, message.flags) {
                    return Ok(Err(error));
                }
            }
        }
    }

    /// Everything the kernel has of a kind, as far as `read` wants it. A dump that a concurrent change
    /// has torn is taken again, after pauses that give whoever changes it time to finish. One that
    /// is still torn after the time for an answer is an error ([`io::ErrorKind::ResourceBusy`]),
    /// because what is missing from it may well be there.
    pub fn ask_all<T>(
        &mut self,
        question: &impl Writable,
        mut read: impl FnMut(Message<'_>) -> Option<T>,
    ) -> io::Result<Result<Vec<T>, NetlinkError>> {
        if !self.filters {
            self.socket.filter_dumps();
            self.filters = true;
        }
        let mut items = Vec::new();
        let mut pause = TORN_PAUSE;
        let mut torn_since = None;
        loop {
            items.clear();
            match self.dump_once(question, &mut |message| items.extend(read(message)))? {
                Ok(Dump::Whole) => return Ok(Ok(items)),
                Ok(Dump::Torn) => {}
                Err(error) => return Ok(Err(error)),
            }
            let since = *torn_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.socket.answer_timeout {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "what was asked for changes faster than it can be read",
                ));
            }
            std::thread::sleep(pause);
            pause += TORN_PAUSE;
        }
    }

    fn dump_once(
        &mut self,
        question: &dyn Writable,
        take: &mut dyn FnMut(Message<'_>),
    ) -> io::Result<Result<Dump, NetlinkError>> {
        self.send(question, DUMP)?;
        let mut outcome = Dump::Whole;
        loop {
            for message in messages(self.socket.receive()?) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                if message.flags & DUMP_INTERRUPTED != 0 {
                    outcome = Dump::Torn;
                }
                // What fails at once is told by an error, later failures by the message that ends it.
                let end = match message.kind {
                    DONE => NetlinkError::parse_end(message.payload, message.flags),
                    ERROR => NetlinkError::parse(message.payload, message.flags),
                    _ => {
                        take(message);
                        continue;
                    }
                };
                return Ok(match end {
                    Ok(()) => Ok(outcome),
                    Err(error) if matches!(error.errno, libc::EINTR | libc::EAGAIN) => {
                        Ok(Dump::Torn)
                    }
                    Err(error) => Err(error),
                });
            }
        }
    }

    /// Where many answers or a long message are expected, more than usual is asked for. What the host
    /// does not allow comes out as the error of `send` or `receive`.
    pub(crate) fn make_room(&mut self, bytes: usize, answers: usize) -> io::Result<()> {
        let memory = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX / 2);
        if bytes > USUAL_BYTES {
            self.socket.set_send_memory(memory(2 * bytes))?;
        }
        if answers > self.answers {
            let bytes = RECEIVE_MEMORY.max(answers * ANSWER);
            self.socket.set_receive_memory(memory(bytes))?;
            self.answers = bytes / ANSWER;
        }
        Ok(())
    }

    fn send(&mut self, question: &dyn Writable, flags: u16) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, question, flags);
        self.socket.send(&bytes)
    }

    /// Returns where the message begins.
    pub(crate) fn append(
        &mut self,
        bytes: &mut Vec<u8>,
        message: &dyn Writable,
        flags: u16,
    ) -> usize {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = message.flags() | flags;
        message::append(bytes, message.kind(), flags, self.sequence, |bytes| message.write(bytes))
    }

    /// Reads until the last of `count` messages, numbered from `first`, is answered.
    pub(crate) fn collect_errors(
        &mut self,
        first: u32,
        count: usize,
        mut failed: impl FnMut(usize, NetlinkError),
    ) -> io::Result<()> {
        loop {
            let mut done = false;
            for message in messages(self.socket.receive()?) {
                let message = message?;
                let at = message.sequence.wrapping_sub(first) as usize;
                if message.kind != ERROR || at >= count {
                    continue;
                }
                if let Err(error) = NetlinkError::parse(message.payload, message.flags) {
                    failed(at, error);
                }
                done |= at == count - 1;
            }
            if done {
                return Ok(());
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

enum Dump {
    Whole,
    /// Something changed meanwhile: it may lack what is there, or have twice what is there once.
    Torn,
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use super::*;

    struct Question;

    impl Writable for Question {
        fn kind(&self) -> u16 {
            22
        }

        fn write(&self, _: &mut Vec<u8>) {}
    }

    /// A connection to somebody who plays the kernel.
    fn connection() -> (Connection, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        let socket = Socket::over(OwnedFd::from(ours), Duration::from_millis(50));
        (Connection::over(socket.expect("a socket")), theirs)
    }

    /// How a dump of one object goes.
    #[derive(Clone, Copy)]
    enum Answer {
        Whole,
        Torn,
        /// With this error code in the message that ends it.
        Ended(i32),
    }

    /// Answers one dump after the other, while somebody asks.
    fn answer_dumps(kernel: &UnixDatagram, answers: &[Answer]) {
        kernel.set_read_timeout(Some(Duration::from_secs(1))).expect("a time-out");
        for answer in answers {
            let mut question = [0; 64];
            let Ok(len) = kernel.recv(&mut question) else { return };
            let question = messages(&question[..len]).next().expect("one").expect("whole");
            let (flags, code) = match answer {
                Answer::Whole => (0, 0),
                Answer::Torn => (DUMP_INTERRUPTED, 0),
                Answer::Ended(errno) => (0, -errno),
            };
            let mut answer = Vec::new();
            message::append(&mut answer, 16, flags, question.sequence, |_| ());
            message::append(&mut answer, DONE, 0, question.sequence, |bytes| {
                bytes.extend_from_slice(&code.to_ne_bytes());
            });
            kernel.send(&answer).expect("sent");
        }
    }

    fn ask_all(answers: &[Answer]) -> io::Result<Result<Vec<u16>, NetlinkError>> {
        let (mut connection, kernel) = connection();
        std::thread::scope(|scope| {
            scope.spawn(|| answer_dumps(&kernel, answers));
            connection.ask_all(&Question, |message| Some(message.kind))
        })
    }

    #[test]
    fn a_torn_dump_is_taken_again() {
        let answers = [Answer::Torn, Answer::Ended(libc::EINTR), Answer::Whole];
        assert_eq!(ask_all(&answers).expect("an answer"), Ok(vec![16]));
    }

    #[test]
    fn a_dump_that_is_torn_every_time_is_never_taken_as_complete() {
        let error = ask_all(&[Answer::Torn; 1000]).expect_err("torn");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn a_dump_that_ends_with_an_error_has_failed() {
        let error = ask_all(&[Answer::Ended(libc::ENOMEM)]).expect("an answer").unwrap_err();
        assert_eq!(error.errno, libc::ENOMEM);
    }

    #[test]
    fn the_kernel_ends_a_dump_of_a_device_that_is_not_there_with_an_error() {
        let mut connection = Connection::open(Protocol::Route).expect("a socket");
        let mut question = netlink_packet_route::address::AddressMessage::default();
        question.header.family = netlink_packet_route::AddressFamily::Inet;
        question.header.index = i32::MAX as u32;
        let question = netlink_packet_route::RouteNetlinkMessage::GetAddress(question);
        let error = connection.dump(&question, Some).expect_err("no such device");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_without_end() {
        let (mut connection, _kernel) = connection();
        let error = connection.ask(&Question, |_| ()).expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_answer_to_an_earlier_question_is_not_taken_for_that_to_the_next() {
        let (mut connection, kernel) = connection();
        connection.ask(&Question, |_| ()).expect_err("no answer yet");
        for sequence in [1, 2] {
            let mut answer = Vec::new();
            message::append(&mut answer, 16, 0, sequence, |_| ());
            kernel.send(&answer).expect("sent");
        }
        let sequence = connection.ask(&Question, |message| message.sequence);
        assert_eq!(sequence.expect("an answer"), Ok(2));
    }
}
