//! The files and the disks that a descriptor lists.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::Node;

use super::units::bytes;
use super::{OvfError, short};
use crate::import::domain::DiskSource;
use crate::import::names::Names;
use crate::import::xml::{all, local};

/// The largest disk of berth.
const MAX_CAPACITY: u64 = 64 << 40;
/// The sectors of a disk, in bytes.
const SECTOR: u64 = 512;
/// The grains of a VMDK, in bytes. VirtualBox declares the size of the disk in the descriptor, and that of whole grains in the file.
const GRAIN: u64 = 64 << 10;

/// A file of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// Its name in the archive, or in the folder of the descriptor.
    pub href: String,
    /// Its name in the folder of the configuration: a DNS label and the extension of its format.
    pub name: String,
    /// The size that the descriptor declares.
    pub size: Option<u64>,
}

impl PackedFile {
    /// The names that the file may have in the package: a descriptor may write a space as `%20`.
    pub fn names(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.href.clone()).chain(decoded(&self.href))
    }
}

/// The data of a disk.
#[derive(Debug)]
pub(super) struct DiskData {
    pub(super) source: DiskSource,
    /// The format of the file.
    pub(super) format: &'static str,
}

/// The files and the disks of an appliance, by their ids.
pub(super) struct Package<'a, 'i> {
    references: BTreeMap<&'a str, Node<'a, 'i>>,
    disks: BTreeMap<&'a str, Node<'a, 'i>>,
    names: Names,
    /// The files that are needed, and the place and the format of each by its id.
    files: Vec<PackedFile>,
    places: BTreeMap<&'a str, (usize, &'static str)>,
    /// Their names in the package.
    stored: BTreeSet<String>,
}

impl<'a, 'i> Package<'a, 'i> {
    pub(super) fn read(root: Node<'a, 'i>) -> Result<Self, OvfError> {
        Ok(Self {
            references: by_id(all(root, &["References", "File"]), "id", "files")?,
            disks: by_id(all(root, &["DiskSection", "Disk"]), "diskId", "disks")?,
            names: Names::default(),
            files: Vec::new(),
            places: BTreeMap::new(),
            stored: BTreeSet::new(),
        })
    }

    pub(super) fn into_files(self) -> Vec<PackedFile> {
        self.files
    }

    /// The data of the disk with this id.
    pub(super) fn data(&mut self, id: &str) -> Result<DiskData, OvfError> {
        let refused = |why: String| OvfError::Disk { disk: short(id), why };
        let Some(disk) = self.disks.get(id).copied() else {
            return Err(refused("is not in its DiskSection".to_owned()));
        };
        let capacity = capacity(disk).map_err(refused)?;
        if local(disk, "parentRef").is_some() {
            return Err(refused(
                "is the difference to another disk: export the machine without its snapshots".to_owned(),
            ));
        }
        let Some(file) = local(disk, "fileRef").filter(|file| !file.is_empty()) else {
            return Ok(DiskData { source: DiskSource::Blank(capacity), format: "qcow2" });
        };
        let format = format(local(disk, "format").unwrap_or_default()).map_err(refused)?;
        let (name, compression) = self.file(file, format).map_err(refused)?;
        let capacity = if format == "vmdk" { capacity.next_multiple_of(GRAIN) } else { capacity };
        Ok(DiskData { source: DiskSource::Upload { file: name, compression, capacity }, format })
    }

    /// The name of a file, and its compression.
    fn file(&mut self, id: &'a str, format: &'static str) -> Result<(String, Option<&'static str>), String> {
        let Some(reference) = self.references.get(id).copied() else {
            return Err(format!("has the file {:?}, which is not in References", short(id)));
        };
        let href = local(reference, "href").unwrap_or_default();
        check_href(href)?;
        if local(reference, "chunkSize").is_some() {
            return Err(format!(
                "has the file {:?} in chunks: join them, or export it in one file",
                short(href)
            ));
        }
        let compression = match local(reference, "compression").unwrap_or_default() {
            "" | "identity" => None,
            "gzip" => Some("gzip"),
            other => return Err(format!("has the compression {:?}, and gzip is read", short(other))),
        };
        if let Some((place, of)) = self.places.get(id)
            && let Some(file) = self.files.get(*place)
        {
            if *of != format {
                return Err(format!(
                    "has the file {:?} in the format {format}, and another disk has it in {of}",
                    short(href)
                ));
            }
            return Ok((file.name.clone(), compression));
        }
        // That of a compressed file may be meant before the compression.
        let declared = local(reference, "size").filter(|_| compression.is_none());
        let size = declared.map(str::parse::<u64>).transpose();
        let size =
            size.map_err(|_| format!("has a file with the size {:?}", short(declared.unwrap_or_default())))?;
        let name = decoded(href).unwrap_or_else(|| href.to_owned());
        if !self.stored.insert(name.clone()) {
            return Err(format!("has the file {:?}, which is twice in References", short(href)));
        }
        let (plain, ending) = match compression {
            Some(_) => (name.strip_suffix(".gz").unwrap_or(&name), ".gz"),
            None => (name.as_str(), ""),
        };
        let stem = plain.rsplit_once('.').map_or(plain, |(stem, _)| stem);
        // Terraform reads every .tf in the folder: the ending is never that of the appliance.
        let name = format!("{}.{format}{ending}", self.names.free(stem));
        self.places.insert(id, (self.files.len(), format));
        self.files.push(PackedFile { href: href.to_owned(), name: name.clone(), size });
        Ok((name, compression))
    }
}

