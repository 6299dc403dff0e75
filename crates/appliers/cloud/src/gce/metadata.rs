//! Metadata service of a Compute Engine instance: "View and query VM metadata"
//! (cloud.google.com/compute/docs/metadata/querying-metadata).

use std::net::IpAddr;

use flannel_entries::cloud::{CloudInterface, CloudNode, Provider};
use serde::Deserialize;

use crate::CloudError;
use crate::credentials::variable;
use crate::metadata::Metadata;

const DEFAULT_ENDPOINT: &str = "http://169.254.169.254";
const BASE: &str = "/computeMetadata/v1";

fn open(place: Option<&str>) -> Metadata {
    let place = place.map(str::to_owned).or_else(|| variable(&["GCE_METADATA_HOST"]));
    let service =
        Metadata::new(Provider::Gce, &place.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()));
    service.with_header("metadata-flavor", "Google")
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Interface {
    ip: String,
    /// Network, such as `projects/NUMBER/networks/NAME`.
    network: String,
    ipv6s: Vec<String>,
}

pub(crate) async fn node(place: Option<&str>) -> Result<CloudNode, CloudError> {
    let service = open(place);
    let get = |path: &str| {
        let path = format!("{BASE}{path}");
        let service = &service;
        async move { service.get(&path).await }
    };
    let text = get("/instance/network-interfaces/?recursive=true").await?;
    let listed: Vec<Interface> = serde_json::from_str(&text).map_err(|error| {
        CloudError::temporary("the metadata service", &format!("unreadable interfaces: {error}"))
    })?;
    let interfaces = listed.into_iter().enumerate().map(|(number, interface)| {
        let Interface { ip, network, ipv6s } = interface;
        let addresses = std::iter::once(ip).chain(ipv6s);
        CloudInterface {
            id: format!("nic{number}"),
            vpc: network,
            subnet: String::new(),
            addresses: addresses.filter_map(|address| address.parse::<IpAddr>().ok()).collect(),
        }
    });
    let zone = get("/instance/zone").await?;
    let zone = zone.rsplit('/').next().unwrap_or_default().to_owned();
    let region = zone.rsplit_once('-').map_or(zone.as_str(), |(region, _)| region).to_owned();
    Ok(CloudNode {
        provider: Provider::Gce,
        project: get("/project/project-id").await?,
        region,
        zone,
        instance: get("/instance/name").await?,
        interfaces: interfaces.collect(),
    })
}

/// Token of the machine's service account; `None` if it has no such account.
pub(super) async fn token(place: Option<&str>) -> Result<Option<String>, CloudError> {
    open(place).find(&format!("{BASE}/instance/service-accounts/default/token")).await
}
