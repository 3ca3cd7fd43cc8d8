//! Queries the block nodes and disk devices of a machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{BlockError, IoLimits, ObservedCdrom, ObservedDisk};
use crate::machine::{Bus, CdromSpec, MAX_CDROMS, SEED_TARGET};
use crate::qmp::{Qmp, QmpError, shorten};

pub(super) struct Node {
    pub(super) name: String,
    pub(super) file: Option<PathBuf>,
    pub(super) size: u64,
}

/// Lists the disks of the machine, including the bootstrap volume, sorted by id.
pub async fn disks(qmp: &Qmp) -> Result<Vec<ObservedDisk>, BlockError> {
    Ok(Devices::default().look(qmp).await?.0)
}

/// The disks of one machine, for repeated queries: caches the properties that are constant while a device exists.
#[derive(Debug, Default)]
pub struct Devices {
    fixed: BTreeMap<String, Fixed>,
}

/// The constant properties of a device.
#[derive(Clone, Debug)]
struct Fixed {
    bus: Bus,
    serial: String,
    target: Option<u8>,
}

impl Devices {
    /// Does the same as [`disks`], and lists the CD-ROM drives.
    ///
    /// *Assumptions:* since the last call no device was removed and added again under the same id.
    pub async fn look(&mut self, qmp: &Qmp) -> Result<(Vec<ObservedDisk>, Vec<ObservedCdrom>), BlockError> {
        let blocks = list(qmp, "query-block", json!({})).await?;
        let devices = disk_devices(qmp).await?;
        self.fixed.retain(|known, _| devices.iter().any(|(id, _)| id == known));
        let mut found = Vec::new();
        for (id, bus) in devices {
            // `qdev` is the device's id, or its path if it has no id.
            let backend = bus.backend(&id);
            let block = blocks.iter().find(|b| b["qdev"] == backend.as_str());
            let known = match self.fixed.get(&id) {
                Some(known) => known.clone(),
                None => {
                    let Some(fixed) = fixed(qmp, &id, bus).await? else { continue };
                    self.fixed.insert(id.clone(), fixed.clone());
                    fixed
                }
            };
            found.push(observed(id, known, block));
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok((found, in_blocks(&blocks)))
    }
}

/// Returns None if the device was removed between two queries.
async fn fixed(qmp: &Qmp, id: &str, bus: Bus) -> Result<Option<Fixed>, BlockError> {
    let Some(serial) = property(qmp, id, "serial").await? else { return Ok(None) };
    let target = match bus {
        Bus::VirtioScsi => property(qmp, id, "scsi-id").await?,
        Bus::VirtioBlk | Bus::Sata => None,
    };
    Ok(Some(Fixed {
        bus,
        serial: serial.as_str().unwrap_or_default().to_owned(),
        target: target.and_then(|t| u8::try_from(t.as_u64()?).ok()),
    }))
}

fn observed(id: String, fixed: Fixed, block: Option<&Value>) -> ObservedDisk {
    let inserted = block.map_or(&Value::Null, |b| &b["inserted"]);
    ObservedDisk {
        node: text(inserted, "node-name"),
        serial: fixed.serial,
        file: text(inserted, "file").map(file_of),
        size: inserted["image"]["virtual-size"].as_u64().unwrap_or(0),
        read_only: inserted["ro"].as_bool().unwrap_or(false),
        bus: fixed.bus,
        target: fixed.target,
        limits: IoLimits::observed(inserted),
        is_direct: inserted["cache"]["direct"].as_bool().unwrap_or(false),
        io_error: block.and_then(|b| text(b, "io-status")).is_some_and(|s| s != "ok"),
        id,
    }
}

/// Lists the drives, by slot.
pub async fn cdroms(qmp: &Qmp) -> Result<Vec<ObservedCdrom>, BlockError> {
    Ok(in_blocks(&list(qmp, "query-block", json!({})).await?))
}

/// Reads the drives from the reply to `query-block`.
fn in_blocks(blocks: &[Value]) -> Vec<ObservedCdrom> {
    let drive = |slot: u8| {
        let id = CdromSpec::id(slot);
        // `qdev` is the device's id, or its path if it has no id.
        let block = blocks.iter().find(|block| block["qdev"] == id.as_str())?;
        let node = block["inserted"]["node-name"].as_str().map(str::to_owned);
        Some(ObservedCdrom {
            slot,
            node,
            tray_open: block["tray_open"] == true,
            locked: block["locked"] == true,
        })
    };
    (0..MAX_CDROMS).filter_map(drive).collect()
}

/// Returns the lowest SCSI target that no disk of the machine uses.
pub fn free_target(disks: &[ObservedDisk]) -> Option<u8> {
    (0..SEED_TARGET).find(|target| !disks.iter().any(|d| d.target == Some(*target)))
}

/// Returns the ids of all devices that have one.
pub(super) async fn device_ids(qmp: &Qmp) -> Result<Vec<String>, BlockError> {
    Ok(peripherals(qmp).await?.into_iter().map(|(id, _)| id).collect())
}

pub(super) async fn disk_devices(qmp: &Qmp) -> Result<Vec<(String, Bus)>, BlockError> {
    let bus = |kind: &str| Bus::of_driver(kind.strip_prefix("child<")?.strip_suffix('>')?);
    let devices = peripherals(qmp).await?.into_iter();
    Ok(devices.filter_map(|(id, kind)| Some((id, bus(&kind)?))).collect())
}

async fn peripherals(qmp: &Qmp) -> Result<Vec<(String, String)>, BlockError> {
    let devices = list(qmp, "qom-list", json!({"path": "/machine/peripheral"})).await?;
    Ok(devices
        .iter()
        .filter_map(|d| Some((text(d, "name")?, text(d, "type")?)))
        .filter(|(_, kind)| kind.starts_with("child<"))
        .collect())
}

/// Returns None if the device was removed between two queries.
async fn property(qmp: &Qmp, id: &str, name: &str) -> Result<Option<Value>, BlockError> {
    match qmp.execute("qom-get", json!({"path": format!("/machine/peripheral/{id}"), "property": name})).await
    {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_device_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn nodes(qmp: &Qmp) -> Result<Vec<Node>, BlockError> {
    let nodes = list(qmp, "query-named-block-nodes", json!({"flat": true})).await?;
    Ok(nodes
        .iter()
        .filter_map(|n| {
            Some(Node {
                name: text(n, "node-name")?,
                file: text(n, "file").map(file_of),
                size: n["image"]["virtual-size"].as_u64()?,
            })
        })
        .collect())
}

pub(super) async fn node(qmp: &Qmp, name: &str) -> Result<Option<Node>, BlockError> {
    Ok(nodes(qmp).await?.into_iter().find(|n| n.name == name))
}

pub(super) async fn list(qmp: &Qmp, command: &str, args: Value) -> Result<Vec<Value>, BlockError> {
    match qmp.execute(command, args).await? {
        Value::Array(items) => Ok(items),
        other => Err(QmpError::Unexpected { command: command.to_owned(), detail: shorten(&other) }.into()),
    }
}

/// Extracts the file name: QEMU describes a node with options other than its file name as `json:` followed by the
/// options.
fn file_of(shown: String) -> PathBuf {
    let options = shown.strip_prefix("json:").and_then(|json| serde_json::from_str::<Value>(json).ok());
    let file = options.and_then(|o| text(o.get("file").unwrap_or(&o), "filename"));
    PathBuf::from(file.unwrap_or(shown))
}

fn text(value: &Value, name: &str) -> Option<String> {
    Some(value.get(name)?.as_str()?.to_owned())
}
