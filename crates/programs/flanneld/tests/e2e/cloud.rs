//! Cloud routes: nodes in a cloud on this machine, which answers as the provider does and routes pods' packets
//! by its table: here the lab's switch.

use std::net::{IpAddr, TcpListener};

use flannel_cloud::testing::{Cloud, TableRoute};
use flannel_entries::cloud::Provider;
use flannel_lab::{Lab, LabError, Result};
use serde_json::{Value, json};

use crate::backend_trial::vxlan_outlives;
use crate::probing::flannelctl;
use crate::support::{
    LIMIT, both_ways, connected_pods, flanneld, lab, measured, own_key, probe, reach_each_other,
};

/// The provider's API, on each node; the metadata service is where the provider has it.
const API: &str = "127.0.0.1:8443";
/// Where the metadata service of a cloud answers.
fn metadata(provider: Provider) -> &'static str {
    match provider {
        Provider::AwsVpc | Provider::Gce => "169.254.169.254",
        Provider::AliVpc => "100.100.100.200",
        Provider::TencentVpc => "169.254.0.23",
    }
}

fn backend(provider: Provider, more: Value) -> Value {
    let mut backend = json!({
        "Type": provider.name(), "Endpoint": format!("http://{API}"), "CheckSeconds": 1,
    });
    if provider == Provider::TencentVpc {
        // Elsewhere it is found by its address; here, by a name.
        backend["MetadataEndpoint"] = json!(format!("http://{}", metadata(provider)));
    }
    for (name, value) in more.as_object().unwrap() {
        backend[name] = value.clone();
    }
    backend
}

fn config(backend: Value) -> String {
    json!({"Network": "10.244.0.0/16", "Backend": backend}).to_string()
}

/// Two nodes without daemons, and the cloud they are in.
fn in_a_cloud(provider: Provider, more: Value) -> Result<(Lab, Cloud)> {
    // Here the API is not where the provider has it.
    let lab = lab(2).backend_json(backend(provider, more)).flag("--allow-commands");
    let lab = lab.no_daemons().start()?;
    let cloud = cloud_around(&lab, provider)?;
    Ok((lab, cloud))
}

/// The cloud that the nodes of a lab are in.
fn cloud_around(lab: &Lab, provider: Provider) -> Result<Cloud> {
    let cloud = Cloud::new(provider);
    for node in lab.nodes() {
        let metadata = metadata(provider);
        node.ip(&format!("addr add {metadata}/32 dev lo"))?;
        let listen = |address: &str| {
            let address = address.to_owned();
            node.in_netns(move || TcpListener::bind(address)).map(std::result::Result::unwrap)
        };
        let address: IpAddr = node.nic().v4.unwrap().addr().into();
        cloud.add_machine(node.number(), &[address], listen(API)?);
        cloud.add_machine(node.number(), &[address], listen(&format!("{metadata}:80"))?);
    }
    // Google's machines were started so.
    if provider == Provider::Gce {
        cloud.state().checked = [(1, false), (2, false)].into();
    }
    Ok(cloud)
}

/// The lab's switch routes as the cloud's table says.
fn follow(lab: &Lab, cloud: &Cloud) {
    let routed: Vec<(String, String)> =
        (1..=2).map(|node| (cloud.hop(node), format!("192.168.100.{node}"))).collect();
    let switch = lab.switch().clone();
    let follow = move |routes: &[TableRoute]| {
        let mut lines = vec!["route flush table main proto 99".to_owned()];
        for TableRoute { destination, next_hop, .. } in routes {
            let via = routed.iter().find(|(hop, _)| hop == next_hop).map(|(_, via)| via);
            lines.extend(via.map(|via| format!("route replace {destination} via {via} proto 99")));
        }
        for line in lines {
            // There may be nothing to flush.
            let _ = switch.ip(&line);
        }
    };
    cloud.on_change(follow);
}

fn start(lab: &Lab) -> Result<()> {
    for node in lab.nodes() {
        node.flanneld().start()?;
    }
    lab.nodes().iter().try_for_each(|node| node.flanneld().wait_ready())
}

fn subnet(lab: &Lab, node: u16) -> String {
    lab.node(node).subnet_env().unwrap().subnet.unwrap().trunc().to_string()
}

