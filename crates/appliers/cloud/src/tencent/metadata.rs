//! Metadata service of a CVM instance: "Viewing Instance Metadata" of the CVM documentation
//! (www.tencentcloud.com/document/product/213/4934).

use std::net::IpAddr;

use flannel_entries::cloud::{Access, CloudInterface, CloudNode, Provider};

use crate::credentials::{ExpiringKeys, keys_of_environment, keys_of_role};
use crate::metadata::Metadata;
use crate::{CloudError, Fault};

const DEFAULT_ENDPOINT: &str = "http://metadata.tencentyun.com";
const ROLES: &str = "/latest/meta-data/cam/security-credentials/";

fn open(place: Option<&str>) -> Metadata {
    Metadata::new(Provider::TencentVpc, place.unwrap_or(DEFAULT_ENDPOINT))
}

pub(crate) async fn node(place: Option<&str>) -> Result<CloudNode, CloudError> {
    let service = open(place);
    let get = |path: &'static str| service.get(path);
    let all = get("/latest/meta-data/network/interfaces/macs/").await?;
    let mut interfaces = Vec::new();
    for mac in
        all.lines().map(|line| line.trim().trim_end_matches('/')).filter(|mac| !mac.is_empty())
    {
        interfaces.push(interface(&service, mac).await?);
    }
    Ok(CloudNode {
        provider: Provider::TencentVpc,
        project: String::new(),
        region: get("/latest/meta-data/placement/region").await?,
        zone: get("/latest/meta-data/placement/zone").await?,
        instance: get("/latest/meta-data/instance-id").await?,
        interfaces,
    })
}

async fn interface(service: &Metadata, mac: &str) -> Result<CloudInterface, CloudError> {
    let path = |what: &str| format!("/latest/meta-data/network/interfaces/macs/{mac}/{what}");
    let list = service.find(&path("local-ipv4s/")).await?.unwrap_or_default();
    let addresses = list.split_whitespace().map(|address| address.trim_end_matches('/'));
    Ok(CloudInterface {
        id: mac.to_owned(),
        vpc: service.get(&path("vpc-id")).await?,
        subnet: service.get(&path("subnet-id")).await?,
        addresses: addresses.filter_map(|address| address.parse::<IpAddr>().ok()).collect(),
    })
}

/// Keys of the environment, else of the machine's CAM role.
pub(crate) async fn keys(access: &Access) -> Result<ExpiringKeys, CloudError> {
    let ids = ["ACCESS_KEY_ID", "TENCENTCLOUD_SECRET_ID"];
    let secrets = ["ACCESS_KEY_SECRET", "TENCENTCLOUD_SECRET_KEY"];
    if let Some(keys) = keys_of_environment(&ids, &secrets, &["TENCENTCLOUD_TOKEN"]) {
        return Ok(ExpiringKeys::permanent(keys));
    }
    let wrong = |why: &str| {
        CloudError::new(Fault::Credentials, "credentials for Tencent Cloud", why).with_fix(
            "give the instance a CAM role, or set Backend.AccessKeyID and AccessKeySecret, or ACCESS_KEY_ID and \
             ACCESS_KEY_SECRET for flanneld",
        )
    };
    let service = open(access.metadata.as_deref());
    keys_of_role(&service, ROLES, "CAM role", wrong).await
}
