//! Networks this node led to before: routes into them are still ours to remove.

use ipnet::IpNet;

/// What was left of older ones is gone already: it is removed whenever the network changes.
const REMEMBERED_NETWORKS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct EarlierNetworks {
    /// Each once, the latest last.
    pub(super) networks: Vec<IpNet>,
}

impl EarlierNetworks {
    pub(super) fn remember(&mut self, networks: impl IntoIterator<Item = IpNet>) {
        for network in networks {
            self.networks.retain(|known| *known != network);
            self.networks.push(network);
        }
        let surplus = self.networks.len().saturating_sub(REMEMBERED_NETWORKS);
        self.networks.drain(..surplus);
    }

    /// Those that are another's by now. Whether there were any.
    pub(super) fn forget_if(&mut self, is_anothers: impl Fn(&IpNet) -> bool) -> bool {
        let before = self.networks.len();
        self.networks.retain(|network| !is_anothers(network));
        self.networks.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(number: u8) -> IpNet {
        format!("10.{number}.0.0/16").parse().unwrap()
    }

    #[test]
    fn a_config_that_changes_without_end_is_remembered_in_bounds_and_the_latest_best() {
        let mut earlier = EarlierNetworks::default();
        for time in 0..10_000_u32 {
            earlier.remember([network((time % 2) as u8)]);
        }
        assert_eq!(earlier.networks, [network(0), network(1)], "each once");
        (0..=u8::MAX).for_each(|number| earlier.remember([network(number)]));
        assert_eq!(earlier.networks.len(), REMEMBERED_NETWORKS);
        assert_eq!(earlier.networks.last(), Some(&network(u8::MAX)));
    }

    #[test]
    fn what_is_anothers_is_forgotten() {
        let mut earlier = EarlierNetworks::default();
        earlier.remember([network(1), network(2)]);
        assert!(earlier.forget_if(|net| *net == network(1)));
        assert_eq!(earlier.networks, [network(2)]);
        assert!(!earlier.forget_if(|net| *net == network(1)));
    }
}
