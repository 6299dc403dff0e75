//! aws-vpc, ali-vpc, gce, tencent-vpc: the cloud's own network carries pods' packets. Each node keeps a route of the
//! cloud's table that leads to itself; there is nothing to do for a peer, and nothing in the kernel.

use std::sync::Arc;
use std::time::Duration;

use flannel_common::Secret;
use flannel_entries::cloud::{
    Access, CloudEntry, CloudInterface, CloudNode, CloudRoute, Keys, NodeQuery, Provider, Table,
};
use flannel_lease::{BackendConfig, Lease, NetworkConfig};

use crate::{
    Backend, BackendError, Encapsulation, Need, Node, PeerProblem, Privilege, Stack, Wishes,
};

const TABLE: &str = "RouteTableID";
const KEY: &str = "AccessKeyID";
const SECRET: &str = "AccessKeySecret";
const ENDPOINT: &str = "Endpoint";
const METADATA: &str = "MetadataEndpoint";
const CHECK: &str = "CheckSeconds";
const DEFAULT_CHECK: i64 = 60;

pub(crate) struct CloudBackend {
    provider: Provider,
    /// Named route tables; the one in force for this node, if none is named.
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
                let fix = "write the secret of that key, or leave both out";
                return Err(config.missing(SECRET, fix).into());
            }
            (None, Some(_)) => {
                let fix = "write whose secret it is, or leave both out";
                return Err(config.missing(KEY, fix).into());
            }
        };
        let url = |key: &str| -> Result<Option<String>, BackendError> {
            let url = text(key)?;
            match &url {
                Some(it) if !it.starts_with("https://") && !it.starts_with("http://") => {
                    let fix = "write it as https://host, or leave it out";
                    Err(config.invalid(key, "is not a URL", fix).into())
                }
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
        Some((cloud, cloud.interface_with(&node.underlay.addresses())?))
    }

    fn next_hop(
        &self,
        node: &Node,
        cloud: &CloudNode,
        interface: &CloudInterface,
    ) -> Option<String> {
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
        // Its routes belong to the network, and the machine has temporary keys.
        Provider::Gce => &[ENDPOINT, METADATA, CHECK],
    }
}

