//! AWS Signature Version 4: "Signing AWS API requests" of the AWS IAM User Guide
//! (docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html); and TC3-HMAC-SHA256 of Tencent Cloud, which follows it.

use flannel_common::hex;
use flannel_entries::cloud::Keys;

use crate::crypto::{hmac256, sha256_hex};

pub(crate) struct ToSign<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Query as it is signed: names in order, all encoded.
    pub(crate) query: &'a str,
    /// Headers, with names in lower case. All are signed.
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) body: &'a str,
}

pub(crate) struct Scope<'a> {
    /// `AWS4` or `TC3`.
    pub(crate) scheme: &'a str,
    /// Time and day as the scheme writes them.
    pub(crate) time: &'a str,
    pub(crate) day: &'a str,
    /// Region and service, or the service alone.
    pub(crate) parts: &'a [&'a str],
}

impl Scope<'_> {
    /// Value of the header `Authorization`.
    pub(crate) fn sign(&self, keys: &Keys, request: &ToSign<'_>) -> String {
        let Self { scheme, time, day, parts } = self;
        let mut headers: Vec<(&str, String)> = request
            .headers
            .iter()
            .map(|(name, value)| (*name, value.split_whitespace().collect::<Vec<_>>().join(" ")))
            .collect();
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let path = if request.path.is_empty() { "/" } else { request.path };
        let (method, query) = (request.method, request.query);
        let canonical =
            format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{}", sha256_hex(request.body));
        let end = format!("{}_request", scheme.to_lowercase());
        let parts = [&[*day][..], *parts, &[end.as_str()][..]].concat();
        let (scope, algorithm) = (parts.join("/"), format!("{scheme}-HMAC-SHA256"));
        let text = format!("{algorithm}\n{time}\n{scope}\n{}", sha256_hex(&canonical));
        let start = format!("{scheme}{}", keys.secret.reveal()).into_bytes();
        let key = parts.iter().fold(start, |key, part| hmac256(&key, part));
        let (id, signature) = (&keys.id, hex(&hmac256(&key, &text)));
        format!("{algorithm} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
    }
}

#[cfg(test)]
mod tests {
    use flannel_common::Secret;

    use super::*;

    /// Of the "AWS Signature Version 4 test suite" (aws-sig-v4-test-suite): get-vanilla, post-vanilla,
    /// get-vanilla-query-order-key-case, post-x-www-form-urlencoded and post-sts-header-before.
    #[test]
    fn the_published_test_suite_is_signed_as_published() {
        let keys = Keys {
            id: "AKIDEXAMPLE".to_owned(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            token: None,
        };
        let (time, day) = ("20150830T123600Z", "20150830");
        let scope = Scope { scheme: "AWS4", time, day, parts: &["us-east-1", "service"] };
        let form = ("content-type", "application/x-www-form-urlencoded");
        for (method, query, header, body, signature) in [
            (
                "GET",
                "",
                None,
                "",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                "POST",
                "",
                None,
                "",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                "GET",
                "Param1=value1&Param2=value2",
                None,
                "",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            (
                "POST",
                "",
                Some(form),
                "Param1=value1",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            let mut headers = vec![
                ("x-amz-date", "20150830T123600Z".to_owned()),
                ("host", "example.amazonaws.com".to_owned()),
            ];
            headers.extend(header.map(|(name, value)| (name, value.to_owned())));
            let request = ToSign { method, path: "/", query, headers: &headers, body };
            let signed = scope.sign(&keys, &request);
            assert!(
                signed.ends_with(&format!("Signature={signature}")),
                "{method} {query}: {signed}"
            );
        }
    }
}
