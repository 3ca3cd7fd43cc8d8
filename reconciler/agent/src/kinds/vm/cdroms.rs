//! Observation of the CD-ROM drives that a VM declares.

use berth_api::VM;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::kinds::image::local::{self, LocalImage};

/// A drive of the spec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeclaredCdrom {
    pub(crate) name: String,
    pub(crate) boot_first: bool,
    pub(crate) guest_can_eject: bool,
    /// The Image that is to be in it, by name.
    pub(crate) image: Option<(String, LocalImage)>,
}

/// Observes the drives in the order of the spec.
pub(super) async fn observe(ctx: &Context, vm: &VM) -> Result<Vec<DeclaredCdrom>, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let mut seen = Vec::new();
    for cdrom in &vm.spec.cdroms {
        let image = match cdrom.wanted_image() {
            None => None,
            Some(name) => Some((name.to_owned(), local::observe(ctx, &namespace, name, &Key::of(vm)).await?)),
        };
        let (name, boot_first) = (cdrom.name.to_string(), cdrom.boot_first);
        seen.push(DeclaredCdrom { name, boot_first, guest_can_eject: cdrom.guest_can_eject, image });
    }
    Ok(seen)
}