/// The routes of both nodes, as the cloud shows them.
fn both(lab: &Lab, cloud: &Cloud) -> Vec<String> {
    let mut routes: Vec<String> =
        (1..=2).map(|node| format!("{} to {}", subnet(lab, node), cloud.hop(node))).collect();
    routes.sort();
    routes
}

fn wait_for(lab: &Lab, what: &str, cloud: &Cloud, table: &str, routes: &[String]) -> Result<()> {
    lab.wait_until(what, LIMIT, || {
        let shown = cloud.shown(table);
        if shown == routes {
            Ok(())
        } else {
            Err(LabError::Spec(format!("{shown:?}, not {routes:?}")))
        }
    })
}

#[test]
fn pods_talk_through_every_cloud_and_what_is_deleted_there_comes_back() -> Result<()> {
    for provider in [Provider::AwsVpc, Provider::AliVpc, Provider::Gce, Provider::TencentVpc] {
        let (lab, cloud) = in_a_cloud(provider, json!({}))?;
        follow(&lab, &cloud);
        start(&lab)?;
        let routes = both(&lab, &cloud);
        wait_for(&lab, "both routes", &cloud, Cloud::MAIN, &routes)?;
        let (one, two) = connected_pods(&lab)?;
        assert_eq!(lab.node(1).subnet_env()?.mtu, 1500, "nothing is put around packets");
        // Nothing depends on the daemons but repair.
        let traffic = both_ways(&lab, &one, &two)?;
        lab.node(1).flanneld().restart()?;
        lab.node(2).flanneld().kill9();
        lab.node(2).flanneld().start()?;
        lab.node(2).flanneld().wait_ready()?;
        traffic.flow(&lab)?;
        let reports = traffic.stop();
        measured(format_args!("{provider}, restart and kill -9: {reports}"));
        reports.nothing_is_lost();
        cloud.set_routes(Cloud::MAIN, &[]);
        wait_for(&lab, "both routes again", &cloud, Cloud::MAIN, &routes)?;
        reach_each_other(&lab, &one, &two)?;
        let state = cloud.state();
        assert_eq!(state.forged, 0, "every signature was right");
        let lent = state.keys.last().unwrap().clone();
        drop(state);
        for node in lab.nodes() {
            let log = node.flanneld().log();
            assert!(!log.contains(&lent.1) && !log.contains(&lent.2), "no key is in the log");
            assert!(!log.contains("token-0123456789"), "nor a token");
        }
    }
    Ok(())
}

#[test]
fn what_the_cloud_denies_is_in_the_log_and_the_probe_with_the_permission_and_throttling_is_outlived()
-> Result<()> {
    let (lab, cloud) = in_a_cloud(Provider::AwsVpc, json!({}))?;
    cloud.set_routes(
        Cloud::MAIN,
        &[("10.244.250.0/24", "eni-dead", false), ("10.9.0.0/24", "eni-dead", false)],
    );
    cloud.state().denied = ["CreateRoute".to_owned()].into();
    cloud.state().throttled = 1;
    // This one has keys in its environment, and no role.
    cloud.state().role = false;
    let (id, secret, _) = cloud.state().keys[0].clone();
    lab.node(1).flanneld().set_env("AWS_ACCESS_KEY_ID", id);
    lab.node(1).flanneld().set_env("AWS_SECRET_ACCESS_KEY", &secret);
    lab.node(1).flanneld().start()?;
    lab.wait_until("the permission in /readyz", LIMIT, || match probe(&lab, 1, "/readyz") {
        Ok(Ok((503, why))) if why.contains("the permission ec2:CreateRoute") => Ok(()),
        other => Err(LabError::Spec(format!("{other:?}"))),
    })?;
    let log = lab.node(1).flanneld().log();
    assert!(log.contains("the permission ec2:CreateRoute"), "{log}");
    assert!(log.contains("is not asked again for"), "{log}");
    assert!(!log.contains(&secret), "no key is in the log");
    cloud.state().denied.clear();
    lab.node(1).flanneld().wait_ready()?;
    let own = format!("{} to {}", subnet(&lab, 1), cloud.hop(1));
    let dead = "10.9.0.0/24 to eni-dead (dead)".to_owned();
    wait_for(&lab, "the dead route to go", &cloud, Cloud::MAIN, &[own, dead])?;
    assert!(!cloud.state().checked[&1], "its source/destination check is off");
    Ok(())
}