fn by_id<'a, 'i>(
    nodes: Vec<Node<'a, 'i>>,
    attribute: &str,
    kind: &'static str,
) -> Result<BTreeMap<&'a str, Node<'a, 'i>>, OvfError> {
    let mut found = BTreeMap::new();
    for node in nodes {
        let id = local(node, attribute).unwrap_or_default();
        if found.insert(id, node).is_some() {
            return Err(OvfError::Duplicate { kind, id: short(id) });
        }
    }
    Ok(found)
}

fn capacity(disk: Node<'_, '_>) -> Result<u64, String> {
    let amount = local(disk, "capacity").unwrap_or_default();
    let of = local(disk, "capacityAllocationUnits").unwrap_or("byte");
    let found = bytes(amount, of).filter(|bytes| (1..=MAX_CAPACITY).contains(bytes));
    let found = found.and_then(|bytes| bytes.checked_next_multiple_of(SECTOR));
    found.ok_or_else(|| {
        format!(
            "has the capacity {:?} in {:?}, and a disk of berth 1 byte to 64 TiB",
            short(amount),
            short(of)
        )
    })
}

/// The name of a format in berth. An appliance declares it by an address, which need not exist.
fn format(uri: &str) -> Result<&'static str, String> {
    let text = uri.to_ascii_lowercase();
    // The number is that of Microsoft's page about VHD.
    let known = [
        ("vmdk", "vmdk"),
        ("qcow", "qcow2"),
        ("vhdx", "vhdx"),
        ("vhd", "vhd"),
        ("linkid=137171", "vhd"),
        ("vdi", "vdi"),
    ];
    let found = known.into_iter().find(|(part, _)| text.contains(part));
    found.map(|(_, format)| format).ok_or_else(|| {
        format!("has the format {:?}, and those of VMDK, QCOW2, VHD, VHDX and VDI are read", short(uri))
    })
}

/// A file of a package is beside its descriptor.
fn check_href(href: &str) -> Result<(), String> {
    if href.contains("://") {
        return Err(format!(
            "has the file {:?}: download it, and write its name into the descriptor",
            short(href)
        ));
    }
    let is_name = |name: &str| {
        !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0']) && name.len() <= 255
    };
    if is_name(href) && decoded(href).is_none_or(|name| is_name(&name)) {
        return Ok(());
    }
    Err(format!("has the file {:?}: a file of an appliance has a name, and no folder", short(href)))
}

/// A name without its escapes, if it has some and is UTF-8 without them.
fn decoded(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        let digits = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        let is_hex = digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.filter(|_| is_hex).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok().filter(|decoded| decoded != name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_those_that_products_declare() {
        for (uri, expected) in [
            ("http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized", "vmdk"),
            ("http://www.vmware.com/specifications/vmdk.html#sparse", "vmdk"),
            ("http://www.gnome.org/~markmc/qcow-image-format.html", "qcow2"),
            ("http://go.microsoft.com/fwlink/?LinkId=137171", "vhd"),
        ] {
            assert_eq!(format(uri), Ok(expected), "{uri}");
        }
        for uri in ["", "http://example.org/raw"] {
            assert!(format(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_file_has_a_name_and_no_way_out() {
        for href in ["a.vmdk", "my disk.vmdk", "my%20disk.vmdk", "100%.vmdk", "..vmdk"] {
            assert_eq!(check_href(href), Ok(()), "{href}");
        }
        let long = "a".repeat(256);
        for href in [
            "",
            ".",
            "..",
            "../a.vmdk",
            "/etc/shadow",
            "a/b.vmdk",
            "..%2fa.vmdk",
            "%2e%2e",
            "%2Fetc%2Fshadow",
            "a%00b",
            "a\\b",
            "file:///etc/shadow",
            "http://example.org/a.vmdk",
            &long,
        ] {
            assert!(check_href(href).is_err(), "{href}");
        }
        assert_eq!(decoded("my%20disk%2").as_deref(), Some("my disk%2"));
        assert_eq!((decoded("a%ff"), decoded("a"), decoded("%+1")), (None, None, None));
    }
}
