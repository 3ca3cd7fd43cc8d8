//! The architectures of VMs, and of the images that they boot from.

use berth_api::{Architecture, Disk, VM};
use kube::ResourceExt;

use super::Cache;

/// An image of another architecture than the VM that is to boot from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherArchitecture {
    /// The name of the Image.
    pub(crate) image: String,
    pub(crate) text: String,
}

impl Cache {
    /// Returns the architecture that a VM declares.
    pub(crate) fn architecture(&self, vm: &VM) -> Architecture {
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
        vm.spec.profile(vm.class_values(class.map(|class| &class.spec)).as_deref()).architecture
    }

    /// Returns the part of a VM that machines of its architecture do not have.
    pub(crate) fn unsupported_part(&self, vm: &VM) -> Option<String> {
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
        let class = vm.class_values(class.map(|class| &class.spec));
        let size = vm.spec.size(class.as_deref()).ok()?;
        vm.spec.unsupported_part(&size, &vm.spec.profile(class.as_deref()))
    }

    /// Returns the image of a VM's boot disk if it declares another architecture. A VM that was started before has shown that it boots.
    pub(crate) fn other_architecture(&self, vm: &VM, boot_disk: &Disk) -> Option<OtherArchitecture> {
        if vm.status.as_ref().is_some_and(|status| status.hardware.is_some()) {
            return None;
        }
        let name = boot_disk.spec.image.as_ref()?;
        let image = self.tables.images.lookup(&vm.namespace()?, name.as_str())?;
        let declared = image.spec.os.as_ref()?.architecture.as_deref()?;
        let (wanted, of_image) = (self.architecture(vm), Architecture::of_text(declared)?);
        (of_image != wanted).then(|| OtherArchitecture {
            image: name.to_string(),
            text: format!(
                "Image {name} is of architecture {} (os.architecture {declared}), and the VM of {}: use an image of that one, or create \
                 the VM with architecture {}",
                of_image.as_str(),
                wanted.as_str(),
                of_image.as_str()
            ),
        })
    }
}
