//! Metadata service of a Compute Engine instance: "View and query VM metadata"
//! (cloud.google.com/compute/docs/metadata/querying-metadata).

use std::net::IpAddr;

use flannel_entries::cloud::{CloudInterface, CloudNode, Provider};
use serde_json::Value;

use crate::credentials::variable;
use crate::json::{items, text};
use crate::metadata::Metadata;
use crate::{CloudError, Result};

const DEFAULT_ENDPOINT: &str = "http://169.254.169.254";
const BASE: &str = "/computeMetadata/v1";

fn open(place: Option<&str>) -> Metadata {
    let place = place.map(str::to_owned).or_else(|| variable(&["GCE_METADATA_HOST"]));
    let service =
        Metadata::new(Provider::Gce, &place.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()));
    service.with_header("metadata-flavor", "Google")
}

pub(crate) async fn node(place: Option<&str>) -> Result<CloudNode> {
    let service = open(place);
    let get = |path: &str| {
        let path = format!("{BASE}{path}");
        let service = &service;
        async move { service.get(&path).await }
    };
    let listed = get("/instance/network-interfaces/?recursive=true").await?;
    let listed: Vec<Value> = serde_json::from_str(&listed).map_err(|error| {
        CloudError::temporary("the metadata service", &format!("unreadable interfaces: {error}"))
    })?;
    let interfaces = listed.iter().enumerate().map(|(number, interface)| {
        let ipv6s = items(interface, "/ipv6s").iter().filter_map(Value::as_str);
        let addresses = std::iter::once(text(interface, "/ip")).chain(ipv6s);
        CloudInterface {
            id: format!("nic{number}"),
            // Such as `projects/NUMBER/networks/NAME`.
            vpc: text(interface, "/network").to_owned(),
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
pub(super) async fn token(place: Option<&str>) -> Result<Option<String>> {
    open(place).find(&format!("{BASE}/instance/service-accounts/default/token")).await
}
