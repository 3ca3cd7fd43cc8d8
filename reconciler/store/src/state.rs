//! The in-memory state that serves all current reads: the current objects, the recent events and the
//! watchers.
//!
//! Pure and synchronous; knows neither SQLite nor HTTP. It is behind one lock, so that a list and the
//! subscription that continues it see the same revision.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::entry::{Entry, Facts, FieldPath};
use crate::event::{Change, Event};
use crate::key::Key;
use crate::queue::Feed;

/// The maximum number of events kept in memory for watches that resume; older ones are read from disk.
const RECENT_EVENTS: usize = 4096;
/// The maximum size of those events in bytes.
const RECENT_BYTES: usize = 8 << 20;

/// The events that wake a watcher. Deliberately coarse: exact selection happens in the watcher's own task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interest {
    /// Every object of the resource.
    Resource,
    /// Only objects with this value in a field, now or before.
    Field { name: Box<str>, value: Box<str> },
}

#[derive(Debug)]
struct Watcher {
    id: u64,
    events: Feed,
}

/// An object in an index by its name. The index has no copy of the name: there are tens of thousands of objects.
#[derive(Debug)]
struct ByName(Arc<Entry>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.key.name
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.key.name == other.0.key.name
    }
}

impl Eq for ByName {}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key.name.cmp(&other.0.key.name)
    }
}

/// An object in an index by its uid, of which the index has no copy either.
#[derive(Debug)]
struct ByUid(Arc<Entry>);

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        &self.0.facts.uid
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.facts.uid == other.0.facts.uid
    }
}

impl Eq for ByUid {}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.facts.uid.hash(state);
    }
}

#[derive(Debug, Default)]
struct Table {
    /// The objects of each namespace that has any.
    objects: BTreeMap<Arc<str>, BTreeSet<ByName>>,
    /// The number of all objects.
    count: usize,
    fields: Arc<[FieldPath]>,
    /// The revision of the last write to this resource.
    changed: u64,
    watchers: Vec<Watcher>,
    by_field: HashMap<Box<str>, HashMap<Box<str>, Vec<Watcher>>>,
}

#[derive(Debug)]
pub struct State {
    tables: HashMap<Arc<str>, Table>,
    /// The last committed revision.
    pub revision: u64,
    /// Revisions up to this one are no longer available.
    pub compacted: u64,
    /// The last revision when the database was opened.
    opened: u64,
    recent: VecDeque<Arc<Event>>,
    recent_bytes: usize,
    /// Every event after this revision is in `recent`.
    pub(crate) recent_after: u64,
    uids: HashSet<ByUid>,
    dependents: HashMap<Box<str>, HashSet<Key>>,
    everything: Vec<Watcher>,
    next_watcher: u64,
    /// The number of watchers cut off since the start because they were too slow.
    pub cut_off: u64,
}

impl State {
    pub fn new(revision: u64, compacted: u64) -> Self {
        Self {
            tables: HashMap::new(),
            revision,
            compacted,
            opened: revision,
            recent: VecDeque::new(),
            recent_bytes: 0,
            recent_after: revision,
            uids: HashSet::new(),
            dependents: HashMap::new(),
            everything: Vec::new(),
            next_watcher: 0,
            cut_off: 0,
        }
    }

    /// Inserts an object that was read from disk, without an event.
    pub fn load(&mut self, entry: Arc<Entry>) {
        self.index(&entry);
        let table = self.tables.entry(Arc::clone(&entry.key.resource)).or_default();
        table.changed = table.changed.max(entry.revision);
        table.insert(entry);
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        let objects = self.tables.get(&key.resource)?.objects.get(&*key.namespace)?;
        objects.get(&*key.name).map(|found| &found.0)
    }

    /// Returns the key with the copy of its namespace's name that the resource's other objects have.
    pub(crate) fn shared(&self, key: &Key) -> Key {
        let table = self.tables.get(&key.resource);
        let known = table.and_then(|table| table.objects.get_key_value(&*key.namespace));
        let namespace = known.map_or(&key.namespace, |(namespace, _)| namespace);
        Key { namespace: Arc::clone(namespace), ..key.clone() }
    }

    pub fn by_uid(&self, uid: &str) -> Option<&Arc<Entry>> {
        self.uids.get(uid).map(|found| &found.0)
    }

    pub fn dependents(&self, uid: &str) -> Vec<Key> {
        let mut keys: Vec<Key> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        keys.sort();
        keys
    }

