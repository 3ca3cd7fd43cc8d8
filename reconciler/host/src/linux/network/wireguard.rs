//! The host's interface of WireGuard, by which the packets of encrypted tunnels go from host to host.
//!
//! ```text
//!  btx-0a1b2c3d ═ UDP 4789 between fd62:6572:7468:… ═ btw-5e6f7a8b ─ encrypted, UDP 51847 ─ the other host
//! ```
//!
//! The kernel serves the interface, or where it cannot the program `wireguard-go`, as with `wg-quick`. Its name follows from the host's public
//! key: `wireguard-go` listens at a socket of that name in `/var/run/wireguard`, which several network namespaces may share. The private key is
//! in the state directory, readable by root only, and reaches `wg` by its standard input.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::Ipv6Net;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, OnceCell};

use super::super::files::{self, blocking, failed};
use super::super::program::Program;
use super::netlink::{self, Link, LinkKind, Netlink};
use super::{Result, sysctl, sysctl_if_there};
use crate::{WireguardConfig, WireguardFacts, WireguardImplementation, WireguardPeer};

pub(in crate::linux) const WG: Program = Program {
    name: "wg",
    advice: "networks with encryption need it (Debian, Ubuntu: apt install wireguard-tools; Fedora: dnf install wireguard-tools)",
};

pub(in crate::linux) const WIREGUARD_GO: Program = Program {
    name: "wireguard-go",
    advice: "the kernel has no WireGuard, and networks with encryption need one of them (modprobe wireguard; Debian, Ubuntu: apt install \
             wireguard-go; Fedora: dnf install wireguard-go)",
};

/// The beginning of the names of interfaces of WireGuard.
pub(super) const PREFIX: &str = "btw-";
/// The UDP port of encrypted packets. WireGuard has no assigned one, and administrators often use its usual 51820.
pub(super) const PORT: u16 = 51_847;
/// The prefix of all hosts' addresses.
const HOSTS: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 0), 48);
/// Bytes that WireGuard adds to a packet: its header and checksum 32, UDP 8, IPv4 20.
const ADDED: u32 = 60;
/// The smallest MTU that a link with IPv6 may have. The packets of hosts with smaller ones are sent in fragments.
const LEAST_MTU: u32 = 1280;
/// The MTU if the interface with the host's address is not found.
const USUAL_MTU: u32 = 1500;
const KEY_CHARACTERS: usize = 44;
/// It exists while the kernel has WireGuard.
const MODULE: &str = "/sys/module/wireguard";

/// The key of this host. Its `Debug` does not show the private one.
struct Key {
    private: String,
    public: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("public", &self.public).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Wireguard {
    file: PathBuf,
    /// Read once: a new key is used after a restart of the agent.
    key: OnceCell<Key>,
    /// Whether the kernel had WireGuard when it was asked.
    kernel: OnceCell<bool>,
    /// Whether the interface was made and not removed since.
    is_made: AtomicBool,
    /// Locked by the one that changes the interface.
    changing: Mutex<()>,
}

impl Wireguard {
    pub(super) fn new(file: PathBuf) -> Self {
        Self {
            file,
            key: OnceCell::new(),
            kernel: OnceCell::new(),
            is_made: AtomicBool::new(false),
            changing: Mutex::default(),
        }
    }

    /// Returns the facts, and makes the key of this host if there is none.
    pub(super) async fn facts(&self) -> Result<WireguardFacts> {
        WG.find()?;
        let settings = Path::new("/proc/sys/net/ipv6/conf");
        if !blocking(move || settings.exists()).await {
            let detail = "IPv6 is turned off on this host, and encrypted packets need it: start its kernel without ipv6.disable=1";
            return Err(netlink::network("use", "WireGuard", detail));
        }
        let implementation = self.implementation().await?;
        let key = self.key().await?;
        Ok(WireguardFacts { public_key: key.public.clone(), port: PORT, implementation })
    }

    async fn implementation(&self) -> Result<WireguardImplementation> {
        if *self.kernel.get_or_try_init(kernel_has_it).await? {
            return Ok(WireguardImplementation::Kernel);
        }
        // Asked again only if the module was loaded since: each question makes the kernel look for its module.
        if blocking(|| Path::new(MODULE).exists()).await && kernel_has_it().await? {
            return Ok(WireguardImplementation::Kernel);
        }
        WIREGUARD_GO.find()?;
        Ok(WireguardImplementation::Userspace)
    }

    async fn key(&self) -> Result<&Key> {
        self.key.get_or_try_init(|| read_or_make(&self.file)).await
    }

    /// Whether the interface is there.
    pub(super) async fn is_there(&self) -> Result<bool> {
        // Another key may have been there before: any of berth's names counts.
        let links = Netlink::open()?.links().await?;
        Ok(links.iter().any(is_berths))
    }

