//! Which nodes are to be tried.

use flannel_lease::{Lease, Subnet};

/// Nodes that are tried unless somebody says otherwise: each tries all others.
pub(super) const MAX_NODES_TRIED: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) subnet: Subnet,
    /// What people call it: its name where the store knows it, else its address.
    pub(super) name: String,
    /// Whether its lease is that of a daemon that answers what it is asked, as far as a lease can tell.
    pub(super) is_likely: bool,
}

impl Node {
    pub(super) fn of(lease: &Lease) -> Self {
        let attrs = &lease.attrs;
        let address = attrs.public_addresses().next().map(|ip| ip.to_string());
        let name = attrs.owner_name().map(str::to_owned).or(address);
        Self {
            subnet: lease.subnet,
            name: name.unwrap_or_else(|| lease.subnet.to_string()),
            is_likely: attrs.probe_port.is_some(),
        }
    }

    fn is_called(&self, lease: &Lease, text: &str) -> bool {
        self.name == text
            || self.subnet.to_string() == text
            || self.subnet.nets().any(|net| net.to_string() == text)
            || lease.attrs.public_addresses().any(|ip| ip.to_string() == text)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) nodes: Vec<Node>,
    pub(super) sample_of: Option<usize>,
}

/// `Err` names what is called by no node.
pub(super) fn choose(
    leases: &[Lease],
    named: &[String],
    sample: Option<usize>,
    rng: &mut fastrand::Rng,
) -> Result<Chosen, String> {
    let mut nodes: Vec<(&Lease, Node)> =
        leases.iter().map(|lease| (lease, Node::of(lease))).collect();
    for name in named {
        if !nodes.iter().any(|(lease, node)| node.is_called(lease, name)) {
            return Err(name.clone());
        }
    }
    if !named.is_empty() {
        nodes.retain(|(lease, node)| named.iter().any(|name| node.is_called(lease, name)));
    }
    let all = nodes.len();
    // Whoever names nodes wants these.
    let most = sample.unwrap_or(if named.is_empty() { MAX_NODES_TRIED } else { all });
    rng.shuffle(&mut nodes);
    nodes.truncate(most);
    let mut nodes: Vec<Node> = nodes.into_iter().map(|(_, node)| node).collect();
    nodes.sort_by_key(|node| node.subnet);
    Ok(Chosen { sample_of: (nodes.len() < all).then_some(all), nodes })
}

#[cfg(test)]
mod tests {
    use flannel_lease::LeaseAttrs;

    use super::*;

    fn leases(count: u8) -> Vec<Lease> {
        let lease = |number: u8| Lease {
            subnet: format!("10.5.{number}.0-24").parse().expect("a subnet"),
            attrs: LeaseAttrs {
                public_ip: Some([192, 0, 2, number].into()),
                owner: (number == 1).then(|| "first".into()),
                ..LeaseAttrs::default()
            },
        };
        (1..=count).map(lease).collect()
    }

    fn chosen(count: u8, named: &[&str], sample: Option<usize>) -> Result<Chosen, String> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        choose(&leases(count), &named, sample, &mut fastrand::Rng::with_seed(1))
    }

    #[test]
    fn a_few_nodes_are_all_tried_and_many_are_a_sample_that_says_of_how_many() {
        let few = chosen(3, &[], None).expect("chosen");
        assert_eq!((few.nodes.len(), few.sample_of), (3, None));
        let many = chosen(100, &[], None).expect("chosen");
        assert_eq!((many.nodes.len(), many.sample_of), (MAX_NODES_TRIED, Some(100)));
        let asked = chosen(100, &[], Some(200)).expect("chosen");
        assert_eq!((asked.nodes.len(), asked.sample_of), (100, None));
    }

    #[test]
    fn nodes_are_named_by_name_address_or_subnet() {
        for name in ["first", "192.0.2.1", "10.5.1.0/24", "10.5.1.0-24"] {
            let one = chosen(3, &[name, "192.0.2.2"], None).expect("chosen");
            let names: Vec<&str> = one.nodes.iter().map(|node| node.name.as_str()).collect();
            assert_eq!(names, ["first", "192.0.2.2"]);
            assert_eq!(one.sample_of, None);
        }
        assert_eq!(chosen(3, &["nobody"], None), Err("nobody".to_owned()));
    }
}