#[test]
fn vxlan_goes_on_while_the_cloud_denies_the_route_that_is_to_replace_it() -> Result<()> {
    for (provider, call, permission) in [
        (Provider::AwsVpc, "CreateRoute", "the permission ec2:CreateRoute"),
        (Provider::Gce, "POST routes", "compute.routes.create"),
    ] {
        let lab = lab(2).flag("--allow-commands").start()?;
        let cloud = cloud_around(&lab, provider)?;
        follow(&lab, &cloud);
        cloud.state().denied = [call.to_owned()].into();
        vxlan_outlives(&lab, backend(provider, json!({})), permission)?;
        assert_eq!(cloud.shown(Cloud::MAIN), Vec::<String>::new());
        cloud.state().denied.clear();
        wait_for(&lab, "both routes", &cloud, Cloud::MAIN, &both(&lab, &cloud))?;
        connected_pods(&lab)?;
    }
    Ok(())
}

#[test]
fn a_route_goes_with_its_table_its_backend_and_its_node() -> Result<()> {
    let (lab, cloud) = in_a_cloud(Provider::AwsVpc, json!({}))?;
    start(&lab)?;
    let routes = both(&lab, &cloud);
    wait_for(&lab, "both routes", &cloud, Cloud::MAIN, &routes)?;
    // Another table, while they run.
    let elsewhere = json!({"RouteTableID": [Cloud::OTHER]});
    lab.put_config(&config(backend(Provider::AwsVpc, elsewhere)))?;
    wait_for(&lab, "the routes in the other table", &cloud, Cloud::OTHER, &routes)?;
    wait_for(&lab, "none in the first", &cloud, Cloud::MAIN, &[])?;
    // Another backend: node 1 sees it come, node 2 was away.
    lab.node(2).flanneld().stop()?;
    lab.put_config(&config(json!({"Type": "vxlan"})))?;
    wait_for(
        &lab,
        "node 2's alone",
        &cloud,
        Cloud::OTHER,
        &[format!("{} to {}", subnet(&lab, 2), cloud.hop(2))],
    )?;
    lab.node(2).flanneld().start()?;
    lab.node(2).flanneld().wait_ready()?;
    wait_for(&lab, "none at all", &cloud, Cloud::OTHER, &[])?;
    // And back; then node 2 leaves for good.
    lab.put_config(&config(backend(Provider::AwsVpc, json!({}))))?;
    let routes = both(&lab, &cloud);
    wait_for(&lab, "both routes again", &cloud, Cloud::MAIN, &routes)?;
    let key = own_key(&lab, 2)?;
    lab.node(2).flanneld().stop()?;
    assert_eq!(cloud.shown(Cloud::MAIN), routes, "a daemon that is stopped takes nothing away");
    let flannelctl = flanneld().with_file_name("flannelctl");
    let flannelctl = flannelctl.to_str().unwrap();
    let shown = lab.node(2).exec(&[flannelctl, "cleanup"])?;
    assert!(shown.contains("of the route table rtb-main (aws-vpc)"), "{shown}");
    lab.node(2).exec(&[flannelctl, "cleanup", "--yes"])?;
    let left = format!("{} to {}", subnet(&lab, 1), cloud.hop(1));
    assert_eq!(cloud.shown(Cloud::MAIN), [left], "cleanup of node 2 ({key})");
    // As does node 1, whose own route goes when its lease is released there and no daemon takes it back.
    lab.node(1).flanneld().stop()?;
    let endpoints = format!("--etcd-endpoints={}", lab.etcd()?.endpoints());
    let released = subnet(&lab, 1);
    let said = lab.node(1).exec(&[flannelctl, "release", &released, &endpoints])?;
    assert!(said.contains("removed the ") && said.contains(&released), "{said}");
    assert_eq!(cloud.shown(Cloud::MAIN), Vec::<String>::new());
    Ok(())
}

