//! aws-vpc, ali-vpc, gce, tencent-vpc: the cloud's own network carries pods' packets. Each node has a route of
//! its table lead to itself; there is nothing to do for a peer, and nothing in the kernel.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use flannel_cloud::{
    Access, CloudEntry, CloudInterface, CloudNode, CloudRoute, Forwarding, Keys, NodeQuery, Provider,
    Table,
};
use flannel_common::Secret;
use flannel_lease::{BackendConfig, Lease, NetworkConfig};

use crate::family::{Family, PerFamily as _};
use crate::{Backend, BackendError, Need, Node, PeerProblem, Wishes};

const TABLE: &str = "RouteTableID";
const KEY: &str = "AccessKeyID";
const SECRET: &str = "AccessKeySecret";
const ENDPOINT: &str = "Endpoint";
const METADATA: &str = "MetadataEndpoint";
const CHECK: &str = "CheckSeconds";
const DEFAULT_CHECK: i64 = 60;

pub(crate) struct CloudBackend {
    provider: Provider,
    /// The one that is in force for this node, if none is named.
    tables: Vec<String>,
    keys: Option<Keys>,
    endpoint: Option<String>,
    metadata: Option<String>,
    check_every: Duration,
}

impl CloudBackend {
    pub(crate) fn new(provider: Provider, config: &BackendConfig) -> Result<Self, BackendError> {
        let text = |key: &str| -> Result<Option<String>, BackendError> {
            let text = config.string(key)?.map(|text| text.trim().to_owned());
            Ok(text.filter(|text| !text.is_empty()))
        };
        let keys = match (text(KEY)?, text(SECRET)?) {
            (Some(id), Some(secret)) => Some(Keys { id, secret: Secret::new(secret), token: None }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(config.missing(SECRET, "write the secret of that key, or leave both out").into());
            }
            (None, Some(_)) => {
                return Err(config.missing(KEY, "write whose secret it is, or leave both out").into());
            }
        };
        let url = |key: &str| -> Result<Option<String>, BackendError> {
            let url = text(key)?;
            match &url {
                Some(it) if !it.starts_with("https://") && !it.starts_with("http://") => Err(config
                    .invalid(key, "is not a URL", "write it as https://host, or leave it out")
                    .into()),
                _ => Ok(url),
            }
        };
        let mut tables = config.string_list(TABLE)?;
        tables.iter_mut().for_each(|table| *table = table.trim().to_owned());
        tables.retain(|table| !table.is_empty());
        tables.sort();
        tables.dedup();
        let check = config.int(CHECK, DEFAULT_CHECK, 1..=86_400)?;
        let options = options(provider);
        let keys = keys.filter(|_| options.contains(&KEY));
        tables.retain(|_| options.contains(&TABLE));
        Ok(Self {
            provider,
            tables,
            keys,
            endpoint: url(ENDPOINT)?,
            metadata: url(METADATA)?,
            check_every: Duration::from_secs(check.unsigned_abs()),
        })
    }

    fn query(&self) -> NodeQuery {
        NodeQuery { provider: self.provider, metadata: self.metadata.clone() }
    }

    /// This machine, and the interface by which other nodes reach it.
    fn place<'a>(&self, node: &'a Node) -> Option<(&'a CloudNode, &'a CloudInterface)> {
        let cloud = node.answers.cloud_node(&self.query())?;
        Some((cloud, cloud.interface_with(&own_addresses(node))?))
    }

    /// How the provider's routes name this node.
    fn next_hop(&self, node: &Node, cloud: &CloudNode, interface: &CloudInterface) -> Option<String> {
        Some(match self.provider {
            Provider::AwsVpc => interface.id.clone(),
            Provider::AliVpc => cloud.instance.clone(),
            Provider::Gce => {
                let CloudNode { project, zone, instance, .. } = cloud;
                format!("projects/{project}/zones/{zone}/instances/{instance}")
            }
            Provider::TencentVpc => node.underlay.v4?.to_string(),
        })
    }
}

fn options(provider: Provider) -> &'static [&'static str] {
    match provider {
        Provider::AwsVpc | Provider::AliVpc | Provider::TencentVpc => {
            &[TABLE, KEY, SECRET, ENDPOINT, METADATA, CHECK]
        }
        // Its routes belong to the network, and its keys are lent to the machine.
        Provider::Gce => &[ENDPOINT, METADATA, CHECK],
    }
}

fn own_addresses(node: &Node) -> Vec<IpAddr> {
    let v4 = node.underlay.v4.map(IpAddr::V4);
    v4.into_iter().chain(node.underlay.v6.map(IpAddr::V6)).collect()
}

impl Backend for CloudBackend {
    fn kind(&self) -> &'static str {
        self.provider.name()
    }

    fn options(&self) -> &'static [&'static str] {
        options(self.provider)
    }

    fn check_network(&self, network: &NetworkConfig) -> Result<(), BackendError> {
        let only_v4 = matches!(self.provider, Provider::AliVpc | Provider::TencentVpc);
        if only_v4 && network.v6.is_some() {
            return Err(BackendError::Unfit(format!(
                "Backend.Type {} routes IPv4 alone: its route tables lead no IPv6 to a machine; set EnableIPv6 \
                 to false, or use vxlan or wireguard",
                self.provider
            )));
        }
        Ok(())
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::CloudNode(self.query())]
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        let Some(cloud) = node.answers.cloud_node(&self.query()) else { return Ok(()) };
        if cloud.interface_with(&own_addresses(node)).is_some() {
            return Ok(());
        }
        let known: Vec<String> = cloud
            .interfaces
            .iter()
            .flat_map(|interface| interface.addresses.iter().map(ToString::to_string))
            .collect();
        let own: Vec<String> = own_addresses(node).iter().map(ToString::to_string).collect();
        Err(BackendError::Unfit(format!(
            "the cloud knows no interface of this machine with the address {} of {}; it knows {}: choose \
             another by --iface",
            own.join(" or "),
            node.underlay.link,
            known.join(", ")
        )))
    }

    fn base(&self, node: &Node, own: &Lease) -> Wishes {
        let Some((cloud, interface)) = self.place(node) else { return Wishes::default() };
        let Some(next_hop) = self.next_hop(node, cloud, interface) else { return Wishes::default() };
        let access = Arc::new(Access {
            node: cloud.clone(),
            interface: interface.clone(),
            keys: self.keys.clone(),
            endpoint: self.endpoint.clone(),
            metadata: self.metadata.clone(),
            check_every: self.check_every,
        });
        let mut wishes = Vec::new();
        if matches!(self.provider, Provider::AwsVpc | Provider::Gce) {
            wishes.push(CloudEntry::Forwarding(Forwarding { access: access.clone() }));
        }
        let named = self.tables.iter().map(|id| Table::Named(id.clone()));
        let tables: Vec<Table> =
            if self.tables.is_empty() { vec![Table::Detected] } else { named.collect() };
        for destination in Family::used_by(node).filter_map(|family| family.subnet(&own.subnet)) {
            wishes.extend(tables.iter().map(|table| {
                CloudEntry::Route(CloudRoute {
                    access: access.clone(),
                    table: table.clone(),
                    destination,
                    next_hop: next_hop.clone(),
                })
            }));
        }
        Wishes { cloud: wishes, ..Wishes::default() }
    }

    /// The cloud knows the way.
    fn peer(&self, _node: &Node, _own: &Lease, _peer: &Lease) -> Result<Wishes, PeerProblem> {
        Ok(Wishes::default())
    }
}
