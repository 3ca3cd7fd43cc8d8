//! Mirrors: a disk of a running machine goes on in another file, while its guest runs.
//!
//! ```text
//!           blockdev-mirror        all is copied           job-complete, the guest is paused       job-finalize
//!   none ──────────────────▶ Copying ──────────▶ Ready ──────────────────────────────────▶ Pending ───────────▶ Switched ─end─▶ none
//!                               │                  │                                           │
//!                               └── an error, or cancelled: Failed, the disk is in its former file ──cancel──▶ none
//! ```
//!
//! From its begin on each write of the guest goes to both files before it is answered (`write-blocking`), so a guest that writes fast does
//! not keep a mirror from becoming ready. Only [`switch_mirror`] has QEMU change to the other file (`auto-finalize` is off), and only while the
//! guest is paused: both files have the same data, on the medium, until the caller has recorded which one counts and lets the guest go on.
//! The job stays after that (`auto-dismiss` is off) until [`end_mirror`], so a caller that was restarted finds the switch that it has to record.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::chain::remove_unused;
use super::names::place_in_chain;
use super::observe::{disks, nodes};
use super::{BlockError, ObservedDisk, locked};
use crate::devices;
use crate::machine::{BELOW, DiskSpec, chain_blockdev, overlay_blockdev};
use crate::power::{self, RunState};
use crate::qmp::{Qmp, QmpError};

/// The id of a job: this, and the id of its disk.
const JOB: &str = "mirror-";
/// How long the last writes to the other file may take, while the guest is paused.
const SWITCH_LIMIT: Duration = Duration::from_secs(20);
/// How long QEMU may take to end a job that is cancelled.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The most mirrors of a machine, and the longest cause of a failure: QEMU, which a guest may have taken over, names them.
const MOST_MIRRORS: usize = 256;
const MAX_CAUSE: usize = 500;

/// The mirror of a disk, as QEMU reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mirror {
    /// Bytes, with those that the guest has written meanwhile.
    Copying { done: u64, total: u64 },
    /// Both files have the same data, and each write goes to both.
    Ready,
    /// QEMU waits for the command to change to the other file.
    Pending,
    /// The disk is in the other file, which is not recorded yet.
    Switched,
    /// The disk is in its former file.
    Failed(String),
}

impl Mirror {
    /// Whether the guest must not go on before it is recorded which file counts.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        matches!(self, Self::Pending | Self::Switched)
    }
}

/// Lists the mirrors of the machine, by the id of the disk.
pub async fn mirrors(qmp: &Qmp) -> Result<BTreeMap<String, Mirror>, BlockError> {
    let jobs = devices::list(qmp, "query-jobs", json!({})).await?;
    Ok(jobs.iter().filter_map(mirror_of).take(MOST_MIRRORS).collect())
}

fn mirror_of(job: &Value) -> Option<(String, Mirror)> {
    let id = job["id"].as_str()?.strip_prefix(JOB)?.to_owned();
    let number = |name: &str| job[name].as_u64().unwrap_or_default();
    let mirror = match job["status"].as_str()? {
        "ready" | "standby" => Mirror::Ready,
        "waiting" | "pending" => Mirror::Pending,
        "concluded" | "aborting" | "null" => match job["error"].as_str() {
            Some(error) => Mirror::Failed(error.chars().take(MAX_CAUSE).collect()),
            None if job["status"] == "concluded" => Mirror::Switched,
            None => Mirror::Failed("it is being ended".to_owned()),
        },
        _ => Mirror::Copying { done: number("current-progress"), total: number("total-progress") },
    };
    Some((id, mirror))
}

async fn mirror(qmp: &Qmp, id: &str) -> Result<Option<Mirror>, BlockError> {
    Ok(mirrors(qmp).await?.remove(id))
}

