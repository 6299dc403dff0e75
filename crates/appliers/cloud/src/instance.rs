//! Machines of clouds whose metadata service is like EC2's: what they are, and the keys of their role.

use std::net::IpAddr;
use std::time::SystemTime;

use flannel_common::Secret;
use flannel_entries::cloud::{Access, CloudInterface, CloudNode, Keys, Provider};
use serde::Deserialize;

use crate::credentials::{ExpiringKeys, variable};
use crate::http::Answer;
use crate::metadata::Metadata;
use crate::{CloudError, Fault, Result, ali, aws, tencent};

/// What such a cloud calls things. Paths are below `/latest/meta-data/`, and `MAC` in them stands for an interface's.
pub(crate) struct Dialect {
    pub(crate) provider: Provider,
    /// Address of the metadata service, and the variable that names another.
    pub(crate) metadata: &'static str,
    pub(crate) metadata_variable: Option<&'static str>,
    /// Headers of a session: the one that asks for its token, and the one that bears it.
    pub(crate) session: Option<[&'static str; 2]>,
    pub(crate) region: &'static str,
    pub(crate) zone: &'static str,
    /// Identifier of an interface; its MAC where it has no other.
    pub(crate) interface: Option<&'static str>,
    pub(crate) vpc: &'static str,
    pub(crate) subnet: &'static str,
    pub(crate) addresses: &'static [&'static str],
    /// Role that lends a machine its keys, and what assigns it to the machine.
    pub(crate) roles: &'static str,
    pub(crate) role: &'static str,
    pub(crate) profile: &'static str,
    /// Variables of a key's identifier, its secret and its session token.
    pub(crate) ids: &'static [&'static str],
    pub(crate) secrets: &'static [&'static str],
    pub(crate) tokens: &'static [&'static str],
    /// Name for which credentials are missing, and the fix.
    pub(crate) cloud: &'static str,
    pub(crate) how_to_give_keys: &'static str,
    /// Codes of errors, of which the first that fits counts.
    pub(crate) faults: &'static [(Fault, &'static [&'static str])],
    /// Beginning of the error code of a wrong clock, and a part of the one of a missing table.
    pub(crate) wrong_clock: &'static str,
    pub(crate) no_table: &'static str,
    /// What has the route tables, and the quota of their routes.
    pub(crate) tables_of: &'static str,
    pub(crate) quota: &'static str,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RoleKeys {
    code: Option<String>,
    #[serde(alias = "TmpSecretId")]
    access_key_id: Option<String>,
    #[serde(alias = "AccessKeySecret", alias = "TmpSecretKey")]
    secret_access_key: Option<String>,
    #[serde(alias = "SecurityToken")]
    token: Option<String>,
    expiration: Option<String>,
    /// Seconds since 1970.
    expired_time: Option<u64>,
}

