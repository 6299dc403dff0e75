//! The calls themselves: gRPC paths and how a message gets onto a channel.

use http::uri::PathAndQuery;
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::client::Client;
use super::fault::Fault;
use super::proto::{
    Empty, KeyValue, LeaseGrantRequest, LeaseRequest, LeaseResponse, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};

pub(super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const LEASE_TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// A listing of 10,000 leases is some 3 MB; the usual limit of gRPC is 4 MiB.
const MAX_RESPONSE: usize = 64 << 20;

impl Client {
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Fault> {
        self.unary(RANGE, request).await
    }

    /// The value of a key at a revision, 0 for now.
    pub(super) async fn get(&self, key: Bytes, revision: i64) -> Result<Option<KeyValue>, Fault> {
        let request = RangeRequest { key, revision, ..RangeRequest::default() };
        Ok(self.range(request).await?.kvs.into_iter().next())
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Fault> {
        self.unary(TXN, request).await
    }

    pub(super) async fn lease_grant(&self, ttl_seconds: i64) -> Result<LeaseResponse, Fault> {
        self.unary(LEASE_GRANT, LeaseGrantRequest { ttl: ttl_seconds }).await
    }

    /// Gives a lease its full life again, alone on its stream; whether it still existed.
    pub(super) async fn lease_keep_alive(&self, id: i64) -> Result<bool, Fault> {
        let request = LeaseRequest { id, keys: false };
        let kept: LeaseResponse = self.unary(LEASE_KEEP_ALIVE, request).await?;
        Ok(kept.ttl > 0)
    }

    /// Deletes every key attached to the lease, too.
    pub(super) async fn lease_revoke(&self, id: i64) -> Result<(), Fault> {
        self.unary(LEASE_REVOKE, LeaseRequest { id, keys: false }).await.map(|Empty {}| ())
    }

    /// Remaining life of a lease, with the keys attached to it.
    pub(super) async fn lease_time_to_live(&self, id: i64) -> Result<LeaseResponse, Fault> {
        self.unary(LEASE_TIME_TO_LIVE, LeaseRequest { id, keys: true }).await
    }
}

pub(super) async fn unary<Q, A>(
    channel: Channel,
    rpc: &'static str,
    request: Request<Q>,
) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = ready(channel).await?;
    let codec = ProstCodec::<Q, A>::default();
    let response = grpc.unary(request, PathAndQuery::from_static(rpc), codec).await?;
    Ok(response.into_inner())
}

/// An open watch. etcd ends it when our half of the stream ends, which is when this is dropped.
#[derive(Debug)]
pub(super) struct OpenWatch {
    pub(super) responses: Streaming<WatchResponse>,
    _our_half: mpsc::Sender<WatchRequest>,
}

pub(super) async fn open_watch(
    channel: Channel,
    requests: Vec<WatchRequest>,
    token: Option<MetadataValue<Ascii>>,
) -> Result<OpenWatch, Status> {
    let mut grpc = ready(channel).await?;
    let (our_half, rest) = mpsc::channel(1);
    let mut request = Request::new(tokio_stream::iter(requests).chain(ReceiverStream::new(rest)));
    // A member cut off from the others shall say so instead of staying silent.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
    let response = grpc.streaming(request, PathAndQuery::from_static(WATCH), codec).await?;
    Ok(OpenWatch { responses: response.into_inner(), _our_half: our_half })
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    Ok(grpc)
}
