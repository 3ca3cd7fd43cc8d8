//! What an instance must know of itself after a crash of the agent, kept beside its files.
//!
//! Only what cannot be read back: what was decided once (pins), what was asked for (a stop), and how it ended. Whether
//! QEMU runs and what it has is always asked of the host.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use berth_api::{IPPoolMode, VM, former_uid, vm::InterfaceStatus};
use berth_qemu::hypervisor::ProcessIdentity;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::system::ProcessFacts;

/// The newest form this agent writes; older ones are read.
const VERSION: u32 = 1;
/// A machine that ran this long before it ended did not end in a loop.
const STABLE: SignedDuration = SignedDuration::from_secs(600);
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_DELAY: SignedDuration = SignedDuration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Journal {
    pub(crate) version: u32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The newest binding this instance was worked on under.
    pub(crate) epoch: i64,
    #[serde(default)]
    pub(crate) pins: Option<Pins>,
    /// The PCI slot of each network interface, by name: decides what the guest calls it.
    #[serde(default)]
    pub(crate) slots: BTreeMap<String, u8>,
    /// The network interfaces as they were decided when it was started last: they are the VM's should its status be lost.
    #[serde(default)]
    pub(crate) interfaces: Vec<InterfaceStatus>,
    /// The public addresses that lead to it.
    #[serde(default)]
    pub(crate) public: Vec<PublicNote>,
    #[serde(default)]
    pub(crate) run: Option<Run>,
    #[serde(default)]
    pub(crate) stop: Option<Stop>,
    #[serde(default)]
    pub(crate) restarts: i64,
    /// How often in a row it ended soon after its start.
    #[serde(default)]
    pub(crate) failures: u32,
    #[serde(default)]
    pub(crate) not_before: Option<Timestamp>,
    /// Its VM is being deleted: what is left of it may be finished without the VM.
    #[serde(default)]
    pub(crate) deleting: bool,
}

/// A public address that leads to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PublicNote {
    pub(crate) interface: String,
    /// The PublicIP.
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) mode: IPPoolMode,
}

/// Whose an instance is, by its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    ThisVm,
    /// This VM's under the uid it had before.
    Former,
    Other,
}

/// Hardware that stays the same over a VM's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pins {
    pub(crate) machine_type: String,
    pub(crate) cpu_model: String,
    /// What `cpu_model` was chosen for.
    pub(crate) accelerator: String,
    pub(crate) uuid: String,
}

/// The machine that runs, is about to, or ran last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Run {
    pub(crate) class: String,
    pub(crate) cpus: i64,
    pub(crate) memory_bytes: u64,
    pub(crate) firmware: String,
    /// The volume it booted from: it cannot be taken out while it runs.
    pub(crate) boot_volume: String,
    /// The network interfaces it was started with, as `name/MAC`; `None` if that is not known.
    #[serde(default)]
    pub(crate) interfaces: Option<Vec<String>>,
    /// The spec's `restartToken` when it was started.
    #[serde(default)]
    pub(crate) token: Option<String>,
    /// None: not launched yet, or gone.
    #[serde(default)]
    pub(crate) process: Option<ProcessIdentity>,
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    /// It ended by itself.
    #[serde(default)]
    pub(crate) ended: Option<Ended>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    /// The guest switched itself off, as opposed to a crash.
    pub(crate) orderly: bool,
    pub(crate) how: String,
}

/// A stop that was asked for and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stop {
    pub(crate) why: Why,
    pub(crate) since: Timestamp,
    /// How often the guest was asked.
    pub(crate) asked: u8,
    /// It is not wanted any more; a guest that heard it may end all the same.
    #[serde(default)]
    pub(crate) cancelled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Why {
    PowerOff,
    Restart,
    Delete,
}

impl Journal {
    /// The journal of an instance that has none yet.
    pub(crate) fn new(vm: &VM) -> Self {
        Self {
            version: VERSION,
            namespace: vm.namespace().unwrap_or_default(),
            name: vm.name_any(),
            uid: vm.uid().unwrap_or_default(),
            epoch: epoch_of(vm),
            pins: None,
            slots: BTreeMap::new(),
            interfaces: Vec::new(),
            public: Vec::new(),
            run: None,
            stop: None,
            restarts: 0,
            failures: 0,
            not_before: None,
            deleting: false,
        }
    }

    pub(crate) fn parse(value: Value) -> Result<Self, Error> {
        let journal: Self =
            serde_json::from_value(value).map_err(|e| Error::Journal { detail: e.to_string() })?;
        if journal.version > VERSION {
            let detail = format!("its version {} is newer than this agent ({VERSION})", journal.version);
            return Err(Error::Journal { detail });
        }
        Ok(journal)
    }

