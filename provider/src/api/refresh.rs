//! Reads of many objects of one kind: after the first ones, a list answers the others for a short time. A refresh of a thousand
//! resources is then some twenty requests instead of a thousand round trips.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value as Json;
use tokio::time::Instant;

use super::{
    Address, Api, ApiError, RetryLimit, Selection,
    list::{items, next},
};

/// The number of reads of a collection that are requests of their own.
const SINGLE_READS: usize = 16;
/// A list may have this many objects for each read so far: to read a few objects of a large collection, a list costs more.
const OBJECTS_PER_READ: usize = 64;
/// The most objects of a list, because of the memory that they take.
const MAX_OBJECTS: usize = 5_000;
/// The number of objects of one page, which is in memory as a whole.
const PAGE: usize = 200;
/// The age at which a list is not used any more.
const MAX_AGE: Duration = Duration::from_secs(2);

/// The lists of all collections.
#[derive(Debug, Default)]
pub(super) struct Listings {
    collections: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Listing>>>>,
    /// The number of writes of this process. A list that began before the last one is not used.
    writes: AtomicU64,
}

/// One collection.
#[derive(Debug, Default)]
struct Listing {
    /// The number of reads that no list has answered.
    reads: usize,
    list: Option<List>,
}

#[derive(Debug)]
struct List {
    taken: Instant,
    writes: u64,
    /// The number of reads that it has answered.
    answered: usize,
    /// Name → JSON. As text they take a third of the memory.
    objects: HashMap<String, Box<str>>,
}

impl Listings {
    /// Notes that an object may have changed, if the request is a write.
    pub(super) fn wrote_if(&self, is_write: bool) {
        self.writes.fetch_add(u64::from(is_write), Ordering::SeqCst);
    }

    fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    fn of(&self, at: &Address) -> Arc<tokio::sync::Mutex<Listing>> {
        let mut collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(collections.entry(at.collection()).or_default())
    }
}

impl Listing {
    /// The object of a list that is recent and complete.
    fn find(&mut self, name: &str) -> Option<Json> {
        let list = self.list.as_mut()?;
        list.answered += 1;
        serde_json::from_str(list.objects.get(name)?).ok()
    }

    /// Drops a list that is too old. Many reads that it has answered count as reads, so that the next list follows at once.
    fn expire(&mut self, writes: u64) {
        let is_current = |list: &List| list.writes == writes && list.taken.elapsed() < MAX_AGE;
        if let Some(list) = self.list.take_if(|list| !is_current(list)) {
            self.reads = list.answered;
        }
    }

    /// Counts a read. Returns the most objects that a list may have, if it is time for one: at 16 reads, and while the
    /// collection is too large, each time that their number has doubled.
    fn count(&mut self) -> Option<usize> {
        self.reads += 1;
        let is_due = self.reads > SINGLE_READS && (self.reads - 1).is_power_of_two();
        is_due.then_some((self.reads * OBJECTS_PER_READ).min(MAX_OBJECTS))
    }
}

impl Api {
    /// Returns the object, or none if it does not exist. It may have been read for another caller, up to two seconds ago, but
    /// never before a write of this process.
    ///
    /// # Errors
    /// Every failure except that the object does not exist.
    pub async fn read(&self, at: &Address, retry_limit: &RetryLimit) -> Result<Option<Json>, ApiError> {
        match self.listed(at, retry_limit).await {
            Some(object) => Ok(Some(object)),
            None => self.get(at, retry_limit).await,
        }
    }

    /// The object, if a list has it.
    async fn listed(&self, at: &Address, retry_limit: &RetryLimit) -> Option<Json> {
        let listing = self.listings.of(at);
        // Further reads of the collection wait here for a list under way.
        let mut listing = listing.lock().await;
        let writes = self.listings.writes();
        listing.expire(writes);
        if listing.list.is_none() {
            let most = listing.count()?;
            let taken = Instant::now();
            let objects = self.texts_up_to(most, at, retry_limit).await?;
            listing.list = Some(List { taken, writes, answered: 0, objects });
        }
        listing.find(&at.name)
    }

    /// All objects of a collection. None if there are more, and after a failure: the error is that of the reads that follow.
    async fn texts_up_to(
        &self,
        most: usize,
        at: &Address,
        retry_limit: &RetryLimit,
    ) -> Option<HashMap<String, Box<str>>> {
        let mut texts = HashMap::new();
        let mut rest = String::new();
        loop {
            let mut page = self.page(at, &Selection::default(), PAGE, &rest, retry_limit).await.ok()?;
            texts.extend(items(&mut page).into_iter().filter_map(|object| {
                let name = object.pointer("/metadata/name")?.as_str()?.to_owned();
                Some((name, object.to_string().into_boxed_str()))
            }));
            if texts.len() > most {
                return None;
            }
            match next(&page) {
                Some(token) => token.clone_into(&mut rest),
                None => return Some(texts),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_due_after_sixteen_reads_and_then_whenever_they_have_doubled() {
        let mut listing = Listing::default();
        let due: Vec<_> = (1..200).filter_map(|read| listing.count().map(|most| (read, most))).collect();
        assert_eq!(due, [(17, 1_088), (33, 2_112), (65, 4_160), (129, 5_000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_ends_with_its_age_and_with_the_next_write() {
        let listings = Listings::default();
        let list = |listings: &Listings, answered| List {
            taken: Instant::now(),
            writes: listings.writes(),
            answered,
            objects: HashMap::from([("a".to_owned(), "{}".into())]),
        };
        let mut listing = Listing { reads: 17, list: Some(list(&listings, 0)) };
        tokio::time::advance(MAX_AGE / 2).await;
        listing.expire(listings.writes());
        assert!(listing.find("a").is_some() && listing.find("b").is_none());
        tokio::time::advance(MAX_AGE / 2).await;
        listing.expire(listings.writes());
        assert!(listing.find("a").is_none(), "it is two seconds old");
        assert_eq!(listing.reads, 2, "few reads do not make a list worth it");
        listing.list = Some(list(&listings, 16));
        listings.wrote_if(true);
        listing.expire(listings.writes());
        assert!(listing.find("a").is_none(), "an object may be another one now");
        assert!(listing.count().is_some(), "many reads are followed by the next list");
    }
}
