//! Pods by their names: those of this node as the container runtime notes them, others as the API server knows them.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use flannel_kube::api::Api;
use flannel_kube::client::{ApiError, CORE, Collection};
use serde_json::Value;
use tokio::time::timeout;

use crate::commands::check::node_context::NetworkSource;
use crate::commands::store_args::block_on;
use crate::commands::usage;

const RESULTS: &str = "/var/lib/cni/results";
const DEFAULT: &str = "default";
const API_TIMEOUT: Duration = Duration::from_secs(5);
const FORBIDDEN: u16 = 403;

/// Of an address, or of a pod: one of each family.
pub(super) fn addresses(text: &str, source: &NetworkSource) -> anyhow::Result<Vec<IpAddr>> {
    if let Ok(ip) = text.parse() {
        return Ok(vec![ip]);
    }
    let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT, text));
    let files = fs::read_dir(RESULTS).into_iter().flatten().flatten();
    let noted = files.filter_map(|file| fs::read(file.path()).ok());
    let mut noted = noted.filter_map(|noted| serde_json::from_slice(&noted).ok());
    if let Some(found) = noted.find_map(|noted| of_noted(&noted, namespace, name)) {
        return Ok(found);
    }
    let unknown =
        format!("{text} is not an address, and no pod {namespace}/{name} is on this node");
    if !is_name(namespace) || !is_name(name) {
        return Err(usage(format!("{unknown}; a pod is called NAME or NAMESPACE/NAME")));
    }
    let Some(api) = source.kubernetes_api()? else {
        return Err(usage(format!(
            "{unknown}; for a pod on another node give its address, or --kubeconfig FILE to ask the API server"
        )));
    };
    let found = block_on(async {
        let pods = Collection::of_namespace(CORE, namespace, "pods");
        let asked = timeout(API_TIMEOUT, api.client.get(&pods, name, |pod| pod)).await;
        let asked = asked.context("the API server does not answer")?;
        asked.map_err(|error| why_not(error, &api, namespace))
    });
    match found.with_context(|| format!("look for the pod {namespace}/{name}"))? {
        Some(pod) => Some(of_pod(&pod)).filter(|ips| !ips.is_empty()).ok_or_else(|| {
            usage(format!("the pod {namespace}/{name} has no address yet: kubectl -n {namespace} describe pod {name}"))
        }),
        None => Err(usage(format!(
            "there is no pod {namespace}/{name}: kubectl get pods -A -o wide lists them, with their addresses"
        ))),
    }
}

pub(super) fn of_one_family(from: &[IpAddr], to: &[IpAddr]) -> Option<(IpAddr, IpAddr)> {
    from.iter()
        .find_map(|from| to.iter().find(|to| to.is_ipv4() == from.is_ipv4()).map(|to| (*from, *to)))
}

fn why_not(error: ApiError, api: &Api, namespace: &str) -> anyhow::Error {
    if error.code != Some(FORBIDDEN) {
        return error.into();
    }
    usage(format!(
        "{} does not allow to get pods in the namespace {namespace}: give the pod's address, or a --kubeconfig whose \
         user has the rule {{apiGroups: [\"\"], resources: [pods], verbs: [get]}} (dist/kubernetes/operator.yml has it)",
        api.client.endpoint()
    ))
}

/// As Kubernetes demands of names; so there is nothing in it that means something in a path.
fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with('.')
}

fn of_pod(pod: &Value) -> Vec<IpAddr> {
    let ips = pod["status"]["podIPs"].as_array().map_or(&[][..], Vec::as_slice);
    ips.iter().filter_map(|ip| ip["ip"].as_str()?.parse().ok()).collect()
}

/// Addresses of a pod as the runtime has noted it for each network, the pod's loopback device among them.
fn of_noted(noted: &Value, namespace: &str, name: &str) -> Option<Vec<IpAddr>> {
    let arguments = noted["cniArgs"].as_array()?;
    let argument = |key: &str| {
        let pair = arguments.iter().find(|pair| pair[0] == key)?;
        pair[1].as_str()
    };
    let pod = argument("K8S_POD_NAME")?;
    if (argument("K8S_POD_NAMESPACE").unwrap_or(DEFAULT), pod) != (namespace, name) {
        return None;
    }
    let ips = noted["result"]["ips"].as_array()?.iter();
    let ips = ips.filter_map(|ip| ip["address"].as_str()?.parse::<ipnet::IpNet>().ok());
    let ips = ips.map(|net| net.addr()).filter(|ip| !ip.is_loopback());
    Some(ips.collect()).filter(|ips: &Vec<IpAddr>| !ips.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_known_by_its_namespace_and_name_and_not_by_its_loopback_device() {
        let noted = |namespace: &str, addresses: &[&str]| {
            let ips: Vec<Value> =
                addresses.iter().map(|ip| serde_json::json!({ "address": ip })).collect();
            serde_json::json!({
                "cniArgs": [["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", "web"]],
                "result": {"ips": ips},
            })
        };
        let web: Option<Vec<IpAddr>> = Some(vec![[10, 244, 1, 5].into()]);
        let of_default = noted("default", &["10.244.1.5/24"]);
        assert_eq!(of_noted(&of_default, "default", "web"), web);
        assert_eq!(of_noted(&of_default, "other", "web"), None);
        // A bare name is one of the namespace default, as kubectl has it, whoever else has it.
        assert_eq!(of_noted(&noted("other", &["10.244.1.6/24"]), DEFAULT, "web"), None);
        // As containerd notes the loopback network of the same pod.
        let loopback = noted("default", &["127.0.0.1/8", "::1/128"]);
        assert_eq!(of_noted(&loopback, "default", "web"), None);
        assert_eq!(of_noted(&Value::Null, "default", "web"), None);
    }

    #[test]
    fn the_addresses_of_two_pods_are_of_one_family() {
        let v4 = |last: u8| IpAddr::from([10, 244, 1, last]);
        let v6: IpAddr = "fd00::5".parse().unwrap();
        assert_eq!(of_one_family(&[v4(1), v6], &[v4(2)]), Some((v4(1), v4(2))));
        assert_eq!(of_one_family(&[v4(1), v6], &[v6]), Some((v6, v6)));
        assert_eq!(of_one_family(&[v4(1)], &[v6]), None);
        assert!(is_name("web-0") && !is_name("../nodes") && !is_name("a/b") && !is_name(""));
    }
}
