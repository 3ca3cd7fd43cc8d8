//! The host that an Image is uploaded to.

use berth_api::{Host, Image, Quantity};
use kube::ResourceExt;

use super::holders::has_image;
use crate::cache::Cache;

/// Returns the host that has the file already, or else a ready one that it fits on: with the fewest VMs, then by name. `None`: the
/// image is not uploaded. The error is for people.
pub(super) fn host(cache: &Cache, image: &Image) -> Option<Result<String, String>> {
    let upload = image.spec.source.upload?;
    let hosts = || cache.tables.hosts.all().filter(|host| !host.spec.fenced);
    // Also a silent one: after a restore, it is where the image was.
    if let Some(digest) = image.stored_digest()
        && let Some(host) = hosts().find(|host| has_image(host, &digest))
    {
        return Some(Ok(host.name_any()));
    }
    let needed = u64::try_from(upload.size).unwrap_or_default();
    let ready = hosts().filter(|host| cache.is_alive(&host.name_any()) && has_room(host, needed));
    let chosen = ready
        .map(|host| host.name_any())
        .min_by_key(|name| (cache.index.capacity.usage(name).vms, name.clone()));
    Some(
        chosen.ok_or_else(|| {
            format!("there is no ready host with {} free for it", Quantity::from_bytes(needed).0)
        }),
    )
}

/// Whether the file fits, by the last report of the host. The host itself decides when the upload begins.
fn has_room(host: &Host, needed: u64) -> bool {
    let free = host.status.as_ref().and_then(|status| status.free.as_ref());
    free.is_some_and(|free| Quantity(free.storage.clone()).bytes().is_ok_and(|bytes| bytes >= needed))
}
