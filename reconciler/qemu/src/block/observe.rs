//! Queries the block nodes and disk devices of a machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::names::is_inline;
use super::{BlockError, IoLimits, ObservedCdrom, ObservedDisk};
use crate::devices;
use crate::machine::{Bus, CdromSpec, MAX_CDROMS, NicModel, PORT_PREFIX, RbdImage, SCRATCH_TARGET};
use crate::nics::{ObservedNic, port_of};
use crate::qmp::Qmp;

pub(super) struct Node {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) file: Option<PathBuf>,
    pub(super) size: u64,
}

/// Lists the disks of the machine, including the bootstrap volume, sorted by id.
pub async fn disks(qmp: &Qmp) -> Result<Vec<ObservedDisk>, BlockError> {
    Ok(Devices::default().look(qmp).await?.disks)
}

/// The disks, drives and network cards of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Including the bootstrap volume, sorted by id.
    pub disks: Vec<ObservedDisk>,
    /// By slot.
    pub cdroms: Vec<ObservedCdrom>,
    /// Sorted by id.
    pub nics: Vec<ObservedNic>,
    /// The ports for network cards, taken or free.
    pub nic_ports: Vec<u8>,
}

/// The devices of one machine, for repeated queries: caches the properties that are constant while a device exists.
#[derive(Debug, Default)]
pub struct Devices {
    fixed: BTreeMap<String, Fixed>,
    nics: BTreeMap<String, ObservedNic>,
}

/// The constant properties of a device.
#[derive(Clone, Debug)]
struct Fixed {
    bus: Bus,
    serial: String,
    target: Option<u8>,
    /// The chain below its first node is a part of that node.
    is_inline: bool,
}

impl Devices {
    /// Lists the disks, the CD-ROM drives and the network cards.
    ///
    /// *Assumptions:* since the last call no device was removed and added again under the same id.
    pub async fn look(&mut self, qmp: &Qmp) -> Result<Observation, BlockError> {
        // Sent together, as all that does not depend on each other: on a host where many machines start, each answer waits for a turn.
        let (blocks, devices) = tokio::join!(devices::list(qmp, "query-block", json!({})), devices::all(qmp));
        let (blocks, devices) = (blocks?, devices?);
        self.fixed.retain(|known, _| devices.iter().any(|(id, _)| id == known));
        self.nics.retain(|known, _| devices.iter().any(|(id, _)| id == known));
        let mut found = Observation { cdroms: in_blocks(&blocks), ..Observation::default() };
        for (id, driver) in devices {
            if let Some(bus) = Bus::of_driver(&driver) {
                found.disks.extend(self.disk(qmp, &blocks, id, bus).await?);
            } else if let Some(model) = NicModel::of_driver(&driver) {
                found.nics.extend(self.nic(qmp, id, model).await?);
            } else if let Some(number) = id.strip_prefix(PORT_PREFIX) {
                found.nic_ports.extend(number.parse::<u8>().ok());
            }
        }
        found.disks.sort_by(|a, b| a.id.cmp(&b.id));
        found.nics.sort_by(|a, b| a.id.cmp(&b.id));
        found.nic_ports.sort_unstable();
        Ok(found)
    }

    async fn disk(
        &mut self,
        qmp: &Qmp,
        blocks: &[Value],
        id: String,
        bus: Bus,
    ) -> Result<Option<ObservedDisk>, BlockError> {
        // `qdev` is the device's id, or its path if it has no id.
        let backend = bus.backend(&id);
        let block = blocks.iter().find(|b| b["qdev"] == backend.as_str());
        let known = match self.fixed.get(&id) {
            Some(known) => known.clone(),
            None => {
                let Some(fixed) = fixed(qmp, &id, bus, block).await? else { return Ok(None) };
                self.fixed.insert(id.clone(), fixed.clone());
                fixed
            }
        };
        Ok(Some(observed(id, known, block)))
    }

