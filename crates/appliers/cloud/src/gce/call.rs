//! One call of Google's REST API, with a token of the machine.

use http::Method;
use serde_json::Value;

use crate::client::Client;
use crate::credentials::variable;
use crate::http::call_api;
use crate::json::text;
use crate::{CloudError, Fault, Result};

const DEFAULT_ENDPOINT: &str = "https://compute.googleapis.com";

/// Makes a call. Messages call it by the `permission` that it needs.
pub(super) async fn call(
    client: &Client,
    method: Method,
    path: &str,
    query: &str,
    body: Option<Value>,
    permission: &str,
) -> Result<Value> {
    // As gcloud's property api_endpoint_overrides/compute, which ends with the version.
    let base = client.access.endpoint.clone();
    let base = base.or_else(|| variable(&["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"]));
    let base = base.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let base = base.trim_end_matches('/').trim_end_matches("/compute/v1").to_owned();
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    let token = client.keys().await?.secret;
    let mut headers = vec![("authorization", format!("Bearer {}", token.reveal()))];
    headers.extend(body.as_ref().map(|_| ("content-type", "application/json".to_owned())));
    let url = format!("{base}/compute/v1/{path}{query}");
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let answer = call_api(permission, method, url, headers, body).await?;
    if answer.is_success() {
        return answer.json(permission);
    }
    let body = answer.json(permission).unwrap_or_default();
    let (reason, message) = (text(&body, "/error/errors/0/reason"), text(&body, "/error/message"));
    Err(explain(permission, answer.status, reason, message).with_retry_after(answer.retry_after))
}

pub(super) fn explain_operation(permission: &str, operation: &Value) -> Result<()> {
    let Some(error) = operation["error"]["errors"].get(0) else { return Ok(()) };
    let status =
        operation["httpErrorStatusCode"].as_u64().and_then(|status| u16::try_from(status).ok());
    Err(explain(permission, status.unwrap_or(400), text(error, "/code"), text(error, "/message")))
}

fn explain(permission: &str, status: u16, reason: &str, message: &str) -> CloudError {
    let scopes = message.contains("authentication scopes");
    let fault = match (status, reason) {
        (_, "rateLimitExceeded" | "userRateLimitExceeded" | "RATE_LIMIT_EXCEEDED") | (429, _) => {
            Fault::Throttled
        }
        (_, "quotaExceeded" | "QUOTA_EXCEEDED" | "limitExceeded" | "LIMIT_EXCEEDED") => {
            Fault::Limit
        }
        (401, _) => Fault::Credentials,
        (403, _) => Fault::Denied,
        (404, _) => Fault::NotFound,
        (409, _) => Fault::Exists,
        (500.., _) => Fault::Temporary,
        _ => Fault::Refused,
    };
    let why = match message {
        "" => format!("HTTP {status}"),
        message => format!("{message} ({reason})"),
    };
    let error = CloudError::new(fault, permission, &why);
    let fix = match fault {
        Fault::Denied if scopes => {
            "give the instance the access scope cloud-platform or compute-rw (it has to be stopped for that)".to_owned()
        }
        Fault::Denied => format!(
            "give this instance's service account the permission {permission} (and compute.networks.updatePolicy, \
             compute.instances.use for routes)"
        ),
        Fault::Credentials => "check this instance's service account".to_owned(),
        Fault::Limit => CloudError::full_table_fix("of static routes of the network"),
        _ => return error,
    };
    error.with_fix(fix)
}