/// Has QEMU begin to copy a disk of the running machine to the file of `target`, which is new and has the same backing file. Does nothing
/// if the disk has a mirror, or is in that file.
///
/// *Errors*: with the disk in its file, and the other one closed.
pub async fn begin_mirror(qmp: &Qmp, target: &DiskSpec) -> Result<(), BlockError> {
    target.validate()?;
    if mirror(qmp, &target.id).await?.is_some() {
        return Ok(());
    }
    let present = present(qmp, &target.id).await?;
    if present.file.as_ref() == Some(&target.file) {
        return Ok(());
    }
    let top = present.node.clone().ok_or_else(|| missing(&target.id))?;
    // An interrupted call may have left nodes.
    remove_unused(qmp, &target.id, &top).await?;
    let begun = begin(qmp, target, &present, &top).await;
    if matches!(&begun, Err(BlockError::Qmp(QmpError::Refused { .. }) | BlockError::Locked { .. })) {
        // Best effort: a later call finds the nodes.
        let _ = remove_unused(qmp, &target.id, &top).await;
    }
    begun
}

async fn begin(qmp: &Qmp, target: &DiskSpec, present: &ObservedDisk, top: &str) -> Result<(), BlockError> {
    let known: Vec<String> = nodes(qmp).await?.into_iter().map(|node| node.name).collect();
    let last = known.iter().filter_map(|name| place_in_chain(name, &target.id)).max();
    let name = format!("{}.{}", target.id, last.map_or(1, |last| last + 1));
    let mut node = overlay_blockdev(target, &name);
    if let Some(backing) = target.backing.as_ref().filter(|_| target.format.is_qcow2()) {
        let mut names = (1..).map(|number: u32| format!("{}{BELOW}{number}", target.id));
        let below = names.find(|name| !known.contains(name)).expect("numbers do not run out");
        let chain = chain_blockdev(&target.id, backing, &below);
        qmp.execute("blockdev-add", chain).await.map_err(|error| locked(&target.id, error))?;
        node["backing"] = json!(below);
    }
    qmp.execute("blockdev-add", node).await.map_err(|error| locked(&target.id, error))?;
    let added = nodes(qmp).await?.into_iter().find(|node| node.name == name);
    // The disk may have grown since the file was created.
    if added.is_some_and(|added| added.size < present.size) {
        qmp.execute("block_resize", json!({"node-name": name, "size": present.size})).await?;
    }
    let job = json!({
        "job-id": job_id(&target.id),
        "device": top,
        "target": name,
        // Of a disk without a backing file that is all of it. The other file is new, so nothing in it has to be overwritten with zeros.
        "sync": "top",
        "copy-mode": "write-blocking",
        // An error of either file ends the mirror, and the guest goes on in its file.
        "on-source-error": "report",
        "on-target-error": "report",
        "auto-finalize": false,
        "auto-dismiss": false,
    });
    qmp.execute("blockdev-mirror", job).await?;
    Ok(())
}

