//! PCI and USB devices that the administrator lets guests have.

use std::fmt;
use std::str::FromStr;

/// A name under which guests may have devices of this host, and which devices these are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMapping<S> {
    pub name: String,
    pub devices: S,
}

pub type PciMapping = DeviceMapping<PciSelector>;
pub type UsbMapping = DeviceMapping<UsbSelector>;

/// Which devices of a host are meant.
pub trait DeviceSelector: FromStr<Err = String> {
    /// The forms of a mapping, for people.
    const FORMS: &'static str;
}

/// Which PCI devices of a host are meant.
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

impl DeviceSelector for PciSelector {
    const FORMS: &'static str = "NAME=ADDRESS or NAME=VENDOR:DEVICE";
}

/// Which USB devices of a host are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsbSelector {
    /// The one in this port, bus and port as the kernel writes them: `1-2`, or `1-2.3` in a port of a hub.
    Port(String),
    /// Each device with this vendor and product, such as `0403:6001`.
    Id(String),
}

impl fmt::Display for UsbSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Port(text) | Self::Id(text)) = self;
        f.write_str(text)
    }
}

impl DeviceSelector for UsbSelector {
    const FORMS: &'static str = "NAME=BUS-PORT or NAME=VENDOR:PRODUCT";
}

/// The most hubs between a port and its controller, and one.
const MOST_TIERS: usize = 7;

impl FromStr for UsbSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.to_ascii_lowercase();
        let is_number = |text: &str| {
            (1..=3).contains(&text.len())
                && !text.starts_with('0')
                && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if let Some((vendor, product)) = text.split_once(':')
            && is_hex(vendor, 4)
            && is_hex(product, 4)
        {
            return Ok(Self::Id(text));
        }
        if let Some((bus, ports)) = text.split_once('-')
            && is_number(bus)
            && ports.split('.').all(is_number)
            && ports.split('.').count() <= MOST_TIERS
        {
            return Ok(Self::Port(text));
        }
        Err(format!(
            "{text:?} is neither a port, such as 1-2, or 1-2.3 for a port of a hub, nor vendor and product, such as 0403:6001"
        ))
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl<S: DeviceSelector> FromStr for DeviceMapping<S> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, devices) = text.split_once('=').ok_or_else(|| format!("{text:?} is not {}", S::FORMS))?;
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

/// A PCI device that guests may have, as it is on the host now.
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

/// A USB device that guests may have, as it is on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsbDeviceFacts {
    /// The name of its mapping.
    pub name: String,
    /// Its port, such as `1-2.3`. Of a mapping to which no device corresponds, its selector.
    pub port: String,
    /// Vendor and product. None: there is no such device.
    pub id: Option<String>,
    /// The product in the words of the device, made harmless.
    pub product: Option<String>,
    /// The number of its bus, and its own on that bus.
    pub bus: u16,
    pub number: u16,
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

    #[test]
    fn a_usb_mapping_is_a_name_with_a_port_or_an_identifier() {
        let parse = |text: &str| text.parse::<UsbMapping>().map(|mapping| mapping.devices);
        assert_eq!(parse("key=1-2"), Ok(UsbSelector::Port("1-2".to_owned())));
        assert_eq!(parse("key=12-2.14.3"), Ok(UsbSelector::Port("12-2.14.3".to_owned())));
        assert_eq!(parse("key=0403:6001"), Ok(UsbSelector::Id("0403:6001".to_owned())));
        assert_eq!(parse("key=0A5C:21e8"), Ok(UsbSelector::Id("0a5c:21e8".to_owned())));
        for wrong in [
            "key",
            "=1-2",
            "Key=1-2",
            "key=1",
            "key=usb1",
            "key=1-",
            "key=-2",
            "key=1-2.",
            "key=1-0",
            "key=01-2",
            "key=1-2:1.0",
            "key=1-1.1.1.1.1.1.1.1",
            "key=0403:601",
            "key=0403:6001:1",
            "key=../1-2",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        insta::assert_snapshot!(parse("key").expect_err("no form"), @r#""key" is not NAME=BUS-PORT or NAME=VENDOR:PRODUCT"#);
    }
}
