//! Forms of text: their syntax, their equality and their canonical spelling.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_api::{
    AddressRange, CpuAmount, Quantity, ResourceName,
    cron::{Cron, time_zone},
    hardware::{LEAST_MEMORY, is_machine_type, is_uuid},
    password, redacted_url, sysprep,
};
use ipnet::Ipv6Net;

use crate::selector::{LABEL_KEY, is_domain, is_label_key};

/// The number of characters that follow the prefix of a generated name.
pub const SUFFIX_LENGTH: usize = 10;

/// The syntax of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Any text.
    Any,
    /// A DNS label: the name of an object.
    Name,
    /// The name of an attachment, which may contain dots.
    DottedName,
    /// A DNS domain to which a host name is added.
    Domain,
    /// The beginning of a generated name of the form [`Form::Name`].
    NamePrefix,
    /// The beginning of a generated name of the form [`Form::DottedName`].
    DottedNamePrefix,
    /// An amount of bytes.
    Quantity,
    /// An amount of memory for a guest.
    Memory,
    /// An amount of CPU time.
    Cpus,
    /// The name of a CPU model or level.
    CpuModel,
    /// QEMU's machine type, with its version.
    MachineType,
    /// A source that a machine boots from.
    BootSource,
    /// The serial number of a machine.
    SerialNumber,
    /// The key of a label.
    LabelKey,
    /// A unicast MAC address.
    Mac,
    /// A UUID.
    Uuid,
    /// An IPv4 address.
    Ipv4,
    /// A range of IPv4 addresses.
    Ipv4Range,
    /// An IPv6 address.
    Ipv6,
    /// An IPv6 prefix of a network.
    Ipv6Prefix,
    /// A range of IPv4 or IPv6 addresses.
    IpRange,
    /// An IPv4 or IPv6 address.
    Ip,
    /// A range of public addresses: a CIDR, or the first and the last address.
    PoolRange,
    /// The first and the last of a sequence of IPv4 addresses.
    Ipv4Sequence,
    /// The first and the last of a sequence of IPv6 addresses.
    Ipv6Sequence,
    /// A port or a range of ports.
    Ports,
    /// A VLAN or a range of VLANs.
    Vlans,
    /// 64 hexadecimal digits.
    Sha256,
    /// 128 hexadecimal digits.
    Sha512,
    /// The URL of a checksum file.
    HttpUrl,
    /// The URL of an image.
    ImageUrl,
    /// A line of an `authorized_keys` file.
    SshKey,
    /// A cloud-init document.
    UserData,
    /// The name of a user of a guest.
    UserName,
    /// A password, or its hash.
    Password,
    /// The hash of a password.
    PasswordHash,
    /// An answer file for Windows.
    Unattend,
    /// A network configuration of cloud-init.
    NetworkConfig,
    /// Meta-data of cloud-init.
    MetaData,
    /// A cron expression.
    Cron,
    /// The IANA name of a time zone.
    TimeZone,
}

impl Form {
    /// Whether two texts mean the same.
    #[must_use]
    pub fn same(self, a: &str, b: &str) -> bool {
        match self {
            Self::Quantity | Self::Memory => Quantity(a.to_owned()) == Quantity(b.to_owned()),
            Self::Cpus => CpuAmount(a.to_owned()) == CpuAmount(b.to_owned()),
            Self::Mac | Self::Uuid | Self::Ipv6 | Self::Ipv6Prefix | Self::Ipv6Sequence | Self::Ip => {
                self.canonical(a) == self.canonical(b)
            }
            Self::SshKey => ssh_key(a) == ssh_key(b),
            Self::NetworkConfig | Self::MetaData | Self::Unattend => self.canonical(a) == self.canonical(b),
            Self::UserData => {
                self.canonical(a) == self.canonical(b) || berth_api::user_data::is_same_cloud_config(a, b)
            }
            _ => a == b,
        }
    }

