//! Logical volumes of LVM2, whose physical volumes are partitions of the disk, or the disk.
//!
//! ```text
//!  volumes      the logical volumes of each volume group
//!    │
//!    ├── mapped     the data of a logical volume: linear and striped segments
//!    ├── text       the description of a volume group, a text
//!    ▼
//!  label        the label of a physical volume, and the place of the text
//! ```
//!
//! *Guarantees*: a volume that is not only linear or striped, or that has a part on another disk, is refused by name. The checksums of labels,
//! metadata areas and texts are verified.

mod label;
mod mapped;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::disk::{Disk, Window};
use crate::error::{FsError, Result};
use label::Label;
use mapped::{Mapped, Segment};
use text::{Section, Value};

/// The limits of the logical volumes of a disk, of the segments of one, and of the stripes of a segment, as LVM has the last one.
const MOST_VOLUMES: usize = 1024;
const MOST_SEGMENTS: u64 = 64 << 10;
const MOST_STRIPES: u64 = 128;
/// Metadata counts in sectors of this size.
const SECTOR: u64 = 512;

/// A logical volume.
pub(crate) struct Volume {
    /// The volume group, a slash, and the logical volume.
    pub(crate) name: String,
    /// In bytes.
    pub(crate) size: u64,
    /// The data, or the kind of volume that is not read.
    pub(crate) data: Result<Rc<dyn Disk>, &'static str>,
}

/// The logical volumes of a disk.
#[derive(Default)]
pub(crate) struct Volumes {
    pub(crate) volumes: Vec<Volume>,
    /// The first damage that was found. The other volume groups can be read.
    pub(crate) damage: Option<FsError>,
}

/// A physical volume.
struct Physical {
    id: String,
    /// In bytes.
    start: u64,
    length: u64,
}

/// A volume group, as the newest of its texts describes it.
struct Group {
    name: String,
    seqno: u64,
    section: Section,
}

fn damaged(detail: impl Into<String>) -> FsError {
    FsError::Damaged { what: "metadata of LVM", detail: detail.into() }
}

/// Returns the logical volumes of these physical volumes, each with its start on the disk.
///
/// *Errors*: the disk cannot be read.
pub(crate) fn volumes(disk: &Rc<dyn Disk>, parts: &[(u64, Window)]) -> Result<Volumes> {
    let mut found = Volumes::default();
    let (mut physical, mut groups) = (Vec::new(), BTreeMap::new());
    for (start, part) in parts {
        match label::read(part) {
            Ok(Label { id, texts }) => {
                physical.push(Physical { id, start: *start, length: part.length() });
                for text in texts {
                    let group = text.and_then(|text| group(&text));
                    keep(group.map(|(id, group)| newest(&mut groups, id, group)), &mut found)?;
                }
            }
            Err(error) => keep(Err(error), &mut found)?,
        }
    }
    for group in groups.values() {
        let made = of_group(disk, group, &physical, &mut found.volumes);
        keep(made, &mut found)?;
    }
    Ok(found)
}

