//! A virtual system: its size, its firmware, and the sections beside its hardware.

use berth_api::Firmware;
use roxmltree::Node;

use super::items::{items, kind};
use super::package::Package;
use super::units::bytes;
use super::{LICENCE, OvfError, devices, short, unknown_section};
use crate::import::domain::Domain;
use crate::import::guest::GuestSystem;
use crate::import::origin::Origin;
use crate::import::xml::{all, attribute, first, local, text};

/// The longest name of a system, in characters.
const MAX_NAME: usize = 200;
/// The most items of its hardware. A system has some dozens.
const MAX_ITEMS: usize = 1_000;
/// The most keys of properties in a note.
const SHOWN_KEYS: usize = 5;
/// The elements of a system that are read, or without an effect on a VM.
const KNOWN: [&str; 6] =
    ["Info", "Name", "VirtualHardwareSection", "OperatingSystemSection", "AnnotationSection", "Machine"];
/// The resource types of CPUs and of memory.
const CPU: u32 = 3;
const MEMORY: u32 = 4;

/// Reads a system. Of the items for several configurations of the appliance, it has those of the chosen one.
pub(super) fn read(
    system: Node<'_, '_>,
    chosen: Option<&str>,
    package: &mut Package<'_, '_>,
) -> Result<Domain, OvfError> {
    let name = text(system, &["Name"]).or_else(|| local(system, "id")).filter(|name| !name.is_empty());
    let name: String = name.unwrap_or("vm").chars().take(MAX_NAME).collect();
    let refused = |why: String| OvfError::System { system: short(&name), why };
    let mut notes = notes(system);
    let sections = all(system, &["VirtualHardwareSection"]);
    let hardware = sections.first().copied();
    let hardware = hardware.ok_or_else(|| refused("has no VirtualHardwareSection".to_owned()))?;
    if sections.len() > 1 {
        notes.push(
            "its hardware is described several times, for several products: the first is taken".to_owned(),
        );
    }
    if let Some(transport) = local(hardware, "transport").filter(|transport| !transport.is_empty()) {
        notes.push(format!(
            "it expects its OVF environment by {}, which berth does not have",
            short(transport)
        ));
    }
    let items = items(hardware, chosen);
    if items.len() > MAX_ITEMS {
        return Err(refused(format!("has {} devices, and at most {MAX_ITEMS} are read", items.len())));
    }
    let cpus = quantity(&items, CPU, &mut notes).and_then(|(amount, _)| amount.parse::<u64>().ok());
    let cpus = cpus.ok_or_else(|| refused("has no number of CPUs (resource type 3)".to_owned()))?;
    let memory = quantity(&items, MEMORY, &mut notes).and_then(|(amount, of)| {
        // Without units it is in MiB.
        bytes(amount, of.unwrap_or("byte * 2^20"))
    });
    let memory = memory
        .ok_or_else(|| refused("has no size of its memory (resource type 4) in a known unit".to_owned()))?;
    let firmware = firmware(system, hardware);
    if firmware == Firmware::UEFISecureBoot {
        notes.push("its Secure Boot has Microsoft's keys in berth: a guest that is not signed with them needs firmware UEFI".to_owned());
    }
    let is_windows = is_windows(system);
    if is_windows {
        notes.push("its guest is Windows: set guest_os = \"Windows\" of its VM".to_owned());
    }
    let mut domain = Domain {
        name,
        origin: Origin::Appliance,
        cpus,
        memory,
        firmware,
        uuid: None,
        guest: guest(system),
        // Those products give every machine one, and it is the console of most appliances.
        has_screen: true,
        disks: Vec::new(),
        cdroms: Vec::new(),
        interfaces: Vec::new(),
        is_running: None,
        notes,
    };
    devices::add(&mut domain, &items, is_windows, package)?;
    Ok(domain)
}

