//! What an ECS instance can ask of itself: "Instance metadata" of the ECS documentation
//! (www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata), in its hardened mode where there is one.

use std::net::IpAddr;

use flannel_common::Secret;
use serde::Deserialize;

use crate::credentials::{Lent, keys_of_environment};
use crate::metadata::Metadata;
use crate::{Access, CloudError, CloudInterface, CloudNode, Fault, Keys, Provider};

const USUAL: &str = "http://100.100.100.200";
const ROLES: &str = "/latest/meta-data/ram/security-credentials/";

async fn open(place: Option<&str>) -> Result<Metadata, CloudError> {
    let service = Metadata::new(Provider::AliVpc, place.unwrap_or(USUAL));
    let token =
        service.put("/latest/api/token", "x-aliyun-ecs-metadata-token-ttl-seconds", "21600").await;
    Ok(match token {
        Ok(Some(token)) => service.with_header("x-aliyun-ecs-metadata-token", token),
        // Older ones have no such mode.
        Ok(None) => service,
        Err(error) if error.fault == Fault::Denied => service,
        Err(error) => return Err(error),
    })
}

pub(crate) async fn node(place: Option<&str>) -> Result<CloudNode, CloudError> {
    let service = open(place).await?;
    let get = |path: &'static str| service.get(path);
    let vpc = get("/latest/meta-data/vpc-id").await?;
    let all = get("/latest/meta-data/network/interfaces/macs/").await?;
    let mut interfaces = Vec::new();
    for mac in
        all.lines().map(|line| line.trim().trim_end_matches('/')).filter(|mac| !mac.is_empty())
    {
        interfaces.push(interface(&service, mac, &vpc).await?);
    }
    Ok(CloudNode {
        provider: Provider::AliVpc,
        project: String::new(),
        region: get("/latest/meta-data/region-id").await?,
        zone: get("/latest/meta-data/zone-id").await?,
        instance: get("/latest/meta-data/instance-id").await?,
        interfaces,
    })
}

async fn interface(service: &Metadata, mac: &str, vpc: &str) -> Result<CloudInterface, CloudError> {
    let path = |what: &str| format!("/latest/meta-data/network/interfaces/macs/{mac}/{what}");
    // A list in brackets, with or without quotes.
    let list = service.find(&path("private-ipv4s")).await?.unwrap_or_default();
    let addresses = list.split(|c: char| !c.is_ascii_hexdigit() && c != '.' && c != ':');
    Ok(CloudInterface {
        id: service.find(&path("network-interface-id")).await?.unwrap_or_default(),
        vpc: vpc.to_owned(),
        subnet: service.find(&path("vswitch-id")).await?.unwrap_or_default(),
        addresses: addresses.filter_map(|address| address.parse::<IpAddr>().ok()).collect(),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfRole {
    code: Option<String>,
    access_key_id: Option<String>,
    access_key_secret: Option<String>,
    security_token: Option<String>,
    expiration: Option<String>,
}

/// Those of the environment, else those that the machine's RAM role lends.
pub(crate) async fn keys(access: &Access) -> Result<Lent<Keys>, CloudError> {
    let ids = ["ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID"];
    let secrets = ["ACCESS_KEY_SECRET", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"];
    if let Some(keys) = keys_of_environment(&ids, &secrets, &["ALIBABA_CLOUD_SECURITY_TOKEN"]) {
        return Ok(Lent::for_good(keys));
    }
    let wrong = |why: &str| {
        CloudError::new(Fault::Credentials, "credentials for Alibaba Cloud", why).with_fix(
            "give the instance a RAM role, or set Backend.AccessKeyID and AccessKeySecret, or ACCESS_KEY_ID and \
             ACCESS_KEY_SECRET for flanneld",
        )
    };
    let service = open(access.metadata.as_deref()).await?;
    let roles = service.find(ROLES).await?.unwrap_or_default();
    let role = roles.lines().map(str::trim).find(|role| !role.is_empty());
    let role = role.ok_or_else(|| wrong("the instance has no RAM role, and there are no keys"))?;
    let text = service.get(&format!("{ROLES}{role}")).await?;
    // Nothing of an answer that holds a key is shown.
    let unreadable = || wrong(&format!("the metadata service gives no keys for the role {role}"));
    let lent: OfRole = serde_json::from_str(&text).map_err(|_| unreadable())?;
    let success = lent.code.as_deref().is_none_or(|code| code == "Success");
    let (true, Some(id), Some(secret)) = (success, lent.access_key_id, lent.access_key_secret)
    else {
        return Err(unreadable());
    };
    let until = lent.expiration.and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let token = lent.security_token.map(Secret::new);
    Ok(Lent { what: Keys { id, secret: Secret::new(secret), token }, until: until.map(Into::into) })
}
