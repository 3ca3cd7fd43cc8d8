//! Argo's engine, driven as Argo CD drives it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{CONVERGED, Site, application};
use crate::report::Report;
use crate::{process, wait};

/// The time limit of a synchronization, which first reads every kind in the cluster.
const LIMIT: Duration = Duration::from_secs(150);

pub(super) fn run(report: &mut Report, site: &Site) -> Result<()> {
    let folder = site.folder.join("app");
    report.step("Argo's engine: a sync creates everything, and all of it becomes healthy", || {
        application::write(&folder, &application::version_1(&site.image))?;
        sync(site)?;
        site.all_ready()?;
        healthy(site)
    })?;
    report.case("Argo's engine: a second sync finds nothing to do", || {
        let before = site.kubectl.object("vm", "web")?["metadata"]["resourceVersion"].clone();
        sync(site)?;
        ensure!(site.kubectl.object("vm", "web")?["metadata"]["resourceVersion"] == before, "it was written");
        Ok(())
    });
    report.case("Argo's engine: drift shows as OutOfSync, and a sync puts it right", || {
        site.drift()?;
        let states = status(site)?;
        ensure!(states.get("VM/web").is_some_and(|(sync, _)| sync == "OutOfSync"), "{states:?}");
        sync(site)?;
        site.drift_is_put_right()?;
        healthy(site)
    });
    report.case("Argo's engine: a new version is taken up, and what it no longer has is pruned", || {
        application::write(&folder, &application::version_2(&site.image))?;
        sync(site)?;
        site.cpus(2)?;
        site.gone("disk", "web-data")?;
        site.all_ready()?;
        healthy(site)
    });
    report.case("Argo's engine: a rollback brings back the first version", || {
        application::write(&folder, &application::version_1(&site.image))?;
        sync(site)?;
        site.cpus(1)?;
        site.kubectl.condition("disk/web-data", "Ready=True", None, CONVERGED)?;
        site.all_ready()?;
        healthy(site)
    });
    report.case("Argo's engine: deleting the application deletes all of it at once", || {
        application::write(&folder, &[])?;
        sync(site)?;
        site.all_gone()?;
        let left = status(site)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    Ok(())
}

/// Waits until every object is synced with the folder, and healthy.
fn healthy(site: &Site) -> Result<()> {
    wait::until("all to be Synced and Healthy", CONVERGED, || {
        let states = status(site)?;
        let well = |(sync, health): &(String, String)| sync == "Synced" && health == "Healthy";
        ensure!(!states.is_empty() && states.values().all(well), "{states:#?}");
        Ok(())
    })
}

fn sync(site: &Site) -> Result<()> {
    let results = run_engine(site, "sync")?;
    for result in results.as_array().context("no list")? {
        let status = result["Status"].as_str().unwrap_or_default();
        ensure!(["Synced", "Pruned"].contains(&status), "{result:#}");
    }
    Ok(())
}

/// Sync and health of each object.
fn status(site: &Site) -> Result<BTreeMap<String, (String, String)>> {
    let states = run_engine(site, "status")?;
    let word = |state: &Value, key: &str| state[key].as_str().unwrap_or_default().to_owned();
    let states = states.as_array().context("no list")?;
    Ok(states
        .iter()
        .map(|state| (word(state, "object"), (word(state, "sync"), word(state, "health"))))
        .collect())
}

fn run_engine(site: &Site, what: &str) -> Result<Value> {
    let mut command = site.command("argo-engine");
    command.args(["--namespace", site.within, "--app", "web", "--folder", "app", what]);
    let printed = process::run(&mut command, LIMIT)?.success()?;
    // Go prints an empty list as null.
    let value: Value = serde_json::from_str(&printed).with_context(|| format!("it printed {printed:?}"))?;
    Ok(if value.is_null() { Value::Array(Vec::new()) } else { value })
}
