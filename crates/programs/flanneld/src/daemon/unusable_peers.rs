//! Peers that nothing leads to, and why. Thousands of them may use another backend, while a network changes from one to the
//! other node by node: those are counted as they come and go, and the first of them is news.

use std::collections::BTreeMap;

use flannel_backend::PeerProblem;
use flannel_lease::Subnet;

#[derive(Default)]
pub(super) struct UnusablePeers {
    pub(super) problems: BTreeMap<Subnet, PeerProblem>,
    on_other_backend: BTreeMap<String, usize>,
}

impl UnusablePeers {
    /// Whether a problem is news for the log: of peers on the same other backend, only that of the first is.
    pub(super) fn is_news(&self, problem: &PeerProblem) -> bool {
        match problem {
            PeerProblem::OtherBackend { theirs, .. } => !self.on_other_backend.contains_key(theirs),
            _ => true,
        }
    }

    pub(super) fn insert(&mut self, subnet: Subnet, problem: PeerProblem) {
        self.remove(&subnet);
        if let PeerProblem::OtherBackend { theirs, .. } = &problem {
            *self.on_other_backend.entry(theirs.clone()).or_default() += 1;
        }
        self.problems.insert(subnet, problem);
    }

    /// Whether it was the last one on another backend.
    pub(super) fn remove(&mut self, subnet: &Subnet) -> bool {
        let Some(PeerProblem::OtherBackend { theirs, .. }) = self.problems.remove(subnet) else {
            return false;
        };
        if let Some(count) = self.on_other_backend.get_mut(&theirs) {
            *count -= 1;
            if *count == 0 {
                self.on_other_backend.remove(&theirs);
            }
        }
        self.on_other_backend.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.problems.clear();
        self.on_other_backend.clear();
    }

    pub(super) fn count_by_kind(&self) -> BTreeMap<&'static str, usize> {
        let mut kinds = BTreeMap::new();
        for problem in self.problems.values() {
            *kinds.entry(problem.kind()).or_default() += 1;
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_peers_change_their_backend_and_one_of_them_is_news() {
        let subnet = |number: usize| -> Subnet {
            format!("10.{}.{}.0-24", number / 256, number % 256).parse().expect("a subnet")
        };
        let problem = || PeerProblem::OtherBackend { theirs: "udp".into(), ours: "vxlan".into() };
        let mut unusable = UnusablePeers::default();
        let mut told = 0;
        for number in 0..10_000 {
            told += usize::from(unusable.is_news(&problem()));
            unusable.insert(subnet(number), problem());
        }
        assert_eq!(told, 1);
        unusable.insert(subnet(10_000), PeerProblem::OurAddress);
        assert!(!unusable.remove(&subnet(10_000)));
        let last: Vec<usize> =
            (0..10_000).filter(|number| unusable.remove(&subnet(*number))).collect();
        assert_eq!(last, [9_999], "the last one that changes is told of");
        assert_eq!(unusable.problems.len(), 0);
    }
}