/// Pauses the guest and has QEMU change to the other file. The guest stays paused: it goes on by [`end_mirror`], once it is recorded which
/// file counts. Does nothing if that was done before.
///
/// *Errors*: [`BlockError::Mirror`], with the disk in its former file and the guest as it was. After any other one it is not known which file
/// the disk is in.
pub async fn switch_mirror(qmp: &Qmp, id: &str) -> Result<(), BlockError> {
    let deadline = Instant::now() + SWITCH_LIMIT;
    let (mut was_asked, mut is_paused, mut was_finalized) = (false, false, false);
    loop {
        let detail = match mirror(qmp, id).await? {
            Some(Mirror::Switched) => return Ok(()),
            Some(Mirror::Copying { .. }) => return Err(failed(id, "it is not ready")),
            None => return Err(failed(id, "it has been ended")),
            Some(Mirror::Ready) if !was_asked => {
                match power::run_state(qmp).await? {
                    RunState::Running => power::stop(qmp).await?,
                    // For the switch of another disk.
                    RunState::Paused if is_switching(qmp).await? => {}
                    _ => return Err(failed(id, "its guest does not run")),
                }
                (was_asked, is_paused) = (true, true);
                match qmp.execute("job-complete", json!({"id": job_id(id)})).await {
                    Ok(_) => continue,
                    Err(QmpError::Refused { desc, .. }) => desc,
                    Err(error) => return Err(error.into()),
                }
            }
            Some(Mirror::Ready) if Instant::now() < deadline => {
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            Some(Mirror::Ready) => format!("the last writes took longer than {SWITCH_LIMIT:?}"),
            Some(Mirror::Pending) => {
                // A call that was interrupted has paused it, unless another program has resumed it.
                if power::run_state(qmp).await? == RunState::Running {
                    power::stop(qmp).await?;
                }
                is_paused = true;
                match qmp.execute("job-finalize", json!({"id": job_id(id)})).await {
                    Ok(_) if !was_finalized => {
                        was_finalized = true;
                        continue;
                    }
                    Ok(_) if Instant::now() < deadline => {
                        tokio::time::sleep(LOOK_EVERY).await;
                        continue;
                    }
                    Ok(_) => format!("the switch took longer than {SWITCH_LIMIT:?}"),
                    Err(QmpError::Refused { desc, .. }) => desc,
                    Err(error) => return Err(error.into()),
                }
            }
            Some(Mirror::Failed(detail)) => detail,
        };
        if !cancel_job(qmp, id).await? {
            return Ok(());
        }
        if is_paused {
            go_on(qmp).await?;
        }
        return Err(failed(id, &detail));
    }
}

/// Whether the guest must not go on before it is recorded which file of a disk counts.
async fn is_switching(qmp: &Qmp) -> Result<bool, BlockError> {
    Ok(mirrors(qmp).await?.values().any(Mirror::is_switching))
}

/// Lets a guest go on that was paused for a switch, unless it waits for that of another disk: the last one of them lets it go on.
async fn go_on(qmp: &Qmp) -> Result<(), BlockError> {
    if power::run_state(qmp).await? == RunState::Paused && !is_switching(qmp).await? {
        power::start(qmp).await?;
    }
    Ok(())
}

/// Lets the guest go on that was paused for a switch, which is recorded now, and closes the former files. Does nothing if the disk has no
/// mirror that was switched.
pub async fn end_mirror(qmp: &Qmp, id: &str) -> Result<(), BlockError> {
    if mirror(qmp, id).await? != Some(Mirror::Switched) {
        return Ok(());
    }
    // Others may be switched still, and recorded by their own calls.
    let others = mirrors(qmp).await?.into_iter().any(|(other, mirror)| other != id && mirror.is_switching());
    if !others && power::run_state(qmp).await? == RunState::Paused {
        power::start(qmp).await?;
    }
    dismiss(qmp, id).await?;
    let top = present(qmp, id).await?.node.ok_or_else(|| missing(id))?;
    remove_unused(qmp, id, &top).await
}

/// Ends the mirror of a disk that is in its former file, and closes the other one. Returns false if it was switched before: nothing
/// is changed then.
pub async fn cancel_mirror(qmp: &Qmp, id: &str) -> Result<bool, BlockError> {
    let was_pending = match mirror(qmp, id).await? {
        Some(Mirror::Switched) => return Ok(false),
        mirror => mirror == Some(Mirror::Pending),
    };
    if !cancel_job(qmp, id).await? {
        return Ok(false);
    }
    // Only a switch, which did not take place, has a job wait for it.
    if was_pending {
        go_on(qmp).await?;
    }
    if let Some(top) = disks(qmp).await?.into_iter().find(|disk| disk.id == id).and_then(|disk| disk.node) {
        remove_unused(qmp, id, &top).await?;
    }
    Ok(true)
}

/// Ends and forgets a job that has not switched. Returns false if it has.
async fn cancel_job(qmp: &Qmp, id: &str) -> Result<bool, BlockError> {
    let deadline = Instant::now() + CANCEL_LIMIT;
    let mut was_asked = false;
    loop {
        match mirror(qmp, id).await? {
            None => return Ok(true),
            Some(Mirror::Switched) => return Ok(false),
            Some(Mirror::Failed(_)) => match dismiss(qmp, id).await {
                Ok(()) => return Ok(true),
                // It is being ended still.
                Err(BlockError::Qmp(QmpError::Refused { .. })) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            },
            Some(_) if !was_asked => {
                qmp.execute("block-job-cancel", json!({"device": job_id(id), "force": true})).await?;
                was_asked = true;
            }
            Some(_) if Instant::now() < deadline => {}
            Some(_) => return Err(failed(id, "QEMU does not end it")),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn dismiss(qmp: &Qmp, id: &str) -> Result<(), BlockError> {
    qmp.execute("job-dismiss", json!({"id": job_id(id)})).await?;
    Ok(())
}

async fn present(qmp: &Qmp, id: &str) -> Result<ObservedDisk, BlockError> {
    disks(qmp).await?.into_iter().find(|disk| disk.id == id).ok_or_else(|| missing(id))
}

fn job_id(disk: &str) -> String {
    format!("{JOB}{disk}")
}

fn missing(id: &str) -> BlockError {
    BlockError::NoSuchDisk { id: id.to_owned() }
}

fn failed(id: &str, detail: &str) -> BlockError {
    BlockError::Mirror { id: id.to_owned(), detail: detail.to_owned() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    /// A QEMU that a guest has taken over: it accepts every command, and its mirror waits for its end for good.
    async fn waits() -> Qmp {
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let (reader, mut writer) = tokio::io::split(far);
            let mut lines = BufReader::new(reader).lines();
            let version = json!({"qemu": {"major": 9, "minor": 2, "micro": 0}});
            let mut message = json!({"QMP": {"version": version, "capabilities": []}});
            while writer.write_all(format!("{message}\n").as_bytes()).await.is_ok() {
                let Ok(Some(line)) = lines.next_line().await else { return };
                let request: Value = serde_json::from_str(&line).unwrap();
                let answer = match request["execute"].as_str() {
                    Some("query-jobs") => json!([{"id": "mirror-v-1", "status": "pending"}]),
                    Some("query-status") => json!({"status": "paused"}),
                    _ => json!({}),
                };
                message = json!({"return": answer, "id": request["id"]});
            }
        });
        Qmp::over(near).await.unwrap().0
    }

    #[tokio::test(start_paused = true)]
    async fn a_switch_that_does_not_come_to_its_end_is_given_up() {
        let qmp = waits().await;
        let switch = tokio::time::timeout(SWITCH_LIMIT + 2 * CANCEL_LIMIT, switch_mirror(&qmp, "v-1"));
        let error = switch.await.expect("in time").unwrap_err();
        assert!(matches!(error, BlockError::Mirror { .. }), "{error:?}");
    }

    fn of(status: &str, error: Option<&str>) -> Option<Mirror> {
        let mut job = json!({"id": "mirror-v-1", "type": "mirror", "status": status, "current-progress": 1, "total-progress": 4});
        if let Some(error) = error {
            job["error"] = json!(error);
        }
        mirror_of(&job).map(|(_, mirror)| mirror)
    }

    #[test]
    fn a_job_that_ended_has_switched_unless_it_has_an_error() {
        assert_eq!(of("running", None), Some(Mirror::Copying { done: 1, total: 4 }));
        assert_eq!(of("ready", None), Some(Mirror::Ready));
        assert_eq!(of("pending", None), Some(Mirror::Pending));
        assert_eq!(of("concluded", None), Some(Mirror::Switched));
        let text = "No space left on device";
        assert_eq!(of("concluded", Some(text)), Some(Mirror::Failed(text.to_owned())));
        assert!(matches!(of("aborting", None), Some(Mirror::Failed(_))), "it is not in the other file");
        assert_eq!(mirror_of(&json!({"id": "other", "status": "running"})), None);
        assert!(Mirror::Pending.is_switching() && Mirror::Switched.is_switching());
        assert!(!Mirror::Ready.is_switching());
    }
}
