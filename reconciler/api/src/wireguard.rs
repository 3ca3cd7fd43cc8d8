//! WireGuard between hosts: their keys, and the addresses that follow from them. Pure.

use std::net::Ipv6Addr;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The prefix of hosts' addresses within WireGuard, `fd62:6572:7468::/48`. No Network has a prefix in it.
pub const WIREGUARD_PREFIX: ([u8; 6], u8) = ([0xfd, 0x62, 0x65, 0x72, 0x74, 0x68], 48);

/// The length of a public key in Base64.
const KEY_CHARACTERS: usize = 44;

/// WireGuard on a host, which Networks with `encryption` need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostWireguard {
    /// The host's public key, in Base64. Its private key is on the host only. Absent if the host cannot encrypt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 44), regex(pattern = r"^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$"))]
    pub public_key: Option<String>,
    /// The host's address within WireGuard. It follows from the key, and is reported for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 39))]
    pub address: Option<String>,
    /// The UDP port on which the host receives the encrypted packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i64>,
    /// `Kernel`, or `Userspace` for `wireguard-go`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub implementation: Option<String>,
    /// Why the host cannot encrypt, and how to change that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

impl HostWireguard {
    /// The key and the port with which other hosts reach the host. None: it cannot encrypt, or its report is not valid.
    pub fn usable(&self) -> Option<(&str, u16)> {
        let key = self.public_key.as_deref().filter(|key| is_key(key))?;
        let port = self.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)?;
        Some((key, port))
    }
}

/// A host as the other hosts of an encrypted Network reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WireguardPeer {
    /// Its public key, in Base64.
    #[schemars(length(max = 44))]
    pub public_key: String,
    /// The address and UDP port that encrypted packets are sent to, such as `192.0.2.2:51847`.
    #[schemars(length(max = 21))]
    pub endpoint: String,
}

/// Whether a text is a public key of WireGuard: 32 bytes in Base64, in the one form that `wg` reads.
pub fn is_key(text: &str) -> bool {
    let [digits @ .., last, b'='] = text.as_bytes() else { return false };
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.len() == KEY_CHARACTERS && digits.iter().all(is_digit) && b"AEIMQUYcgkosw048".contains(last)
}

/// The address within WireGuard of the host with this public key. It is part of a hash of the key, so that no host can have the address of
/// another one, and each peer knows it without a report.
pub fn address_of(public_key: &str) -> Option<Ipv6Addr> {
    if !is_key(public_key) {
        return None;
    }
    let (prefix, _) = WIREGUARD_PREFIX;
    let hash = Sha256::digest(public_key.as_bytes());
    let mut address = [0; 16];
    address[..prefix.len()].copy_from_slice(&prefix);
    address[prefix.len()..].copy_from_slice(&hash[..16 - prefix.len()]);
    Some(Ipv6Addr::from(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

    #[test]
    fn a_key_has_one_form_and_an_address_of_its_own() {
        let other = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";
        assert!(is_key(KEY) && is_key(other));
        let wrong = [
            "",
            "x",
            "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dh=",
            "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg",
            "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8D\n=",
        ];
        for wrong in wrong {
            assert!(!is_key(wrong) && address_of(wrong).is_none(), "{wrong:?}");
        }
        let address = address_of(KEY).expect("a key");
        assert!(address.to_string().starts_with("fd62:6572:7468:"), "{address}");
        assert_ne!(Some(address), address_of(other));
        assert_eq!(Some(address), address_of(KEY));
    }

    #[test]
    fn a_report_is_usable_with_a_key_and_a_port() {
        let report = |key: &str, port| HostWireguard {
            public_key: Some(key.to_owned()),
            port: Some(port),
            ..HostWireguard::default()
        };
        assert_eq!(report(KEY, 51_847).usable(), Some((KEY, 51_847)));
        for wrong in [report("x", 51_847), report(KEY, 0), report(KEY, 70_000), HostWireguard::default()] {
            assert_eq!(wrong.usable(), None, "{wrong:?}");
        }
    }
}
