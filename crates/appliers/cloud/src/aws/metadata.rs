//! Metadata service of an EC2 instance, version 2 ("Use the Instance Metadata Service",
//! docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).

use std::net::IpAddr;

use flannel_entries::cloud::{CloudInterface, CloudNode, Provider};

use crate::CloudError;
use crate::credentials::variable;
use crate::metadata::Metadata;

const DEFAULT_ENDPOINT: &str = "http://169.254.169.254";
const TOKEN: &str = "/latest/api/token";
const SECONDS: &str = "21600";

/// Opens the service with a session's token, which every request must carry.
pub(super) async fn open(place: Option<&str>) -> Result<Metadata, CloudError> {
    let place = place.map(str::to_owned);
    let place = place.or_else(|| variable(&["AWS_EC2_METADATA_SERVICE_ENDPOINT"]));
    let service =
        Metadata::new(Provider::AwsVpc, &place.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()));
    let token = service.put(TOKEN, "x-aws-ec2-metadata-token-ttl-seconds", SECONDS).await?;
    Ok(match token {
        Some(token) => service.with_header("x-aws-ec2-metadata-token", token),
        None => service,
    })
}

pub(crate) async fn node(place: Option<&str>) -> Result<CloudNode, CloudError> {
    let service = open(place).await?;
    let get = |path: &'static str| service.get(path);
    let region = get("/latest/meta-data/placement/region").await?;
    let zone = get("/latest/meta-data/placement/availability-zone").await?;
    let instance = get("/latest/meta-data/instance-id").await?;
    let first = get("/latest/meta-data/mac").await?;
    let all = get("/latest/meta-data/network/interfaces/macs/").await?;
    let others = all.lines().map(|line| line.trim().trim_end_matches('/'));
    let others = others.filter(|mac| !mac.is_empty() && *mac != first);
    let mut interfaces = Vec::new();
    for mac in std::iter::once(first.as_str()).chain(others) {
        interfaces.push(interface(&service, mac).await?);
    }
    Ok(CloudNode {
        provider: Provider::AwsVpc,
        project: String::new(),
        region,
        zone,
        instance,
        interfaces,
    })
}

async fn interface(service: &Metadata, mac: &str) -> Result<CloudInterface, CloudError> {
    let path = |what: &str| format!("/latest/meta-data/network/interfaces/macs/{mac}/{what}");
    let mut addresses = Vec::new();
    for family in ["local-ipv4s", "ipv6s"] {
        let list = service.find(&path(family)).await?.unwrap_or_default();
        let list = list.split_whitespace().filter_map(|address| address.parse::<IpAddr>().ok());
        addresses.extend(list);
    }
    Ok(CloudInterface {
        id: service.get(&path("interface-id")).await?,
        vpc: service.get(&path("vpc-id")).await?,
        subnet: service.get(&path("subnet-id")).await?,
        addresses,
    })
}
