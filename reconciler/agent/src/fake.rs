//! A whole host in memory: its disk, its networks, and machines that speak real QMP. No thread, no socket, no file,
//! so whole agents run on it in one runtime with paused time.
//!
//! What is on the host outlives the agent: a test drops an agent and starts another on the same [`FakeSystem`].
//! Each call can be made to fail, or never to return, before or after its effect: see [`Faults`]. It is as strict as
//! the real host, or stricter: what a real host would let through and regret is noted as a violation.

mod faults;
mod files;
mod state;
mod system;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_qemu::fake::FakeHypervisor;
use berth_qemu::machine::Format;

use crate::clock::Clock;
use crate::system::{Firewall, HostFacts, NetworkConfig, Uplink};
pub use faults::{FaultAction, Faults, NoFaults, When};
use files::FakeFiles;
use state::State;

/// Something an image can be downloaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeSource {
    /// The checksum of the bytes that are really there.
    pub sha256: String,
    pub format: Format,
    pub virtual_size: u64,
    pub bytes: u64,
    /// Why the content is no usable image, if it is none.
    pub refused: Option<String>,
}

/// Everything berth made on a host and has not removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub processes: Vec<String>,
    pub instances: Vec<String>,
    pub taps: Vec<String>,
    pub bridges: Vec<String>,
    pub firewall: Firewall,
    pub volumes: Vec<String>,
    pub images: Vec<String>,
}

impl Leftovers {
    /// Nothing is left but, maybe, files in the trash.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The host.
#[derive(Debug)]
pub struct FakeSystem {
    hypervisor: FakeHypervisor,
    files: FakeFiles,
    state: Mutex<State>,
    faults: Mutex<Arc<dyn Faults>>,
    clock: Arc<dyn Clock>,
}

impl FakeSystem {
    /// An empty host: 8 CPUs, 32 GiB of memory, 1 TiB of disk, emulation only.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let files = FakeFiles::default();
        Self {
            hypervisor: FakeHypervisor::with_files(Arc::new(files.clone())),
            files,
            state: Mutex::default(),
            faults: Mutex::new(Arc::new(NoFaults)),
            clock,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on asked before and after every call.
    pub fn set_faults(&self, faults: Arc<dyn Faults>) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// The machines: to look at them, and to let guests misbehave.
    pub fn hypervisor(&self) -> &FakeHypervisor {
        &self.hypervisor
    }

    /// Puts something to be downloaded at an address.
    pub fn add_source(&self, url: &str, source: FakeSource) {
        self.state().sources.insert(url.to_owned(), source);
    }

    /// From now on an image of this virtual size is at every other address, with whatever checksum is asked for.
    pub fn serve_any_image(&self, virtual_size: u64) {
        self.state().any_image = Some(virtual_size);
    }

    /// Nothing is at this address any more.
    pub fn remove_source(&self, url: &str) {
        self.state().sources.remove(url);
    }

    /// How often a download was begun.
    pub fn pulls(&self) -> u64 {
        self.state().pulls
    }

    /// Changes what the host says of itself.
    pub fn change_facts(&self, change: impl FnOnce(&mut HostFacts)) {
        change(&mut self.state().facts);
    }

    /// Volume → size, as the files are now.
    pub fn volumes_now(&self) -> BTreeMap<String, u64> {
        let state = self.state();
        let size = |volume: &state::Volume| self.files.size_of(&volume.facts.path).unwrap_or(0);
        state.volumes.iter().map(|(id, volume)| (id.clone(), size(volume))).collect()
    }

    /// The volumes in the trash.
    pub fn trash_now(&self) -> Vec<String> {
        self.state().trash.keys().cloned().collect()
    }

    /// Somebody deletes a volume's file behind berth's back.
    pub fn lose_volume(&self, id: &str) {
        if let Some(volume) = self.state().volumes.remove(id) {
            self.files.remove(&volume.facts.path);
        }
    }

    /// Changes where public addresses can be made known.
    pub fn change_uplink(&self, change: impl FnOnce(&mut Uplink)) {
        change(&mut self.state().uplink);
    }

    /// The private networks as they were made last.
    pub fn networks_now(&self) -> Vec<NetworkConfig> {
        self.state().networks.values().cloned().collect()
    }

    /// What the host's firewall was made to be last.
    pub fn firewall_now(&self) -> Firewall {
        self.state().firewall.clone()
    }

    /// Everything berth made here that is still there.
    pub fn leftovers(&self) -> Leftovers {
        let processes = self.hypervisor.instances();
        let state = self.state();
        Leftovers {
            processes,
            instances: state.journals.keys().cloned().collect(),
            taps: state.taps.keys().cloned().collect(),
            bridges: state.networks.keys().cloned().collect(),
            firewall: state.firewall.clone(),
            volumes: state.volumes.keys().cloned().collect(),
            images: state.images.keys().cloned().collect(),
        }
    }

    /// What should never be asked of a host and was: the file of an open disk moved away, for one.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// How many calls were made, by name; the order of names is that of the alphabet.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state().calls.clone()
    }
}
