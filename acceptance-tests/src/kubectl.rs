//! `kubectl`, as a person would call it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::namespace::Namespace;
use crate::process::{self, Finished};
use crate::wait;

const LIMIT: Duration = Duration::from_secs(90);
/// How long a user that is gone may still be listed.
const FORGOTTEN: Duration = Duration::from_secs(30);

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
    /// `home` is where it keeps its discovery cache: one per control plane.
    pub fn new(program: &Path, kubeconfig: &Path, home: &Path, namespace: &Arc<Namespace>) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            home: home.to_owned(),
            namespace: Arc::clone(namespace),
            within: None,
        }
    }

    /// The same, speaking of another namespace than `default`.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self { within: Some(namespace.to_owned()), ..self.clone() }
    }

    /// The command, to be started some other way than by the methods here.
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

    /// Runs it.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        process::run(&mut self.command(arguments), LIMIT)
    }

    /// Runs it; it must succeed.
    pub fn ok(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments)?.success()
    }

    /// Runs it; it must fail. All it said.
    pub fn refused(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments)?.failure()
    }

    /// Deletes an object, for example `vm/web`, and waits until it is gone. What used it was deleted before and may
    /// take a moment to be forgotten: a refusal for that is tried again.
    pub fn delete(&self, object: &str) -> Result<()> {
        let arguments = ["delete", object, "--ignore-not-found", "--timeout=60s"];
        let begun = Instant::now();
        loop {
            let finished = self.run(&arguments)?;
            if finished.code() == 0 {
                return Ok(());
            }
            let text = finished.failure()?;
            anyhow::ensure!(text.contains("is in use") && begun.elapsed() < FORGOTTEN, "{object}: {text}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs it with a manifest on its standard input.
    pub fn with_input(&self, arguments: &[&str], manifest: &str) -> Result<Finished> {
        process::run_with_input(&mut self.command(arguments), manifest.as_bytes(), LIMIT)
    }

    /// Applies a manifest; it must be taken.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.with_input(&["apply", "--server-side", "-f", "-"], manifest)?.success()
    }

    /// Applies a manifest; it must be refused. All kubectl said.
    pub fn apply_refused(&self, manifest: &str) -> Result<String> {
        self.with_input(&["apply", "--server-side", "-f", "-"], manifest)?.failure()
    }

    /// An object.
    pub fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.ok(&["get", kind, name, "-o", "json"])?;
        serde_json::from_str(&text).context("kubectl printed no JSON")
    }

    /// Waits until an object satisfies `probe`; the error shows the object's status.
    pub fn until(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        limit: Duration,
        probe: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait::until(&format!("{kind} {name}: {what}"), limit, || {
            let object = self.object(kind, name)?;
            anyhow::ensure!(probe(&object), "its status is {:#}", object["status"]);
            Ok(object)
        })
    }

    /// Waits for a condition to have a status and, when one is named, a reason.
    pub fn condition(
        &self,
        kind: &str,
        name: &str,
        condition: &str,
        status: &str,
        reason: Option<&str>,
        limit: Duration,
    ) -> Result<Value> {
        let what = format!(
            "{condition}={status}{}",
            reason.map(|reason| format!(" ({reason})")).unwrap_or_default()
        );
        self.until(kind, name, &what, limit, |object| {
            condition_of(object, condition).is_some_and(|found| {
                found["status"] == status && reason.is_none_or(|reason| found["reason"] == reason)
            })
        })
    }
}

/// A condition of an object.
pub fn condition_of<'a>(object: &'a Value, condition: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == condition)
}
