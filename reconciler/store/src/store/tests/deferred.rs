//! Writes that wait for others: stored together, durable when they are answered, and never left waiting.

use futures::future::join_all;

use super::*;
use crate::deferred::MOST;

fn boats() -> Arc<str> {
    resource("toys.example/boats")
}

fn deferrable(key: &Key, expect: Expect, value: u32) -> Write {
    Write { deferrable: true, ..put(key, expect, value) }
}

fn commits(store: &Store) -> u64 {
    store.counters.commits.load(std::sync::atomic::Ordering::Relaxed)
}

fn key(at: usize) -> Key {
    Key::new(&boats(), "ns", &format!("boat-{at}"))
}

#[tokio::test]
async fn deferrable_writes_are_stored_in_one_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let all = (0..10).map(|at| store.submit(deferrable(&key(at), Expect::Absent, 1)));
    let revisions: Vec<u64> =
        join_all(all).await.into_iter().map(|answer| answer.unwrap().revision).collect();
    assert_eq!(revisions, (1..=10).collect::<Vec<_>>(), "in the order in which they arrived");
    assert_eq!(commits(&store), 1);
    store.close();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(store.state().count(&boats()), 10, "what was answered is durable");
}

#[tokio::test]
async fn another_write_takes_those_that_wait_along() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let (deferred, other) =
        (store.submit(deferrable(&key(1), Expect::Absent, 1)), store.submit(put(&key(2), Expect::Absent, 1)));
    let (deferred, other) = tokio::join!(deferred, other);
    assert_eq!((deferred.unwrap().revision, other.unwrap().revision), (1, 2));
    assert_eq!(commits(&store), 1);
}

#[tokio::test]
async fn no_more_than_a_fixed_number_of_writes_wait() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let all = (0..=MOST).map(|at| store.submit(deferrable(&key(at), Expect::Absent, 1)));
    assert!(join_all(all).await.iter().all(Result::is_ok));
    assert_eq!((commits(&store), store.state().count(&boats())), (1, MOST + 1));
}

#[tokio::test]
async fn a_write_after_a_deferred_one_of_the_same_object_follows_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let first = store.submit(put(&key(1), Expect::Absent, 1)).await.unwrap().revision;
    let expect = Expect::Revision(first);
    let (deferred, other) =
        (store.submit(deferrable(&key(1), expect, 2)), store.submit(put(&key(1), expect, 3)));
    let (deferred, other) = tokio::join!(deferred, other);
    assert_eq!(deferred.unwrap().value()["value"], 2);
    assert!(matches!(other, Err(WriteError::Conflict)));
}

#[tokio::test]
async fn a_write_that_waits_while_the_store_is_closed_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let mut waits = Box::pin(store.submit(deferrable(&key(1), Expect::Absent, 1)));
    assert!(futures::poll!(&mut waits).is_pending());
    store.close();
    assert_eq!(waits.await.unwrap().revision, 1);
    let late = store.submit(deferrable(&key(2), Expect::Absent, 1)).await;
    assert!(matches!(late, Err(WriteError::Closed)));
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(store.state().count(&boats()), 1);
}

#[tokio::test]
async fn a_store_is_closed_although_answers_of_writes_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let mut unread = Vec::new();
    for at in 0..8 {
        let mut one = Box::pin(store.submit(put(&key(at), Expect::Absent, 1)));
        if futures::poll!(&mut one).is_pending() {
            unread.push(one);
        }
    }
    store.close();
    for one in unread {
        one.await.unwrap();
    }
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(store.state().count(&boats()), 8);
}

#[tokio::test]
async fn a_client_that_stops_waiting_delays_no_other_write() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let mut gone = Box::pin(store.submit(deferrable(&key(1), Expect::Absent, 1)));
    assert!(futures::poll!(&mut gone).is_pending());
    drop(gone);
    let other = store.submit(deferrable(&key(2), Expect::Absent, 1)).await;
    assert_eq!((other.unwrap().revision, store.state().count(&boats())), (2, 2));
}

#[test]
fn a_store_that_writes_inline_defers_nothing() {
    let store = memory();
    let write = deferrable(&key(1), Expect::Absent, 1);
    assert_eq!(block_on(store.submit(write)).unwrap().revision, 1);
}