    /// The text as written into the custom resource.
    #[must_use]
    pub fn canonical(self, text: &str) -> String {
        match self {
            Self::Mac => mac(text).unwrap_or_else(|| text.to_ascii_lowercase()),
            Self::Uuid => text.to_ascii_lowercase(),
            Self::Ipv6 | Self::Ip => {
                text.parse().map_or_else(|_| text.to_owned(), |address: Ipv6Addr| address.to_string())
            }
            Self::Ipv6Prefix => {
                text.parse().map_or_else(|_| text.to_owned(), |prefix: Ipv6Net| prefix.to_string())
            }
            Self::Ipv6Sequence => {
                let addresses: Vec<String> = text.split('-').map(|one| Self::Ipv6.canonical(one)).collect();
                addresses.join("-")
            }
            Self::SshKey => text.split_whitespace().collect::<Vec<_>>().join(" "),
            Self::UserData | Self::NetworkConfig | Self::MetaData | Self::Unattend => {
                text.replace("\r\n", "\n").trim_end().to_owned()
            }
            _ => text.to_owned(),
        }
    }

    /// The problem with a text, and its remedy.
    #[must_use]
    pub fn problem(self, text: &str) -> Option<String> {
        match self {
            Self::Any => None,
            Self::UserData => Some(sentence(&berth_api::user_data::check_declared(text).err()?.to_string())),
            Self::UserName if is_user_name(text) => None,
            Self::UserName => Some(format!(
                "{text:?} is not the name of a user: use lower-case letters, digits, \"-\" and \"_\", at most 32 characters, with a \
                 letter or \"_\" at the beginning."
            )),
            Self::Password => Some(sentence(password::check(text).err()?)),
            Self::PasswordHash => Some(sentence(password::check_hash(text).err()?)),
            Self::Unattend => Some(sentence(&sysprep::check_unattend(text).err()?)),
            Self::NetworkConfig => Some(sentence(&berth_api::user_data::check_network_config(text).err()?)),
            Self::MetaData => Some(sentence(&berth_api::user_data::check_meta_data(text).err()?)),
            Self::Name if ResourceName::is_dns_label(text) => None,
            Self::Name => Some(format!(
                "{text:?} is not a DNS label: use lower-case letters, digits and \"-\", at most 63 characters, \
                 with a letter or digit at both ends."
            )),
            Self::DottedName if is_domain(text) => None,
            Self::DottedName => Some(format!(
                "{text:?} is not a name: use lower-case letters, digits, \"-\" and \".\", at most 253 characters."
            )),
            Self::Domain if text.len() <= 189 && text.split('.').all(ResourceName::is_dns_label) => None,
            Self::Domain => Some(format!(
                "{text:?} is not a domain: use DNS labels joined by \".\", for example \"example.org\", at most 189 characters."
            )),
            Self::NamePrefix if is_prefix(Self::Name, text) => None,
            Self::NamePrefix => Some(format!(
                "{text:?} cannot begin a name: use lower-case letters, digits and \"-\", with a letter or digit at the beginning, 1 to \
                 {} characters, to which {SUFFIX_LENGTH} are added.",
                63 - SUFFIX_LENGTH
            )),
            Self::DottedNamePrefix if is_prefix(Self::DottedName, text) => None,
            Self::DottedNamePrefix => Some(format!(
                "{text:?} cannot begin a name: use lower-case letters, digits, \"-\" and \".\", with a letter or digit at the \
                 beginning, 1 to {} characters, to which {SUFFIX_LENGTH} are added.",
                253 - SUFFIX_LENGTH
            )),
            Self::Cron => Cron::parse(text).err().map(|error| {
                format!("{text:?} is not a schedule: {error}. Write for example \"0 3 * * *\" or \"@daily\".")
            }),
            Self::TimeZone if time_zone(text).is_some() => None,
            Self::TimeZone => Some(format!(
                "{text:?} is not a time zone: write an IANA name, for example \"Europe/Stockholm\", or \"UTC\"."
            )),
            Self::Quantity => text.parse::<Quantity>().err().map(|error| format!("{error}.")),
            Self::Memory => match text.parse::<Quantity>().and_then(|quantity| quantity.bytes()) {
                Ok(bytes) if bytes < LEAST_MEMORY => Some(format!(
                    "{text:?} is less than {}: the firmware needs some of it, and no kernel boots with the rest.",
                    Quantity::from_bytes(LEAST_MEMORY)
                )),
                Ok(_) => None,
                Err(error) => Some(format!("{error}.")),
            },
            Self::Cpus => text.parse::<CpuAmount>().err().map(|error| format!("{error}.")),
            Self::CpuModel if is_plain(text) && text.starts_with(|c: char| c.is_ascii_alphanumeric()) => None,
            Self::CpuModel => Some(format!(
                "{text:?} is not the name of a CPU model: write for example \"x86-64-v3\" or \"Skylake-Server\"."
            )),
            Self::MachineType if is_machine_type(text) => None,
            Self::MachineType => Some(format!(
                "{text:?} is not a machine type of QEMU with its version: write for example \"pc-q35-9.2\", or \"virt-9.2\" of aarch64."
            )),
            Self::BootSource if matches!(text, "Disk" | "Cdrom" | "Network") => None,
            Self::BootSource => Some(format!("{text:?} is not one of \"Disk\", \"Cdrom\", \"Network\".")),
            Self::SerialNumber if is_plain(text) => None,
            Self::SerialNumber => Some(format!(
                "{text:?} is not a serial number: use letters, digits, \"-\", \".\" and \"_\", 1 to 64 characters."
            )),
            Self::LabelKey if is_label_key(text) => None,
            Self::LabelKey => Some(format!("{text:?} is not the key of a label: {LABEL_KEY}")),
            Self::Mac => mac_problem(text),
            Self::Uuid if is_uuid(text) => None,
            Self::Uuid => Some(format!(
                "{text:?} is not a UUID: write for example \"7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c\"."
            )),
            Self::Ipv4 if text.parse::<Ipv4Addr>().is_ok() => None,
            Self::Ipv4 => Some(format!(
                "{text:?} is not an IPv4 address: write for example \"10.77.0.10\", without a prefix length."
            )),
            Self::Ipv4Range if is_ipv4_range(text) => None,
            Self::Ipv4Range => Some(format!(
                "{text:?} is not a range of IPv4 addresses: write for example \"10.77.0.0/16\", with no host bits set."
            )),
            Self::Ipv6 if text.parse::<Ipv6Addr>().is_ok() => None,
            Self::Ipv6 => Some(format!(
                "{text:?} is not an IPv6 address: write for example \"fd00:60::10\", without a prefix length."
            )),
            Self::Ipv6Prefix => ipv6_prefix_problem(text),
            Self::Ip if text.parse::<IpAddr>().is_ok() => None,
            Self::Ip => Some(format!(
                "{text:?} is not an address: write for example \"203.0.113.7\" or \"2001:db8::7\", without a prefix length."
            )),
            Self::PoolRange => pool_range_problem(text),
            Self::IpRange if is_ip_range(text) => None,
            Self::IpRange if text.parse::<IpAddr>().is_ok() => Some(format!(
                "{text:?} is an address: write the range of this address alone, \"{text}/{}\".",
                if text.contains(':') { 128 } else { 32 }
            )),
            Self::IpRange => Some(format!(
                "{text:?} is not a range of addresses: write for example \"192.0.2.0/24\" or \"fd00::/8\", with no host bits set."
            )),
            Self::Ipv4Sequence if is_sequence(text) => None,
            Self::Ipv4Sequence => Some(format!(
                "{text:?} is not a sequence of IPv4 addresses: write the first and the last one, for example \"192.0.2.50-192.0.2.99\"."
            )),
            Self::Ipv6Sequence if is_ipv6_sequence(text) => None,
            Self::Ipv6Sequence => Some(format!(
                "{text:?} is not a sequence of IPv6 addresses: write the first and the last one, for example \"2001:db8:7::1000-2001:db8:7::1fff\"."
            )),
            Self::Ports if berth_api::security_group::port_range(text).is_some() => None,
            Self::Ports => Some(format!(
                "{text:?} is not a port or a range of ports: write a number from 1 to 65535, or for example \"8000-8099\"."
            )),
            Self::Vlans if berth_api::bridge::vlan_range(text).is_some() => None,
            Self::Vlans => Some(format!(
                "{text:?} is not a VLAN or a range of VLANs: write a number from 1 to 4094, or for example \"100-199\"."
            )),
            Self::Sha256 if is_digest(text, 64) => None,
            Self::Sha256 => Some(format!(
                "{text:?} is not a SHA-256 checksum: write 64 hexadecimal digits in lower case, as sha256sum prints them."
            )),
            Self::Sha512 if is_digest(text, 128) => None,
            Self::Sha512 => Some(format!(
                "{text:?} is not a SHA-512 checksum: write 128 hexadecimal digits in lower case, as sha512sum prints them."
            )),
            Self::HttpUrl if is_web_url(text) => None,
            Self::HttpUrl => {
                Some(format!("{:?} must start with http:// or https:// and a host.", redacted_url(text)))
            }
            Self::ImageUrl
                if is_web_url(text)
                    || text
                        .strip_prefix("oci://")
                        .is_some_and(|rest| is_web_url(&format!("https://{rest}")))
                    || text.starts_with("file:///") =>
            {
                None
            }
            Self::ImageUrl => Some(format!(
                "{:?} must start with http://, https:// or oci:// and a host, or with file:///.",
                redacted_url(text)
            )),
            Self::SshKey => {
                let trimmed = text.trim();
                let known = ["ssh-", "ecdsa-", "sk-"].iter().any(|prefix| trimmed.starts_with(prefix));
                let one_line = !trimmed.contains('\n') && trimmed.contains(' ');
                (!known || !one_line).then(|| {
                    "This is not an SSH public key: write one line that starts with ssh-, ecdsa- or sk-, as in a .pub \
                     file."
                        .to_owned()
                })
            }
        }
    }
}