/// Keeps the first damage. An error of the disk stays one.
fn keep(result: Result<()>, found: &mut Volumes) -> Result<()> {
    match result {
        Err(error @ FsError::Read { .. }) => Err(error),
        Err(error) => {
            found.damage.get_or_insert(error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn newest(groups: &mut BTreeMap<String, Group>, id: String, group: Group) {
    if groups.get(&id).is_none_or(|known| known.seqno < group.seqno) {
        groups.insert(id, group);
    }
}

/// Returns the identity of a volume group, and the group.
fn group(text: &[u8]) -> Result<(String, Group)> {
    let root = text::parse(text)?;
    let (name, section) =
        root.into_sections().next().ok_or_else(|| damaged("the text has no volume group"))?;
    let (id, seqno) = (section.text("id")?.to_owned(), section.number("seqno")?);
    Ok((id, Group { name, seqno, section }))
}

/// The extents of a physical volume on this disk, in bytes.
#[derive(Clone, Copy)]
struct Extents {
    first: u64,
    end: u64,
}

/// Adds the logical volumes of a group.
fn of_group(
    disk: &Rc<dyn Disk>,
    group: &Group,
    physical: &[Physical],
    volumes: &mut Vec<Volume>,
) -> Result<()> {
    let extent = group.section.number("extent_size")?.checked_mul(SECTOR).filter(|size| *size > 0);
    let extent = extent.ok_or_else(|| damaged(format!("volume group {} has no extents", group.name)))?;
    let mut places = BTreeMap::new();
    for (name, section) in group.section.section("physical_volumes").into_iter().flat_map(Section::sections) {
        places.insert(name, extents(section, physical)?);
    }
    let logical = || group.section.section("logical_volumes").into_iter().flat_map(Section::sections);
    let stores: BTreeSet<&str> = logical().flat_map(|(_, volume)| stores_of(volume)).collect();
    for (name, section) in logical().filter(|(_, section)| is_visible(section)) {
        if volumes.len() >= MOST_VOLUMES {
            return Err(damaged(format!("there are more than {MOST_VOLUMES} logical volumes")));
        }
        let name_of_both = format!("{}/{name}", group.name);
        let segments = segments(section, extent, &places);
        let (size, found) = segments.map_err(|error| match error {
            FsError::Damaged { detail, .. } => damaged(format!("{name_of_both}: {detail}")),
            other => other,
        })?;
        let data = match (found, stores.contains(name)) {
            (_, true) => Err("a snapshot of LVM"),
            (Err(kind), false) => Err(kind),
            (Ok(segments), false) => {
                let mapped: Rc<dyn Disk> = Rc::new(Mapped::new(disk, segments, size));
                Ok(mapped)
            }
        };
        volumes.push(Volume { name: name_of_both, size, data });
    }
    Ok(())
}

/// Returns where the extents of a physical volume are; `None`: it is not on this disk.
fn extents(section: &Section, physical: &[Physical]) -> Result<Option<Extents>> {
    let id = section.text("id")?.replace('-', "");
    let Some(found) = physical.iter().find(|physical| physical.id == id) else { return Ok(None) };
    let first = section.number("pe_start")?.checked_mul(SECTOR).filter(|first| *first <= found.length);
    let first =
        first.ok_or_else(|| damaged(format!("the extents of physical volume {id} are beyond its end")))?;
    Ok(Some(Extents { first: found.start + first, end: found.start + found.length }))
}

fn is_visible(volume: &Section) -> bool {
    volume.list("status").iter().any(|flag| matches!(flag, Value::Text(flag) if flag == "VISIBLE"))
}

/// Returns the names of the logical volumes that have the data of snapshots, as their segments name them.
fn stores_of(volume: &Section) -> Vec<&str> {
    volume.sections().filter_map(|(_, segment)| segment.text("cow_store").ok()).collect()
}

/// Returns the size of a logical volume in bytes, and its segments; or the kind of volume that is not read.
fn segments(
    volume: &Section,
    extent: u64,
    places: &BTreeMap<&str, Option<Extents>>,
) -> Result<(u64, Result<Vec<Segment>, &'static str>)> {
    let count = volume.number("segment_count")?;
    if count == 0 || count > MOST_SEGMENTS {
        return Err(damaged(format!("it has {count} segments")));
    }
    let (mut next, mut found, mut refused) = (0, Vec::new(), None);
    let mut sections = volume.sections().filter(|(name, _)| name.starts_with("segment"));
    for index in 1..=count {
        let (_, section) = sections.next().ok_or_else(|| damaged(format!("segment {index} is missing")))?;
        let length = section.number("extent_count")?;
        let end = length.checked_mul(extent).and_then(|length| length.checked_add(next));
        let (true, Some(end)) = (section.number("start_extent")?.checked_mul(extent) == Some(next), end)
        else {
            return Err(damaged(format!("segment {index} does not follow the one before")));
        };
        let unread = match kind(section.text("type")?) {
            Some(kind) => Some(kind),
            None => match stripes(section, extent, places)? {
                Some((places, stripe)) => {
                    found.push(Segment { start: next, length: end - next, stripe, places });
                    None
                }
                None => Some("parts on other disks"),
            },
        };
        refused = refused.or(unread);
        next = end;
    }
    Ok((next, refused.map_or(Ok(found), Err)))
}

/// Returns the kind of volume that a segment of this type belongs to; `None`: it is read.
fn kind(of: &str) -> Option<&'static str> {
    Some(match of {
        "striped" | "linear" => return None,
        "thin" | "thin-pool" => "thin provisioning of LVM",
        "mirror" => "a mirror of LVM",
        "snapshot" => "a snapshot of LVM",
        "cache" | "cache-pool" | "writecache" => "a cache of LVM",
        "vdo" | "vdo-pool" => "VDO of LVM",
        "integrity" => "integrity of LVM",
        raid if raid.starts_with("raid") => "RAID of LVM",
        _ => "a logical volume of a kind that is not known",
    })
}

/// Returns the places of the stripes of a segment, and the length of a stripe, in bytes; `None`: one is on another disk.
fn stripes(
    segment: &Section,
    extent: u64,
    places: &BTreeMap<&str, Option<Extents>>,
) -> Result<Option<(Vec<u64>, u64)>> {
    let wrong = |detail: &str| damaged(format!("a segment {detail}"));
    let (count, extents) = (segment.number("stripe_count")?, segment.number("extent_count")?);
    let list = segment.list("stripes");
    if count == 0 || count > MOST_STRIPES || list.len() as u64 != count * 2 {
        return Err(wrong(&format!("has {count} stripes")));
    }
    // Each stripe has as many extents.
    let each =
        (extents / count).checked_mul(extent).filter(|each| *each > 0 && extents.is_multiple_of(count));
    let each = each.ok_or_else(|| wrong(&format!("has {extents} extents in {count} stripes")))?;
    let stripe = if count == 1 { Some(each) } else { segment.number("stripe_size")?.checked_mul(SECTOR) };
    let stripe = stripe.filter(|stripe| *stripe > 0 && each.is_multiple_of(*stripe));
    let stripe = stripe.ok_or_else(|| wrong("has stripes of no length, or of a part of one"))?;
    let mut found = Vec::new();
    for pair in list.chunks_exact(2) {
        let [Value::Text(name), Value::Number(first)] = pair else {
            return Err(wrong("has a stripe without a place"));
        };
        let place = places.get(name.as_str());
        let place = place.ok_or_else(|| wrong(&format!("is on {name:?}, which is no physical volume")))?;
        let Some(Extents { first: start, end }) = *place else { return Ok(None) };
        let at = first.checked_mul(extent).and_then(|first| first.checked_add(start));
        let at = at.filter(|at| at.checked_add(each).is_some_and(|last| last <= end));
        found.push(at.ok_or_else(|| wrong(&format!("ends beyond {name}")))?);
    }
    Ok(Some((found, stripe)))
}
