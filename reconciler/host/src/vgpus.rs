//! vGPUs (mediated devices) that the administrator lets guests have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::passthrough::{DeviceMapping, DeviceSelector, PciSelector};

/// The most characters of a type.
const MOST_TYPE: usize = 64;

pub type VgpuMapping = DeviceMapping<VgpuSelector>;

/// Which vGPUs of a host are meant: those of a type, of each of these PCI devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuSelector {
    /// The devices that they are parts of.
    pub parents: PciSelector,
    /// The type as the driver names it (`nvidia-558`), or its name for people (`NVIDIA A40-8Q`).
    pub mdev_type: String,
}

impl fmt::Display for VgpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.parents, self.mdev_type)
    }
}

impl DeviceSelector for VgpuSelector {
    const FORMS: &'static str = "NAME=ADDRESS/TYPE or NAME=VENDOR:DEVICE/TYPE";
}

impl FromStr for VgpuSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((parents, mdev_type)) = text.split_once('/') else {
            return Err(format!(
                "{text:?} has no type: a device and a type, such as 0000:41:00.0/nvidia-232 or 10de:2235/nvidia-558, are needed"
            ));
        };
        let is_type = (1..=MOST_TYPE).contains(&mdev_type.len())
            && mdev_type.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
            && !mdev_type.contains('/');
        if !is_type {
            return Err(format!(
                "{mdev_type:?} is not a type: a name in the folder mdev_supported_types of the device, such as nvidia-558, or its name for people, such as NVIDIA A40-8Q"
            ));
        }
        Ok(Self { parents: parents.parse()?, mdev_type: mdev_type.to_owned() })
    }
}

/// The vGPUs of one type that guests may have of a PCI device, as they are on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VgpuFacts {
    /// The name of its mapping.
    pub name: String,
    /// The address of the device that they are parts of. Of a mapping to which no device corresponds, its selector.
    pub parent: String,
    /// The type as the driver names it. Of a device without that type, as it was given.
    pub mdev_type: String,
    /// The type's name for people, made harmless. None: the driver gives none.
    pub type_name: Option<String>,
    /// Whether the device is a display controller (PCI class 03).
    pub display: bool,
    /// The number that guests can have: those that were made for guests, and those that can still be made.
    pub usable: u32,
    /// The instance that each was taken for, by the UUID of the vGPU. A vGPU that was taken need not have been made.
    pub held_by: BTreeMap<String, String>,
    /// The UUIDs in `held_by` of those that exist. The others take no room on the device.
    pub made: BTreeSet<String>,
    /// Why no guest can have one, for people.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_a_name_with_a_device_and_a_type() {
        let parse = |text: &str| text.parse::<VgpuMapping>().map(|mapping| mapping.devices);
        let at = |slot: &str, function| PciSelector::Address { slot: slot.to_owned(), function };
        let of = |parents, mdev_type: &str| Ok(VgpuSelector { parents, mdev_type: mdev_type.to_owned() });
        assert_eq!(parse("a40-8q=0000:41:00.0/nvidia-558"), of(at("0000:41:00", Some(0)), "nvidia-558"));
        assert_eq!(parse("a40-8q=0000:41:00/nvidia-558"), of(at("0000:41:00", None), "nvidia-558"));
        let id = PciSelector::Id("10de:2235".to_owned());
        assert_eq!(parse("a40-8q=10DE:2235/NVIDIA A40-8Q"), of(id, "NVIDIA A40-8Q"));
        for wrong in [
            "a40-8q",
            "A40=0000:41:00.0/nvidia-558",
            "a40-8q=0000:41:00.0",
            "a40-8q=0000:41:00.0/",
            "a40-8q=/nvidia-558",
            "a40-8q=41:00.0/nvidia-558",
            "a40-8q=0000:41:00.0/../../create",
            "a40-8q=0000:41:00.0/nvidia-558\n",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&format!("a40-8q=10de:2235/{}", "x".repeat(65))).is_err(), "it is too long");
        insta::assert_snapshot!(parse("a40-8q").expect_err("no form"), @r#""a40-8q" is not NAME=ADDRESS/TYPE or NAME=VENDOR:DEVICE/TYPE"#);
    }
}