    /// Returns objects in key order, of one namespace or of all, after `after`.
    pub fn list<'a>(
        &'a self,
        resource: &str,
        namespace: Option<&'a str>,
        after: Option<(&str, &str)>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> {
        let first = after.map(|(namespace, _)| namespace).or(namespace);
        let first = first.map_or(Bound::Unbounded, Bound::Included);
        let namespaces = self
            .tables
            .get(resource)
            .map(|table| table.objects.range::<str, (Bound<&str>, Bound<&str>)>((first, Bound::Unbounded)));
        let namespaces = namespaces.into_iter().flatten();
        let wanted = namespaces.take_while(move |(found, _)| namespace.is_none_or(|n| n == &***found));
        wanted.flat_map(move |(found, objects)| {
            let start = match after {
                Some((namespace, name)) if namespace == &**found => Bound::Excluded(name),
                _ => Bound::Unbounded,
            };
            let rest = objects.range::<str, (Bound<&str>, Bound<&str>)>((start, Bound::Unbounded));
            rest.map(|object| &object.0)
        })
    }

    /// Returns every object of a resource, in key order.
    pub fn list_all(&self, resource: &str) -> impl Iterator<Item = &Arc<Entry>> {
        let namespaces = self.tables.get(resource).into_iter().flat_map(|table| table.objects.values());
        namespaces.flatten().map(|object| &object.0)
    }

    /// Returns the revision of the last write to `resource`, or the last one when the database was opened if that is higher: whether
    /// objects were removed before, by a deletion or a restore, is not to be seen from those that are left.
    pub fn changed(&self, resource: &str) -> u64 {
        self.tables.get(resource).map_or(0, |table| table.changed).max(self.opened)
    }

    pub fn resources(&self) -> Vec<Arc<str>> {
        let mut with_objects: Vec<_> =
            self.tables.iter().filter(|(_, t)| !t.objects.is_empty()).map(|(r, _)| Arc::clone(r)).collect();
        with_objects.sort();
        with_objects
    }

    pub fn count(&self, resource: &str) -> usize {
        self.tables.get(resource).map_or(0, |table| table.count)
    }

    /// Returns the number of objects in one namespace, or in all.
    pub fn count_in(&self, resource: &str, namespace: Option<&str>) -> usize {
        let Some(table) = self.tables.get(resource) else { return 0 };
        match namespace {
            Some(namespace) => table.objects.get(namespace).map_or(0, BTreeSet::len),
            None => table.count,
        }
    }

    pub fn watcher_count(&self) -> usize {
        let of_table = |t: &Table| {
            t.watchers.len() + t.by_field.values().flat_map(HashMap::values).map(Vec::len).sum::<usize>()
        };
        self.tables.values().map(of_table).sum()
    }

    /// Returns the number of watchers that the same events wake as a watcher with this interest, including
    /// itself.
    pub fn watchers_beside(&self, resource: &str, interest: &Interest) -> usize {
        let Some(table) = self.tables.get(resource) else { return 0 };
        match interest {
            Interest::Resource => table.watchers.len(),
            Interest::Field { name, value } => {
                table.by_field.get(name).and_then(|values| values.get(value)).map_or(0, Vec::len)
            }
        }
    }

