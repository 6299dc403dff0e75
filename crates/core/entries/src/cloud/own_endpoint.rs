//! Which addresses belong to a provider. Any other one gets this node's credentials only if the node allows it, so a
//! name counts only where nobody but the provider can put a machine behind it: many names below a provider's domain
//! are its customers' (buckets, load balancers, functions).

use http::Uri;

use super::Provider;

impl Provider {
    pub fn is_own_api(self, url: &str) -> bool {
        let Some((scheme, host)) = scheme_and_host(url) else { return false };
        scheme == "https" && self.is_api_host(&host)
    }

    /// Whether a URL leads to the metadata service that machines of the provider have.
    pub fn is_own_metadata(self, url: &str) -> bool {
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        scheme_and_host(&url)
            .is_some_and(|(_, host)| self.metadata_hosts().contains(&host.as_str()))
    }

    fn is_api_host(self, host: &str) -> bool {
        let labels: Vec<&str> = host.split('.').collect();
        match self {
            Self::AwsVpc => match labels.as_slice() {
                ["ec2" | "ec2-fips", region, "amazonaws", "com"]
                | ["ec2", region, "amazonaws", "com", "cn"]
                | ["ec2", region, "api", "aws"]
                | [_, "ec2", region, "vpce", "amazonaws", "com"]
                | [_, "ec2", region, "vpce", "amazonaws", "com", "cn"] => is_region(region),
                _ => false,
            },
            Self::AliVpc => match labels.as_slice() {
                ["vpc", "aliyuncs", "com"] => true,
                ["vpc" | "vpc-vpc", region, "aliyuncs", "com"] => is_region(region),
                _ => false,
            },
            Self::Gce => match labels.as_slice() {
                ["compute", "googleapis", "com"] => true,
                [name, "p", "googleapis", "com"] => name.starts_with("compute-"),
                _ => false,
            },
            Self::TencentVpc => match labels.as_slice() {
                ["vpc", "tencentcloudapi", "com"]
                | ["vpc", "internal", "tencentcloudapi", "com"] => true,
                ["vpc", region, "tencentcloudapi", "com"]
                | ["vpc", region, "internal", "tencentcloudapi", "com"] => is_region(region),
                _ => false,
            },
        }
    }

    fn metadata_hosts(self) -> &'static [&'static str] {
        match self {
            Self::AwsVpc => &["169.254.169.254", "[fd00:ec2::254]"],
            Self::AliVpc => &["100.100.100.200"],
            Self::Gce => &["169.254.169.254", "metadata.google.internal"],
            Self::TencentVpc => &["169.254.0.23", "metadata.tencentyun.com"],
        }
    }
}

/// Scheme and host in lower case; `None` for a URL with a port or a user, which no provider's own has.
fn scheme_and_host(url: &str) -> Option<(String, String)> {
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?.to_ascii_lowercase();
    let is_plain = uri.authority()?.as_str().eq_ignore_ascii_case(&host);
    is_plain.then_some((uri.scheme_str()?.to_ascii_lowercase(), host))
}

/// Whether a label is a region, such as `eu-central-1`. Buckets have other names, such as `oss-cn-hangzhou`, `s3`.
fn is_region(label: &str) -> bool {
    let mut parts = label.split('-');
    let begins = parts.next().is_some_and(|part| part.len() == 2);
    let rest: Vec<&str> = parts.collect();
    let is_word = |part: &&str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    begins && !rest.is_empty() && rest.iter().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_nobody_else_can_have_are_the_providers_own() {
        use Provider::{AliVpc, AwsVpc, Gce, TencentVpc};
        for (provider, url) in [
            (AwsVpc, "https://ec2.eu-central-1.amazonaws.com"),
            (AwsVpc, "https://EC2.us-gov-west-1.amazonaws.com/"),
            (AwsVpc, "https://ec2.cn-north-1.amazonaws.com.cn"),
            (AwsVpc, "https://vpce-0a-1b.ec2.us-east-1.vpce.amazonaws.com"),
            (AliVpc, "https://vpc.aliyuncs.com"),
            (AliVpc, "https://vpc-vpc.cn-hangzhou.aliyuncs.com"),
            (Gce, "https://compute.googleapis.com/compute/v1"),
            (Gce, "https://compute-pods.p.googleapis.com"),
            (TencentVpc, "https://vpc.internal.tencentcloudapi.com"),
            (TencentVpc, "https://vpc.ap-guangzhou.tencentcloudapi.com"),
        ] {
            assert!(provider.is_own_api(url), "{url}");
        }
        for (provider, url) in [
            (AwsVpc, "https://thief.example"),
            (AwsVpc, "http://ec2.eu-central-1.amazonaws.com"),
            (AwsVpc, "https://ec2.eu-central-1.amazonaws.com:8443"),
            (AwsVpc, "https://ec2.eu-central-1.amazonaws.com@thief.example"),
            (AwsVpc, "https://ec2.eu-central-1.amazonaws.com.thief.example"),
            (AwsVpc, "https://ec2-3-64-0-1.eu-central-1.compute.amazonaws.com"),
            (AwsVpc, "https://abc.execute-api.eu-central-1.amazonaws.com"),
            (AwsVpc, "https://ec2.s3.amazonaws.com"),
            (AwsVpc, "https://vpce-1.vpce-svc-2.us-east-1.vpce.amazonaws.com"),
            (AliVpc, "https://vpc.oss-cn-hangzhou.aliyuncs.com"),
            (AliVpc, "https://abc.cn-hangzhou.fc.aliyuncs.com"),
            (Gce, "https://compute.storage.googleapis.com"),
            (TencentVpc, "https://vpc.myqcloud.com"),
            (TencentVpc, "no url"),
        ] {
            assert!(!provider.is_own_api(url), "{url}");
        }
        assert!(AwsVpc.is_own_metadata("http://169.254.169.254"));
        assert!(AwsVpc.is_own_metadata("http://[fd00:ec2::254]"));
        assert!(Gce.is_own_metadata("metadata.google.internal"));
        assert!(!AliVpc.is_own_metadata("http://169.254.169.254"));
        assert!(!AwsVpc.is_own_metadata("http://169.254.169.254:81"));
        assert!(!TencentVpc.is_own_metadata("http://metadata.tencentyun.com.thief.example"));
    }
}
