//! A store in memory, with faults.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Result};
use crate::objects::{Objects, Visit};

/// When a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Before(usize),
    /// The answer is lost.
    After(usize),
}

/// The name and the data of an object.
type Object = (String, Vec<u8>);

pub(super) type All = BTreeMap<String, Vec<u8>>;

/// A change by another program, before each of these calls.
#[derive(Clone)]
struct Meanwhile {
    calls: Range<usize>,
    change: Arc<dyn Fn(&mut All) + Send + Sync>,
}

/// The calls count across clones; a clone is another process.
#[derive(Clone, Default)]
pub(super) struct Memory {
    pub(super) objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    pub(super) fault: Option<Fault>,
    /// An object that is listed and not there when it is read.
    unread: Option<String>,
    /// An object that is written once more after its deletion.
    late: Arc<Mutex<Option<Object>>>,
    meanwhile: Option<Meanwhile>,
    pub(super) calls: Arc<AtomicUsize>,
    pub(super) puts: Arc<Mutex<Vec<String>>>,
    in_flight: Arc<AtomicUsize>,
    pub(super) most_in_flight: Arc<AtomicUsize>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    /// The same objects, with this fault.
    pub(super) fn with(&self, fault: Option<Fault>) -> Self {
        Self { objects: Arc::clone(&self.objects), fault, ..Self::default() }
    }

    /// The same objects, of which this one is listed and cannot be read.
    pub(super) fn behind(&self, name: &str) -> Self {
        Self { unread: Some(name.to_owned()), ..self.with(None) }
    }

    /// The same objects, of which this one is written once more after its deletion.
    pub(super) fn with_late(&self, name: &str) -> Self {
        let body = self.objects.lock().unwrap().get(name).cloned().unwrap_or_default();
        Self { late: Arc::new(Mutex::new(Some((name.to_owned(), body)))), ..self.with(None) }
    }

    /// The same objects, which another program changes before each of these calls.
    pub(super) fn meanwhile(
        &self,
        calls: Range<usize>,
        change: impl Fn(&mut All) + Send + Sync + 'static,
    ) -> Self {
        Self { meanwhile: Some(Meanwhile { calls, change: Arc::new(change) }), ..self.with(None) }
    }

    /// A copy of the objects.
    pub(super) fn copy(&self) -> Self {
        Self { objects: Arc::new(Mutex::new(self.objects.lock().unwrap().clone())), ..Self::default() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }

    async fn call<T>(
        &self,
        name: &str,
        effect: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> Result<T> + Send,
    ) -> Result<T> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_in_flight.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if let Some(meanwhile) = self.meanwhile.as_ref().filter(|meanwhile| meanwhile.calls.contains(&number))
        {
            (meanwhile.change)(&mut self.objects.lock().unwrap());
        }
        let failed = || Error::NoAnswer {
            action: "reach",
            place: name.to_owned(),
            attempts: 1,
            detail: format!("fault at call {number}"),
        };
        let result = match self.fault {
            Some(Fault::Before(at)) if number >= at => Err(failed()),
            Some(Fault::After(at)) if number > at => Err(failed()),
            _ => effect(&mut self.objects.lock().unwrap()),
        };
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        match self.fault {
            Some(Fault::After(at)) if number == at => Err(failed()),
            _ => result,
        }
    }
}

#[async_trait]
impl Objects for Memory {
    fn place(&self, name: &str) -> String {
        format!("memory:{name}")
    }

    async fn get(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        self.call(name, |objects| {
            let found = objects.get(name).filter(|_| self.unread.as_deref() != Some(name)).cloned();
            match found.as_ref().is_none_or(|found| found.len() <= limit) {
                true => Ok(found),
                false => Err(Error::Damaged { place: name.to_owned(), detail: "too long".to_owned() }),
            }
        })
        .await
    }

    async fn put(&self, name: &str, body: Bytes) -> Result<()> {
        self.puts.lock().unwrap().push(name.to_owned());
        self.call(name, |objects| {
            objects.insert(name.to_owned(), body.to_vec());
            Ok(())
        })
        .await
    }

    async fn create(&self, name: &str, body: Bytes) -> Result<bool> {
        self.call(name, |objects| {
            let is_new = !objects.contains_key(name);
            objects.entry(name.to_owned()).or_insert_with(|| body.to_vec());
            Ok(is_new)
        })
        .await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.call(name, |objects| {
            objects.remove(name);
            if let Some((_, body)) = self.late.lock().unwrap().take_if(|(late, _)| late == name) {
                objects.insert(name.to_owned(), body);
            }
            Ok(())
        })
        .await
    }

    async fn list(&self, folder: &str, visit: Visit<'_>) -> Result<()> {
        let prefix = format!("{folder}/");
        let listed = self.call(folder, |objects| {
            let below = objects
                .iter()
                .filter_map(|(name, body)| Some((name.strip_prefix(&prefix)?.to_owned(), body.len() as u64)));
            Ok(below.collect::<Vec<_>>())
        });
        listed.await?.into_iter().try_for_each(|(name, length)| visit(&name, length))
    }

    async fn folders(&self, folder: &str, _limit: usize) -> Result<Vec<String>> {
        let prefix = format!("{folder}/");
        let found = self.call(folder, |objects| {
            let below = objects
                .keys()
                .filter_map(|name| Some(name.strip_prefix(&prefix)?.split_once('/')?.0.to_owned()));
            let mut found: Vec<_> = below.collect();
            found.dedup();
            Ok(found)
        });
        found.await
    }

    async fn first(&self) -> Result<Option<String>> {
        self.call("", |objects| Ok(objects.keys().next().cloned())).await
    }

    async fn remove_partial(&self, folder: &str) -> Result<()> {
        self.call(folder, |_| Ok(())).await
    }
}
