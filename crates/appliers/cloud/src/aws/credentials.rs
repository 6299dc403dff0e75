//! Credentials, found where AWS's own tools look: the environment, a web identity token, then the instance's role.

use flannel_entries::cloud::Access;

use super::{metadata, web_identity};
use crate::credentials::{ExpiringKeys, keys_of_environment, keys_of_role};
use crate::{CloudError, Fault};

/// Path of the roles: "Retrieve security credentials from instance metadata" of the Amazon EC2 User Guide.
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

pub(crate) async fn find(access: &Access) -> Result<ExpiringKeys, CloudError> {
    let tokens = ["AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"];
    if let Some(keys) =
        keys_of_environment(&["AWS_ACCESS_KEY_ID"], &["AWS_SECRET_ACCESS_KEY"], &tokens)
    {
        return Ok(ExpiringKeys::permanent(keys));
    }
    if let Some(found) = web_identity::find(&access.node.region).await? {
        return Ok(found);
    }
    let wrong = |why: &str| {
        CloudError::new(Fault::Credentials, "credentials for EC2", why).with_fix(
            "give the instance a role (an instance profile), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
             AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, for flanneld",
        )
    };
    let service = metadata::open(access.metadata.as_deref()).await?;
    keys_of_role(&service, ROLES, "role", wrong).await
}
