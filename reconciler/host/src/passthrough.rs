//! PCI devices that the administrator lets guests have.

use std::fmt;
use std::str::FromStr;

/// A name under which guests may have devices of this host, and which devices these are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciMapping {
    pub name: String,
    pub devices: PciSelector,
}

/// Which devices of a host are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PciSelector {
    /// The one at this address. Without a function: with all of its functions.
    Address {
        /// Domain, bus and slot, such as `0000:01:00`.
        slot: String,
        function: Option<u8>,
    },
    /// Each device with this vendor and device, such as `10de:20b0`, together with the other functions of its slot that are in its
    /// IOMMU group.
    Id(String),
}

impl fmt::Display for PciSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { slot, function: Some(function) } => write!(f, "{slot}.{function}"),
            Self::Address { slot: text, function: None } | Self::Id(text) => f.write_str(text),
        }
    }
}

impl FromStr for PciMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, devices) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not NAME=ADDRESS or NAME=VENDOR:DEVICE"))?;
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name = (1..=63).contains(&name.len())
            && name.bytes().all(inner)
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !is_name {
            return Err(format!(
                "{name:?} is not a name: lower-case letters, digits and '-', at most 63 characters, not first or last '-'"
            ));
        }
        Ok(Self { name: name.to_owned(), devices: devices.parse()? })
    }
}

impl FromStr for PciSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is neither an address, such as 0000:01:00.0, or 0000:01:00 for all functions of a device, nor vendor and device, such as 10de:20b0"
            )
        };
        let text = text.to_ascii_lowercase();
        let is_hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [vendor, device] if is_hex(vendor, 4) && is_hex(device, 4) => Ok(Self::Id(text)),
            [domain, bus, rest] if is_hex(domain, 4) && is_hex(bus, 2) => {
                let (slot, function) = match rest.split_once('.') {
                    None => (rest, None),
                    Some((slot, function)) => {
                        let number =
                            function.parse().ok().filter(|number| *number < 8 && function.len() == 1);
                        (slot, Some(number.ok_or_else(wrong)?))
                    }
                };
                if !is_hex(slot, 2) {
                    return Err(wrong());
                }
                Ok(Self::Address { slot: format!("{domain}:{bus}:{slot}"), function })
            }
            _ => Err(wrong()),
        }
    }
}

/// A device that guests may have, as it is on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciDeviceFacts {
    /// The name of its mapping.
    pub name: String,
    /// The address of its first function. Of a mapping to which no device corresponds, its selector.
    pub address: String,
    /// Vendor and device of its first function. None: there is no such device.
    pub id: Option<String>,
    /// Whether one of its functions is a display controller (PCI class 03).
    pub display: bool,
    /// The addresses of its functions.
    pub functions: Vec<String>,
    /// The numbers of their IOMMU groups.
    pub groups: Vec<u32>,
    /// Why no guest can have it, for people.
    pub problem: Option<String>,
    /// The instance that it was taken for.
    pub held_by: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_a_name_with_an_address_or_an_identifier() {
        let parse = |text: &str| text.parse::<PciMapping>().map(|mapping| mapping.devices);
        let at = |function| PciSelector::Address { slot: "0000:01:00".to_owned(), function };
        assert_eq!(parse("gpu-a100=0000:01:00.0"), Ok(at(Some(0))));
        assert_eq!(parse("gpu-a100=0000:01:00"), Ok(at(None)));
        assert_eq!(parse("gpu-a100=10DE:20b0"), Ok(PciSelector::Id("10de:20b0".to_owned())));
        assert_eq!("gpu=10de:20b0".parse::<PciMapping>().map(|m| m.name), Ok("gpu".to_owned()));
        for wrong in [
            "gpu",
            "=0000:01:00.0",
            "GPU=0000:01:00.0",
            "-gpu=0000:01:00.0",
            "gpu=01:00.0",
            "gpu=0000:01:00.8",
            "gpu=0000:01:00.00",
            "gpu=0000:01:00.",
            "gpu=10de:20b",
            "gpu=../../etc",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
