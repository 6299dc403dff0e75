//! Plans changes to a table, as a pure function of it and of what is wanted.

use std::collections::BTreeSet;

use flannel_entries::cloud::CloudRoute;
use ipnet::IpNet;

use crate::client::{RouteState, TableRoute, TableView};

const DEAD: &str = "the machine it led to is gone";
const STALE: &str = "this node does not have that subnet any more";

/// Compares a table with a wanted route. The error is the route in its place, if there is one.
pub(crate) fn compare<'a>(
    route: &CloudRoute,
    table: &'a [TableRoute],
) -> Result<(), Option<&'a TableRoute>> {
    let there = || table.iter().filter(|found| found.destination == route.destination);
    let as_wanted = |found: &TableRoute| {
        found.state == RouteState::Active && same_hop(&found.next_hop, &route.next_hop)
    };
    if there().any(as_wanted) { Ok(()) } else { Err(there().next()) }
}

/// Routes of a table that are ours to remove: dead ones, whoever wrote them, and those that lead to this node; both
/// only inside of our networks, and only if nobody wants them. Each comes with the reason.
///
/// `own` are the names of this node in routes, `wanted` the destinations that are wanted in this table.
pub(crate) fn unwanted<'a>(
    view: &'a TableView,
    networks: &[IpNet],
    own: &BTreeSet<&str>,
    wanted: &BTreeSet<IpNet>,
) -> Vec<(&'a TableRoute, &'static str)> {
    let inside = |destination: &IpNet| {
        networks.iter().any(|network| {
            network.contains(destination) && destination.prefix_len() > network.prefix_len()
        })
    };
    let ours = |found: &&TableRoute| {
        found.written && inside(&found.destination) && !wanted.contains(&found.destination)
    };
    let why = |found: &'a TableRoute| {
        let stale = own.iter().any(|hop| same_hop(&found.next_hop, hop));
        let why = match found.state {
            _ if stale => STALE,
            RouteState::Dead => DEAD,
            RouteState::Active | RouteState::Off => return None,
        };
        Some((found, why))
    };
    view.routes.iter().filter(ours).filter_map(why).collect()
}

/// Whether two next hops are the same. Google's are URLs that may be written in full or in part.
fn same_hop(found: &str, wanted: &str) -> bool {
    found == wanted || (wanted.contains('/') && found.ends_with(&format!("/{wanted}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use flannel_entries::cloud::{Access, CloudInterface, CloudNode, Provider, Table};

    fn found(destination: &str, next_hop: &str, state: RouteState) -> TableRoute {
        TableRoute {
            id: String::new(),
            destination: destination.parse().expect("a network"),
            next_hop: next_hop.to_owned(),
            state,
            written: next_hop != "local",
        }
    }

    fn view(routes: &[(&str, &str, RouteState)]) -> TableView {
        let routes = routes.iter().map(|(to, hop, state)| found(to, hop, *state)).collect();
        TableView { id: "rtb-1".to_owned(), routes }
    }

    fn route(destination: &str, next_hop: &str) -> CloudRoute {
        let node = CloudNode {
            provider: Provider::AwsVpc,
            project: String::new(),
            region: "eu-west-1".to_owned(),
            zone: String::new(),
            instance: "i-1".to_owned(),
            interfaces: Vec::new(),
        };
        let access = Access {
            node,
            interface: CloudInterface::default(),
            keys: None,
            endpoint: None,
            metadata: None,
            check_every: std::time::Duration::from_secs(60),
        };
        CloudRoute {
            access: Arc::new(access),
            table: Table::Detected,
            destination: destination.parse().expect("a network"),
            next_hop: next_hop.to_owned(),
        }
    }

    #[test]
    fn a_route_is_as_wanted_if_it_is_in_force_and_leads_to_this_node() {
        let ours = route("10.1.2.0/24", "eni-1");
        for (there, as_wanted) in [
            (vec![("10.1.2.0/24", "eni-1", RouteState::Active)], Ok(())),
            (vec![], Err(None)),
            (vec![("10.1.3.0/24", "eni-1", RouteState::Active)], Err(None)),
            (vec![("10.1.2.0/24", "eni-1", RouteState::Dead)], Err(Some("eni-1"))),
            (vec![("10.1.2.0/24", "eni-1", RouteState::Off)], Err(Some("eni-1"))),
            (vec![("10.1.2.0/24", "eni-2", RouteState::Active)], Err(Some("eni-2"))),
        ] {
            let view = view(&there);
            let compared =
                compare(&ours, &view.routes).map_err(|found| found.map(|it| &*it.next_hop));
            assert_eq!(compared, as_wanted, "{there:?}");
        }
        let in_part = route("10.1.2.0/24", "projects/p/zones/z/instances/n1");
        let full = "https://compute.googleapis.com/compute/v1/projects/p/zones/z/instances/n1";
        assert_eq!(
            compare(&in_part, &view(&[("10.1.2.0/24", full, RouteState::Active)]).routes),
            Ok(())
        );
        let other = full.replace("/n1", "/n11");
        assert!(
            compare(&in_part, &view(&[("10.1.2.0/24", &other, RouteState::Active)]).routes)
                .is_err()
        );
    }

    #[test]
    fn dead_routes_and_stale_ones_of_this_node_go_and_no_others() {
        let view = view(&[
            ("10.1.2.0/24", "eni-1", RouteState::Active),
            ("10.1.3.0/24", "eni-1", RouteState::Active),
            ("10.1.4.0/24", "eni-2", RouteState::Active),
            ("10.1.5.0/24", "eni-3", RouteState::Dead),
            ("10.9.5.0/24", "eni-3", RouteState::Dead),
            ("10.9.6.0/24", "eni-1", RouteState::Active),
            ("10.1.0.0/16", "eni-3", RouteState::Dead),
            ("0.0.0.0/0", "eni-1", RouteState::Active),
            ("10.1.6.0/24", "local", RouteState::Dead),
            ("10.1.7.0/24", "vpn-1", RouteState::Off),
        ]);
        let networks = ["10.1.0.0/16".parse().expect("a network")];
        let wanted = BTreeSet::from(["10.1.2.0/24".parse().expect("a network")]);
        let gone = unwanted(&view, &networks, &BTreeSet::from(["eni-1"]), &wanted);
        let gone: Vec<_> =
            gone.into_iter().map(|(found, why)| (found.destination.to_string(), why)).collect();
        assert_eq!(gone, [("10.1.3.0/24".to_owned(), STALE), ("10.1.5.0/24".to_owned(), DEAD)]);
    }
}
