//! One call of EC2's Query API, or of another of the same style.

use http::{Method, Uri};
use jiff::Timestamp;

use super::DIALECT;
use crate::client::Client;
use crate::credentials::variable;
use crate::crypto::encode;
use crate::http::{Answer, call_api};
use crate::sign::{Scope, ToSign};
use crate::xml::Element;
use crate::{CloudError, Fault, Result};

pub(crate) type Parameters = Vec<(String, String)>;

const VERSION: &str = "2016-11-15";
const CONTENT: &str = "application/x-www-form-urlencoded; charset=utf-8";

pub(super) async fn call(
    client: &Client,
    action: &'static str,
    parameters: Parameters,
) -> Result<Element> {
    let region = &client.access.node.region;
    let endpoint = client.access.endpoint.clone();
    let endpoint = endpoint.or_else(|| variable(&["AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL"]));
    let endpoint = endpoint.unwrap_or_else(|| format!("https://ec2.{region}.{}", domain(region)));
    let keys = client.keys().await?;
    let body = form(action, VERSION, parameters);
    let wrong = |why: &str| CloudError::new(Fault::Refused, action, why);
    let uri: Uri = endpoint.parse().map_err(|_| {
        wrong(&format!("{endpoint:?} is not a URL"))
            .with_fix("correct Backend.Endpoint or AWS_ENDPOINT_URL_EC2")
    })?;
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut headers =
        vec![("content-type", CONTENT.to_owned()), ("host", host), ("x-amz-date", time.clone())];
    headers.extend(
        keys.token.as_ref().map(|token| ("x-amz-security-token", token.reveal().to_owned())),
    );
    let to_sign =
        ToSign { method: "POST", path: uri.path(), query: "", headers: &headers, body: &body };
    let scope =
        Scope { scheme: "AWS4", time: &time, day: &time[..8], parts: &[region.as_str(), "ec2"] };
    let authorization = scope.sign(&keys, &to_sign);
    headers.push(("authorization", authorization));
    let answer = call_api(action, Method::POST, endpoint, headers, body).await?;
    if answer.is_success() {
        let unreadable =
            |why: String| CloudError::temporary(action, &format!("an unreadable answer: {why}"));
        return Element::parse(&answer.body).map_err(unreadable);
    }
    Err(explain(action, &format!("ec2:{action}"), &answer))
}

/// Domain of a region: China's have their own.
pub(super) fn domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

pub(super) fn form(action: &str, version: &str, parameters: Parameters) -> String {
    let fixed =
        [("Action".to_owned(), action.to_owned()), ("Version".to_owned(), version.to_owned())];
    let all = fixed.into_iter().chain(parameters);
    let pairs: Vec<String> = all.map(|(k, v)| format!("{}={}", encode(&k), encode(&v))).collect();
    pairs.join("&")
}

/// The error of an answer.
pub(super) fn explain(action: &str, permission: &str, answer: &Answer) -> CloudError {
    let parsed = Element::parse(&answer.body).ok();
    let error = parsed.as_ref().and_then(|root| root.find("Error"));
    let part =
        |name: &str| error.and_then(|error| error.text_of(name)).unwrap_or_default().to_owned();
    let (code, message) = (part("Code"), part("Message"));
    // Behind this are hundreds of characters that only AWS can read.
    let message =
        message.split("Encoded authorization failure message").next().unwrap_or_default().trim();
    DIALECT.error(action, permission, answer, &code, message)
}
