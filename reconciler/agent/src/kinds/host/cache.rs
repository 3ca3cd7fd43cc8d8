//! The cache of images: which of them go while the disk is short of room, and which Images a change of it concerns.
//!
//! An image goes only if it can be downloaded again and nothing here uses it. An object that needs it later downloads it.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{Disk, Image, SHARED_NAMESPACE};
use berth_host::{ImageFacts, SystemError};
use berth_qemu::machine::Format;

use crate::context::Context;
use crate::error::Error;
use crate::index::Tables;
use crate::key::Key;

/// The disk is short of room while less than this part of it is free, in percent.
const SHORT: u64 = 10;
/// Images go until this part of it is free.
const ENOUGH: u64 = 15;

/// The images that nothing uses, while the disk is short of room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Digests and bytes, in the order in which they go: the largest first, so that few go.
    pub(crate) unused: Vec<(String, u64)>,
    /// The number of bytes that are missing.
    pub(crate) needed: u64,
}

/// Returns the images that may go if the disk, with so many bytes in all and free, is short of room. Pure.
pub(super) fn excess(mut unused: Vec<(String, u64)>, total: u64, free: u64) -> Option<Excess> {
    let part = |percent: u64| total / 100 * percent;
    if unused.is_empty() || free >= part(SHORT) {
        return None;
    }
    unused.sort_by(|(a, a_bytes), (b, b_bytes)| b_bytes.cmp(a_bytes).then_with(|| a.cmp(b)));
    Some(Excess { unused, needed: part(ENOUGH).saturating_sub(free) })
}

/// Returns the cached images, with their bytes, that can be downloaded again and that nothing here uses. `bases`: those below volumes.
pub(super) fn unused(tables: &Tables, images: &[ImageFacts], bases: &BTreeSet<String>) -> Vec<(String, u64)> {
    let used = used(tables);
    // A guest may hold a medium that its VM does not declare any more.
    let media_in_drives = tables
        .vms
        .all()
        .flat_map(|(_, vm)| vm.status.iter())
        .any(|status| status.cdroms.iter().any(|drive| drive.inserted));
    let is_unused = |facts: &&ImageFacts| {
        let may_be_in_drive = media_in_drives && facts.format == Format::Iso;
        let is_needed = may_be_in_drive || bases.contains(&facts.digest) || used.contains(&facts.digest);
        facts.made_for.is_empty() && !is_needed
    };
    images.iter().filter(is_unused).map(|facts| (facts.digest.clone(), facts.bytes)).collect()
}

/// Returns the digests of images that cannot be downloaded again, that are not verified yet, that a disk is to be made from or comes here
/// with, or that a drive of a VM has.
fn used(tables: &Tables) -> BTreeSet<String> {
    let is_kept = |image: &Image| {
        image.is_local() || image.status.as_ref().is_none_or(|status| status.virtual_size.is_none())
    };
    // The file of a disk whose data another host has comes here yet.
    let lacks_file = |disk: &Disk| {
        disk.status.as_ref().is_none_or(|status| status.size.is_none() || status.former_host.is_some())
    };
    let kept = tables.images.all().map(|(_, image)| image.clone()).filter(|image| is_kept(image));
    let of_disks =
        tables.disks.all().filter(|(_, disk)| lacks_file(disk)).filter_map(|(name, disk)| {
            tables.images.find(&name.namespace, disk.spec.image.as_ref()?.as_str())
        });
    let of_drives = tables.vms.all().flat_map(|(name, vm)| {
        let named = vm.spec.cdroms.iter().filter_map(|drive| drive.image.as_ref());
        named.filter_map(move |image| tables.images.find(&name.namespace, image.as_str()))
    });
    kept.chain(of_disks).chain(of_drives).filter_map(|image| image.stored_digest()).collect()
}

/// Returns the Images bound here whose status says the opposite of the cache: that other hosts can copy them, or that they cannot.
pub(super) fn changed(tables: &Tables, host: &str, images: &[ImageFacts]) -> Vec<Key> {
    let cached: BTreeMap<&str, &ImageFacts> =
        images.iter().map(|facts| (facts.digest.as_str(), facts)).collect();
    let is_changed = |namespace: &String, image: &Image| {
        let Some(status) = &image.status else { return false };
        let is_bound_here = status.binding.as_ref().is_some_and(|binding| binding.host == host);
        let may_read =
            |facts: &&ImageFacts| namespace == SHARED_NAMESPACE || facts.readers.contains(namespace);
        let is_cached = {
            let facts = image.stored_digest().and_then(|digest| cached.get(digest.as_str()).copied());
            facts.is_some_and(|facts| may_read(&facts))
        };
        let is_verified = status.virtual_size.is_some() && !image.is_local() && image.is_copyable();
        is_bound_here && is_verified && is_cached != status.server.is_some()
    };
    let changed = tables.images.all().filter(|(name, image)| is_changed(&name.namespace, image));
    changed.map(|(name, _)| Key::new::<Image>(name.clone())).collect()
}

/// Removes unused images until enough bytes are free.
pub(super) async fn shrink(ctx: &Context, excess: &Excess) -> Result<(), Error> {
    let mut freed: u64 = 0;
    for (digest, bytes) in &excess.unused {
        if freed >= excess.needed {
            break;
        }
        if remove_image(ctx, digest).await? {
            freed = freed.saturating_add(*bytes);
            tracing::info!(digest, bytes, "an unused image was removed: the disk is short of room");
        }
    }
    Ok(())
}

