//! Mirrors of the disks of fake machines: jobs that go on by one step whenever they are queried.

use serde_json::{Map, Value, json};

use super::command_error::CommandError;
use super::machine::{Machine, MirrorJob};

/// The bytes of a mirror, as its progress shows them.
const TOTAL: u64 = 100;
/// Those of one step.
const STEP: u64 = 50;

fn fail(job: &mut MirrorJob, error: &str) {
    (job.status, job.error) = (CONCLUDED, Some(error.to_owned()));
}

const RUNNING: &str = "running";
const READY: &str = "ready";
const PENDING: &str = "pending";
const CONCLUDED: &str = MirrorJob::CONCLUDED;

pub(super) fn query(machine: &mut Machine) -> Value {
    let (stalls, fails) = (machine.behaviour.mirrors_stall, machine.behaviour.mirror_fails.clone());
    let mut seen = Vec::new();
    for (id, job) in &mut machine.mirrors {
        let mut text = json!({"id": id, "type": "mirror", "status": job.status, "current-progress": job.done,
            "total-progress": TOTAL});
        if let Some(error) = &job.error {
            text["error"] = json!(error);
        }
        seen.push(text);
        if job.status != RUNNING || stalls {
            continue;
        }
        job.done += STEP;
        match &fails {
            Some(error) => fail(job, error),
            None if job.done >= TOTAL => job.status = READY,
            None => {}
        }
    }
    Value::Array(seen)
}

pub(super) fn begin(machine: &mut Machine, args: &Map<String, Value>) -> Result<Value, CommandError> {
    let text = |name: &str| args.get(name).and_then(Value::as_str).unwrap_or_default();
    let (id, device, target) = (text("job-id"), text("device"), text("target"));
    if id.is_empty() || args.get("auto-finalize") != Some(&json!(false)) {
        return Err(CommandError::generic("this fake mirrors only with a job-id and without auto-finalize"));
    }
    if machine.mirrors.contains_key(id) {
        return Err(CommandError::generic(format!("Job ID '{id}' already in use")));
    }
    let missing = |name: &str| CommandError::generic(format!("Cannot find device='' nor node-name='{name}'"));
    let source = machine.nodes.get(device).ok_or_else(|| missing(device))?;
    let other = machine.nodes.get(target).ok_or_else(|| missing(target))?;
    if source.size != other.size {
        return Err(CommandError::generic("Source and target image have different sizes"));
    }
    if other.read_only || machine.mirrors.values().any(|job| job.has(device) || job.has(target)) {
        let words = format!("Node '{device}' is busy: block device is in use by block job: mirror");
        return Err(CommandError::generic(words));
    }
    let job = MirrorJob {
        device: device.to_owned(),
        target: target.to_owned(),
        done: 0,
        status: RUNNING,
        error: None,
    };
    machine.mirrors.insert(id.to_owned(), job);
    Ok(json!({}))
}

pub(super) fn cancel(machine: &mut Machine, id: &Value) -> Result<Value, CommandError> {
    let job = job(machine, id)?;
    if job.status == CONCLUDED {
        return Err(refused(id, job.status, "cancel"));
    }
    fail(job, "Operation canceled");
    Ok(json!({}))
}

pub(super) fn complete(machine: &mut Machine, id: &Value) -> Result<Value, CommandError> {
    let job = job(machine, id)?;
    if job.status != READY {
        return Err(refused(id, job.status, "complete"));
    }
    job.status = PENDING;
    Ok(json!({}))
}

/// The device continues in the other node.
pub(super) fn finalize(machine: &mut Machine, id: &Value) -> Result<Value, CommandError> {
    let job = job(machine, id)?;
    if job.status != PENDING {
        return Err(refused(id, job.status, "finalize"));
    }
    job.status = CONCLUDED;
    let (device, target) = (job.device.clone(), job.target.clone());
    for disk in machine.devices.values_mut().filter_map(|device| device.disk.as_mut()) {
        if disk.node == device {
            disk.node.clone_from(&target);
        }
    }
    Ok(json!({}))
}

pub(super) fn dismiss(machine: &mut Machine, id: &Value) -> Result<Value, CommandError> {
    let status = job(machine, id)?.status;
    if status != CONCLUDED {
        return Err(refused(id, status, "dismiss"));
    }
    machine.mirrors.remove(id.as_str().unwrap_or_default());
    Ok(json!({}))
}

fn job<'a>(machine: &'a mut Machine, id: &Value) -> Result<&'a mut MirrorJob, CommandError> {
    let id = id.as_str().unwrap_or_default();
    machine.mirrors.get_mut(id).ok_or_else(|| CommandError::generic("Job not found"))
}

fn refused(id: &Value, status: &str, verb: &str) -> CommandError {
    CommandError::generic(format!("Job {id} in state '{status}' cannot accept command verb '{verb}'"))
}