    pub(crate) fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a journal is plain data with text keys")
    }

    pub(crate) fn owner(&self, vm: &VM) -> Owner {
        if self.uid.is_empty() || Some(&self.uid) == vm.metadata.uid.as_ref() {
            return Owner::ThisVm;
        }
        let same_name = Some(&self.namespace) == vm.metadata.namespace.as_ref()
            && Some(&self.name) == vm.metadata.name.as_ref();
        if same_name && former_uid(vm) == Some(self.uid.as_str()) { Owner::Former } else { Owner::Other }
    }

    /// QEMU was launched and nobody has noted that it is gone.
    pub(crate) fn believes_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.process.is_some())
    }

    /// The same with a new interface in the lowest free slot.
    pub(crate) fn with_slots<'a>(mut self, interfaces: impl Iterator<Item = &'a str>) -> Self {
        let wanted: Vec<&str> = interfaces.collect();
        self.slots.retain(|name, _| wanted.contains(&name.as_str()));
        for name in wanted {
            if !self.slots.contains_key(name) {
                let free = (0..u8::MAX).find(|slot| !self.slots.values().any(|s| s == slot)).unwrap_or(0);
                self.slots.insert(name.to_owned(), free);
            }
        }
        self
    }

    /// The same after its machine ended by itself: when it may be started again is decided here.
    pub(crate) fn with_ending(mut self, ended: Ended) -> Self {
        let Some(run) = &mut self.run else { return self };
        let lasted = run.started_at.map_or(SignedDuration::ZERO, |start| ended.at.duration_since(start));
        self.failures = if lasted >= STABLE { 1 } else { self.failures.saturating_add(1) };
        self.not_before = ended.at.checked_add(restart_delay(self.failures)).ok();
        run.ended = Some(ended);
        self
    }

    /// The same with the process that was started for its run.
    pub(crate) fn with_process(mut self, process: &ProcessFacts) -> Self {
        if let Some(run) = &mut self.run {
            run.process = Some(process.identity.clone());
            run.started_at = Some(process.started_at);
        }
        self
    }

    /// The same after a stop we asked for has come to its end.
    pub(crate) fn stopped(mut self) -> Self {
        self.run = None;
        self.stop = None;
        self.failures = 0;
        self.not_before = None;
        self
    }
}

/// At once after the first ending, then later and later.
pub(crate) fn restart_delay(failures: u32) -> SignedDuration {
    match failures {
        0 | 1 => SignedDuration::ZERO,
        n => (FIRST_DELAY * (1 << (n - 2).min(8))).min(LONGEST_DELAY),
    }
}

pub(crate) fn epoch_of(vm: &VM) -> i64 {
    vm.status.as_ref().and_then(|s| s.binding.as_ref()).map_or(0, |b| b.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> Journal {
        let run = Run {
            class: "s".into(),
            cpus: 1,
            memory_bytes: 1,
            firmware: "UEFI".into(),
            boot_volume: "v-1".into(),
            interfaces: None,
            token: None,
            process: None,
            started_at: Some(Timestamp::UNIX_EPOCH),
            ended: None,
        };
        Journal { run: Some(run), ..Journal::new(&VM::default()) }
    }

    fn ended(second: i64) -> Ended {
        Ended { at: Timestamp::from_second(second).expect("small"), orderly: false, how: "crash".into() }
    }

    #[test]
    fn it_survives_the_way_to_disk_and_back() {
        let journal = journal().with_slots(["nic0", "nic1"].into_iter()).with_ending(ended(3));
        assert_eq!(Journal::parse(journal.to_value()).expect("just written"), journal);
    }

    #[test]
    fn one_of_a_newer_agent_is_refused_rather_than_misread() {
        let newer = Journal { version: VERSION + 1, ..journal() };
        assert!(matches!(Journal::parse(newer.to_value()), Err(Error::Journal { .. })));
    }

    #[test]
    fn the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_five_minutes() {
        let mut journal = journal();
        let mut delays = Vec::new();
        for _ in 0..8 {
            journal = journal.with_ending(ended(3));
            delays.push(journal.not_before.expect("set").as_second() - 3);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(journal.with_ending(ended(700)).failures, 1, "it ran long enough");
    }

    #[test]
    fn an_interface_keeps_its_slot_when_others_come_and_go() {
        let journal = journal().with_slots(["a", "b"].into_iter()).with_slots(["b", "c"].into_iter());
        assert_eq!(journal.slots, BTreeMap::from([("b".to_owned(), 1), ("c".to_owned(), 0)]));
    }
}
