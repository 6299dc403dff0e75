//! What a CVM instance can ask of itself: "Viewing Instance Metadata" of the CVM documentation
//! (www.tencentcloud.com/document/product/213/4934).

use std::net::IpAddr;
use std::time::SystemTime;

use flannel_common::Secret;
use serde::Deserialize;

use crate::credentials::{Lent, keys_of_environment};
use crate::metadata::Metadata;
use crate::{Access, CloudError, CloudInterface, CloudNode, Fault, Keys, Provider};

const USUAL: &str = "http://metadata.tencentyun.com";
const ROLES: &str = "/latest/meta-data/cam/security-credentials/";

fn open(place: Option<&str>) -> Metadata {
    Metadata::new(Provider::TencentVpc, place.unwrap_or(USUAL))
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

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfRole {
    code: Option<String>,
    tmp_secret_id: Option<String>,
    tmp_secret_key: Option<String>,
    token: Option<String>,
    /// In seconds since 1970.
    expired_time: Option<u64>,
}

/// Those of the environment, else those that the machine's CAM role lends.
pub(crate) async fn keys(access: &Access) -> Result<Lent<Keys>, CloudError> {
    let ids = ["ACCESS_KEY_ID", "TENCENTCLOUD_SECRET_ID"];
    let secrets = ["ACCESS_KEY_SECRET", "TENCENTCLOUD_SECRET_KEY"];
    if let Some(keys) = keys_of_environment(&ids, &secrets, &["TENCENTCLOUD_TOKEN"]) {
        return Ok(Lent::for_good(keys));
    }
    let wrong = |why: &str| {
        CloudError::new(Fault::Credentials, "credentials for Tencent Cloud", why).with_fix(
            "give the instance a CAM role, or set Backend.AccessKeyID and AccessKeySecret, or ACCESS_KEY_ID and \
             ACCESS_KEY_SECRET for flanneld",
        )
    };
    let service = open(access.metadata.as_deref());
    let roles = service.find(ROLES).await?.unwrap_or_default();
    let role = roles.lines().map(str::trim).find(|role| !role.is_empty());
    let role = role.ok_or_else(|| wrong("the instance has no CAM role, and there are no keys"))?;
    let text = service.get(&format!("{ROLES}{role}")).await?;
    // Nothing of an answer that holds a key is shown.
    let unreadable = || wrong(&format!("the metadata service gives no keys for the role {role}"));
    let lent: OfRole = serde_json::from_str(&text).map_err(|_| unreadable())?;
    let success = lent.code.as_deref().is_none_or(|code| code == "Success");
    let (true, Some(id), Some(secret)) = (success, lent.tmp_secret_id, lent.tmp_secret_key) else {
        return Err(unreadable());
    };
    let keys = Keys { id, secret: Secret::new(secret), token: lent.token.map(Secret::new) };
    Ok(match lent.expired_time {
        Some(at) => Lent::for_seconds(keys, at, SystemTime::UNIX_EPOCH),
        None => Lent::for_good(keys),
    })
}
