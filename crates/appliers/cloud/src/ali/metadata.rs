//! Metadata service of an ECS instance: "Instance metadata" of the ECS documentation
//! (www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata), in its hardened mode where there is one.

use std::net::IpAddr;

use flannel_entries::cloud::{Access, CloudInterface, CloudNode, Provider};

use crate::credentials::{ExpiringKeys, keys_of_environment, keys_of_role};
use crate::metadata::Metadata;
use crate::{CloudError, Fault};

const DEFAULT_ENDPOINT: &str = "http://100.100.100.200";
const ROLES: &str = "/latest/meta-data/ram/security-credentials/";

async fn open(place: Option<&str>) -> Result<Metadata, CloudError> {
    let service = Metadata::new(Provider::AliVpc, place.unwrap_or(DEFAULT_ENDPOINT));
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

/// Keys of the environment, else of the machine's RAM role.
pub(crate) async fn keys(access: &Access) -> Result<ExpiringKeys, CloudError> {
    let ids = ["ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID"];
    let secrets = ["ACCESS_KEY_SECRET", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"];
    if let Some(keys) = keys_of_environment(&ids, &secrets, &["ALIBABA_CLOUD_SECURITY_TOKEN"]) {
        return Ok(ExpiringKeys::permanent(keys));
    }
    let wrong = |why: &str| {
        CloudError::new(Fault::Credentials, "credentials for Alibaba Cloud", why).with_fix(
            "give the instance a RAM role, or set Backend.AccessKeyID and AccessKeySecret, or ACCESS_KEY_ID and \
             ACCESS_KEY_SECRET for flanneld",
        )
    };
    let service = open(access.metadata.as_deref()).await?;
    keys_of_role(&service, ROLES, "RAM role", wrong).await
}
