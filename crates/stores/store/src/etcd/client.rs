//! Requests to whichever member of the cluster answers. One connection is in use at a time; when it
//! fails the next member is tried, and stays in use as long as it works.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::EtcdOptions;
use super::cluster_pin::ClusterPin;
use super::fault::{Fault, Kind};
use super::login::{Credentials, Token};
use super::proto::{Empty, StatusResponse, WatchCreateRequest, WatchRequest, WatchResponse};
use super::rpc::{self, OpenWatch};
use super::timing::{MAX_TIMEOUTS, REQUEST_TIMEOUT};
use super::transport::Transport;
use crate::StoreError;

#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    transport: Transport,
    credentials: Option<Credentials>,
    cluster: ClusterPin,
    current: Mutex<CurrentMember>,
    /// Notified at each [`Client::reconnect`].
    reconnects: Notify,
}

#[derive(Debug)]
struct CurrentMember {
    member: usize,
    /// Number of the connection: of two requests that fail on one, only the first moves on to the next member.
    generation: u64,
    connection: Option<Connection>,
    /// `None` when logging in is due.
    token: Option<Token>,
    rng: fastrand::Rng,
}

#[derive(Clone, Debug)]
struct Connection {
    channel: Channel,
    generation: u64,
    endpoint: String,
    /// The member at the other end is known to be of the right cluster.
    verified: bool,
}

impl Client {
    /// Starts with a random member, so that the nodes spread over the cluster.
    pub(crate) fn new(options: &EtcdOptions, mut rng: fastrand::Rng) -> Result<Self, StoreError> {
        let transport = Transport::new(options)?;
        let credentials = Credentials::new(options);
        let member = rng.usize(..transport.count());
        let (connection, token) = (None, None);
        let current = CurrentMember { member, generation: 0, connection, token, rng };
        let (current, reconnects) = (Mutex::new(current), Notify::new());
        let cluster = options.cluster.clone();
        Ok(Self(Arc::new(Shared { transport, credentials, cluster, current, reconnects })))
    }

    pub(super) fn reconnect(&self) {
        let mut current = self.0.current.lock();
        current.generation += 1;
        current.connection = None;
        self.0.reconnects.notify_waiters();
    }

    pub(super) async fn wait_for_reconnect(&self) {
        self.0.reconnects.notified().await;
    }

    pub(super) async fn unary<Q, A>(&self, rpc: &'static str, request: Q) -> Result<A, Fault>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.unary_within(REQUEST_TIMEOUT, rpc, request).await
    }

