//! Many VMs of one kind on one host: created, awaited, deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::{self, Access, Api, Kind};
use crate::wait;

/// The class of VMs that do not boot a system.
pub const HALTED: &str = "halted";
/// The image they boot.
const IMAGE: &str = "halted";
/// The memory in bytes: just enough for the firmware.
pub const HALTED_MEMORY: u64 = 64 << 20;
const WAIT: Duration = Duration::from_secs(600);

/// Creates the class and the image of VMs that halt: their boot sector stops the processor, so that a hundred of them cost the
/// host only their start, not the boot of a hundred systems.
pub fn make_halted(api: &mut Api, access: &Access, folder: &Path) -> Result<()> {
    let sector = halting_sector(folder);
    let mut bytes = vec![0; 1 << 20];
    // cli; hlt; jmp back to the hlt: the processor must halt again after a non-maskable interrupt.
    bytes[..4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&sector, &bytes)?;
    let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    api.create(api::VM_CLASS, HALTED, &class(HALTED_MEMORY))?;
    let source = json!({"url": format!("file://{}", sector.display()), "sha256": sha256});
    make_image(api, access, IMAGE, &json!({"source": source, "format": "raw"}))
}

/// The path of the image that [`make_halted`] writes.
pub fn halting_sector(folder: &Path) -> PathBuf {
    folder.join("halt.img")
}

/// A class with one processor and this much memory, booted by BIOS.
pub fn class(memory: u64) -> Value {
    json!({"cpus": 1, "memory": format!("{}Mi", memory >> 20), "firmware": "BIOS"})
}

/// Creates an image and waits until the host has it.
pub fn make_image(api: &mut Api, access: &Access, name: &str, spec: &Value) -> Result<()> {
    api.create(api::IMAGE, name, spec)?;
    let mut watch = access.connect()?.watch(api::IMAGE)?;
    watch.until(|image| api::name(image) == name && api::is_true(image, "Ready")).map(drop)
}

/// A VM with one disk of its own name, optionally bound to a host, that may be stopped without a shutdown of its guest.
pub fn vm(class: &str, disk: &str, host: Option<&str>) -> Value {
    let mut spec = json!({"class": class, "disks": [{"name": disk, "boot": true}], "stop": {"mode": "Hard"}});
    if let Some(host) = host {
        spec["placement"] = json!({"host": host});
    }
    spec
}

/// The times at which a VM was written and first seen running.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Before the request was sent.
    pub written: Instant,
    /// When a watcher received the VM as Running.
    pub running: Instant,
}

/// Halted VMs by name.
#[derive(Debug)]
pub struct Fleet {
    names: Vec<String>,
}

impl Fleet {
    /// Creates the disks for `count` VMs, which wait for their VMs.
    pub fn prepare(api: &mut Api, prefix: &str, count: usize) -> Result<Self> {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
        for name in &names {
            api.create(api::DISK, name, &json!({"image": IMAGE}))?;
        }
        Ok(Self { names })
    }

    /// Creates the VMs, one every `gap`, and waits until all run. Returns the times in the order of creation.
    pub fn start(&self, access: &Access, gap: Duration, host: Option<&str>) -> Result<Vec<Times>> {
        let mut watch = access.connect()?.watch(api::VM)?;
        let mut waited: BTreeSet<String> = self.names.iter().cloned().collect();
        let seen = std::thread::spawn(move || {
            let mut running: BTreeMap<String, Instant> = BTreeMap::new();
            while !waited.is_empty() {
                let event = watch.next_event()?;
                let name = api::name(&event.object);
                if api::is_true(&event.object, "Running") && waited.remove(name) {
                    running.insert(name.to_owned(), event.seen);
                }
            }
            Ok::<_, anyhow::Error>(running)
        });
        let mut api = access.connect()?;
        let began = Instant::now();
        let mut written = Vec::new();
        for (name, number) in self.names.iter().zip(0u32..) {
            std::thread::sleep((gap * number).saturating_sub(began.elapsed()));
            written.push(Instant::now());
            api.create(api::VM, name, &vm(HALTED, name, host))?;
        }
        let running = seen.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))??;
        let times = self
            .names
            .iter()
            .zip(written)
            .filter_map(|(name, written)| Some(Times { written, running: *running.get(name)? }));
        Ok(times.collect())
    }

    /// Joins both fleets.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.names.extend(other.names);
        self
    }

    /// Deletes VMs and disks and waits until nothing is left of them.
    pub fn remove(&self, access: &Access) -> Result<()> {
        let mut api = access.connect()?;
        for kind in [api::VM, api::DISK] {
            for name in &self.names {
                api.delete(kind, name)?;
            }
            wait::until("the VMs and disks to go", WAIT, || {
                let left = count(&mut api, kind)?;
                ensure!(left == 0, "{left} are left");
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn count(api: &mut Api, kind: Kind) -> Result<usize> {
    Ok(api.read(&kind.path())?["items"].as_array().map_or(0, Vec::len))
}