    /// Returns the number of events and bytes pending for the slowest watcher.
    pub fn longest_queue(&self) -> (usize, usize) {
        let of_tables = self.tables.values().flat_map(|table| {
            table.watchers.iter().chain(table.by_field.values().flat_map(HashMap::values).flatten())
        });
        let waiting = of_tables.map(|watcher| watcher.events.waiting());
        waiting.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)))
    }

    /// Sets the selectable fields of `resource`; reads them from its objects again if they changed.
    pub fn select_by(&mut self, resource: &Arc<str>, fields: Arc<[FieldPath]>) {
        let table = self.tables.entry(Arc::clone(resource)).or_default();
        if table.fields == fields {
            return;
        }
        table.fields = fields;
        for objects in table.objects.values_mut() {
            let anew = std::mem::take(objects).into_iter().map(|ByName(entry)| {
                let facts = Facts::of(&entry.value(), &table.fields);
                ByName(Arc::new(Entry {
                    key: entry.key.clone(),
                    revision: entry.revision,
                    written_ms: entry.written_ms,
                    text: entry.text.clone(),
                    facts: Arc::new(facts),
                }))
            });
            *objects = anew.collect();
            for ByName(entry) in &*objects {
                drop(self.uids.replace(ByUid(Arc::clone(entry))));
            }
        }
    }

    pub fn fields(&self, resource: &str) -> Arc<[FieldPath]> {
        self.tables.get(resource).map(|table| Arc::clone(&table.fields)).unwrap_or_default()
    }

    /// Makes a committed write visible and sends it to the watchers.
    pub fn apply(&mut self, event: &Arc<Event>) {
        let entry = &event.entry;
        self.revision = entry.revision;
        if let Some(previous) = &event.previous {
            self.unindex(previous);
        }
        let deleted = event.change == Change::Deleted;
        if !deleted {
            self.index(entry);
        }
        let table = self.tables.entry(Arc::clone(&entry.key.resource)).or_default();
        table.changed = entry.revision;
        if deleted {
            table.remove(&entry.key);
        } else {
            table.insert(Arc::clone(entry));
        }
        self.cut_off += table.fan_out(event) + send_all(&mut self.everything, event);
        self.remember(event);
    }

    fn remember(&mut self, event: &Arc<Event>) {
        self.recent_bytes += event.entry.text.size();
        self.recent.push_back(Arc::clone(event));
        while self.recent.len() > RECENT_EVENTS || self.recent_bytes > RECENT_BYTES {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.entry.text.size();
            self.recent_after = oldest.entry.revision;
        }
    }

    /// Returns recent events of `resource` after `revision`, oldest first.
    pub(crate) fn recent(&self, resource: &str, revision: u64) -> Vec<Arc<Event>> {
        let start = self.recent.partition_point(|event| event.entry.revision <= revision);
        let of_resource = |event: &&Arc<Event>| &*event.entry.key.resource == resource;
        self.recent.range(start..).filter(of_resource).cloned().collect()
    }

    /// Adds a watcher; events committed from now on reach `events`.
    pub(crate) fn watch(&mut self, resource: &Arc<str>, interest: &Interest, events: Feed) -> u64 {
        let id = self.next_id();
        let table = self.tables.entry(Arc::clone(resource)).or_default();
        let watchers = match interest {
            Interest::Resource => &mut table.watchers,
            Interest::Field { name, value } => {
                table.by_field.entry(name.clone()).or_default().entry(value.clone()).or_default()
            }
        };
        watchers.push(Watcher { id, events });
        id
    }

    /// Adds a watcher of every resource, for the server's own controllers.
    pub(crate) fn watch_everything(&mut self, events: Feed) {
        let id = self.next_id();
        self.everything.push(Watcher { id, events });
    }

    fn next_id(&mut self) -> u64 {
        self.next_watcher += 1;
        self.next_watcher
    }

    pub(crate) fn unwatch(&mut self, resource: &str, interest: &Interest, id: u64) {
        let Some(table) = self.tables.get_mut(resource) else { return };
        match interest {
            Interest::Resource => table.watchers.retain(|w| w.id != id),
            Interest::Field { name, value } => {
                let Some(values) = table.by_field.get_mut(name) else { return };
                // There are as many values as hosts: the others are left alone.
                if let Some(watchers) = values.get_mut(value) {
                    watchers.retain(|w| w.id != id);
                    if watchers.is_empty() {
                        values.remove(value);
                    }
                }
                if values.is_empty() {
                    table.by_field.remove(name);
                }
            }
        }
    }

    /// Ends every watch.
    pub(crate) fn close_watches(&mut self) {
        for table in self.tables.values_mut() {
            table.watchers.clear();
            table.by_field.clear();
        }
        self.everything.clear();
    }

    fn index(&mut self, entry: &Arc<Entry>) {
        // Not `insert`, which keeps the object before.
        drop(self.uids.replace(ByUid(Arc::clone(entry))));
        for owner in &entry.facts.owners {
            self.dependents.entry(owner.clone()).or_default().insert(entry.key.clone());
        }
    }

    fn unindex(&mut self, entry: &Arc<Entry>) {
        if self.by_uid(&entry.facts.uid).is_some_and(|found| found.key == entry.key) {
            self.uids.remove(&*entry.facts.uid);
        }
        for owner in &entry.facts.owners {
            if let Some(keys) = self.dependents.get_mut(owner) {
                keys.remove(&entry.key);
                if keys.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }
}

pub(crate) fn read(state: &RwLock<State>) -> RwLockReadGuard<'_, State> {
    state.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write(state: &RwLock<State>) -> RwLockWriteGuard<'_, State> {
    state.write().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn insert(&mut self, entry: Arc<Entry>) {
        let objects = self.objects.entry(Arc::clone(&entry.key.namespace)).or_default();
        // Not `insert`, which keeps the object before.
        if objects.replace(ByName(entry)).is_none() {
            self.count += 1;
        }
    }

    fn remove(&mut self, key: &Key) {
        let Some(objects) = self.objects.get_mut(&*key.namespace) else { return };
        if objects.remove(&*key.name) {
            self.count -= 1;
        }
        if objects.is_empty() {
            self.objects.remove(&*key.namespace);
        }
    }

    /// Sends an event to the watchers; returns how many were cut off because they were too slow.
    fn fan_out(&mut self, event: &Arc<Event>) -> u64 {
        let mut cut_off = send_all(&mut self.watchers, event);
        for (field, by_value) in &mut self.by_field {
            let now = selected_by(field, &event.entry);
            let before = event.previous.as_deref().and_then(|previous| selected_by(field, previous));
            let before = before.filter(|before| Some(*before) != now);
            for value in now.into_iter().chain(before) {
                if let Some(watchers) = by_value.get_mut(value) {
                    cut_off += send_all(watchers, event);
                }
            }
        }
        cut_off
    }
}

