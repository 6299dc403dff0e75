//! What is the same in every cloud.

use flannel_cloud::testing::Cloud;
use flannel_cloud::{CloudApplier, recorded, remove_recorded};
use flannel_entries::cloud::{Provider, Table};
use flannel_wanted::{Applier as _, Importance};

use crate::support::Place;

const ALL: [Provider; 4] =
    [Provider::AwsVpc, Provider::AliVpc, Provider::Gce, Provider::TencentVpc];
/// Those that have several tables.
const TABLES: [Provider; 3] = [Provider::AwsVpc, Provider::AliVpc, Provider::TencentVpc];
const MAIN: &str = Cloud::MAIN;

fn shown(place: &Place, routes: &[(&str, u16)]) -> Vec<String> {
    routes.iter().map(|(to, machine)| format!("{to} to {}", place.hop(*machine))).collect()
}

fn expect(place: &Place, table: &str, routes: &[(&str, u16)]) {
    let routes = shown(place, routes);
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    place.wait_for_routes(table, &routes);
}

#[test]
fn a_route_that_is_wanted_is_written_and_written_anew_when_somebody_removes_or_bends_it() {
    for provider in ALL {
        let place = Place::new(provider);
        place.want("10.244.5.0/24");
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        place.wait_for_peace();
        place.cloud.set_routes(MAIN, &[]);
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        let other = place.hop(2);
        place.cloud.set_routes(MAIN, &[("10.244.5.0/24", &other, true)]);
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        place.wait_for_peace();
        assert_eq!(place.cloud.state().forged, 0, "{provider}: every signature was right");
    }
}

#[test]
fn stale_routes_of_this_node_go_and_those_of_others_stay() {
    for provider in ALL {
        let place = Place::new(provider);
        let (own, other) = (place.hop(1), place.hop(2));
        let before = [
            ("10.244.5.0/24", other.as_str(), true),
            ("10.244.6.0/24", &own, true),
            ("10.244.7.0/24", &other, true),
            ("10.9.0.0/24", &own, true),
        ];
        place.cloud.set_routes(MAIN, &before);
        place.want("10.244.5.0/24");
        expect(&place, MAIN, &[("10.244.5.0/24", 1), ("10.244.7.0/24", 2), ("10.9.0.0/24", 1)]);
    }
}

#[test]
fn a_route_that_is_wanted_no_more_goes_also_when_the_daemon_was_away_meanwhile() {
    for provider in ALL {
        let mut place = Place::new(provider);
        place.want("10.244.5.0/24");
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        place.want("10.244.6.0/24");
        expect(&place, MAIN, &[("10.244.6.0/24", 1)]);
        place.wait_for_peace();
        place.declare(Vec::new());
        expect(&place, MAIN, &[]);
        // A daemon that begins with another backend, and one that begins with another table.
        place.want("10.244.6.0/24");
        expect(&place, MAIN, &[("10.244.6.0/24", 1)]);
        place.wait_for_peace();
        place.applier = CloudApplier::new(2, place.path());
        place.declare(Vec::new());
        expect(&place, MAIN, &[]);
        place.wait("nothing to be noted", || recorded(&place.path()).is_empty());
    }
}

#[test]
fn a_restart_writes_nothing_and_removes_nothing() {
    for provider in ALL {
        let mut place = Place::new(provider);
        place.want("10.244.5.0/24");
        place.wait_for_peace();
        place.cloud.state().calls.clear();
        place.applier = CloudApplier::new(2, place.path());
        place.want("10.244.5.0/24");
        place.wait_for_peace();
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        let calls = place.cloud.state().calls.clone();
        let writes = |call: &&String| !call.starts_with("Describe") && !call.starts_with("GET");
        assert_eq!(calls.iter().find(writes), None, "{provider}: {calls:?}");
        assert_eq!(recorded(&place.path()).len(), 1);
    }
}

#[test]
fn tables_that_are_named_have_the_route_each_and_lose_it_when_they_are_not_any_more() {
    for provider in TABLES {
        let place = Place::new(provider);
        let named = |id: &str| Table::Named(id.to_owned());
        let route = |table: Table| place.route(table, "10.244.5.0/24");
        place.declare(vec![route(named(MAIN)), route(named(Cloud::OTHER))]);
        for table in [MAIN, Cloud::OTHER] {
            expect(&place, table, &[("10.244.5.0/24", 1)]);
        }
        place.wait_for_peace();
        place.declare(vec![route(named(Cloud::OTHER))]);
        expect(&place, MAIN, &[]);
        expect(&place, Cloud::OTHER, &[("10.244.5.0/24", 1)]);
        place.declare(vec![route(named("no-such-table"))]);
        let problem = place.wait_for_problem("Backend.RouteTableID");
        assert!(problem.contains("no-such-table"), "{provider}: {problem}");
    }
}