    /// Sends a request to each member in turn, within a limit of time. After a lost answer it may have been carried out
    /// twice: writes are transactions that compare before they write.
    pub(super) async fn unary_within<Q, A>(
        &self,
        time: Duration,
        rpc: &'static str,
        request: Q,
    ) -> Result<A, Fault>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let deadline = Instant::now() + time * MAX_TIMEOUTS;
        let mut tries = self.0.transport.count().max(2);
        let mut may_log_in_again = self.0.credentials.is_some();
        loop {
            let attempt = self.attempt(time, rpc, request.clone());
            let fault = match timeout_at(deadline, attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(fault)) => fault,
                Err(_) => return Err(timed_out(&self.endpoint(), time * MAX_TIMEOUTS)),
            };
            match fault.kind {
                Kind::Token if may_log_in_again => {
                    may_log_in_again = false;
                    self.0.current.lock().token = None;
                }
                Kind::Unavailable | Kind::OtherCluster if tries > 1 => {
                    tries -= 1;
                    self.pause_before_the_same_member().await;
                }
                _ => return Err(fault),
            }
        }
    }

    /// Opens a stream of changes. Tries one member only: the caller decides when to try again.
    pub(super) async fn watch(
        &self,
        watches: Vec<WatchCreateRequest>,
    ) -> Result<WatchStream, Fault> {
        let connection = self.connection()?;
        let open = async |token| {
            let watches = watches.into_iter().map(|create| WatchRequest { create: Some(create) });
            rpc::open_watch(connection.channel.clone(), watches.collect(), token).await
        };
        let watch = self.at(&connection, REQUEST_TIMEOUT, open).await?;
        Ok(WatchStream { client: self.clone(), connection, watch })
    }

    async fn attempt<Q, A>(&self, time: Duration, rpc: &'static str, request: Q) -> Result<A, Fault>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let connection = self.connection()?;
        let send = async |token| {
            let mut request = Request::new(request);
            request.set_timeout(time);
            if let Some(token) = token {
                request.metadata_mut().insert("token", token);
            }
            rpc::unary(connection.channel.clone(), rpc, request).await
        };
        self.at(&connection, time, send).await
    }

    /// Makes a call at a member within `time`, once that is known to be of the right cluster and to know us.
    async fn at<A>(
        &self,
        connection: &Connection,
        time: Duration,
        call: impl AsyncFnOnce(Token) -> Result<A, Status>,
    ) -> Result<A, Fault> {
        let called = async {
            self.verify(connection).await?;
            let token = self.token(connection).await?;
            let answer = call(token).await;
            answer.map_err(|status| Fault::from_status(&connection.endpoint, &status))
        };
        let answer = timeout(time, called).await;
        let answer = answer.unwrap_or_else(|_| Err(timed_out(&connection.endpoint, time)));
        answer.map_err(|fault| self.note_fault(connection, fault))
    }

    /// Checks the cluster of a member on a new connection, before anything is read or written there.
    async fn verify(&self, connection: &Connection) -> Result<(), Fault> {
        if connection.verified {
            return Ok(());
        }
        let (channel, endpoint) = (connection.channel.clone(), &connection.endpoint);
        let status: Result<StatusResponse, _> =
            rpc::unary(channel, rpc::STATUS, Request::new(Empty {})).await;
        let found = match status {
            Ok(status) => status.header.unwrap_or_default().cluster_id,
            // A substitute of etcd need not know this call, nor allow it to everybody.
            Err(status) => match status.code() {
                Code::Unimplemented | Code::PermissionDenied => 0,
                Code::Unauthenticated | Code::InvalidArgument => 0,
                _ => return Err(Fault::from_status(endpoint, &status)),
            },
        };
        let checked = self.0.cluster.check(endpoint, found);
        checked.map_err(|why| Fault::new(Kind::OtherCluster, endpoint, why))?;
        if let Some(current) = &mut self.0.current.lock().connection
            && current.generation == connection.generation
        {
            current.verified = true;
        }
        Ok(())
    }

    /// The token to send along, if this cluster wants one; logs in when none is known.
    async fn token(&self, connection: &Connection) -> Result<Token, Fault> {
        let Some(credentials) = &self.0.credentials else { return Ok(None) };
        if let Some(known) = &self.0.current.lock().token {
            return Ok(known.clone());
        }
        let token = credentials.log_in(&connection.channel, &connection.endpoint).await?;
        self.0.current.lock().token = Some(token.clone());
        Ok(token)
    }

    fn connection(&self) -> Result<Connection, Fault> {
        let mut current = self.0.current.lock();
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        let (endpoint, generation) = (self.0.transport.name(current.member), current.generation);
        let channel = self.0.transport.channel(current.member);
        let channel = channel.map_err(|reason| Fault::new(Kind::Unavailable, &endpoint, reason))?;
        let connection = Connection { channel, generation, endpoint, verified: false };
        Ok(current.connection.insert(connection).clone())
    }

    /// Moves on to the next member when the fault is the connection's.
    fn note_fault(&self, connection: &Connection, fault: Fault) -> Fault {
        let mut current = self.0.current.lock();
        let leaves = matches!(fault.kind, Kind::Unavailable | Kind::OtherCluster);
        if leaves && current.generation == connection.generation {
            tracing::debug!(
                endpoint = fault.endpoint,
                reason = fault.reason,
                "leaving this etcd member"
            );
            current.member = (current.member + 1) % self.0.transport.count();
            current.generation += 1;
            current.connection = None;
        }
        fault
    }

    async fn pause_before_the_same_member(&self) {
        if self.0.transport.count() == 1 {
            let millis = self.0.current.lock().rng.u64(20..100);
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    pub(super) fn endpoint(&self) -> String {
        self.0.transport.name(self.0.current.lock().member)
    }
}

fn timed_out(endpoint: &str, waited: Duration) -> Fault {
    Fault::new(Kind::Unavailable, endpoint, format!("no answer within {} s", waited.as_secs()))
}

pub(super) struct WatchStream {
    client: Client,
    connection: Connection,
    watch: OpenWatch,
}

impl WatchStream {
    pub(super) async fn next(&mut self) -> Result<WatchResponse, Fault> {
        let fault = match self.watch.responses.message().await {
            Ok(Some(response)) => return Ok(response),
            Ok(None) => {
                Fault::new(Kind::Unavailable, &self.connection.endpoint, "it closed the watch")
            }
            Err(status) => Fault::from_status(&self.connection.endpoint, &status),
        };
        Err(self.client.note_fault(&self.connection, fault))
    }

    pub(super) fn endpoint(&self) -> &str {
        &self.connection.endpoint
    }
}