impl Backend for CloudBackend {
    fn kind(&self) -> &'static str {
        self.provider.name()
    }

    fn options(&self) -> &'static [&'static str] {
        options(self.provider)
    }

    /// Nodes of the Go flannel announce no backend, and there is nothing to do for them.
    fn accepts_untyped(&self) -> bool {
        true
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

    fn privileges(&self) -> Vec<Privilege> {
        let foreign = |option, url: &Option<String>, is_own: fn(Provider, &str) -> bool| {
            let url = url.clone().filter(|url| !is_own(self.provider, url))?;
            Some(Privilege::Endpoint { option, url })
        };
        let api = foreign(ENDPOINT, &self.endpoint, Provider::is_own_api);
        let metadata = foreign(METADATA, &self.metadata, Provider::is_own_metadata);
        api.into_iter().chain(metadata).collect()
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::CloudNode(self.query())]
    }

    fn check(&self, node: &Node) -> Result<(), BackendError> {
        self.check_network(&node.network)?;
        let Some(cloud) = node.answers.cloud_node(&self.query()) else { return Ok(()) };
        if cloud.interface_with(&node.underlay.addresses()).is_some() {
            return Ok(());
        }
        let known: Vec<String> = cloud
            .interfaces
            .iter()
            .flat_map(|interface| interface.addresses.iter().map(ToString::to_string))
            .collect();
        let own: Vec<String> = node.underlay.addresses().iter().map(ToString::to_string).collect();
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
        let Some(next_hop) = self.next_hop(node, cloud, interface) else {
            return Wishes::default();
        };
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
            wishes.push(CloudEntry::Forwarding(access.clone()));
        }
        let named = self.tables.iter().map(|id| Table::Named(id.clone()));
        let tables: Vec<Table> =
            if self.tables.is_empty() { vec![Table::Detected] } else { named.collect() };
        for destination in node.families().filter_map(|family| own.subnet.net(family)) {
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

    fn encapsulation(&self, _stack: Stack) -> Encapsulation {
        Encapsulation::Underlay { direct: false }
    }

    fn peer(&self, _node: &Node, _own: &Lease, _peer: &Lease) -> Result<Wishes, PeerProblem> {
        Ok(Wishes::default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must say so and stop")]

    use flannel_lease::{LeaseAttrs, SubnetOrigin};

    use super::*;
    use crate::{Answers, Underlay, judge_config};

    fn config(backend: &str) -> String {
        format!(
            r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{{{backend}}}}}"#
        )
    }

    fn judged(text: &str) -> Result<crate::UsableConfig, String> {
        judge_config(text, SubnetOrigin::Pool).map_err(|error| error.to_string())
    }

    #[test]
    fn a_config_that_cannot_work_is_refused_with_the_fix_and_without_secrets() {
        for (backend, told) in [
            (r#""Type":"ali-vpc""#, "set EnableIPv6 to false"),
            (r#""Type":"tencent-vpc""#, "routes IPv4 alone"),
            (r#""Type":"aws-vpc","RouteTableID":7"#, "RouteTableID"),
            (r#""Type":"aws-vpc","AccessKeyID":"AKID"#, "AccessKeySecret"),
            (r#""Type":"aws-vpc","AccessKeySecret":"hunter2hunter2"#, "AccessKeyID"),
            (r#""Type":"aws-vpc","Endpoint":"ec2.local"#, "write it as https://host"),
            (r#""Type":"gce","CheckSeconds":0"#, "a number from 1 to 86400"),
        ] {
            let open = backend.matches('"').count() % 2 == 1;
            let backend = if open { format!("{backend}\"") } else { backend.to_owned() };
            let error = judged(&config(&backend)).unwrap_err();
            assert!(error.contains(told) && !error.contains("hunter2"), "{backend}: {error}");
        }
        // As the Go flannel's manual shows them.
        for backend in [
            r#""Type":"aws-vpc""#,
            r#""Type":"aws-vpc","RouteTableID":"rtb-1""#,
            r#""Type":"aws-vpc","RouteTableID":["rtb-1","rtb-2"]"#,
            r#""Type":"gce""#,
        ] {
            assert!(judged(&config(backend)).unwrap().remarks.is_empty(), "{backend}");
        }
        let remarks = judged(&config(r#""Type":"gce","RouteTableID":"x""#)).unwrap().remarks;
        assert_eq!(remarks.len(), 1, "Google has no tables to choose from");
    }

    fn node(backend: &dyn Backend, text: &str) -> Node {
        let network = NetworkConfig::parse(text).unwrap();
        let mut answers = Answers::default();
        let Some(Need::CloudNode(query)) = backend.needs().into_iter().next() else {
            panic!("it needs to know where it is")
        };
        let interface = |id: &str, address: &str| CloudInterface {
            id: id.to_owned(),
            vpc: "vpc-1".to_owned(),
            subnet: "subnet-1".to_owned(),
            addresses: vec![address.parse().unwrap()],
        };
        let cloud = CloudNode {
            provider: query.provider,
            project: "p".to_owned(),
            region: "r".to_owned(),
            zone: "z".to_owned(),
            instance: "i-1".to_owned(),
            interfaces: vec![interface("eni-1", "10.0.0.9"), interface("eni-2", "192.168.100.1")],
        };
        answers.cloud_node = Some((query, cloud));
        let underlay = Underlay {
            link: flannel_common::IfName::new("eth0").unwrap(),
            mtu: 9001,
            v4: Some([192, 168, 100, 1].into()),
            v6: None,
            public_v4: Some([203, 0, 113, 1].into()),
            public_v6: None,
            why: String::new(),
        };
        let kernel = flannel_entries::facts::KernelVersion { major: 6, minor: 1 };
        let (paths, connected) = (Default::default(), Vec::new());
        Node { network, underlay, kernel, paths, connected, answers }
    }

    #[test]
    fn a_node_wants_its_own_route_in_each_table_and_nothing_for_a_peer() {
        use flannel_wanted::KeyedEntry as _;

        let own = Lease {
            subnet: "10.244.5.0-24&fd00:244:0:5::-64".parse().unwrap(),
            attrs: LeaseAttrs::from_json(br#"{"PublicIP":"203.0.113.1"}"#).unwrap(),
        };
        let wishes = |text: &str| {
            let backend = judged(text).unwrap().backend;
            let node = node(&*backend, text);
            backend.check(&node).unwrap();
            assert_eq!(backend.mtu(&node), 9001);
            assert_eq!(backend.peer(&node, &own, &own), Ok(Wishes::default()));
            let wishes = backend.base(&node, &own);
            assert!(wishes.kernel.is_empty());
            wishes.cloud.iter().map(|entry| entry.describe()).collect::<Vec<_>>()
        };
        assert_eq!(
            wishes(&config(r#""Type":"aws-vpc","RouteTableID":["rtb-2","rtb-1"]"#)),
            [
                "forwarding by eni-2 (aws-vpc)",
                "route 10.244.5.0/24 to eni-2 in the route table rtb-1 (aws-vpc)",
                "route 10.244.5.0/24 to eni-2 in the route table rtb-2 (aws-vpc)",
                "route fd00:244:0:5::/64 to eni-2 in the route table rtb-1 (aws-vpc)",
                "route fd00:244:0:5::/64 to eni-2 in the route table rtb-2 (aws-vpc)",
            ]
        );
        let plain = |kind: &str| {
            wishes(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"{kind}"}}}}"#))
                .pop()
                .unwrap()
        };
        for (kind, hop) in [
            ("ali-vpc", "i-1"),
            ("tencent-vpc", "192.168.100.1"),
            ("gce", "projects/p/zones/z/instances/i-1"),
        ] {
            assert_eq!(
                plain(kind),
                format!("route 10.244.5.0/24 to {hop} in this node's route table ({kind})")
            );
        }
    }

    #[test]
    fn endpoints_that_are_not_the_providers_own_are_privileges() {
        let asked = |more: &str| {
            let text =
                format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"aws-vpc"{more}}}}}"#);
            let privileges = judged(&text).unwrap().backend.privileges();
            privileges.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(asked(""), [""; 0]);
        assert_eq!(asked(r#","Endpoint":"https://ec2.eu-west-1.amazonaws.com""#), [""; 0]);
        assert_eq!(asked(r#","MetadataEndpoint":"http://169.254.169.254""#), [""; 0]);
        assert_eq!(
            asked(r#","Endpoint":"https://a.example","MetadataEndpoint":"http://10.0.0.1""#),
            ["Backend.Endpoint https://a.example", "Backend.MetadataEndpoint http://10.0.0.1"]
        );
    }

    #[test]
    fn an_interface_that_the_cloud_does_not_know_is_refused_with_those_it_does() {
        let text = config(r#""Type":"aws-vpc""#);
        let backend = judged(&text).unwrap().backend;
        let mut node = node(&*backend, &text);
        node.underlay.v4 = Some([172, 17, 0, 1].into());
        let error = backend.check(&node).unwrap_err().to_string();
        assert!(
            error.contains("172.17.0.1") && error.contains("10.0.0.9, 192.168.100.1"),
            "{error}"
        );
        assert!(error.contains("--iface"), "{error}");
    }
}