    async fn nic(
        &mut self,
        qmp: &Qmp,
        id: String,
        model: NicModel,
    ) -> Result<Option<ObservedNic>, BlockError> {
        if let Some(known) = self.nics.get(&id) {
            return Ok(Some(known.clone()));
        }
        let (mac, bus) =
            tokio::join!(devices::property(qmp, &id, "mac"), devices::property(qmp, &id, "parent_bus"));
        let (Some(mac), Some(bus)) = (mac?, bus?) else { return Ok(None) };
        let mac = mac.as_str().unwrap_or_default().to_ascii_lowercase();
        let nic = ObservedNic { id: id.clone(), model, mac, port: bus.as_str().and_then(port_of) };
        self.nics.insert(id, nic.clone());
        Ok(Some(nic))
    }
}

/// Returns None if the device was removed between two queries.
async fn fixed(qmp: &Qmp, id: &str, bus: Bus, block: Option<&Value>) -> Result<Option<Fixed>, BlockError> {
    let inserted = inserted(block);
    let has_chain = inserted["node-name"] == id && inserted["backing_file_depth"].as_u64() > Some(0);
    let target = async {
        match bus {
            Bus::VirtioScsi => devices::property(qmp, id, "scsi-id").await,
            Bus::VirtioBlk | Bus::Sata => Ok(None),
        }
    };
    let below = async { if has_chain { nodes(qmp).await } else { Ok(Vec::new()) } };
    let (serial, target, below) = tokio::join!(devices::property(qmp, id, "serial"), target, below);
    let Some(serial) = serial? else { return Ok(None) };
    let target = target?;
    let names: Vec<String> = below?.into_iter().map(|node| node.name).collect();
    Ok(Some(Fixed {
        bus,
        is_inline: has_chain && is_inline(&names, id),
        serial: serial.as_str().unwrap_or_default().to_owned(),
        target: target.and_then(|t| u8::try_from(t.as_u64()?).ok()),
    }))
}

fn inserted(block: Option<&Value>) -> &Value {
    block.map_or(&Value::Null, |block| &block["inserted"])
}

fn observed(id: String, fixed: Fixed, block: Option<&Value>) -> ObservedDisk {
    let inserted = inserted(block);
    let node = text(inserted, "node-name");
    let is_fixed = fixed.is_inline && node.as_deref() == Some(id.as_str());
    let files_below = inserted["backing_file_depth"].as_u64().filter(|_| !is_fixed);
    ObservedDisk {
        node,
        serial: fixed.serial,
        file: text(inserted, "file").map(file_of),
        size: inserted["image"]["virtual-size"].as_u64().unwrap_or(0),
        read_only: inserted["ro"].as_bool().unwrap_or(false),
        bus: fixed.bus,
        target: fixed.target,
        limits: IoLimits::observed(inserted),
        is_direct: inserted["cache"]["direct"].as_bool().unwrap_or(false),
        files_below: files_below.unwrap_or(0),
        is_encrypted: inserted["encrypted"] == true,
        io_error: block.and_then(|b| text(b, "io-status")).is_some_and(|s| s != "ok"),
        id,
    }
}

/// Lists the drives, by slot.
pub async fn cdroms(qmp: &Qmp) -> Result<Vec<ObservedCdrom>, BlockError> {
    Ok(in_blocks(&devices::list(qmp, "query-block", json!({})).await?))
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
    (0..SCRATCH_TARGET).find(|target| !disks.iter().any(|d| d.target == Some(*target)))
}

pub(super) async fn disk_devices(qmp: &Qmp) -> Result<Vec<(String, Bus)>, BlockError> {
    let devices = devices::all(qmp).await?.into_iter();
    Ok(devices.filter_map(|(id, driver)| Some((id, Bus::of_driver(&driver)?))).collect())
}

pub(super) async fn nodes(qmp: &Qmp) -> Result<Vec<Node>, BlockError> {
    let nodes = devices::list(qmp, "query-named-block-nodes", json!({"flat": true})).await?;
    Ok(nodes
        .iter()
        .filter_map(|n| {
            Some(Node {
                name: text(n, "node-name")?,
                driver: text(n, "drv")?,
                file: text(n, "file").map(file_of),
                size: n["image"]["virtual-size"].as_u64()?,
            })
        })
        .collect())
}

