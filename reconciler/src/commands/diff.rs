//! `berth diff`: prints the changes since a time or a revision.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::SystemTime;

use anyhow::{Context, bail};
use berth_apiserver::changes;
use kube::Client;
use serde_json::Value;

use crate::{cli::DiffOptions, one_connection::client_of, printable::printable};

use super::{connect, resources};

/// Changes with every write, and carries no information of its own.
const GENERATION: &str = ".metadata.generation";

pub(super) async fn run(options: DiffOptions) -> anyhow::Result<()> {
    let client = client_of(connect::admin(&options.connection, &options.state.state_dir).await?)?;
    let revision = revision(&client, &options.at).await?;
    let (wanted, name) = match &options.object {
        None => (resources::ours(&client).await?, None),
        Some(object) => {
            let (kind, name) = resources::split(object);
            let name = name.map(resources::checked).transpose()?;
            (vec![resources::named(&client, &kind).await?], name)
        }
    };
    let namespace = options.namespace.as_deref().or(name.map(|_| "default"));
    let namespace = namespace.map(resources::checked).transpose()?;
    let mut out = String::new();
    for resource in &wanted {
        let path = resource.path(namespace);
        let then = match resources::list(&client, &path, Some(&revision)).await {
            Err(error) if error.downcast_ref().is_some_and(|error| resources::has_code(error, 410)) => {
                bail!(
                    "revision {revision} is older than the history that is kept (see berth up --history-for)"
                )
            }
            other => other.with_context(|| format!("listing {} at revision {revision}", resource.plural))?,
        };
        let now = resources::list(&client, &path, None).await;
        let now = now.with_context(|| format!("listing {}", resource.plural))?;
        let only = |list: Vec<Value>| -> Vec<Value> {
            list.into_iter().filter(|one| name.is_none_or(|name| one["metadata"]["name"] == name)).collect()
        };
        out.push_str(&lines(&resource.plural, &only(then), &only(now), options.status));
    }
    if out.is_empty() {
        notice!("nothing has changed since revision {revision}");
    }
    std::io::stdout().write_all(printable(&out).as_bytes()).context("printing")
}

/// Returns the revision: a given one, or the last one at a time.
async fn revision(client: &Client, at: &str) -> anyhow::Result<String> {
    if !at.is_empty() && at.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(at.to_owned());
    }
    let time = match crate::cli::time(at) {
        Ok(ago) => {
            let then = SystemTime::now().checked_sub(ago.0).context("--at: the time is too long ago")?;
            k8s_openapi::jiff::Timestamp::try_from(then).context("--at")?.to_string()
        }
        Err(_) => at.to_owned(),
    };
    let path = format!("/history?at={}", resources::encoded(&time));
    let found = match resources::get(client, &path).await {
        Err(error) if resources::has_code(&error, 410) => {
            bail!("--at {at}: this is before the history that is kept (see berth up --history-for)")
        }
        Err(error) if resources::has_code(&error, 404) => {
            bail!("this control plane keeps no history: berth history and berth diff need that of `berth up`")
        }
        other => other.with_context(|| format!("--at {at}"))?,
    };
    Ok(found["revision"].as_str().unwrap_or_default().to_owned())
}

/// Formats the changes to a kind's objects.
fn lines(plural: &str, then: &[Value], now: &[Value], with_status: bool) -> String {
    let name = |object: &Value| {
        let part = |member: &str| object["metadata"][member].as_str().unwrap_or_default().to_owned();
        (part("namespace"), part("name"))
    };
    let then: BTreeMap<_, &Value> = then.iter().map(|object| (name(object), object)).collect();
    let now: BTreeMap<_, &Value> = now.iter().map(|object| (name(object), object)).collect();
    let mut out = String::new();
    let shown = |(namespace, name): &(String, String)| match namespace.as_str() {
        "" => format!("{plural}/{name}"),
        namespace => format!("{plural}/{name} -n {namespace}"),
    };
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    let mut all: Vec<_> = then.keys().chain(now.keys()).collect();
    all.sort();
    all.dedup();
    for key in all {
        // Writing into a String cannot fail.
        let _ = match (then.get(key), now.get(key)) {
            (None, _) => writeln!(out, "+ {}", shown(key)),
            (_, None) => writeln!(out, "- {}", shown(key)),
            (Some(old), Some(new)) => {
                let secret = plural == "secrets";
                let found = changes(old, new, secret);
                let mut found = found
                    .iter()
                    .filter(|change| change.path != GENERATION)
                    .filter(|change| with_status || !change.path.starts_with(".status"))
                    .peekable();
                if found.peek().is_some() {
                    let again = if uid(old) == uid(new) { "" } else { " (deleted and made again)" };
                    let _ = writeln!(out, "~ {}{again}", shown(key));
                }
                for change in found {
                    let (from, to) = (change.from.as_ref(), change.to.as_ref());
                    let (from, to) = (resources::short(from), resources::short(to));
                    let _ = writeln!(out, "    {}: {from} -> {to}", change.path);
                }
                Ok(())
            }
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn object(name: &str, uid: &str, cpus: u32, phase: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns", "uid": uid, "generation": cpus},
            "spec": {"cpus": cpus}, "status": {"phase": phase}})
    }

    #[test]
    fn what_came_went_and_changed_is_told_and_status_only_when_wished() {
        let then = [object("a", "1", 1, "x"), object("b", "2", 1, "x"), object("c", "3", 1, "x")];
        let now = [object("b", "2", 2, "y"), object("c", "3", 1, "y"), object("d", "4", 1, "x")];
        let wanted = "- vms/a -n ns\n~ vms/b -n ns\n    .spec.cpus: 1 -> 2\n+ vms/d -n ns\n";
        assert_eq!(super::lines("vms", &then, &now, false), wanted);
        assert!(super::lines("vms", &then, &now, true).contains(".status.phase: \"x\" -> \"y\""));
        assert_eq!(super::lines("vms", &then, &then, true), "");
    }

    #[test]
    fn of_secrets_no_value_is_told() {
        let secret = |value: &str| json!({"metadata": {"name": "s"}, "data": {"a": value}});
        let text = super::lines("secrets", &[secret("b25l")], &[secret("dHdv")], false);
        assert!(text.contains(".data.a") && !text.contains("b25l") && !text.contains("dHdv"), "{text}");
    }
}
