//! Many concurrent writers, each with its own objects, and the responses they received.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::{ACCOUNTS, STACK};
use crate::access::Access;
use crate::api::{Api, Request, name};

/// The number of clients that create objects only to be listed.
const FILLERS: usize = 8;

/// An acknowledged write. A deletion has no value, and its response no revision.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) name: String,
    pub(super) value: Option<u64>,
    pub(super) revision: Option<u64>,
}

/// An object of the kind at this path. It is long enough that unread data exceeds the kernel's buffers.
pub(super) fn object(path: &str, name: &str, value: u64) -> String {
    let kind = if path.starts_with(ACCOUNTS) { "ServiceAccount" } else { "ConfigMap" };
    let annotations = json!({"value": value.to_string(), "filling": "x".repeat(1024)});
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "annotations": annotations}})
        .to_string()
}

/// The value of such an object.
pub(super) fn value_of(object: &Value) -> Result<u64> {
    let text = object.pointer("/metadata/annotations/value").and_then(Value::as_str);
    Ok(text.with_context(|| format!("no value: {object}"))?.parse()?)
}

/// Whether a name belongs to an object of these writers.
pub(super) fn is_ours(name: &str) -> bool {
    name.strip_prefix('n').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

pub(super) fn revision_of(object: &Value) -> Result<u64> {
    let revision = object["metadata"]["resourceVersion"].as_str();
    Ok(revision.with_context(|| format!("no revision: {object}"))?.parse()?)
}

/// Lets `clients` create `objects` objects, change every second one of them and delete every third.
pub(super) fn write(access: &Access, path: &str, clients: usize, objects: usize) -> Result<Vec<Write>> {
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for client in 0..clients {
            let thread = std::thread::Builder::new().stack_size(STACK);
            let names = (client..objects).step_by(clients);
            writers.push(thread.spawn_scoped(scope, move || write_all(access, path, names))?);
        }
        let made = writers.into_iter().map(|one| one.join().map_err(|_| anyhow!("a writer panicked"))?);
        Ok(made.collect::<Result<Vec<_>>>()?.concat())
    })
}

/// Lets a few clients create this many objects, which stay unchanged.
pub(super) fn fill(access: &Access, path: &str, objects: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let fillers = (0..FILLERS).map(|first| {
            scope.spawn(move || {
                let mut api = access.connect()?;
                let names = (first..objects).step_by(FILLERS);
                names
                    .map(|number| put(&mut api, "POST", path, &format!("n{number}"), 1))
                    .try_for_each(|one| one.map(drop))
            })
        });
        let fillers: Vec<_> = fillers.collect();
        fillers.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a writer panicked"))?)
    })
}

fn write_all(access: &Access, path: &str, names: impl Iterator<Item = usize>) -> Result<Vec<Write>> {
    let mut api = access.connect()?;
    let mut made = Vec::new();
    for number in names {
        let name = format!("n{number}");
        made.push(put(&mut api, "POST", path, &name, 1)?);
        if number % 2 == 0 {
            made.push(put(&mut api, "PUT", &format!("{path}/{name}"), &name, 2)?);
        }
        if number % 3 == 0 {
            let gone = format!("{path}/{name}");
            let (status, text) = api.answer(&Request::new("DELETE", &gone, ""))?;
            ensure!(status == 200, "DELETE {gone}: {status}: {text}");
            made.push(Write { name, value: None, revision: None });
        }
    }
    Ok(made)
}

fn put(api: &mut Api, method: &str, path: &str, name: &str, value: u64) -> Result<Write> {
    let body = object(path, name, value);
    let (status, text) = api.answer(&Request::new(method, path, &body))?;
    ensure!((200..300).contains(&status), "{method} {path}: {status}: {text}");
    let stored: Value = serde_json::from_str(&text)?;
    ensure!(value_of(&stored)? == value, "{method} {path} answers with {text}");
    Ok(Write { name: name.to_owned(), value: Some(value), revision: Some(revision_of(&stored)?) })
}

/// Checks that the stored objects match the acknowledged writes.
pub(super) fn check(access: &Access, path: &str, made: &[Write]) -> Result<()> {
    let list = access.connect()?.read(path)?;
    let items = list["items"].as_array().context("no list")?;
    let items: Vec<&Value> = items.iter().filter(|item| is_ours(name(item))).collect();
    let there = items.iter().map(|item| Ok((name(item).to_owned(), value_of(item)?)));
    let there: BTreeMap<String, u64> = there.collect::<Result<_>>()?;
    ensure!(there.len() == items.len(), "something is there twice");
    let mut known = BTreeMap::new();
    for write in made {
        match write.value {
            Some(value) => known.insert(write.name.clone(), value),
            None => known.remove(&write.name),
        };
    }
    let wrong = known.iter().find(|(name, value)| there.get(*name) != Some(value));
    ensure!(wrong.is_none(), "acknowledged was {wrong:?}, there is something else");
    ensure!(
        there.len() == known.len(),
        "{} objects were acknowledged, {} are there",
        known.len(),
        there.len()
    );
    let mut revisions: Vec<u64> = made.iter().filter_map(|write| write.revision).collect();
    revisions.sort_unstable();
    ensure!(revisions.windows(2).all(|pair| pair[0] < pair[1]), "a revision was given out twice");
    Ok(())
}