/// Returns the value by which watchers of a field select an object.
fn selected_by<'a>(field: &str, entry: &'a Entry) -> Option<&'a str> {
    match field {
        "metadata.name" => Some(&entry.key.name),
        "metadata.namespace" => Some(&entry.key.namespace),
        _ => entry.facts.field(field),
    }
}

/// Sends an event to watchers. A watcher whose queue is full is dropped: its stream ends with 410 and the
/// client lists again.
fn send_all(watchers: &mut Vec<Watcher>, event: &Arc<Event>) -> u64 {
    let before = watchers.len();
    watchers.retain(|watcher| watcher.events.send(event));
    (before - watchers.len()) as u64
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn entry(namespace: &str, name: &str, revision: u64) -> Arc<Entry> {
        let facts = Facts { uid: format!("{namespace}/{name}").into(), ..Facts::default() };
        Arc::new(Entry {
            key: Key::new(&"x/things".into(), namespace, name),
            revision,
            written_ms: 0,
            text: Bytes::from_static(b"{}").into(),
            facts: Arc::new(facts),
        })
    }

    #[test]
    fn an_index_has_a_pointer_for_each_object_and_finds_its_newest_state() {
        assert_eq!(size_of::<ByName>(), size_of::<usize>());
        assert_eq!(size_of::<ByUid>(), size_of::<usize>());
        let mut state = State::new(0, 0);
        for (revision, (namespace, name)) in
            [("b", "x"), ("a", "z"), ("a", "y"), ("c", "w"), ("a", "y")].into_iter().enumerate()
        {
            state.load(entry(namespace, name, revision as u64));
        }
        let listed = |namespace: Option<&str>, after: Option<(&str, &str)>| -> Vec<String> {
            state.list("x/things", namespace, after).map(|entry| entry.facts.uid.to_string()).collect()
        };
        assert_eq!(listed(None, None), ["a/y", "a/z", "b/x", "c/w"]);
        assert_eq!(listed(Some("a"), None), ["a/y", "a/z"]);
        assert_eq!(listed(Some("a"), Some(("a", "y"))), ["a/z"]);
        assert_eq!(listed(None, Some(("a", "y"))), ["a/z", "b/x", "c/w"]);
        assert_eq!(listed(None, Some(("a", "zz"))), ["b/x", "c/w"]);
        assert_eq!(listed(Some("none"), None), Vec::<String>::new());
        assert_eq!(state.list_all("x/things").count(), 4);
        assert_eq!((state.count("x/things"), state.count_in("x/things", Some("a"))), (4, 2));
        let key = Key::new(&"x/things".into(), "a", "y");
        assert_eq!(state.get(&key).map(|entry| entry.revision), Some(4));
        assert_eq!(state.by_uid("a/y").map(|entry| entry.revision), Some(4));
        let table = state.tables.get_mut("x/things").unwrap();
        table.remove(&key);
        table.remove(&Key::new(&"x/things".into(), "c", "w"));
        assert_eq!((table.count, table.objects.len()), (2, 2), "a namespace without objects goes");
    }
}