    /// Whether another program has removed the interface.
    pub(super) async fn is_lost(&self) -> Result<bool> {
        Ok(self.is_made.load(Ordering::Relaxed) && !self.is_there().await?)
    }

    pub(super) async fn ensure(&self, config: &WireguardConfig) -> Result<()> {
        let _changing = self.changing.lock().await;
        let key = self.key().await?;
        let name = name_of(&key.public);
        let netlink = Netlink::open()?;
        remove(&netlink, Some(&name)).await?;
        let link = match netlink.link(&name).await? {
            Some(link) => link,
            None => self.make(&netlink, &name).await?,
        };
        if !is_berths(&link) {
            return Err(netlink::network("use", &name, "it exists and is no interface of WireGuard"));
        }
        configure(&name, key, &config.peers).await?;
        let below = netlink.link_with(config.local).await?.map_or(USUAL_MTU, |link| link.mtu);
        let mtu = below.saturating_sub(ADDED).max(LEAST_MTU);
        if link.mtu != mtu {
            netlink.set_mtu(&link, mtu).await?;
        }
        for (setting, value) in [("accept_ra", "0"), ("accept_redirects", "0"), ("addr_gen_mode", "1")] {
            sysctl_if_there(&format!("net/ipv6/conf/{name}/{setting}"), value).await;
        }
        sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0").await?;
        let address = Ipv6Net::new(config.address, HOSTS.1).expect("at most 128");
        netlink.exact_ipv6_addresses(&link, &[address]).await?;
        if !link.up {
            netlink.set_up(&link).await?;
        }
        self.is_made.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn make(&self, netlink: &Netlink, name: &str) -> Result<Link> {
        let implementation = self.implementation().await?;
        match implementation {
            WireguardImplementation::Kernel => netlink.add_wireguard(name).await?,
            WireguardImplementation::Userspace => {
                // It ends once its child serves the interface. The child ends with the interface.
                let output = WIREGUARD_GO.run(&[name], Vec::new()).await?;
                if !output.ok {
                    return Err(WIREGUARD_GO.failed(output.stderr));
                }
            }
        }
        tracing::info!(
            interface = name,
            implementation = implementation.as_str(),
            "interface of WireGuard made"
        );
        netlink.expect(name).await
    }

    pub(super) async fn remove(&self) -> Result<()> {
        let _changing = self.changing.lock().await;
        self.is_made.store(false, Ordering::Relaxed);
        remove(&Netlink::open()?, None).await
    }
}

async fn kernel_has_it() -> Result<bool> {
    Ok(Netlink::open()?.has_kernel_wireguard().await)
}

/// The prefix of all hosts' addresses within WireGuard: address and length.
pub(super) fn hosts() -> (Ipv6Addr, u8) {
    HOSTS
}

/// Returns the name of the interface of the host with this key: at most 15 characters.
fn name_of(public_key: &str) -> String {
    let hash = Sha256::digest(public_key.as_bytes());
    let hash: String = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{hash}")
}

/// Whether a link is an interface of WireGuard of berth's: that of `wireguard-go` is one of the kind tun.
fn is_berths(link: &Link) -> bool {
    link.name.starts_with(PREFIX) && matches!(link.kind, Some(LinkKind::Wireguard | LinkKind::Tap))
}

/// Removes the interfaces of WireGuard except for one, which a former key of this host may have left.
async fn remove(netlink: &Netlink, except: Option<&str>) -> Result<()> {
    for link in netlink.links().await?.iter().filter(|link| is_berths(link)) {
        if except != Some(link.name.as_str()) {
            netlink.remove(link).await?;
            tracing::info!(interface = link.name, "interface of WireGuard removed");
        }
    }
    Ok(())
}

/// Reads the private key of this host, or makes one.
async fn read_or_make(file: &Path) -> Result<Key> {
    let path = file.to_owned();
    let there = blocking(move || match std::fs::read_to_string(&path) {
        Ok(text) => {
            // A key that others could have read is not used.
            let mode = std::fs::metadata(&path).map_err(failed("read", &path))?.permissions().mode();
            Ok(Some((text, mode)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &path)(error)),
    })
    .await?;
    let private = match there {
        Some((_, mode)) if mode & 0o077 != 0 => {
            let detail = format!(
                "others than root can read {}: delete it and start the agent again, which makes a new key",
                file.display()
            );
            return Err(netlink::network("use", "WireGuard", detail));
        }
        Some((text, _)) => text.trim().to_owned(),
        None => make_key(file).await?,
    };
    let output = WG.run(&["pubkey"], format!("{private}\n").into_bytes()).await?;
    let public = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.ok || public.len() != KEY_CHARACTERS {
        // The program's own message may contain what it has read.
        let detail = format!(
            "{} has no private key: delete it and start the agent again, which makes a new one",
            file.display()
        );
        return Err(netlink::network("use", "WireGuard", detail));
    }
    Ok(Key { private, public })
}

async fn make_key(file: &Path) -> Result<String> {
    let output = WG.run(&["genkey"], Vec::new()).await?;
    let private = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.ok || private.len() != KEY_CHARACTERS {
        return Err(WG.failed(output.stderr));
    }
    let (path, text) = (file.to_owned(), format!("{private}\n"));
    blocking(move || files::write_atomic(&path, text.as_bytes(), 0o600)).await?;
    tracing::info!("key for WireGuard made");
    Ok(private)
}

/// Makes the interface have this key and exactly these peers, if it has not.
async fn configure(name: &str, key: &Key, peers: &[WireguardPeer]) -> Result<()> {
    let output = WG.run(&["show", name, "dump"], Vec::new()).await?;
    if !output.ok {
        return Err(WG.failed(output.stderr));
    }
    let there = Configured::parse(&String::from_utf8_lossy(&output.stdout));
    if there.as_ref() == Some(&Configured::wanted(key, peers)) {
        return Ok(());
    }
    let output = WG.run(&["syncconf", name, "/dev/stdin"], text_of(key, peers).into_bytes()).await?;
    if !output.ok {
        return Err(WG.failed(output.stderr));
    }
    tracing::info!(interface = name, peers = peers.len(), "peers of WireGuard set");
    Ok(())
}

/// The configuration of the interface, in the format of `wg`.
fn text_of(key: &Key, peers: &[WireguardPeer]) -> String {
    let mut text = format!("[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n", key.private);
    for WireguardPeer { public_key, endpoint, address } in peers {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "\n[Peer]\nPublicKey = {public_key}\nEndpoint = {endpoint}\nAllowedIPs = {address}/128\n"
        );
    }
    text
}

/// The configuration of an interface, without its private key.
#[derive(Debug, PartialEq, Eq)]
struct Configured {
    public_key: String,
    port: String,
    /// Endpoint and addresses, by key.
    peers: BTreeMap<String, (String, String)>,
}

impl Configured {
    fn wanted(key: &Key, peers: &[WireguardPeer]) -> Self {
        let peer = |peer: &WireguardPeer| {
            (peer.public_key.clone(), (peer.endpoint.to_string(), format!("{}/128", peer.address)))
        };
        Self {
            public_key: key.public.clone(),
            port: PORT.to_string(),
            peers: peers.iter().map(peer).collect(),
        }
    }

