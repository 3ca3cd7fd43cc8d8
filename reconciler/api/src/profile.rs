//! The hardware profile of a VM beside its size: from its own attributes and those of its class.

use std::collections::BTreeMap;

use crate::{
    Architecture, DeviceCounts, GuestOS, IoThreadsPolicy, Quantity, ScratchDisk, VM, VMClassSpec, VMSpec,
    hardware::NicModel, qemu_options::by_name,
};

/// The greatest size of a scratch disk, in bytes.
const MOST_SCRATCH: u64 = 15 << 40;

/// The profile with which a VM is started next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The architecture of its processors.
    pub architecture: Architecture,
    /// The CPU model or level; none: the one that the host chooses.
    pub cpu_model: Option<String>,
    /// The guest's operating system.
    pub guest_os: GuestOS,
    /// The threads that serve its disks.
    pub io_threads_policy: IoThreadsPolicy,
    /// Settings of QEMU, by name.
    pub qemu_options: BTreeMap<String, String>,
    /// The devices of the host that it has, by name.
    pub devices: DeviceCounts,
    /// The model of the network interfaces that declare none; none: the usual one.
    pub network_interface_model: Option<NicModel>,
    /// Its temporary disk.
    pub scratch_disk: Option<ScratchDisk>,
}

impl VMSpec {
    /// The profile without the operating system of an image, see [`Self::profile_with`].
    #[must_use]
    pub fn profile(&self, class: Option<&VMClassSpec>) -> Profile {
        self.profile_with(class, None)
    }

    /// The profile. `class` is the class that the VM names, if that exists, and `image_os` the operating system of the image that its boot
    /// disk was made from. A value of the VM comes before that of its class, and that before the one of the image.
    #[must_use]
    pub fn profile_with(&self, class: Option<&VMClassSpec>, image_os: Option<GuestOS>) -> Profile {
        let class = class.filter(|_| self.class.is_some());
        let model = self.cpu_model.as_ref().or(class.and_then(|class| class.cpu_model.as_ref()));
        let guest_os = self.guest_os.or(class.and_then(|class| class.guest_os)).or(image_os);
        let qemu_options = class.map(|class| by_name(&class.qemu_options)).unwrap_or_default();
        let architecture = self.architecture.or(class.and_then(|class| class.architecture));
        let io_threads = self.io_threads_policy.or(class.and_then(|class| class.io_threads_policy));
        Profile {
            architecture: architecture.unwrap_or_default(),
            cpu_model: model.cloned(),
            guest_os: guest_os.unwrap_or_default(),
            io_threads_policy: io_threads.unwrap_or_default(),
            qemu_options,
            devices: self.devices(class),
            network_interface_model: class.and_then(|class| class.network_interface_model),
            scratch_disk: self.scratch_disk(class).cloned(),
        }
    }
}

impl VMSpec {
    /// Returns the scratch disk that a VM is to have: its own, or that of its class, if that exists.
    pub fn scratch_disk<'a>(&'a self, class: Option<&'a VMClassSpec>) -> Option<&'a ScratchDisk> {
        let of_class = class.filter(|_| self.class.is_some()).and_then(|class| class.scratch_disk.as_deref());
        self.scratch_disk.as_deref().or(of_class)
    }
}

impl VM {
    /// Returns the bytes of the scratch disk of a VM: the larger one of those that it is to have and that it has. The latter is reported by
    /// its host, and limited.
    pub fn scratch_bytes(&self, class: Option<&VMClassSpec>) -> u64 {
        let declared = self.spec.scratch_disk(class).map_or(0, ScratchDisk::bytes);
        let bound = self.status.as_ref().filter(|status| status.binding.is_some());
        let has = bound.and_then(|status| status.hardware.as_ref()?.scratch_disk.clone());
        let has = has.and_then(|size| Quantity(size).bytes().ok()).unwrap_or_default();
        declared.max(has).min(MOST_SCRATCH)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_of_the_vm_comes_before_that_of_its_class() {
        let spec = |own: serde_json::Value| {
            let mut spec = json!({"disks": [], "class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            serde_json::from_value::<VMSpec>(spec).expect("a spec")
        };
        let class: VMClassSpec =
            serde_json::from_value(json!({"cpus": 1, "cpuModel": "x86-64-v2", "guestOS": "Windows"}))
                .expect("a class");
        let profile = |own| spec(own).profile(Some(&class));
        assert_eq!(profile(json!({})).cpu_model.as_deref(), Some("x86-64-v2"));
        assert_eq!(profile(json!({})).guest_os, GuestOS::Windows);
        let own = profile(json!({"cpuModel": "EPYC", "guestOS": "Linux"}));
        let threads: VMClassSpec =
            serde_json::from_value(json!({"cpus": 1, "ioThreadsPolicy": "PerDisk"})).expect("a class");
        let threads_of = |own| spec(own).profile(Some(&threads)).io_threads_policy;
        assert_eq!(threads_of(json!({})), IoThreadsPolicy::PerDisk);
        assert_eq!(threads_of(json!({"ioThreadsPolicy": "Shared"})), IoThreadsPolicy::Shared);
        let card: VMClassSpec =
            serde_json::from_value(json!({"cpus": 1, "networkInterfaceModel": "e1000e"})).expect("a class");
        let model_of = |own| spec(own).profile(Some(&card)).network_interface_model;
        assert_eq!(model_of(json!({})), Some(NicModel::E1000e));
        assert_eq!(model_of(json!({"class": null})), None, "it names no class");
        assert_eq!((own.cpu_model.as_deref(), own.guest_os), (Some("EPYC"), GuestOS::Linux));
        assert_eq!(profile(json!({"class": null})), Profile::default(), "it names no class");
        assert_eq!(spec(json!({})).profile(None), Profile::default());
        assert_eq!(profile(json!({"architecture": "aarch64"})).architecture, Architecture::Aarch64);
        let arm: VMClassSpec =
            serde_json::from_value(json!({"cpus": 1, "architecture": "aarch64"})).expect("a class");
        assert_eq!(spec(json!({})).profile(Some(&arm)).architecture, Architecture::Aarch64);
        assert_eq!(
            spec(json!({"architecture": "x86_64"})).profile(Some(&arm)).architecture,
            Architecture::X86_64
        );
        let with_image = |own, class| spec(own).profile_with(class, Some(GuestOS::Windows)).guest_os;
        assert_eq!(with_image(json!({}), None), GuestOS::Windows);
        assert_eq!(with_image(json!({"guestOS": "Linux"}), None), GuestOS::Linux);
        let linux: VMClassSpec =
            serde_json::from_value(json!({"cpus": 1, "guestOS": "Linux"})).expect("a class");
        assert_eq!(with_image(json!({}), Some(&linux)), GuestOS::Linux);
    }

    #[test]
    fn the_scratch_disk_of_a_vm_comes_before_that_of_its_class() {
        let class: VMClassSpec =
            serde_json::from_value(json!({"cpus": 1, "scratchDisk": {"size": "10Gi"}})).expect("a class");
        let size = |spec: serde_json::Value| {
            let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
            spec.scratch_disk(Some(&class)).map(ScratchDisk::bytes)
        };
        assert_eq!(size(json!({"disks": [], "class": "gpu"})), Some(10 << 30));
        assert_eq!(size(json!({"disks": [], "class": "gpu", "scratchDisk": {"size": "1Gi"}})), Some(1 << 30));
        assert_eq!(size(json!({"disks": []})), None, "it names no class");
    }
}