#[test]
fn the_table_of_this_nodes_subnet_is_found() {
    for provider in TABLES {
        let place = Place::with(provider, |cloud| {
            cloud.state().tables[1].subnets.push(Cloud::SUBNET.to_owned());
        });
        place.want("10.244.5.0/24");
        expect(&place, Cloud::OTHER, &[("10.244.5.0/24", 1)]);
        assert_eq!(place.cloud.shown(MAIN), [""; 0]);
    }
}

#[test]
fn being_asked_for_less_is_respected_and_the_route_comes_in_the_end() {
    for provider in ALL {
        let place = Place::new(provider);
        place.cloud.state().throttled = 1;
        place.want("10.244.5.0/24");
        let problem = place.wait_for_problem("10.244.5.0/24");
        place.wait("a call", || !place.cloud.state().calls.is_empty());
        place.pass(std::time::Duration::from_secs(2));
        assert_eq!(
            place.cloud.state().calls.len(),
            1,
            "{provider}: nothing more was asked: {problem}"
        );
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
    }
}

#[test]
fn a_cloud_that_says_when_to_ask_again_is_left_alone_until_then() {
    std::thread::scope(|all| {
        for provider in ALL {
            all.spawn(move || {
                let place = Place::new(provider);
                place.cloud.state().throttled = 1;
                // More than without a word of it.
                place.cloud.state().retry_after = Some("12".to_owned());
                place.want("10.244.5.0/24");
                place.wait("a call", || !place.cloud.state().calls.is_empty());
                place.pass(std::time::Duration::from_secs(9));
                assert_eq!(place.cloud.state().calls.len(), 1, "{provider}: nothing more is asked");
                expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
            });
        }
    });
}

#[test]
fn what_is_denied_is_told_with_the_permission_that_is_missing_and_tried_again() {
    for provider in ALL {
        let place = Place::new(provider);
        let action = place.cloud.writing();
        place.cloud.state().denied.insert(action.to_owned());
        place.want("10.244.5.0/24");
        let problem = place.wait_for_problem(place.cloud.permission());
        assert!(problem.len() < 900, "{provider}: no more than people read: {problem}");
        place.cloud.state().denied.clear();
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        place.wait_for_peace();
    }
}

#[test]
fn a_full_table_is_told_with_what_to_do() {
    for provider in ALL {
        let place = Place::new(provider);
        place.cloud.state().limit = 0;
        place.want("10.244.5.0/24");
        let problem = place.wait_for_problem("quota");
        assert!(problem.contains("vxlan"), "{provider}: {problem}");
    }
}

#[test]
fn defect_53_keys_of_the_config_the_role_and_new_ones_of_the_role_are_used_and_none_is_shown() {
    for provider in [Provider::AwsVpc, Provider::AliVpc, Provider::TencentVpc] {
        let mut place = Place::new(provider);
        // The config's keys, on a machine without a role.
        place.cloud.state().role = false;
        place.want("10.244.5.0/24");
        let problem = place.wait_for_problem("role");
        assert!(!problem.contains("secret-0123456789"), "{problem}");
        place.static_keys();
        place.want("10.244.5.0/24");
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
        assert!(!format!("{:?}", place.access).contains("secret-0123456789"));
        let noted = recorded(&place.path());
        assert!(!format!("{noted:?}").contains("AKIDSTATIC"), "no key is written to a file");
        // Keys that are taken back, and others in their place.
        place.cloud.state().role = true;
        place.access.keys = None;
        place.want("10.244.6.0/24");
        expect(&place, MAIN, &[("10.244.6.0/24", 1)]);
        let fresh = ("ASIALENT2".into(), "another-secret-0123456789".into(), "lent-token-2".into());
        place.cloud.state().keys = vec![fresh];
        place.cloud.set_routes(MAIN, &[]);
        expect(&place, MAIN, &[("10.244.6.0/24", 1)]);
    }
}

