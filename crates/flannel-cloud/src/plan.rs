//! What is to be done to a table, as a pure function of it and of what is wanted.

use std::collections::BTreeSet;
use std::fmt;

use ipnet::IpNet;

use crate::CloudRoute;
use crate::client::{Found, State, View};

/// Why a route is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The machine it led to is gone.
    Dead,
    /// It leads to this node, which does not have that subnet.
    Stale,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dead => "the machine it led to is gone",
            Self::Stale => "this node does not have that subnet any more",
        })
    }
}

/// The route in the place of a wanted one, if it is another. `Ok`: it is as wanted.
pub(crate) fn compare<'a>(route: &CloudRoute, view: &'a View) -> Result<(), Option<&'a Found>> {
    let there = || view.routes.iter().filter(|found| found.destination == route.destination);
    let as_wanted =
        |found: &Found| found.state == State::Active && same_hop(&found.next_hop, &route.next_hop);
    if there().any(as_wanted) { Ok(()) } else { Err(there().next()) }
}

/// What of a table is ours to take away: dead routes, whoever wrote them, and such as lead to this node; both
/// only inside of our networks, and only if nobody wants them.
///
/// `own`: how routes name this node. `wanted`: the destinations that are wanted in this table.
pub(crate) fn unwanted<'a>(
    view: &'a View,
    networks: &[IpNet],
    own: &BTreeSet<&str>,
    wanted: &BTreeSet<IpNet>,
) -> Vec<(&'a Found, Why)> {
    let inside = |destination: &IpNet| {
        networks.iter().any(|network| {
            network.contains(destination) && destination.prefix_len() > network.prefix_len()
        })
    };
    let ours = |found: &&Found| {
        found.written && inside(&found.destination) && !wanted.contains(&found.destination)
    };
    let why = |found: &'a Found| {
        let stale = own.iter().any(|hop| same_hop(&found.next_hop, hop));
        let why = match found.state {
            _ if stale => Why::Stale,
            State::Dead => Why::Dead,
            State::Active | State::Off => return None,
        };
        Some((found, why))
    };
    view.routes.iter().filter(ours).filter_map(why).collect()
}

/// Google's are addresses that may be written in full or in part; the others' are the same or not.
fn same_hop(found: &str, wanted: &str) -> bool {
    found == wanted || (wanted.contains('/') && found.ends_with(&format!("/{wanted}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Access, CloudInterface, CloudNode, Provider, Table};

    fn found(destination: &str, next_hop: &str, state: State) -> Found {
        Found {
            id: String::new(),
            destination: destination.parse().expect("a network"),
            next_hop: next_hop.to_owned(),
            state,
            written: next_hop != "local",
        }
    }

    fn view(routes: &[(&str, &str, State)]) -> View {
        let routes = routes.iter().map(|(to, hop, state)| found(to, hop, *state)).collect();
        View { id: "rtb-1".to_owned(), routes }
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
            (vec![("10.1.2.0/24", "eni-1", State::Active)], Ok(())),
            (vec![], Err(None)),
            (vec![("10.1.3.0/24", "eni-1", State::Active)], Err(None)),
            (vec![("10.1.2.0/24", "eni-1", State::Dead)], Err(Some("eni-1"))),
            (vec![("10.1.2.0/24", "eni-1", State::Off)], Err(Some("eni-1"))),
            (vec![("10.1.2.0/24", "eni-2", State::Active)], Err(Some("eni-2"))),
        ] {
            let view = view(&there);
            let compared = compare(&ours, &view).map_err(|found| found.map(|it| &*it.next_hop));
            assert_eq!(compared, as_wanted, "{there:?}");
        }
        let in_part = route("10.1.2.0/24", "projects/p/zones/z/instances/n1");
        let full = "https://compute.googleapis.com/compute/v1/projects/p/zones/z/instances/n1";
        assert_eq!(compare(&in_part, &view(&[("10.1.2.0/24", full, State::Active)])), Ok(()));
        let other = full.replace("/n1", "/n11");
        assert!(compare(&in_part, &view(&[("10.1.2.0/24", &other, State::Active)])).is_err());
    }

    #[test]
    fn dead_routes_and_stale_ones_of_this_node_go_and_no_others() {
        let view = view(&[
            ("10.1.2.0/24", "eni-1", State::Active),
            ("10.1.3.0/24", "eni-1", State::Active),
            ("10.1.4.0/24", "eni-2", State::Active),
            ("10.1.5.0/24", "eni-3", State::Dead),
            ("10.9.5.0/24", "eni-3", State::Dead),
            ("10.9.6.0/24", "eni-1", State::Active),
            ("10.1.0.0/16", "eni-3", State::Dead),
            ("0.0.0.0/0", "eni-1", State::Active),
            ("10.1.6.0/24", "local", State::Dead),
            ("10.1.7.0/24", "vpn-1", State::Off),
        ]);
        let networks = ["10.1.0.0/16".parse().expect("a network")];
        let wanted = BTreeSet::from(["10.1.2.0/24".parse().expect("a network")]);
        let gone = unwanted(&view, &networks, &BTreeSet::from(["eni-1"]), &wanted);
        let gone: Vec<_> =
            gone.into_iter().map(|(found, why)| (found.destination.to_string(), why)).collect();
        assert_eq!(
            gone,
            [("10.1.3.0/24".to_owned(), Why::Stale), ("10.1.5.0/24".to_owned(), Why::Dead)]
        );
    }
}
