//! The places of logs that are read and sent: each log is in memory. One namespace gets all of them but one, so that a client that reads
//! slowly does not hold up the logs of others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts logs.
#[derive(Debug)]
pub(super) struct LogPlaces {
    most_of_namespace: usize,
    all: Arc<Semaphore>,
    by_namespace: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The place of one log; dropped, it is free again.
#[derive(Debug)]
pub(super) struct LogPlace {
    _of_namespace: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl LogPlaces {
    pub(super) fn new(most: usize) -> Self {
        let most_of_namespace = most.saturating_sub(1).max(1);
        Self { most_of_namespace, all: Arc::new(Semaphore::new(most)), by_namespace: Mutex::default() }
    }

    /// Waits for a place.
    pub(super) async fn take(&self, namespace: &str) -> LogPlace {
        // First one of its namespace: those that wait for that are not in the line of all.
        let own = acquired(self.of(namespace)).await;
        LogPlace { _of_namespace: own, _of_all: acquired(self.all.clone()).await }
    }

    fn of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut known = self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a place that is taken or waited for.
        known.retain(|_, own| Arc::strong_count(own) > 1);
        let new = || Arc::new(Semaphore::new(self.most_of_namespace));
        known.entry(namespace.to_owned()).or_insert_with(new).clone()
    }
}

async fn acquired(places: Arc<Semaphore>) -> OwnedSemaphorePermit {
    places.acquire_owned().await.expect("it is never closed")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn logs_of_one_namespace_leave_a_place_to_others() {
        let places = LogPlaces::new(3);
        let moment = Duration::from_secs(1);
        let _held = [places.take("x").await, places.take("x").await];
        assert!(timeout(moment, places.take("x")).await.is_err(), "the last place is not for this namespace");
        let other = timeout(moment, places.take("y")).await;
        assert!(other.is_ok(), "it is for another one");
        assert!(timeout(moment, places.take("z")).await.is_err(), "three in total");
        drop(other);
        assert!(timeout(moment, places.take("z")).await.is_ok(), "a place is free again");
    }
}
