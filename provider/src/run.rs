//! Facts about one run of Terraform, gathered from the requests of all its resources in this process: the objects that it
//! creates, destroys or manages already, the users of objects, and whether applies are in progress.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value as Json;
use tfplugin6::{CancellationToken, Value};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};

use crate::api::{Address, Api, RetryLimit, Selection};

/// The time limit for reading the hosts.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// The time, from the first planned destroy of a run, in which a planned destroy waits for the create of the same object.
const CREATES_FOLLOW: Duration = Duration::from_millis(500);

/// Group, plural, namespace and name of an object.
type Key = (String, String, String, String);

/// The facts about a run.
#[derive(Debug, Default)]
pub struct Run {
    facts: Mutex<Facts>,
    progress: Mutex<Progress>,
    hosts: OnceCell<Option<Vec<Json>>>,
}

#[derive(Debug, Default)]
struct Facts {
    /// The objects that the run creates, as planned.
    created: BTreeMap<Key, Value>,
    /// The objects that exist.
    seen: BTreeSet<Key>,
    /// The uids of the objects of planned resources that have a state.
    managed: BTreeMap<Key, String>,
    /// The states that moved blocks have brought of objects that do not exist, each with its origin.
    moved: BTreeMap<Key, (String, Value)>,
    /// The prior states of objects that the run destroys, where no create was planned before.
    destroyed: BTreeMap<Key, Value>,
    /// Whether the run plans a configuration. `terraform destroy` plans none.
    has_configuration: bool,
    /// The end of the time in which a planned destroy waits.
    creates_follow_until: Option<Instant>,
    /// The uids of objects that creates of this apply have adopted.
    adopted: BTreeSet<String>,
    /// The uids of objects that this apply deletes.
    deleting: BTreeSet<String>,
    /// Whether this apply has deleted an object.
    has_deleted: bool,
    /// The exclusive user of an object.
    holders: BTreeMap<Key, String>,
    /// The users of an object that has room for a limited number of them.
    users: BTreeMap<Key, BTreeSet<String>>,
}

/// The applies in progress.
#[derive(Debug, Default)]
struct Progress {
    applies: usize,
    /// Those of them that wait for an object that they name.
    waiting: usize,
    /// The time at which the last one began or succeeded.
    changed: Option<Instant>,
}

/// An apply in progress, until this is dropped.
#[derive(Debug)]
pub struct ApplyInProgress<'a>(&'a Run);

/// An apply that waits for an object that it names, until this is dropped.
#[derive(Debug)]
pub struct WaitForObject<'a>(&'a Run);

impl ApplyInProgress<'_> {
    /// Ends an apply that has succeeded: those of the resources that depend on it may follow.
    pub fn succeeded(self) {
        self.0.progress().changed = Some(Instant::now());
    }
}

impl Drop for ApplyInProgress<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.applies = progress.applies.saturating_sub(1);
    }
}

impl Drop for WaitForObject<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.waiting = progress.waiting.saturating_sub(1);
    }
}

fn key(at: &Address) -> Key {
    (at.group.clone(), at.plural.clone(), at.namespace.clone(), at.name.clone())
}