/// Whether a text has 1 to 64 letters, digits, `-`, `.` and `_`.
fn is_plain(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

fn sentence(error: &str) -> String {
    let (first, rest) = error.split_at(1);
    format!("{}{rest}.", first.to_uppercase())
}

fn is_user_name(text: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let is_other = |byte: u8| is_first(byte) || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 32 && text.bytes().next().is_some_and(is_first) && text.bytes().all(is_other)
}

/// Whether a text and a suffix are a name.
fn is_prefix(form: Form, text: &str) -> bool {
    !text.is_empty() && form.problem(&format!("{text}{}", "x".repeat(SUFFIX_LENGTH))).is_none()
}

/// Whether a text is an address without host bits and the length of its prefix.
fn is_ipv4_range(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let Some(length) = length.parse::<u32>().ok().filter(|length| is_number && *length <= 32) else {
        return false;
    };
    let host_bits = u32::MAX.checked_shr(length).unwrap_or_default();
    address.parse::<Ipv4Addr>().is_ok_and(|address| u32::from(address) & host_bits == 0)
}

fn is_ip_range(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<Ipv6Addr>() else { return is_ipv4_range(text) };
    let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let Some(length) = length.parse::<u32>().ok().filter(|length| is_number && *length <= 128) else {
        return false;
    };
    let host_bits = u128::MAX.checked_shr(length).unwrap_or_default();
    u128::from(address) & host_bits == 0
}

fn pool_range_problem(text: &str) -> Option<String> {
    if let Err(why) = AddressRange::parse(text) {
        return Some(format!("{text:?} {why}."));
    }
    let is_sequence = text.contains('-');
    (!is_sequence && !is_ip_range(text)).then(|| {
        format!("{text:?} is not a range of addresses: write for example \"203.0.113.16/28\", with no host bits set.")
    })
}

fn ipv6_prefix_problem(text: &str) -> Option<String> {
    let write = "write a /64 with no host bits set, for example \"fd00:60::/64\"";
    let Ok(prefix) = text.parse::<Ipv6Net>() else {
        return Some(format!("{text:?} is not an IPv6 prefix: {write}."));
    };
    if prefix.prefix_len() != 64 || prefix.trunc() != prefix {
        return Some(format!("{text:?} is not the prefix of a network: {write}."));
    }
    let first = prefix.network().segments()[0];
    let is_unicast = first & 0xfe00 == 0xfc00 || first & 0xe000 == 0x2000;
    (!is_unicast).then(|| {
        format!("{text:?} is neither of fc00::/7 (unique local) nor of 2000::/3 (global): write for example \"fd00:60::/64\".")
    })
}

fn is_digest(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_web_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', ':', '?', '#']))
}

/// The usual spelling of a MAC address: six pairs of digits in lower case, separated by colons. Others separate the pairs by
/// hyphens, or groups of four digits by dots.
fn mac(text: &str) -> Option<String> {
    let groups = |separator: char, digits: usize| {
        let hex = |group: &str| group.len() == digits && group.bytes().all(|b| b.is_ascii_hexdigit());
        text.split(separator).all(hex).then(|| text.replace(separator, ""))
    };
    let digits = groups(':', 2).or_else(|| groups('-', 2)).or_else(|| groups('.', 4));
    let digits = digits.filter(|digits| digits.len() == 12)?.to_ascii_lowercase();
    let pairs: Vec<&str> = (0..6).filter_map(|i| digits.get(2 * i..2 * i + 2)).collect();
    Some(pairs.join(":"))
}

fn mac_problem(text: &str) -> Option<String> {
    let Some(mac) = mac(text) else {
        return Some(format!(
            "{text:?} is not a MAC address: write six pairs of hexadecimal digits, for example \"52:54:00:12:34:56\"."
        ));
    };
    let first = mac.get(..2).and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or_default();
    if mac == "00:00:00:00:00:00" {
        return Some(format!(
            "{text:?} is the address of no interface: write for example \"52:54:00:12:34:56\"."
        ));
    }
    // The last two bits of the second digit are the local bit and the multicast bit.
    (first & 1 == 1).then(|| {
        format!(
            "{text:?} is a multicast address, not one of an interface: its second digit must be even, as in \
             \"52:54:00:12:34:56\"."
        )
    })
}

/// The parts of an SSH key that a login depends on: its type and its data, without the comment.
fn ssh_key(text: &str) -> Vec<&str> {
    text.split_whitespace().take(2).collect()
}

fn is_ipv6_sequence(text: &str) -> bool {
    let Some((first, last)) = text.split_once('-') else { return false };
    let parsed: (Option<Ipv6Addr>, Option<Ipv6Addr>) = (first.parse().ok(), last.parse().ok());
    matches!(parsed, (Some(first), Some(last)) if first <= last)
}

fn is_sequence(text: &str) -> bool {
    let Some((first, last)) = text.split_once('-') else { return false };
    let parsed: (Option<Ipv4Addr>, Option<Ipv4Addr>) = (first.parse().ok(), last.parse().ok());
    matches!(parsed, (Some(first), Some(last)) if first <= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_mean_the_same_are_the_same() {
        assert!(Form::Ipv6Sequence.same("2001:DB8:7:0::50-2001:db8:7::99", "2001:db8:7::50-2001:db8:7::99"));
        assert!(Form::Quantity.same("1Gi", "1024Mi"));
        assert!(!Form::Quantity.same("1Gi", "1G"));
        assert!(Form::Mac.same("52:54:00:AB:cd:01", "52:54:00:ab:CD:01"));
        assert!(Form::Mac.same("52-54-00-AB-CD-01", "5254.00ab.cd01"));
        assert_eq!(Form::Mac.canonical("5254.00AB.cd01"), "52:54:00:ab:cd:01");
        assert!(!Form::Mac.same("52:54:00:ab:cd:01", "52:54:00:ab:cd:02"));
        assert!(Form::SshKey.same("ssh-ed25519  AAAA me\n", "ssh-ed25519 AAAA you@there"));
        assert!(!Form::SshKey.same("ssh-ed25519 AAAA me", "ssh-ed25519 BBBB me"));
        assert!(Form::MetaData.same("a: 1\r\n", "a: 1") && !Form::MetaData.same("a: 1", "a: 2"));
        assert!(Form::UserData.same("#cloud-config\r\na: 1\r\n", "#cloud-config\na: 1\n\n"));
        let other_words = "#cloud-config\n# A comment.\nb: [\"x\", z]\na: 1\n";
        assert!(Form::UserData.same("#cloud-config\na: 1\nb:\n  - x\n  - 'z'\n", other_words));
        for other in
            ["#cloud-config\na: 2\n", "#!/bin/sh\na: 1\n", "## template: jinja\n#cloud-config\na: 1\n"]
        {
            assert!(!Form::UserData.same("#cloud-config\na: 1\n", other), "{other}");
        }
        assert!(!Form::UserData.same("#cloud-config\na: 0644\n", "#cloud-config\na: 644\n"));
        assert!(!Form::UserData.same("#cloud-config\na: yes\n", "#cloud-config\na: 'yes'\n"));
        assert!(!Form::UserData.same("#cloud-config\na: [x, y]\n", "#cloud-config\na: [y, x]\n"));
        assert!(!Form::UserData.same("#!/bin/sh\n# a\n", "#!/bin/sh\n# b\n"));
        assert!(!Form::Any.same("a", "A"));
    }

    #[test]
    fn texts_that_admission_refuses_have_a_problem() {
        let bad = [
            (Form::Quantity, "512MB"),
            (Form::Quantity, "-1"),
            (Form::Quantity, "lots"),
            (Form::Name, "Web"),
            (Form::Name, "a.b"),
            (Form::Domain, "example.org."),
            (Form::Domain, "example_org"),
            (Form::Mac, "53:54:00:00:00:01"),
            (Form::Mac, "52:54:00:00:01"),
            (Form::Mac, "00-00-00-00-00-00"),
            (Form::Mac, "52:54-00:00:00:01"),
            (Form::Mac, "52:54:00:00:00:0g"),
            (Form::Memory, "1Ki"),
            (Form::Memory, "512MB"),
            (Form::LabelKey, "a b"),
            (Form::LabelKey, ""),
            (Form::Ipv4, "10.0.0.1/24"),
            (Form::Ipv4, "10.0.0.256"),
            (Form::Ipv4Range, "10.0.0.0"),
            (Form::Ipv4Range, "10.0.0.1/24"),
            (Form::Ipv4Range, "10.0.0.0/33"),
            (Form::Ipv4Range, "10.0.0.0/+8"),
            (Form::Ipv4Range, "fd00::/64"),
            (Form::Ip, "203.0.113.7/32"),
            (Form::Ip, "web"),
            (Form::PoolRange, "203.0.113.7"),
            (Form::PoolRange, "203.0.113.7/24"),
            (Form::PoolRange, "203.0.113.9-203.0.113.8"),
            (Form::PoolRange, "203.0.113.9-2001:db8::1"),
            (Form::PoolRange, "10.0.0.0/8"),
            (Form::PoolRange, "2001:db8::/48"),
            (Form::PoolRange, "2001:db8::1/64"),
            (Form::PoolRange, "fe80::/64"),
            (Form::IpRange, "fd00::1/64"),
            (Form::IpRange, "fd00::1"),
            (Form::IpRange, "10.0.0.1"),
            (Form::IpRange, "10.0.0.1/24"),
            (Form::Ipv6Sequence, "2001:db8:7::99-2001:db8:7::50"),
            (Form::Ipv6Sequence, "192.0.2.50-192.0.2.99"),
            (Form::Ipv4Sequence, "192.0.2.99-192.0.2.50"),
            (Form::Ipv4Sequence, "192.0.2.50"),
            (Form::Ipv4Sequence, "192.0.2.50-99"),
            (Form::Ports, "0"),
            (Form::Ports, "90-80"),
            (Form::Ports, "http"),
            (Form::Vlans, "0"),
            (Form::Vlans, "4095"),
            (Form::Vlans, "20-10"),
            (Form::Sha256, "ABC"),
            (Form::Sha512, "abc"),
            (Form::HttpUrl, "file:///SHA256SUMS"),
            (Form::ImageUrl, "ftp://x/y"),
            (Form::ImageUrl, "file://y"),
            (Form::ImageUrl, "https:///x"),
            (Form::ImageUrl, "oci:///x"),
            (Form::HttpUrl, "http://"),
            (Form::SshKey, "hello"),
            (Form::SshKey, "ssh-rsa A\nssh-rsa B"),
            (Form::UserData, "#cloud-config\na: b: c\n"),
            (Form::UserData, "#cloud-config\na: 1\na: 2\n"),
            (Form::UserData, "hello"),
            (Form::NetworkConfig, "ethernets: {}"),
            (Form::MetaData, "hello"),
        ];
        for (form, text) in bad {
            assert!(form.problem(text).is_some(), "{form:?} {text}");
        }
        let good = [
            (Form::Quantity, "1.5Gi"),
            (Form::Name, "web-1"),
            (Form::DottedName, "web.data"),
            (Form::Domain, "example.org"),
            (Form::Mac, "52:54:00:AB:00:01"),
            (Form::Mac, "52-54-00-AB-00-01"),
            (Form::Memory, "16Mi"),
            (Form::LabelKey, "topology.kubernetes.io/zone"),
            (Form::Ipv4, "10.0.0.1"),
            (Form::Ipv4Range, "10.0.0.0/24"),
            (Form::Ipv4Range, "0.0.0.0/0"),
            (Form::Ipv4Range, "192.0.2.7/32"),
            (Form::Ip, "203.0.113.7"),
            (Form::Ip, "2001:DB8:0::7"),
            (Form::PoolRange, "203.0.113.16/28"),
            (Form::PoolRange, "203.0.113.9-203.0.113.20"),
            (Form::PoolRange, "2001:db8::/64"),
            (Form::PoolRange, "2001:db8::a-2001:db8::f"),
            (Form::IpRange, "192.0.2.7/32"),
            (Form::IpRange, "::/0"),
            (Form::IpRange, "fd00:60::/64"),
            (Form::Ipv4Sequence, "192.0.2.50-192.0.2.99"),
            (Form::Ports, "443"),
            (Form::Ports, "8000-8099"),
            (Form::Vlans, "4094"),
            (Form::Vlans, "100-199"),
            (Form::ImageUrl, "file:///tmp/x.qcow2"),
            (Form::ImageUrl, "oci://quay.io/containerdisks/fedora:40"),
            (Form::HttpUrl, "https://example.org/SHA512SUMS"),
            (Form::SshKey, "ssh-ed25519 AAAA me\n"),
            (Form::UserData, "#!/bin/sh\na: b: c\n"),
        ];
        for (name, is_valid) in [
            ("a".repeat(127), true),
            ("a".repeat(253), true),
            ("a".repeat(254), false),
            ("web-.data".to_owned(), false),
            ("web..data".to_owned(), false),
            ("Web.data".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(Form::DottedName.problem(&name).is_none(), is_valid, "{name}");
        }
        let label = "a".repeat(63);
        let domain = |labels: usize| vec![label.clone(); labels].join(".");
        assert_eq!(Form::Domain.problem(&domain(2)), None);
        assert!(Form::Domain.problem(&domain(3)).is_some(), "with the host name it is too long");
        for (form, text) in good {
            assert_eq!(form.problem(text), None, "{form:?} {text}");
        }
    }
}
