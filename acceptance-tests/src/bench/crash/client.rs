//! Writers and watchers of one control plane that is killed at some point.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::book::{Change, Seen, Stored, Writer};
use crate::api::{Access, Request, Watch, name};
use crate::namespace::Namespace;

/// Objects of a Kubernetes kind: only the writers touch them.
const PATH: &str = "/api/v1/namespaces/default/configmaps";

pub(super) struct Plane {
    access: Access,
}

impl Plane {
    pub(super) fn open(kubeconfig: &Path, namespace: &Arc<Namespace>) -> Result<Self> {
        let plane = Self { access: Access::read(kubeconfig, namespace)? };
        plane.access.connect()?.get("/readyz")?;
        Ok(plane)
    }

    /// The stored objects, and the revision of the list.
    pub(super) fn list(&self) -> Result<(u64, BTreeMap<String, Stored>)> {
        let list = self.access.connect()?.read(PATH)?;
        let items = list["items"].as_array().context("no list")?;
        let stored = |object: &Value| Ok((name(object).to_owned(), stored_of(object)?));
        Ok((revision_of(&list)?, items.iter().map(stored).collect::<Result<_>>()?))
    }

    pub(super) fn watch(&self, after: u64) -> Result<Watching> {
        Ok(Watching(self.access.connect()?.watch_from(PATH, &after.to_string())?))
    }

    /// Writes until the server stops responding. Returns the number of acknowledged writes.
    pub(super) fn write_until_gone(&self, writer: &mut Writer) -> Result<u64> {
        let Ok(mut api) = self.access.connect() else { return Ok(0) };
        let mut acknowledged = 0;
        loop {
            let (object, stored, change) = writer.begin();
            let (method, path, body) = match (change, stored) {
                (Change::Gone, _) => ("DELETE", format!("{PATH}/{object}"), String::new()),
                (Change::Put { value }, None) => ("POST", PATH.to_owned(), config_map(&object, value, None)),
                (Change::Put { value }, Some(stored)) => {
                    ("PUT", format!("{PATH}/{object}"), config_map(&object, value, Some(stored.revision)))
                }
            };
            let Ok((status, text)) = api.answer(&Request::new(method, &path, &body)) else {
                return Ok(acknowledged);
            };
            ensure!((200..300).contains(&status), "{method} {path}: {status}: {text}");
            let answer: Value = serde_json::from_str(&text)?;
            let revision = match change {
                Change::Gone => None,
                Change::Put { value } => {
                    let now = stored_of(&answer)?;
                    ensure!(now.value == value, "{method} {path} answers with {text}");
                    Some(now.revision)
                }
            };
            writer.acknowledged(revision)?;
            acknowledged += 1;
        }
    }
}

fn config_map(name: &str, value: u64, revision: Option<u64>) -> String {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"value": value.to_string()}});
    if let Some(revision) = revision {
        object["metadata"]["resourceVersion"] = revision.to_string().into();
    }
    object.to_string()
}

fn revision_of(object: &Value) -> Result<u64> {
    let revision = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    revision.with_context(|| format!("no revision: {object}"))
}

fn stored_of(object: &Value) -> Result<Stored> {
    let value = object["data"]["value"].as_str().and_then(|text| text.parse().ok());
    Ok(Stored {
        revision: revision_of(object)?,
        value: value.with_context(|| format!("no value: {object}"))?,
    })
}

pub(super) struct Watching(Watch);

impl Watching {
    /// The next event; an error once the server is gone.
    pub(super) fn next_seen(&mut self) -> Result<Seen> {
        let event = self.0.next_event()?;
        let stored = stored_of(&event.object)?;
        let change = if event.gone { Change::Gone } else { Change::Put { value: stored.value } };
        let name = name(&event.object).to_owned();
        if name.is_empty() {
            bail!("an event of nothing: {}", event.object);
        }
        Ok(Seen { name, revision: stored.revision, change })
    }
}
