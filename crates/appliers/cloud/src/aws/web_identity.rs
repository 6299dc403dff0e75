//! Exchanges a token that somebody else has signed for a role, as pods of EKS do (IRSA): AssumeRoleWithWebIdentity of
//! the "AWS Security Token Service API Reference". The request has no signature: the token is one.

use flannel_common::Secret;
use flannel_entries::cloud::Keys;
use http::Method;

use super::call::{domain, explain, form};
use crate::credentials::{ExpiringKeys, variable};
use crate::http::call_api;
use crate::xml::Element;
use crate::{CloudError, Fault, Result};

const ROLE: &str = "AWS_ROLE_ARN";
const FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
const ACTION: &str = "AssumeRoleWithWebIdentity";
const VERSION: &str = "2011-06-15";

/// Keys of the role; `None` if the environment names no such token.
pub(crate) async fn find(region: &str) -> Result<Option<ExpiringKeys>> {
    let Some(file) = variable(&[FILE]) else { return Ok(None) };
    let file = file.trim();
    let wrong = |why: &str| CloudError::new(Fault::Credentials, "credentials for EC2", why);
    let role = variable(&[ROLE]).ok_or_else(|| {
        wrong(&format!("{FILE} names {file}, and {ROLE} no role"))
            .with_fix(format!("set {ROLE} to the role that the token stands for, or unset {FILE}"))
    })?;
    // It is replaced before it expires, so it is read each time.
    let token = std::fs::read_to_string(file).map_err(|error| {
        wrong(&format!("{FILE} names {file}: {error}"))
            .with_fix("let the service account's token be mounted there")
    })?;
    let name = variable(&["AWS_ROLE_SESSION_NAME"]).unwrap_or_else(|| "flannel".to_owned());
    let parameters = [("RoleArn", role.trim()), ("RoleSessionName", name.trim())];
    let parameters = parameters.into_iter().chain([("WebIdentityToken", token.trim())]);
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let endpoint = variable(&["AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"]);
    let url = endpoint.unwrap_or_else(|| format!("https://sts.{region}.{}", domain(region)));
    let headers = vec![("content-type", "application/x-www-form-urlencoded".to_owned())];
    let body = form(ACTION, VERSION, parameters);
    let answer = call_api(ACTION, Method::POST, url, headers, body).await?;
    if !answer.is_success() {
        let mut error = explain(ACTION, &format!("sts:{ACTION}"), &answer);
        if !matches!(error.fault, Fault::Throttled | Fault::Temporary) {
            error.fault = Fault::Credentials;
            error = error.with_fix(format!(
                "let the trust policy of {} accept the issuer and the subject of the token in {file}",
                role.trim()
            ));
        }
        return Err(error);
    }
    // An answer that holds a key is never shown.
    let unreadable = || wrong(&format!("{ACTION} gives no keys for {}", role.trim()));
    let root = Element::parse(&answer.body).map_err(|_| unreadable())?;
    let found = root.find("Credentials").ok_or_else(unreadable)?;
    let part = |name: &str| found.text_of(name).map(str::to_owned);
    let (Some(id), Some(secret)) = (part("AccessKeyId"), part("SecretAccessKey")) else {
        return Err(unreadable());
    };
    let token = part("SessionToken").map(Secret::new);
    let until = part("Expiration").and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let keys = Keys { id, secret: Secret::new(secret), token };
    Ok(Some(ExpiringKeys { keys, until: until.map(Into::into) }))
}