/// The amount and the unit of the first item of this type.
fn quantity<'a>(
    items: &[Node<'a, '_>],
    of: u32,
    notes: &mut Vec<String>,
) -> Option<(&'a str, Option<&'a str>)> {
    let item = *items.iter().find(|item| kind(**item) == Some(of))?;
    let has = |name: &str| text(item, &[name]).is_some_and(|amount| !matches!(amount, "0" | "-1"));
    let what = if of == CPU { "CPUs" } else { "memory" };
    if has("Reservation") || has("Limit") {
        notes.push(format!("it has a reservation or a limit of {what}, which is not taken over"));
    }
    if text(item, &["CoresPerSocket"]).is_some_and(|cores| cores != "1") {
        notes.push("it declares a CPU topology, which is not taken over: see cpu_topology".to_owned());
    }
    Some((text(item, &["VirtualQuantity"])?, text(item, &["AllocationUnits"])))
}

/// The firmware by the settings of VMware, or of VirtualBox.
fn firmware(system: Node<'_, '_>, hardware: Node<'_, '_>) -> Firmware {
    let settings: Vec<Node<'_, '_>> =
        ["Config", "ExtraConfig"].into_iter().flat_map(|name| all(hardware, &[name])).collect();
    let setting = |key: &str| {
        let node =
            settings.iter().find(|node| local(**node, "key").is_some_and(|found| found.ends_with(key)));
        node.and_then(|node| local(*node, "value")).unwrap_or_default().to_ascii_lowercase()
    };
    let of_virtualbox = [&["Machine", "Hardware", "Firmware"][..], &["Machine", "Firmware"]]
        .into_iter()
        .find_map(|path| attribute(system, path, "type"))
        .is_some_and(|kind| kind.to_ascii_uppercase().starts_with("EFI"));
    let is_uefi = setting("firmware") == "efi" || of_virtualbox;
    let is_secure =
        ["efiSecureBootEnabled", "uefi.secureBoot.enabled"].iter().any(|key| setting(key) == "true");
    match (is_uefi, is_secure) {
        (true, true) => Firmware::UEFISecureBoot,
        (true, false) => Firmware::UEFI,
        (false, _) => Firmware::BIOS,
    }
}

/// The guest by its product and its operating system.
fn guest(system: Node<'_, '_>) -> GuestSystem {
    let product = |name: &str| text(system, &["ProductSection", name]);
    let os = text(system, &["OperatingSystemSection", "Description"]);
    GuestSystem::of_appliance(product("Product"), product("Vendor"), product("Version"), os)
}

fn is_windows(system: Node<'_, '_>) -> bool {
    let Some(section) = first(system, &["OperatingSystemSection"]) else { return false };
    let is_its_type = |kind: &str| kind.to_ascii_lowercase().starts_with("win");
    local(section, "osType").is_some_and(is_its_type)
        || ["Description", "OSType"].into_iter().any(|name| {
            text(section, &[name]).is_some_and(|text| text.to_ascii_lowercase().contains("windows"))
        })
}

/// Notes on the sections of a system.
fn notes(system: Node<'_, '_>) -> Vec<String> {
    let mut notes = Vec::new();
    for section in system.children().filter(Node::is_element) {
        match section.tag_name().name() {
            "EulaSection" => notes.push(LICENCE.to_owned()),
            "ProductSection" => notes.extend(properties(section)),
            name if KNOWN.contains(&name) => {}
            name => notes.push(unknown_section(name)),
        }
    }
    notes
}

/// The note on the properties of a product.
pub(super) fn properties(section: Node<'_, '_>) -> Option<String> {
    let keys: Vec<&str> =
        all(section, &["Property"]).into_iter().filter_map(|property| local(property, "key")).collect();
    let shown: Vec<String> = keys.iter().take(SHOWN_KEYS).map(|key| short(key)).collect();
    let more = if keys.len() > SHOWN_KEYS { ", …" } else { "" };
    (!keys.is_empty()).then(|| {
        format!(
            "it has OVF properties ({}{more}), which its guest would ask its hypervisor for: berth does not hand them out, so configure \
             the guest within, or by its bootstrap",
            shown.join(", ")
        )
    })
}
