//! Credentials where Google's own tools look: a token in the environment, a key file, the machine's service account.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use flannel_common::Secret;
use flannel_entries::cloud::{Access, Keys};
use http::Method;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::json;

use super::metadata;
use crate::credentials::{ExpiringKeys, variable};
use crate::crypto::encode;
use crate::http::call_api;
use crate::json::text;
use crate::{CloudError, Fault, Result};

const FILE: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// Scope that routes and instances need, and nothing else of the project.
const SCOPE: &str = "https://www.googleapis.com/auth/compute";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// Longest validity that Google accepts.
const SECONDS: i64 = 3600;

#[derive(Deserialize)]
struct Token {
    access_token: String,
    expires_in: u64,
}

/// A key file, as in "Create and delete service account keys" (cloud.google.com/iam/docs/keys-create-delete).
#[derive(Deserialize)]
struct KeyFile {
    r#type: String,
    #[serde(default)]
    client_email: String,
    #[serde(default)]
    private_key_id: String,
    #[serde(default)]
    private_key: String,
    #[serde(default)]
    token_uri: String,
}

pub(crate) async fn find(access: &Access) -> Result<ExpiringKeys> {
    if let Some(token) = variable(&["CLOUDSDK_AUTH_ACCESS_TOKEN"]) {
        let keys = bearer(token.trim().to_owned());
        return Ok(ExpiringKeys { keys, until: None });
    }
    if let Some(file) = variable(&[FILE]) {
        return of_key_file(file.trim()).await;
    }
    let text = metadata::token(access.metadata.as_deref()).await?;
    let text = text.ok_or_else(|| wrong("the instance has no service account, and so no role"))?;
    read(&text).ok_or_else(|| wrong("the metadata service gives no token for the service account"))
}

fn bearer(token: String) -> Keys {
    Keys { id: String::new(), secret: Secret::new(token), token: None }
}

/// Reads a token. An answer that holds one is never shown.
fn read(text: &str) -> Option<ExpiringKeys> {
    let token: Token = serde_json::from_str(text).ok()?;
    Some(ExpiringKeys::for_seconds(bearer(token.access_token), token.expires_in, SystemTime::now()))
}

fn wrong(why: &str) -> CloudError {
    CloudError::new(Fault::Credentials, "credentials for Google Cloud", why).with_fix(
        "give the instance a service account with the access scope cloud-platform or compute-rw, or name a service \
         account's key file in GOOGLE_APPLICATION_CREDENTIALS for flanneld",
    )
}

/// Requests a token for a service account's key: "Using OAuth 2.0 for Server to Server Applications"
/// (developers.google.com/identity/protocols/oauth2/service-account#httprest).
async fn of_key_file(file: &str) -> Result<ExpiringKeys> {
    let content = std::fs::read_to_string(file);
    let content = content.map_err(|error| wrong(&format!("{FILE} names {file}: {error}")))?;
    // The content is never shown.
    let key: KeyFile = serde_json::from_str(&content)
        .map_err(|_| wrong(&format!("{file}, which {FILE} names, is not a Google key file")))?;
    let assertion = assertion(&key, Timestamp::now())
        .map_err(|why| wrong(&format!("{file}, which {FILE} names, {why}")))?;
    let headers = vec![("content-type", "application/x-www-form-urlencoded".to_owned())];
    let body = format!("grant_type={}&assertion={assertion}", encode(GRANT));
    let attempt = format!("a token for {}", key.client_email);
    let url = key.token_uri.clone();
    let answer = call_api(&attempt, Method::POST, url, headers, body).await?;
    if answer.is_success() {
        return read(&answer.body)
            .ok_or_else(|| wrong(&format!("{} gives no token", key.token_uri)));
    }
    if answer.status == 429 || answer.status >= 500 {
        let error = CloudError::temporary(&attempt, &format!("HTTP {}", answer.status));
        return Err(error.with_retry_after(answer.retry_after));
    }
    let body = answer.json(&attempt).unwrap_or_default();
    let (error, description) = (text(&body, "/error"), text(&body, "/error_description"));
    let why = format!("HTTP {}: {error} {description}", answer.status);
    Err(CloudError::new(Fault::Credentials, attempt, &why).with_fix(format!(
        "the key of {file} may have been deleted, or this machine's clock is wrong: make another key, or set the clock"
    )))
}

/// Assertion that we are this service account, signed by it. The error says what is wrong with its file.
fn assertion(key: &KeyFile, now: Timestamp) -> Result<String, String> {
    if key.r#type != "service_account" {
        let kind: String = key.r#type.chars().take(40).collect();
        return Err(format!(
            "is of the type {kind:?}, and a key of the type \"service_account\" is needed"
        ));
    }
    let encode = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(json!({"alg": "RS256", "typ": "JWT", "kid": key.private_key_id}));
    let claims = encode(json!({
        "iss": key.client_email,
        "scope": SCOPE,
        "aud": key.token_uri,
        "iat": now.as_second(),
        "exp": now.as_second() + SECONDS,
    }));
    let text = format!("{header}.{claims}");
    let unusable = || "holds no private key that can be used".to_owned();
    let pair = RsaKeyPair::from_pkcs8(&der(&key.private_key).ok_or_else(unusable)?);
    let pair = pair.map_err(|_| unusable())?;
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| unusable())?;
    Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn der(pem: &str) -> Option<Vec<u8>> {
    let inside = pem.split_once("-----BEGIN PRIVATE KEY-----")?.1;
    let inside = inside.split_once("-----END PRIVATE KEY-----")?.0;
    STANDARD.decode(inside.split_whitespace().collect::<String>()).ok()
}
