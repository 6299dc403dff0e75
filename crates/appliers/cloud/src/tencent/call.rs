//! One call of Tencent Cloud's API 3.0, signed with TC3-HMAC-SHA256: "Signature v3"
//! (www.tencentcloud.com/document/product/213/33224).

use flannel_entries::cloud::Keys;
use http::{Method, Uri};
use jiff::Timestamp;
use serde_json::Value;

use super::DIALECT;
use crate::client::Client;
use crate::http::call_api;
use crate::json::text;
use crate::sign::{Scope, ToSign};
use crate::{CloudError, Fault, Result};

const VERSION: &str = "2017-03-12";
const SERVICE: &str = "vpc";
const DEFAULT_ENDPOINT: &str = "https://vpc.tencentcloudapi.com";
const CONTENT: &str = "application/json; charset=utf-8";

pub(super) async fn call(client: &Client, action: &'static str, question: Value) -> Result<Value> {
    let access = &client.access;
    let url = access.endpoint.clone().unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
    let keys = client.keys().await?;
    let body = question.to_string();
    let uri: Uri = url.parse().map_err(|_| {
        CloudError::new(Fault::Refused, action, &format!("{url:?} is not a URL"))
            .with_fix("correct Backend.Endpoint")
    })?;
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let time = Timestamp::now().as_second();
    let mut headers = vec![
        ("content-type", CONTENT.to_owned()),
        ("authorization", authorization(&keys, SERVICE, time, CONTENT, &host, &body)),
        ("host", host),
        ("x-tc-action", action.to_owned()),
        ("x-tc-version", VERSION.to_owned()),
        ("x-tc-region", access.node.region.clone()),
        ("x-tc-timestamp", time.to_string()),
    ];
    headers.extend(keys.token.as_ref().map(|token| ("x-tc-token", token.reveal().to_owned())));
    let answer = call_api(action, Method::POST, url, headers, body).await?;
    let response = answer.json(action)?["Response"].take();
    // An error may come with HTTP 200.
    match response.get("Error") {
        Some(error) => {
            let (code, message) = (text(error, "/Code"), text(error, "/Message"));
            Err(DIALECT.error(action, &format!("vpc:{action}"), &answer, code, message))
        }
        None if response.is_null() => {
            let why = format!("HTTP {}, an answer without a response", answer.status);
            Err(CloudError::temporary(action, &why).with_retry_after(answer.retry_after))
        }
        None => Ok(response),
    }
}

fn authorization(
    keys: &Keys,
    service: &str,
    time: i64,
    content: &str,
    host: &str,
    body: &str,
) -> String {
    let day = Timestamp::from_second(time).unwrap_or_default().strftime("%Y-%m-%d").to_string();
    let headers = [("content-type", content.to_owned()), ("host", host.to_owned())];
    let to_sign = ToSign { method: "POST", path: "/", query: "", headers: &headers, body };
    let time = time.to_string();
    Scope { scheme: "TC3", time: &time, day: &day, parts: &[service] }.sign(keys, &to_sign)
}

#[cfg(test)]
mod tests {
    use flannel_common::Secret;

    use super::*;

    /// The example of "Signature v3": DescribeInstances of CVM, at 1551113065.
    #[test]
    fn the_documented_example_is_signed_as_documented() {
        let keys = Keys {
            id: "AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE".to_owned(),
            secret: Secret::new("Gu5t9xGARNpq86cd98joQYCN3EXAMPLE"),
            token: None,
        };
        let body = "{\"Limit\": 1, \"Filters\": [{\"Values\": [\"\\u672a\\u547d\\u540d\"], \"Name\": \
                    \"instance-name\"}]}";
        let header =
            authorization(&keys, "cvm", 1_551_113_065, CONTENT, "cvm.tencentcloudapi.com", body);
        assert_eq!(
            header,
            "TC3-HMAC-SHA256 Credential=AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE/2019-02-25/cvm/tc3_request, \
             SignedHeaders=content-type;host, \
             Signature=72e494ea809ad7a8c8f7a4507b9bddcbaa8e581f516e8da2f66e2c5a96525168"
        );
    }
}
