//! The disks and CD-ROM drives of a VM.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DiskSpec, ResourceName};

/// A disk of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.bus) && self.bus == 'sata' && has(self.readOnly) && self.readOnly)").message("a disk on sata cannot be read-only: use virtio-scsi or virtio-blk").field_path(".readOnly"),
    validation = Rule::new("!has(self.template) || !has(self.template.deletionProtection) || !self.template.deletionProtection").message("a Disk of a template is deleted with its VM: protect the VM, or declare a Disk of its own").field_path(".template"),
    validation = Rule::new("!has(self.template) || !has(self.template.restore)").message("a Disk of a template is not restored: declare a Disk of its own").field_path(".template"),
    validation = Rule::new("!has(self.template) || !has(self.template.access) || self.template.access == 'ReadWriteOnce'").message("a Disk of a template belongs to one VM: declare a Disk of its own for several").field_path(".template"),
    validation = Rule::new("!has(self.template) || !has(self.template.importedFrom)").message("a Disk of a template is a new one: declare a Disk of its own for one that is imported").field_path(".template"),
    validation = Rule::new("!has(self.template) || !has(self.template.sharedWith)").message("a Disk of a template is not shared: declare a Disk of its own").field_path(".template"),
    validation = Rule::new("!has(self.template) || !has(self.template.placement)").message("a Disk of a template is on the host of its VM: set hostSelector in placement of the VM").field_path(".template"),
    validation = Rule::new("has(self.template) == has(oldSelf.template)").message("template cannot be added to an existing disk, or removed from it: give the disk another name").field_path(".template")
)]
pub struct VMDisk {
    /// Name of a Disk in the VM's namespace.
    pub name: ResourceName,
    /// The Disk, if it belongs to the VM: the Disk `name` is created with this spec, changed with it, and deleted after the VM. Default:
    /// none, and the Disk is declared on its own. Cannot be added to an existing disk, or removed from it. A disk that is removed
    /// from the list is unplugged, and its Disk stays until the VM is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Box<DiskSpec>>,
    /// Whether the VM boots from it. Exactly one disk does.
    #[serde(default)]
    pub boot: bool,
    /// The controller that the guest sees: `virtio-scsi` (default); `virtio-blk`; or `sata`, for guests without a virtio driver,
    /// at most 6 and slower. A change takes effect at the next power cycle. Only disks on `virtio-scsi` are added to and removed
    /// from a running VM; others at the next power cycle.
    #[serde(default)]
    pub bus: DiskBus,
    /// Whether the guest can only read it; not with `sata`. Default false. A change takes effect at the next power cycle.
    #[serde(default)]
    pub read_only: bool,
}

/// The controller of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskBus {
    #[default]
    VirtioScsi,
    VirtioBlk,
    Sata,
}

/// A CD-ROM drive of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cdrom {
    /// Name of the drive within the VM, the key of the list, for example `installer`. At most 36 characters: the guest sees it as
    /// the drive's serial number.
    #[x_kube(validation = Rule::new("self.size() <= 36").message("the name of a CD-ROM drive has at most 36 characters: it is the drive's serial number in the guest"))]
    pub name: ResourceName,
    /// Name of an Image with the format `iso`, in the VM's namespace or in `berth-shared`: the medium. Another one is exchanged at
    /// once; a guest that uses the medium is asked to release it. Default: none, the drive is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ResourceName>,
    /// Whether the medium is in the drive. Default true. Applied live.
    #[serde(default = "yes")]
    pub connected: bool,
    /// Whether the VM boots from the medium before it tries its boot disk. At most one drive does. Default false: the VM boots
    /// from the medium only while its boot disk is not bootable, so that an installer runs once. Takes effect at the next
    /// power cycle.
    #[serde(default)]
    pub boot_first: bool,
    /// Whether the guest can eject the medium. Default true. With false the host closes a tray that the guest has opened, at once: the
    /// medium stays in the drive. Applied live.
    #[serde(default = "yes")]
    pub guest_can_eject: bool,
}

impl Cdrom {
    /// The name of the Image that is to be in the drive.
    #[must_use]
    pub fn wanted_image(&self) -> Option<&str> {
        self.image.as_ref().filter(|_| self.connected).map(|image| image.as_str())
    }
}

fn yes() -> bool {
    true
}
