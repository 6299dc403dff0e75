//! One call in Alibaba Cloud's RPC style, signed with HMAC-SHA1: "Request syntax and signature method for RPC API
//! operations" (www.alibabacloud.com/help/en/sdk/product-overview/rpc-mechanism).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flannel_entries::cloud::Keys;
use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use super::DIALECT;
use crate::Result;
use crate::client::Client;
use crate::crypto::{encode, hmac_sha1};
use crate::http::call_api;
use crate::json::text;

const VERSION: &str = "2016-04-28";

pub(super) async fn call(
    client: &Client,
    action: &'static str,
    parameters: Vec<(&'static str, String)>,
) -> Result<Value> {
    let access = &client.access;
    let region = &access.node.region;
    let url =
        access.endpoint.clone().unwrap_or_else(|| format!("https://vpc.{region}.aliyuncs.com"));
    let keys = client.keys().await?;
    let mut all = parameters;
    all.extend([
        ("Action", action.to_owned()),
        ("RegionId", region.clone()),
        ("Format", "JSON".to_owned()),
        ("Version", VERSION.to_owned()),
        ("AccessKeyId", keys.id.clone()),
        ("SignatureMethod", "HMAC-SHA1".to_owned()),
        ("SignatureVersion", "1.0".to_owned()),
        ("SignatureNonce", format!("{:032x}", fastrand::u128(..))),
        ("Timestamp", Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
    ]);
    all.extend(keys.token.as_ref().map(|token| ("SecurityToken", token.reveal().to_owned())));
    let (form, signature) = sign("POST", &keys, all);
    let headers = vec![("content-type", "application/x-www-form-urlencoded".to_owned())];
    let body = format!("{form}&Signature={}", encode(&signature));
    let answer = call_api(action, Method::POST, url, headers, body).await?;
    if !answer.is_success() {
        let body = answer.json(action).unwrap_or_default();
        let (code, message) = (text(&body, "/Code"), text(&body, "/Message"));
        return Err(DIALECT.error(action, &format!("vpc:{action}"), &answer, code, message));
    }
    answer.json(action)
}

fn sign(method: &str, keys: &Keys, mut parameters: Vec<(&str, String)>) -> (String, String) {
    parameters.sort();
    let pairs =
        parameters.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    let text = pairs.collect::<Vec<_>>().join("&");
    let to_sign = format!("{method}&%2F&{}", encode(&text));
    let key = format!("{}&", keys.secret.reveal());
    let signature = STANDARD.encode(hmac_sha1(key.as_bytes(), &to_sign));
    (text, signature)
}

#[cfg(test)]
mod tests {
    use flannel_common::Secret;

    use super::*;

    /// The example of "Request syntax and signature method for RPC API operations": DescribeRegions of ECS.
    #[test]
    fn the_documented_example_is_signed_as_documented() {
        let keys = Keys { id: "testid".to_owned(), secret: Secret::new("testsecret"), token: None };
        let parameters = [
            ("Timestamp", "2016-02-23T12:46:24Z"),
            ("Format", "XML"),
            ("AccessKeyId", "testid"),
            ("Action", "DescribeRegions"),
            ("SignatureMethod", "HMAC-SHA1"),
            ("SignatureNonce", "3ee8c1b8-83d3-44af-a94f-4e0ad82fd6cf"),
            ("Version", "2014-05-26"),
            ("SignatureVersion", "1.0"),
        ];
        let parameters = parameters.map(|(name, value)| (name, value.to_owned())).to_vec();
        let (_, signature) = sign("GET", &keys, parameters);
        assert_eq!(signature, "OLeaidS1JvxuMvnyHOwuJ+uX5qY=");
    }
}
