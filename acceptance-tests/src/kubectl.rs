//! `kubectl`, as a person uses it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::namespace::Namespace;
use crate::process::{self, Finished};
use crate::{undo, wait};

const LIMIT: Duration = Duration::from_secs(90);
/// The longest time for which changes of an object are followed before it is read again: a control plane may be gone, or stand still.
const FOLLOWED: Duration = Duration::from_secs(5);
/// How often a host can be made to look. It looks at the latest five seconds after its last look.
const NEXT_LOOK: Duration = Duration::from_secs(8);
/// The time for which an object is followed at least, from when kubectl has shown it.
const LOOK: Duration = Duration::from_secs(2);
/// The time until kubectl has shown an object: first it may have to find out all kinds, beside guests that boot.
const SHOWN: Duration = Duration::from_secs(30);

/// kubectl with a kubeconfig, inside a namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    namespace: Arc<Namespace>,
    within: Option<String>,
}

impl Kubectl {
    /// `home` holds its discovery cache: one per control plane.
    pub fn new(program: &Path, kubeconfig: &Path, home: &Path, namespace: &Arc<Namespace>) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
            namespace: Arc::clone(namespace),
            within: None,
        }
    }

    /// The same kubectl with another default namespace than `default`.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { within: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The same program with the credentials of another kubeconfig; its discovery cache is in `home`.
    #[must_use]
    pub fn with_kubeconfig(&self, kubeconfig: &Path, home: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), home: home.to_owned(), ..self.clone() }
    }

    /// The command, for callers that start it differently from the methods here.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.namespace.command(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(namespace) = &self.within {
            command.args(["--namespace", namespace]);
        }
        command.args(arguments);
        command.env("HOME", &self.home).env("KUBECACHEDIR", self.home.join("cache")).env_remove("KUBECONFIG");
        command
    }

    /// Runs kubectl.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        process::run(&mut self.command(arguments), LIMIT)
    }

    /// Runs kubectl; it must succeed.
    pub fn ok(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments)?.success()
    }

    /// Runs kubectl; it must fail. Returns all of its output.
    pub fn refused(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments)?.failure()
    }

    /// Deletes an object, for example `vm/web`, and waits until it is gone.
    pub fn delete(&self, object: &str) -> Result<()> {
        self.ok(&["delete", object, "--ignore-not-found", "--timeout=60s"]).map(drop)
    }

    /// Waits for what hosts report or do after they have looked at pools, interfaces, or files that nothing needs any more. They do that every
    /// minute by themselves, and here at once and again every few seconds: a change of its object has a host look. `wait_for` gets the time
    /// until the next look.
    pub fn while_hosts_look<T>(
        &self,
        limit: Duration,
        mut wait_for: impl FnMut(Duration) -> Result<T>,
    ) -> Result<T> {
        let end = Instant::now() + limit.min(wait::time_left());
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
            let look = format!("acceptance/looks-at={now}");
            let asked = self.ok(&["annotate", "hosts", "--all", "--overwrite", &look]);
            let waited = asked.and_then(|_| wait_for(NEXT_LOOK));
            if waited.is_ok() || Instant::now() >= end || undo::interrupted() {
                return waited;
            }
        }
    }

    /// Runs kubectl with a manifest on its standard input.
    pub fn with_input(&self, arguments: &[&str], manifest: &str) -> Result<Finished> {
        process::run_with_input(&mut self.command(arguments), manifest.as_bytes(), LIMIT)
    }

    /// Applies a manifest; it must be accepted.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.with_input(&["apply", "--server-side", "-f", "-"], manifest)?.success()
    }

    /// Applies a manifest; it must be refused. Returns all of kubectl's output.
    pub fn apply_refused(&self, manifest: &str) -> Result<String> {
        self.with_input(&["apply", "--server-side", "-f", "-"], manifest)?.failure()
    }

    /// Gets an object.
    pub fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.ok(&["get", kind, name, "-o", "json"])?;
        serde_json::from_str(&text).context("kubectl printed no JSON")
    }

    /// Waits until an object, given as `KIND/NAME`, satisfies `probe`; the error shows the object's status. Its changes are followed: a
    /// process for each look would take a part of a processor from the guest that is waited for.
    pub fn until(
        &self,
        object: &str,
        what: &str,
        limit: Duration,
        probe: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let (kind, name) = object.split_once('/').context("KIND/NAME")?;
        let end = Instant::now() + limit;
        wait::until(&format!("{object}: {what}"), limit, || {
            let left = end.saturating_duration_since(Instant::now());
            self.followed(kind, name, left.clamp(LOOK, FOLLOWED), &probe)
        })
    }

    /// Follows an object until it satisfies `probe`, for at most `limit` from when kubectl has shown it.
    fn followed(
        &self,
        kind: &str,
        name: &str,
        limit: Duration,
        probe: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let get = ["get", kind, name, "-o", "json", "--watch", "--output-watch-events"];
        let mut last = None;
        let found = process::first_found(&mut self.command(&get), SHOWN, limit, |line| {
            let mut event: Value = serde_json::from_str(line).ok()?;
            if !matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED")) {
                return None;
            }
            let object = event["object"].take();
            if probe(&object) {
                return Some(object);
            }
            last = Some(object["status"].clone());
            None
        });
        match (found, last) {
            (Ok(Some(object)), _) => Ok(object),
            (_, Some(status)) => bail!("its status is {status:#}"),
            (Ok(None), None) => bail!("kubectl has not shown it"),
            (Err(error), None) => Err(error),
        }
    }

    /// Waits until an object, given as `KIND/NAME`, has a condition, given as `TYPE=STATUS` as in `kubectl wait`, and the
    /// reason if one is given.
    pub fn condition(
        &self,
        object: &str,
        condition: &str,
        reason: Option<&str>,
        limit: Duration,
    ) -> Result<Value> {
        let (kind, status) = condition.split_once('=').context("TYPE=STATUS")?;
        let reason_text = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        self.until(object, &format!("{condition}{reason_text}"), limit, |object| {
            condition_of(object, kind).is_some_and(|found| {
                found["status"] == status && reason.is_none_or(|reason| found["reason"] == reason)
            })
        })
    }
}

/// A condition of an object.
pub fn condition_of<'a>(object: &'a Value, condition: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == condition)
}