impl Run {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an apply begins.
    #[must_use]
    pub fn begin_apply(&self) -> ApplyInProgress<'_> {
        let mut progress = self.progress();
        progress.applies += 1;
        progress.changed = Some(Instant::now());
        ApplyInProgress(self)
    }

    /// Notes that an apply waits for an object that it names.
    #[must_use]
    pub fn wait_for_object(&self) -> WaitForObject<'_> {
        self.progress().waiting += 1;
        WaitForObject(self)
    }

    /// Whether nothing in this run can create a further object: for this time no apply has begun or succeeded, and each apply
    /// in progress waits for an object itself.
    #[must_use]
    pub fn is_idle_for(&self, time: Duration) -> bool {
        let progress = self.progress();
        progress.applies <= progress.waiting
            && progress.changed.is_none_or(|changed| changed.elapsed() >= time)
    }

    /// Notes that the run has failed to create an object.
    pub fn retract(&self, at: &Address) {
        self.facts().created.remove(&key(at));
    }

    /// Notes that the run creates an object.
    pub fn announce(&self, at: &Address, planned: &Value) {
        self.facts().created.insert(key(at), planned.clone());
    }

    /// The planned values of an object that the run creates.
    #[must_use]
    pub fn created(&self, at: &Address) -> Option<Value> {
        self.facts().created.get(&key(at)).cloned()
    }

    /// Notes that the run plans a configuration.
    pub fn saw_configuration(&self) {
        self.facts().has_configuration = true;
    }

    /// Notes that the run destroys an object. Returns the planned values if the run also creates it; waits a moment for such a
    /// create, because Terraform plans a destroy and a create in any order.
    ///
    /// *Guarantees:* of a destroy and a create of one object, either this returns the values of the create, or
    /// [`Self::destroyed`] returns the prior state to the create.
    pub async fn destroy(&self, at: &Address, prior: &Value) -> Option<Value> {
        loop {
            {
                let mut facts = self.facts();
                if let Some(planned) = facts.created.get(&key(at)) {
                    return Some(planned.clone());
                }
                let until =
                    *facts.creates_follow_until.get_or_insert_with(|| Instant::now() + CREATES_FOLLOW);
                if !facts.has_configuration || Instant::now() >= until {
                    facts.destroyed.insert(key(at), prior.clone());
                    return None;
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The prior state of an object whose destroy was planned before its create.
    #[must_use]
    pub fn destroyed(&self, at: &Address) -> Option<Value> {
        self.facts().destroyed.get(&key(at)).cloned()
    }

    /// Notes that a create adopts an object. False if this apply deletes it.
    #[must_use]
    pub fn adopt(&self, uid: &str) -> bool {
        let mut facts = self.facts();
        let is_free = !facts.deleting.contains(uid);
        if is_free {
            facts.adopted.insert(uid.to_owned());
        }
        is_free
    }

    /// Whether a create of this run has adopted the object.
    #[must_use]
    pub fn has_adopted(&self, uid: &str) -> bool {
        self.facts().adopted.contains(uid)
    }

    /// Notes that the deletion of an object begins. False if a create of this apply has adopted it.
    #[must_use]
    pub fn begin_deletion(&self, uid: &str) -> bool {
        let mut facts = self.facts();
        let is_free = !facts.adopted.contains(uid);
        if is_free {
            facts.deleting.insert(uid.to_owned());
        }
        is_free
    }

    /// Notes that the deletion of an object is requested, or has failed.
    pub fn end_deletion(&self, uid: &str) {
        let mut facts = self.facts();
        facts.deleting.remove(uid);
        facts.has_deleted = true;
    }

    /// Whether this apply has requested a deletion.
    #[must_use]
    pub fn has_deleted(&self) -> bool {
        self.facts().has_deleted
    }

    /// Whether this apply is about to delete an object.
    #[must_use]
    pub fn is_deleting(&self, uid: &str) -> bool {
        self.facts().deleting.contains(uid)
    }

    /// Notes that a resource with a state is planned, and the uid of its object.
    pub fn manages(&self, at: &Address, uid: &str) {
        self.facts().managed.insert(key(at), uid.to_owned());
    }

    /// The uid that the object of a resource with a state had when it was planned.
    #[must_use]
    pub fn managed_uid(&self, at: &Address) -> Option<String> {
        self.facts().managed.get(&key(at)).cloned()
    }

    /// Notes the state that a moved block has brought of an object that does not exist, and its origin.
    pub fn brought(&self, at: &Address, origin: &str, state: &Value) {
        self.facts().moved.insert(key(at), (origin.to_owned(), state.clone()));
    }

    /// The origin and the state that a moved block has brought of an object that does not exist.
    #[must_use]
    pub fn moved(&self, at: &Address) -> Option<(String, Value)> {
        self.facts().moved.get(&key(at)).cloned()
    }

    /// Notes that an object exists.
    pub fn saw(&self, at: &Address) {
        self.facts().seen.insert(key(at));
    }

    /// Whether the object exists, or the run creates it.
    #[must_use]
    pub fn knows(&self, at: &Address) -> bool {
        let (facts, key) = (self.facts(), key(at));
        facts.created.contains_key(&key) || facts.seen.contains(&key)
    }

    /// Notes the only user of an object after the run. Returns the other one if there are two.
    #[must_use]
    pub fn hold(&self, at: &Address, user: &str) -> Option<String> {
        let mut facts = self.facts();
        let holder = facts.holders.entry(key(at)).or_insert_with(|| user.to_owned());
        (holder != user).then(|| holder.clone())
    }

    /// Notes a new user of an object. Returns the number of users that the run adds.
    pub fn add_user(&self, at: &Address, user: &str) -> usize {
        let mut facts = self.facts();
        let users = facts.users.entry(key(at)).or_default();
        users.insert(user.to_owned());
        users.len()
    }

    /// The hosts, read once; none if this user cannot read them.
    pub async fn hosts(&self, api: &Api) -> Option<&[Json]> {
        let hosts = self.hosts.get_or_init(async || {
            let retry_limit = RetryLimit::seconds(0, &CancellationToken::new());
            let at = Address::cluster("hosts", "");
            let selection = Selection::default();
            let list = api.list_up_to(usize::MAX, &at, &selection, &|_| true, &retry_limit);
            tokio::time::timeout(READ_LIMIT, list).await.ok()?.ok()
        });
        hosts.await.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_is_idle_once_every_apply_waits_and_none_has_begun_or_succeeded_for_a_while() {
        let (run, while_) = (Run::default(), Duration::from_secs(5));
        assert!(run.is_idle_for(while_));
        let (first, second, third) = (run.begin_apply(), run.begin_apply(), run.begin_apply());
        let waiting = run.wait_for_object();
        sleep(while_).await;
        assert!(!run.is_idle_for(while_), "the others may create what the first one names");
        third.succeeded();
        drop(second);
        assert!(!run.is_idle_for(while_), "one that depends on the third may follow");
        sleep(while_).await;
        assert!(run.is_idle_for(while_));
        let another = run.begin_apply();
        drop(another);
        assert!(!run.is_idle_for(while_), "it has begun just now");
        sleep(while_).await;
        assert!(run.is_idle_for(while_));
        drop(waiting);
        assert!(!run.is_idle_for(while_), "the first one has found it");
        drop(first);
        assert!(run.is_idle_for(while_));
    }

    #[test]
    fn two_users_of_one_object_are_noticed_and_one_user_twice_is_not() {
        let (run, disk) = (Run::default(), Address::berth("disks", "default", "d"));
        assert_eq!(run.hold(&disk, "VM default/a"), None);
        assert_eq!(run.hold(&disk, "VM default/a"), None, "it is planned again");
        assert_eq!(run.hold(&disk, "VM default/b").as_deref(), Some("VM default/a"));
        assert_eq!(run.hold(&disk.sibling("disks", "e"), "VM default/b"), None);
        assert_eq!((run.add_user(&disk, "a"), run.add_user(&disk, "a"), run.add_user(&disk, "b")), (1, 1, 2));
        assert!(!run.knows(&disk));
        run.announce(&disk, &Value::Null);
        assert!(run.knows(&disk) && !run.knows(&disk.sibling("disks", "e")));
        run.retract(&disk);
        assert!(!run.knows(&disk), "its create has failed");
    }
}