/// Removes an image that no volume is based on. Returns false if it stays, because a snapshot is.
pub(super) async fn remove_image(ctx: &Context, digest: &str) -> Result<bool, Error> {
    match ctx.system.remove_image(digest).await {
        Ok(()) => Ok(true),
        Err(SystemError::ImageInUse { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::index::Index;

    fn facts(digest: &str, format: Format) -> ImageFacts {
        ImageFacts {
            digest: digest.to_owned(),
            format,
            encoding: berth_host::Encoding::default(),
            virtual_size: 1 << 30,
            bytes: 7,
            path: "/images".into(),
            readers: BTreeSet::from(["ns".to_owned()]),
            made_for: BTreeSet::new(),
        }
    }

    /// An Image of this name and digest, verified on host h.
    fn image(name: &str, source: &Value) -> Image {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1", "uid": name},
            "spec": {"source": source},
            "status": {"observedGeneration": 1, "binding": {"host": "h", "epoch": 1}, "virtualSize": "1Gi",
                "checksum": name},
        }))
        .expect("an Image")
    }

    fn of_url(name: &str) -> Image {
        image(name, &json!({"url": "https://images.example/a", "checksumUrl": "https://images.example/b"}))
    }

    fn disk(name: &str, image: &str, size: Option<&str>) -> Disk {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"}, "spec": {"image": image},
            "status": {"observedGeneration": 1, "size": size},
        }))
        .expect("a Disk")
    }

    fn vm(image: &str, inserted: bool) -> berth_api::VM {
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "resourceVersion": "1"},
            "spec": {"class": "small", "disks": [{"name": "root", "boot": true}], "cdroms": [{"name": "a", "image": image}]},
            "status": {"observedGeneration": 1, "cdroms": [{"name": "a", "inserted": inserted, "trayOpen": false}]},
        }))
        .expect("a VM")
    }

    #[test]
    fn images_go_the_largest_first_while_a_tenth_of_the_disk_is_not_free() {
        let unused = || vec![("b".to_owned(), 5), ("a".to_owned(), 5), ("c".to_owned(), 9)];
        let found = excess(unused(), 1000, 99).expect("it is short of room");
        let order: Vec<&str> = found.unused.iter().map(|(digest, _)| digest.as_str()).collect();
        assert_eq!((order.as_slice(), found.needed), (["c", "a", "b"].as_slice(), 51));
        assert_eq!(excess(unused(), 1000, 100), None);
        assert_eq!(excess(Vec::new(), 1000, 0), None);
        assert_eq!(excess(unused(), 0, 0), None, "the size of the disk is not known");
    }

    #[test]
    fn only_an_image_that_can_be_downloaded_again_and_that_nothing_uses_may_go() {
        let index = Index::default();
        for name in ["free", "below", "for-a-disk", "comes-here", "in-a-drive", "of-a-file"] {
            index.apply::<Image>(Event::Apply(of_url(name)));
        }
        index.apply::<Image>(Event::Apply(image("of-a-disk", &json!({"disk": "root"}))));
        let mut unverified = of_url("unverified");
        unverified.status.get_or_insert_default().virtual_size = None;
        index.apply::<Image>(Event::Apply(unverified));
        index.apply::<Disk>(Event::Apply(disk("new", "for-a-disk", None)));
        index.apply::<Disk>(Event::Apply(disk("old", "of-a-file", Some("1Gi"))));
        let mut left = disk("left", "comes-here", Some("1Gi"));
        left.status.get_or_insert_default().former_host = Some("h0".to_owned());
        index.apply::<Disk>(Event::Apply(left));
        index.apply::<berth_api::VM>(Event::Apply(vm("in-a-drive", false)));
        let kept = ["below", "for-a-disk", "comes-here", "in-a-drive", "of-a-disk", "unverified"];
        let names = ["free"].into_iter().chain(kept).chain(["of-a-file"]);
        let mut images: Vec<ImageFacts> = names.map(|name| facts(name, Format::Qcow2)).collect();
        images.push(ImageFacts { made_for: ["u".to_owned()].into(), ..facts("made", Format::Qcow2) });
        images.push(facts("a-medium", Format::Iso));
        let bases: BTreeSet<String> = ["below".to_owned()].into();
        let unused_now = |index: &Index| {
            let unused = unused(&index.read(), &images, &bases);
            unused.into_iter().map(|(digest, _)| digest).collect::<Vec<String>>()
        };
        // The file of the disk `old` would name its image if it were based on it.
        assert_eq!(unused_now(&index), ["free", "of-a-file", "a-medium"]);
        index.apply::<berth_api::VM>(Event::Apply(vm("in-a-drive", true)));
        assert_eq!(unused_now(&index), ["free", "of-a-file"], "a guest may hold the medium");
    }

    #[test]
    fn an_image_whose_file_came_or_went_reports_whether_it_is_served() {
        let index = Index::default();
        let mut served = of_url("served");
        served.status.get_or_insert_default().server =
            serde_json::from_value(json!({"address": "192.0.2.1:7444", "certificateSha256": "ab"})).ok();
        index.apply::<Image>(Event::Apply(served));
        index.apply::<Image>(Event::Apply(of_url("absent")));
        let names = |images: &[ImageFacts], host: &str| {
            let changed = changed(&index.read(), host, images);
            changed.into_iter().map(|key| key.name.name).collect::<Vec<String>>()
        };
        assert_eq!(names(&[facts("served", Format::Qcow2)], "h"), [""; 0]);
        assert_eq!(names(&[], "h"), ["served"]);
        assert_eq!(names(&[facts("absent", Format::Qcow2)], "h"), ["absent", "served"]);
        assert_eq!(names(&[], "h2"), [""; 0], "it is bound to another host");
        let unreadable = ImageFacts { readers: BTreeSet::new(), ..facts("absent", Format::Qcow2) };
        assert_eq!(names(&[unreadable], "h"), ["served"], "another namespace has downloaded it");
    }
}