#[test]
fn wrong_keys_are_told_and_nothing_of_them() {
    for provider in [Provider::AwsVpc, Provider::AliVpc, Provider::TencentVpc] {
        let mut place = Place::new(provider);
        place.static_keys();
        place.cloud.state().keys[0].1 = "the-cloud-knows-another".to_owned();
        place.want("10.244.5.0/24");
        let problem = place.wait_for_problem("ignature");
        assert!(!problem.contains("secret-0123456789"), "{provider}: {problem}");
        assert!(place.cloud.state().forged > 0);
    }
}

#[test]
fn what_is_noted_of_a_route_is_enough_to_take_it_away() {
    for provider in ALL {
        let place = Place::new(provider);
        place.want("10.244.5.0/24");
        place.wait_for_peace();
        let own = recorded(&place.path());
        assert_eq!(own.len(), 1);
        drop(place.runtime.block_on(async { place.applier.status().await }));
        let Place { cloud, runtime, applier, directory, .. } = place;
        drop(applier);
        runtime.block_on(remove_recorded(directory.path(), &own[0])).unwrap();
        assert_eq!(cloud.shown(MAIN), [""; 0], "{provider}");
        assert_eq!(recorded(directory.path()), []);
    }
}

#[test]
fn ipv6_is_routed_where_the_cloud_can() {
    for provider in [Provider::AwsVpc, Provider::Gce] {
        let place = Place::new(provider);
        place.declare(vec![
            place.route(Table::Detected, "10.244.5.0/24"),
            place.route(Table::Detected, "fd00:244:0:5::/64"),
        ]);
        expect(&place, MAIN, &[("10.244.5.0/24", 1), ("fd00:244:0:5::/64", 1)]);
        place.wait_for_peace();
    }
}

#[test]
fn dead_routes_are_cleared_away_inside_of_the_network() {
    for provider in [Provider::AwsVpc, Provider::Gce] {
        let place = Place::new(provider);
        let gone = place.hop(2);
        let before = [("10.244.8.0/24", gone.as_str(), false), ("10.9.0.0/24", &gone, false)];
        place.cloud.set_routes(MAIN, &before);
        place.want("10.244.5.0/24");
        place.wait("the dead route to go", || {
            let shown = place.cloud.shown(MAIN);
            shown.len() == 2
                && shown[0].starts_with("10.244.5.0/24")
                && shown[1].starts_with("10.9.0.0/24")
        });
    }
}

#[test]
fn a_node_is_let_forward_and_what_stands_against_it_is_told() {
    const READ: &str = "DescribeNetworkInterfaceAttribute";
    const CHANGE: &str = "ModifyNetworkInterfaceAttribute";
    let place = Place::new(Provider::AwsVpc);
    let deny = |denied: &[&str]| {
        place.cloud.state().denied = denied.iter().map(|&action| action.to_owned()).collect();
    };
    // It is on, and must not be switched off: pods are cut off, and the node says so.
    deny(&[CHANGE]);
    place.declare(vec![place.forwarding()]);
    let problem = place.wait_for_problem("ec2:ModifyNetworkInterfaceAttribute");
    assert!(problem.contains("eni-0001"), "{problem}");
    assert_eq!(place.status().problems[0].importance, Importance::Foundation);
    // Nobody tells, so it may be off: a word of it, and no more.
    deny(&[CHANGE, READ]);
    place.wait_for_peace();
    assert!(place.cloud.state().checked[&1]);
    deny(&[]);
    place.wait("the check to be off", || !place.cloud.state().checked[&1]);
    // Somebody switches it on again.
    place.cloud.state().checked.insert(1, true);
    place.wait("the check to be off again", || !place.cloud.state().checked[&1]);

    let place = Place::new(Provider::Gce);
    place.declare(vec![place.forwarding()]);
    let problem = place.wait_for_problem("canIpForward");
    assert!(problem.contains("--can-ip-forward"), "{problem}");
    place.cloud.state().checked.insert(1, false);
    place.wait_for_peace();
}

#[test]
fn a_provider_that_is_away_for_a_while_makes_no_node_unready() {
    for provider in ALL {
        let place = Place::new(provider);
        place.want("10.244.5.0/24");
        place.wait_for_peace();
        place.cloud.state().broken = true;
        let before = place.cloud.state().calls.len();
        place.wait("two more looks", || place.cloud.state().calls.len() > before + 1);
        assert!(place.status().is_settled(), "{provider}: {:?}", place.status());
        place.cloud.set_routes(MAIN, &[]);
        place.cloud.state().broken = false;
        expect(&place, MAIN, &[("10.244.5.0/24", 1)]);
    }
}
