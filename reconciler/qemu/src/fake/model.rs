//! The contents of a fake host: machines, foreign processes, files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::command_error::CommandError;
use super::machine::{Machine, Node};
use super::saved_states::SavedStates;
use super::{Behaviour, ImageFiles};
use crate::hypervisor::{FoundQemu, ProcessIdentity};
use crate::machine::Format;

/// All machines of one fake host, and their shared state.
#[derive(Debug)]
pub(super) struct MachineModel {
    pub(super) machines: BTreeMap<i32, Machine>,
    pub(super) foreign: BTreeMap<i32, FoundQemu>,
    pub(super) default_behaviour: Behaviour,
    pub(super) behaviours: BTreeMap<String, Behaviour>,
    pub(super) files: Arc<dyn ImageFiles>,
    pub(super) states: SavedStates,
    /// Files that QEMU's user may open; true: also for writing.
    pub(super) granted: BTreeMap<PathBuf, bool>,
    /// By instance, since its last launch.
    pub(super) oom_kills: BTreeMap<String, u64>,
    /// Whether the file that is being opened is that of a machine which does not take its locks yet.
    pub(super) opens_inactive: bool,
    next_pid: i32,
    pub(super) boots: u32,
    pub(super) launches: u64,
}

impl MachineModel {
    pub(super) fn new(files: Arc<dyn ImageFiles>) -> Self {
        Self {
            machines: BTreeMap::new(),
            foreign: BTreeMap::new(),
            default_behaviour: Behaviour::default(),
            behaviours: BTreeMap::new(),
            files,
            states: SavedStates::default(),
            granted: BTreeMap::new(),
            oom_kills: BTreeMap::new(),
            opens_inactive: false,
            next_pid: 1000,
            boots: 0,
            launches: 0,
        }
    }

    /// Allocates the identity of the next process.
    pub(super) fn next_identity(&mut self) -> ProcessIdentity {
        self.next_pid += 1;
        let start_time = self.next_pid.unsigned_abs().into();
        ProcessIdentity { pid: self.next_pid, start_time, boot_id: self.boot_id() }
    }

    /// Another one after each boot of the host.
    pub(super) fn boot_id(&self) -> String {
        format!("fake-{}", self.boots)
    }

    pub(super) fn machine(&mut self, pid: i32) -> Result<&mut Machine, CommandError> {
        self.machines.get_mut(&pid).ok_or_else(|| CommandError::generic("the process is gone"))
    }

    /// Image locking across all machines: one writer, or any number of readers.
    pub(super) fn is_locked(&self, file: &Path, read_only: bool) -> bool {
        let active = self.machines.values().filter(|machine| !machine.is_inactive);
        let mut nodes = active.flat_map(|m| m.nodes.values());
        !self.opens_inactive && nodes.any(|n| n.file == file && !(read_only && n.read_only))
    }

    /// Has a machine take the locks of its files, which it gave up or did not take before its guest came.
    pub(super) fn activate(&mut self, pid: i32) -> Result<(), CommandError> {
        let machine = self.machine(pid)?;
        if !machine.is_inactive {
            return Ok(());
        }
        let nodes: Vec<Node> = machine.nodes.values().cloned().collect();
        self.opens_inactive = false;
        if nodes.iter().any(|node| node.driver != Format::Raw && self.is_locked(&node.file, node.read_only)) {
            return Err(CommandError::generic("Failed to get \"write\" lock"));
        }
        self.machine(pid)?.is_inactive = false;
        Ok(())
    }

    /// Whether the device of another machine keeps one of this machine off the raw file of its node: both have to share it, or only read it.
    pub(super) fn is_lock_refused(&self, pid: i32, node: &Node, shares: bool) -> bool {
        let others = self.machines.iter().filter(|(other, _)| **other != pid).map(|(_, machine)| machine);
        let mut open = others.flat_map(|machine| {
            machine.disks().filter_map(move |(_, disk)| Some((machine.nodes.get(&disk.node)?, disk.shares)))
        });
        node.driver == Format::Raw
            && open.any(|(other, other_shares)| {
                let is_only_read = node.read_only && other.read_only;
                other.file == node.file && !is_only_read && !(shares && other_shares)
            })
    }
}