    /// Parses the lines of `wg show NAME dump`. None: they are in no known format.
    fn parse(dump: &str) -> Option<Self> {
        let mut lines = dump.lines();
        let own: Vec<&str> = lines.next()?.split('\t').collect();
        let [_private, public_key, port, ..] = own[..] else { return None };
        let mut peers = BTreeMap::new();
        for line in lines {
            let fields: Vec<&str> = line.split('\t').collect();
            let [key, _preshared, endpoint, addresses, ..] = fields[..] else { return None };
            peers.insert(key.to_owned(), (endpoint.to_owned(), addresses.to_owned()));
        }
        Some(Self { public_key: public_key.to_owned(), port: port.to_owned(), peers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { private: "SECRET=".to_owned(), public: "OWN=".to_owned() }
    }

    fn peer() -> WireguardPeer {
        WireguardPeer {
            public_key: "OTHER=".to_owned(),
            endpoint: "192.0.2.2:51847".parse().expect("an endpoint"),
            address: "fd62:6572:7468::2".parse().expect("an address"),
        }
    }

    #[test]
    fn the_configuration_is_that_of_wg() {
        let text = text_of(&key(), &[peer()]);
        insta::assert_snapshot!(text, @r"
        [Interface]
        PrivateKey = SECRET=
        ListenPort = 51847

        [Peer]
        PublicKey = OTHER=
        Endpoint = 192.0.2.2:51847
        AllowedIPs = fd62:6572:7468::2/128
        ");
    }

    #[test]
    fn an_interface_that_is_as_it_should_be_is_recognised_without_its_private_key() {
        let dump = "SECRET=\tOWN=\t51847\toff\n\
                    OTHER=\t(none)\t192.0.2.2:51847\tfd62:6572:7468::2/128\t1700000000\t10\t20\toff\n";
        let there = Configured::parse(dump).expect("a dump");
        assert_eq!(there, Configured::wanted(&key(), &[peer()]));
        assert!(!format!("{there:?} {:?}", key()).contains("SECRET"));
        let moved = dump.replace("192.0.2.2", "192.0.2.9");
        assert_ne!(Configured::parse(&moved), Some(there));
        assert_eq!(Configured::parse(""), None);
        assert_eq!(Configured::parse("x"), None);
    }

    #[test]
    fn the_name_follows_from_the_key_and_fits() {
        let (one, other) = (name_of("OWN="), name_of("OTHER="));
        assert!(one != other && one.starts_with(PREFIX) && one.len() <= 15, "{one} {other}");
    }
}
