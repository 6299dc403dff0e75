//! The same work for many, a few at a time.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{LabError, Result};

/// Does `work` for every item on at most `workers` threads. Results come in the items' order; after
/// a failure no new work begins and the first error is returned.
pub(crate) fn parallel<T: Sync, R: Send>(
    items: &[T],
    workers: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let failed: Mutex<Option<LabError>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    match work(item) {
                        Ok(result) => {
                            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                            done[index] = Some(result);
                        }
                        Err(error) => {
                            next.store(items.len(), Ordering::Relaxed);
                            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            failed.get_or_insert(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(parallel(&items, 4, |item| Ok(item * 2)).unwrap()[99], 198);
    }

    #[test]
    fn the_first_failure_is_the_result() {
        let fail = |&item: &u32| {
            if item == 3 { Err(LabError::Spec("three".into())) } else { Ok(()) }
        };
        let error = parallel(&[1, 2, 3, 4], 2, fail).unwrap_err();
        assert_eq!(error.to_string(), "three");
    }
}