#[test]
fn a_token_that_stands_for_a_role_is_exchanged_for_keys_of_it() -> Result<()> {
    let (lab, cloud) = in_a_cloud(Provider::AwsVpc, json!({}))?;
    cloud.state().role = false;
    cloud.state().identity = Some("eyJhbGciOi.token.of-a-pod".to_owned());
    let node = lab.node(1);
    node.write_file("/run/token", "another token")?;
    for (name, value) in [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/token"),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/node-role"),
        ("AWS_ENDPOINT_URL_STS", &format!("http://{API}")),
    ] {
        node.flanneld().set_env(name, value);
    }
    node.flanneld().start()?;
    // One that the role does not trust is told with the fix, and read anew.
    lab.wait_until("the reason in /readyz", LIMIT, || match probe(&lab, 1, "/readyz") {
        Ok(Ok((503, why))) if why.contains("the trust policy of arn:aws:iam::1:role") => Ok(()),
        other => Err(LabError::Spec(format!("{other:?}"))),
    })?;
    node.write_file("/run/token", "eyJhbGciOi.token.of-a-pod\n")?;
    node.flanneld().wait_ready()?;
    let own = format!("{} to {}", subnet(&lab, 1), cloud.hop(1));
    wait_for(&lab, "its route", &cloud, Cloud::MAIN, &[own])?;
    assert_eq!(cloud.state().forged, 0);
    let log = node.flanneld().log();
    assert!(!log.contains("of-a-pod") && !log.contains("lent-secret"), "no secret is in the log");
    Ok(())
}

#[test]
fn a_service_accounts_key_file_is_used_where_the_machine_has_no_account() -> Result<()> {
    let (lab, cloud) = in_a_cloud(Provider::Gce, json!({}))?;
    cloud.state().role = false;
    let node = lab.node(1);
    node.flanneld().set_env("GOOGLE_APPLICATION_CREDENTIALS", "/run/key.json");
    node.write_file(
        "/run/key.json",
        r#"{"type": "authorized_user", "refresh_token": "1//secret"}"#,
    )?;
    node.flanneld().start()?;
    lab.wait_until("the reason in /readyz", LIMIT, || match probe(&lab, 1, "/readyz") {
        Ok(Ok((503, why))) if why.contains(r#"of the type "service_account" is needed"#) => Ok(()),
        other => Err(LabError::Spec(format!("{other:?}"))),
    })?;
    let key = flannel_cloud::testing::key_file(&format!("http://{API}/token"));
    node.write_file("/run/key.json", &key)?;
    node.flanneld().wait_ready()?;
    let own = format!("{} to {}", subnet(&lab, 1), cloud.hop(1));
    wait_for(&lab, "its route", &cloud, Cloud::MAIN, &[own])?;
    assert_eq!(cloud.state().forged, 0, "every signature was right");
    let log = node.flanneld().log();
    assert!(!log.contains("1//secret") && !log.contains("PRIVATE KEY"), "no secret is in the log");
    Ok(())
}

#[test]
fn a_repair_that_is_asked_for_looks_into_the_clouds_table_and_tells_what_came_of_it() -> Result<()>
{
    // Nobody looks into it by himself for an hour.
    let (lab, cloud) = in_a_cloud(Provider::AwsVpc, json!({"CheckSeconds": 3600}))?;
    start(&lab)?;
    let routes = both(&lab, &cloud);
    wait_for(&lab, "both routes", &cloud, Cloud::MAIN, &routes)?;
    let own = format!("{} to {}", subnet(&lab, 1), cloud.hop(1));
    let (is_whole, said) = flannelctl(&lab, 1, &["diff"]);
    assert!(is_whole, "{said}");

    cloud.set_routes(Cloud::MAIN, &[]);
    let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
    assert!(is_whole, "{said}");
    assert!(said.contains("1 were not as wanted") && said.contains("restored"), "{said}");
    assert!(said.contains(&subnet(&lab, 1)) && said.contains("cloud: "), "{said}");
    assert!(cloud.shown(Cloud::MAIN).contains(&own), "when it has said so, it is there");
    let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
    assert!(is_whole && said.contains("compared, all as wanted"), "{said}");

    // What the cloud does not allow stays broken, and both say so.
    cloud.state().denied = ["CreateRoute".to_owned()].into();
    cloud.set_routes(Cloud::MAIN, &[]);
    for command in ["repair", "diff"] {
        let (is_whole, said) = flannelctl(&lab, 1, &[command]);
        assert!(!is_whole && said.contains("the permission ec2:CreateRoute"), "{command}: {said}");
    }
    cloud.state().denied.clear();
    lab.wait_until("the route after all", LIMIT, || {
        let (is_whole, said) = flannelctl(&lab, 1, &["repair"]);
        let there = is_whole && cloud.shown(Cloud::MAIN).contains(&own);
        if there { Ok(()) } else { Err(LabError::Spec(said)) }
    })
}
