//! The subnet file follows the network; CNI plugins read it.

use std::time::{Duration, Instant};

use super::now::Now;
use crate::state_file::Written;

const SUBNET_FILE_RETRY: Duration = Duration::from_secs(5);
/// Between two looks whether it is still there and says the same.
const SUBNET_FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

pub(super) struct SubnetFileSchedule {
    pub(super) due: Instant,
    pub(super) error: Option<String>,
}

impl SubnetFileSchedule {
    pub(super) fn new(now: &Now) -> Self {
        Self { due: now.instant, error: None }
    }

    pub(super) fn begin(&mut self, now: &Now) {
        self.due = now.instant + SUBNET_FILE_CHECK_INTERVAL;
    }

    pub(super) fn on_written(&mut self, result: Result<Written, String>, now: &Now) {
        let failed_before = self.error.take().is_some();
        if let Err(why) = result {
            if !failed_before {
                tracing::warn!("{why}; pods cannot be started before it is there, trying again");
            }
            self.error = Some(why);
            self.due = now.instant + SUBNET_FILE_RETRY;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_subnet_file_that_cannot_be_written_is_tried_again_sooner_or_later_and_then_looked_at() {
        let begin = Now::for_test();
        let mut file = SubnetFileSchedule::new(&begin);
        assert_eq!(file.due, begin.instant, "at once");
        file.begin(&begin);
        file.on_written(Err("the disk is full".to_owned()), &begin);
        assert_eq!(file.due, begin.instant + SUBNET_FILE_RETRY);
        assert_eq!(file.error.as_deref(), Some("the disk is full"));
        let now = begin.later(SUBNET_FILE_RETRY + Duration::from_secs(1));
        file.begin(&now);
        file.on_written(Ok(Written::New), &now);
        assert_eq!(file.due, now.instant + SUBNET_FILE_CHECK_INTERVAL);
        assert_eq!(file.error, None);
    }
}
