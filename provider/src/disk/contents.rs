//! The data of a new disk: a file system, or a full copy of an image.

use berth_api::Quantity;
use tfplugin6::{AttributePath, Diagnostic, Value};

/// The least sizes of file systems, as the control plane has them.
const LEAST: [(&str, &str); 2] = [("ext4", "16Mi"), ("xfs", "300Mi")];

/// Refuses data that contradicts other attributes of a disk, or of a template of one at this path.
pub(super) fn check(disk: &Value, at: &AttributePath) -> Option<Diagnostic> {
    check_filesystem(disk, at).or_else(|| check_clone_mode(disk, at))
}

fn check_filesystem(disk: &Value, at: &AttributePath) -> Option<Diagnostic> {
    let filesystem = disk.get("filesystem");
    if !filesystem.is_set() {
        return None;
    }
    let at = at.clone().attribute("filesystem");
    let refusals = [
        ("image", "it is that of a blank disk, and an image has file systems of its own: take `image` out"),
        ("source", "it is that of a blank disk, and a source has file systems of its own: take `source` out"),
        ("encryption", "an encrypted disk is formatted in its VM: take `filesystem` out"),
    ];
    let refused =
        refusals.into_iter().find(|(name, _)| disk.get(name).is_set()).map(|(_, why)| why.to_owned());
    let detail = refused.or_else(|| too_small(disk, filesystem))?;
    Some(Diagnostic::error("Invalid filesystem", format!("{at}: {detail}.")).at(at))
}

fn too_small(disk: &Value, filesystem: &Value) -> Option<String> {
    let declared = filesystem.get("type").as_str()?;
    let (_, least) = LEAST.into_iter().find(|(name, _)| *name == declared)?;
    let bytes = |text: &str| text.parse::<Quantity>().ok()?.bytes().ok();
    let size = disk.get("size").as_str()?;
    (bytes(size)? < bytes(least)?)
        .then(|| format!("an {declared} file system needs a disk of at least {least}"))
}

fn check_clone_mode(disk: &Value, at: &AttributePath) -> Option<Diagnostic> {
    if disk.get("clone_mode").as_str() != Some("Full") {
        return None;
    }
    let at = at.clone().attribute("clone_mode");
    let detail = if disk.get("image").is_null() {
        "Full is for a disk that is made from an image: set `image`, or take `clone_mode` out"
    } else if disk.get("encryption").is_set() {
        "an encrypted disk is a linked clone of its image: take `clone_mode` out"
    } else {
        return None;
    };
    Some(Diagnostic::error("Invalid clone_mode", format!("{at}: {detail}.")).at(at))
}
