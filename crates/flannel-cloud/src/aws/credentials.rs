//! Where AWS's own tools look too: the environment, a token that stands for a role, then the instance's role.

use flannel_common::Secret;
use serde::Deserialize;

use super::{metadata, web_identity};
use crate::credentials::{Lent, keys_of_environment};
use crate::{Access, CloudError, Fault, Keys};

const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

/// As the metadata service hands them out: "Retrieve security credentials from instance metadata" of the
/// Amazon EC2 User Guide.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfRole {
    code: Option<String>,
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    token: Option<String>,
    expiration: Option<String>,
}

pub(crate) async fn find(access: &Access) -> Result<Lent<Keys>, CloudError> {
    let tokens = ["AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"];
    if let Some(keys) =
        keys_of_environment(&["AWS_ACCESS_KEY_ID"], &["AWS_SECRET_ACCESS_KEY"], &tokens)
    {
        return Ok(Lent::for_good(keys));
    }
    if let Some(lent) = web_identity::find(&access.node.region).await? {
        return Ok(lent);
    }
    let wrong = |why: &str| {
        CloudError::new(Fault::Credentials, "credentials for EC2", why).with_fix(
            "give the instance a role (an instance profile), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
             AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, for flanneld",
        )
    };
    let service = metadata::open(access.metadata.as_deref()).await?;
    let roles = service.find(ROLES).await?.unwrap_or_default();
    let role = roles.lines().map(str::trim).find(|role| !role.is_empty());
    let role =
        role.ok_or_else(|| wrong("the instance has no role, and the environment no keys"))?;
    let text = service.get(&format!("{ROLES}{role}")).await?;
    // Nothing of an answer that holds a key is shown.
    let unreadable = || wrong(&format!("the metadata service gives no keys for the role {role}"));
    let lent: OfRole = serde_json::from_str(&text).map_err(|_| unreadable())?;
    if let Some(code) = lent.code.filter(|code| code != "Success") {
        return Err(wrong(&format!("the metadata service says {code:?} of the role {role}")));
    }
    let (Some(id), Some(secret)) = (lent.access_key_id, lent.secret_access_key) else {
        return Err(unreadable());
    };
    let until = lent.expiration.and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let keys = Keys { id, secret: Secret::new(secret), token: lent.token.map(Secret::new) };
    Ok(Lent { what: keys, until: until.map(Into::into) })
}