pub(super) async fn node(qmp: &Qmp, name: &str) -> Result<Option<Node>, BlockError> {
    Ok(nodes(qmp).await?.into_iter().find(|n| n.name == name))
}

/// Extracts the file name: QEMU describes a node with options other than its file name as `json:` followed by the
/// options.
fn file_of(shown: String) -> PathBuf {
    let options = shown.strip_prefix("json:").and_then(|json| serde_json::from_str::<Value>(json).ok());
    let options = options.as_ref().map(|options| options.get("file").unwrap_or(options));
    if let Some(image) = options.and_then(RbdImage::of_node) {
        return image.file();
    }
    PathBuf::from(options.and_then(|options| text(options, "filename")).unwrap_or(shown))
}

fn text(value: &Value, name: &str) -> Option<String> {
    Some(value.get(name)?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn queries_that_do_not_depend_on_each_other_are_sent_together() {
        let (near, far) = tokio::io::duplex(1 << 16);
        // The negotiation, the lists, and the properties of a card. Each group is answered when all of it has arrived.
        let card = json!([{"name": "nic-a", "type": "child<virtio-net-pci>"}]);
        let groups =
            [vec![json!({})], vec![json!([]), card], vec![json!("52:54:00:00:00:0A"), json!("no port")]];
        let monitor = tokio::spawn(async move {
            let (reader, mut writer) = tokio::io::split(far);
            let mut lines = BufReader::new(reader).lines();
            let version = json!({"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": ""});
            let greeting = json!({"QMP": {"version": version, "capabilities": []}});
            writer.write_all(format!("{greeting}\n").as_bytes()).await.unwrap();
            for answers in groups {
                let mut ids = Vec::new();
                while ids.len() < answers.len() {
                    let line = lines.next_line().await.unwrap().unwrap();
                    ids.push(serde_json::from_str::<Value>(&line).unwrap()["id"].clone());
                }
                for (id, answer) in ids.into_iter().zip(answers) {
                    let message = json!({"return": answer, "id": id});
                    writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
                }
            }
        });
        let (qmp, _events) = Qmp::over(near).await.unwrap();
        let found = Devices::default().look(&qmp).await.unwrap();
        let macs: Vec<&str> = found.nics.iter().map(|nic| nic.mac.as_str()).collect();
        assert_eq!(macs, ["52:54:00:00:00:0a"]);
        monitor.await.unwrap();
    }

    #[test]
    fn the_file_of_a_node_is_in_its_options() {
        assert_eq!(file_of("/pool/v-1.qcow2".to_owned()), PathBuf::from("/pool/v-1.qcow2"));
        let direct = r#"json:{"driver": "qcow2", "file": {"driver": "file", "filename": "/pool/v-1.qcow2"}}"#;
        assert_eq!(file_of(direct.to_owned()), PathBuf::from("/pool/v-1.qcow2"));
        let in_ceph = r#"json:{"driver": "raw", "file": {"pool": "vms", "image": "berth-v-1", "conf": "/i/ceph-fast.conf", "driver": "rbd", "user": "berth"}}"#;
        let file = PathBuf::from("rbd:vms/berth-v-1:id=berth:conf=/i/ceph-fast.conf");
        assert_eq!(file_of(in_ceph.to_owned()), file);
        let encrypted = r#"json:{"driver": "luks", "key-secret": "key-v-1", "file": {"pool": "vms", "image": "berth-v-1", "conf": "/i/ceph-fast.conf", "driver": "rbd", "user": "berth"}}"#;
        assert_eq!(file_of(encrypted.to_owned()), file);
        let node = r#"json:{"pool": "vms", "image": "berth-v-1", "conf": "/i/ceph-fast.conf", "driver": "rbd", "user": "berth"}"#;
        assert_eq!(file_of(node.to_owned()), file);
    }
}