impl Dialect {
    pub(crate) fn of(provider: Provider) -> Option<&'static Self> {
        match provider {
            Provider::AwsVpc => Some(&aws::DIALECT),
            Provider::AliVpc => Some(&ali::DIALECT),
            Provider::TencentVpc => Some(&tencent::DIALECT),
            Provider::Gce => None,
        }
    }

    /// Opens the metadata service with a session's token, which every request must carry.
    async fn open(&self, place: Option<&str>) -> Result<Metadata> {
        let place = place.map(str::to_owned).or_else(|| variable(&[self.metadata_variable?]));
        let service = Metadata::new(self.provider, place.as_deref().unwrap_or(self.metadata));
        let Some([asking, bearing]) = self.session else { return Ok(service) };
        match service.put("/latest/api/token", asking, "21600").await {
            Ok(Some(token)) => Ok(service.with_header(bearing, token)),
            // Older ones have no sessions.
            Ok(None) => Ok(service),
            Err(error) if error.fault == Fault::Denied => Ok(service),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn node(&self, place: Option<&str>) -> Result<CloudNode> {
        let service = self.open(place).await?;
        let region = service.get(&path_of(self.region, "")).await?;
        let zone = service.get(&path_of(self.zone, "")).await?;
        let instance = service.get(&path_of("instance-id", "")).await?;
        let first = service.find(&path_of("mac", "")).await?;
        let all = service.get(&path_of("network/interfaces/macs/", "")).await?;
        let all = all.lines().map(|line| line.trim().trim_end_matches('/'));
        let others = all.filter(|mac| !mac.is_empty() && Some(*mac) != first.as_deref());
        let mut interfaces = Vec::new();
        for mac in first.as_deref().into_iter().chain(others) {
            interfaces.push(self.interface(&service, mac).await?);
        }
        let (provider, project) = (self.provider, String::new());
        Ok(CloudNode { provider, project, region, zone, instance, interfaces })
    }

    async fn interface(&self, service: &Metadata, mac: &str) -> Result<CloudInterface> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for path in self.addresses {
            let list = service.find(&path_of(path, mac)).await?.unwrap_or_default();
            // A list in lines or in brackets, with or without quotes.
            let list = list.split(|c: char| !c.is_ascii_hexdigit() && c != '.' && c != ':');
            addresses.extend(list.filter_map(|address| address.parse::<IpAddr>().ok()));
        }
        let id = match self.interface {
            Some(path) => service.get(&path_of(path, mac)).await?,
            None => mac.to_owned(),
        };
        let vpc = service.get(&path_of(self.vpc, mac)).await?;
        let subnet = service.get(&path_of(self.subnet, mac)).await?;
        Ok(CloudInterface { id, vpc, subnet, addresses })
    }

    /// Keys where the provider's own tools look for them: the environment, a web identity token, the machine's role.
    pub(crate) async fn keys(&self, access: &Access) -> Result<ExpiringKeys> {
        if let (Some(id), Some(secret)) = (variable(self.ids), variable(self.secrets)) {
            let token = variable(self.tokens).map(|token| Secret::new(token.trim()));
            let (id, secret) = (id.trim().to_owned(), Secret::new(secret.trim()));
            return Ok(ExpiringKeys { keys: Keys { id, secret, token }, until: None });
        }
        if self.provider == Provider::AwsVpc
            && let Some(found) = aws::web_identity::find(&access.node.region).await?
        {
            return Ok(found);
        }
        let service = self.open(access.metadata.as_deref()).await?;
        self.keys_of_role(&service).await
    }

    async fn keys_of_role(&self, service: &Metadata) -> Result<ExpiringKeys> {
        let wrong = |why: &str| {
            let attempt = format!("credentials for {}", self.cloud);
            CloudError::new(Fault::Credentials, attempt, why).with_fix(self.how_to_give_keys)
        };
        let roles = path_of(self.roles, "");
        let names = service.find(&roles).await?.unwrap_or_default();
        let role = names.lines().map(str::trim).find(|role| !role.is_empty());
        let role = role.ok_or_else(|| {
            wrong(&format!("the instance has no {}, and the environment has no keys", self.role))
        })?;
        let text = service.get(&format!("{roles}{role}")).await?;
        // An answer that holds a key is never shown.
        let unreadable =
            || wrong(&format!("the metadata service gives no keys for the role {role}"));
        let found: RoleKeys = serde_json::from_str(&text).map_err(|_| unreadable())?;
        if let Some(code) = found.code.filter(|code| code != "Success") {
            let why = format!("the metadata service answers {code:?} for the role {role}");
            return Err(wrong(&why));
        }
        let (Some(id), Some(secret)) = (found.access_key_id, found.secret_access_key) else {
            return Err(unreadable());
        };
        let keys = Keys { id, secret: Secret::new(secret), token: found.token.map(Secret::new) };
        if let Some(at) = found.expired_time {
            return Ok(ExpiringKeys::for_seconds(keys, at, SystemTime::UNIX_EPOCH));
        }
        let until = found.expiration.and_then(|at| at.parse::<jiff::Timestamp>().ok());
        Ok(ExpiringKeys { keys, until: until.map(Into::into) })
    }

    /// The error of an answer, and the fix.
    pub(crate) fn error(
        &self,
        action: &str,
        permission: &str,
        answer: &Answer,
        code: &str,
        message: &str,
    ) -> CloudError {
        let has_code = |codes: &[&str]| codes.iter().any(|pattern| matches(code, pattern));
        let known = self.faults.iter().find(|(_, codes)| has_code(codes));
        let fault = match (known, answer.status) {
            (Some((fault, _)), _) => *fault,
            (None, 429) => Fault::Throttled,
            (None, 500..) => Fault::Temporary,
            (None, _) => Fault::Refused,
        };
        let why = match code {
            "" => format!("HTTP {}", answer.status),
            code => format!("{code}: {message}"),
        };
        let error = CloudError::new(fault, action, &why).with_retry_after(answer.retry_after);
        let fix = match fault {
            Fault::Denied => format!(
                "give this node's {}, or the owner of its keys, the permission {permission}",
                self.role
            ),
            Fault::Credentials if code.starts_with(self.wrong_clock) => {
                "correct this machine's clock".to_owned()
            }
            Fault::Credentials => format!("check this node's keys or its {}", self.profile),
            Fault::Limit => CloudError::full_table_fix(self.quota),
            Fault::NotFound if code.contains(self.no_table) => format!(
                "name a route table of this {} in Backend.RouteTableID, or leave it out",
                self.tables_of
            ),
            _ => return error,
        };
        error.with_fix(fix)
    }
}

/// Whether a code is as a pattern says, in which `*` at either end stands for anything.
fn matches(code: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => code.contains(pattern.trim_matches('*')),
        (Some(end), None) => code.ends_with(end),
        (None, Some(start)) => code.starts_with(start),
        (None, None) => code == pattern,
    }
}

fn path_of(path: &str, mac: &str) -> String {
    format!("/latest/meta-data/{}", path.replace("MAC", mac))
}
