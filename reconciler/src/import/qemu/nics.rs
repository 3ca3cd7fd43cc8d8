//! The network cards of a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use berth_api::vm::NicModel;

use super::options::short;
use super::{CommandLineError, Guest, Properties};
use crate::import::domain::{Domain, Interface, USER_NETWORK, on_the_hosts_network, other_card};

/// The start of the MAC addresses that QEMU chooses, and the first of their last bytes.
const DEFAULT_MAC: (&str, u8) = ("52:54:00:12:34:", 0x56);
/// Devices that are network cards, by the start of their names. Any other with a netdev is one too.
const CARDS: [&str; 10] =
    ["virtio-net", "e1000", "rtl8139", "igb", "ne2k", "pcnet", "vmxnet3", "i825", "usb-net", "tulip"];

/// The note on a user network that leads nowhere.
const ISOLATED: &str = "its user network keeps it from the outside (restrict=on), which it reaches from the Network default: declare a berth_network \
                        with egress = \"None\" for it";
/// What a user network serves beside addresses.
const SERVERS: [&str; 4] = ["guestfwd", "smb", "tftp", "bootfile"];

/// A card.
struct Card {
    /// Its model in QEMU; None is that of the machine type.
    model: Option<String>,
    mac: Option<String>,
    /// The other end.
    connection: Option<Rc<Properties>>,
    has_queues: bool,
}

pub(super) fn is_card(driver: &str, device: &Properties) -> bool {
    device.get("netdev").is_some() || CARDS.iter().any(|card| driver.starts_with(card))
}

/// Adds the cards to the domain, in the order in which QEMU makes them.
pub(super) fn add(guest: &Guest<'_>, domain: &mut Domain) -> Result<(), CommandLineError> {
    let default = match guest.machine.as_str() {
        machine if machine.contains("q35") => "e1000e",
        _ if matches!(guest.arch(), "x86_64" | "i386") => "e1000",
        _ => "virtio-net-pci",
    };
    let cards = cards(guest)?;
    let mut macs: BTreeSet<String> = BTreeSet::new();
    for card in cards {
        let declared = card.mac.map(|mac| mac.to_ascii_lowercase().replace('-', ":"));
        let mac = declared.clone().unwrap_or_else(|| free_mac(&macs));
        macs.insert(mac.clone());
        let mut note = |text: String| domain.notes.push(format!("{}: {text}", short(&mac)));
        if declared.is_none() {
            note("QEMU chose this MAC address, which other guests can have too".to_owned());
        }
        let model = card.model.as_deref().unwrap_or(default);
        let known = match model {
            _ if model.starts_with("virtio") => Some(NicModel::Virtio),
            _ if model.starts_with("e1000-") => Some(NicModel::E1000),
            _ => NicModel::named(model),
        };
        if known.is_none() {
            note(other_card(&short(model)));
        }
        if card.has_queues {
            note("it has several queues: set queues of the interface".to_owned());
        }
        connection(card.connection.as_deref()).into_iter().for_each(note);
        let model = known.unwrap_or_default();
        domain.interfaces.push(Interface { mac: Some(mac), network: None, model });
    }
    Ok(())
}

fn cards(guest: &Guest<'_>) -> Result<Vec<Card>, CommandLineError> {
    let mut netdevs = BTreeMap::new();
    for netdev in guest.properties("netdev", "type")? {
        if let Some(id) = netdev.get("id") {
            netdevs.insert(id.to_owned(), Rc::new(netdev.clone()));
        }
    }
    let of_id = |id: Option<&str>| id.and_then(|id| netdevs.get(id)).cloned();
    let (nics, nets) = (guest.properties("nic", "type")?, guest.properties("net", "type")?);
    // The cards of -net share one hub, and so its other end.
    let hub = nets.iter().find(|net| !matches!(net.get("type"), Some("nic" | "none")));
    let hub = hub.cloned().map(Rc::new);
    let mut cards = Vec::new();
    let text = |net: &Properties, name: &str| net.get(name).map(str::to_owned);
    for nic in nics.iter().filter(|nic| nic.get("type") != Some("none")) {
        cards.push(Card {
            model: text(nic, "model"),
            mac: text(nic, "mac"),
            connection: Some(Rc::new(nic.clone())),
            has_queues: false,
        });
    }
    for net in nets.iter().filter(|net| net.get("type") == Some("nic")) {
        cards.push(Card {
            model: text(net, "model"),
            mac: text(net, "macaddr"),
            connection: of_id(net.get("netdev")).or_else(|| hub.clone()),
            has_queues: false,
        });
    }
    for (driver, device) in guest.devices()? {
        if is_card(&driver, &device) {
            let connection = of_id(device.get("netdev"));
            let queues = connection.as_ref().and_then(|netdev| netdev.get("queues"));
            let has_queues = device.is_on("mq") || queues.is_some_and(|queues| queues != "1");
            cards.push(Card { model: Some(driver), mac: text(&device, "mac"), connection, has_queues });
        }
    }
    let is_declared = ["netdev", "nic", "net"].into_iter().any(|option| guest.has(option));
    if !is_declared && !guest.has("nodefaults") {
        let connection = Properties::parse("user", "type").map(Rc::new);
        cards.push(Card { model: None, mac: None, connection, has_queues: false });
    }
    Ok(cards)
}

/// The MAC address that QEMU gives to a card without one.
fn free_mac(used: &BTreeSet<String>) -> String {
    let (start, first) = DEFAULT_MAC;
    let mut free = (first..=u8::MAX).map(|last| format!("{start}{last:02x}"));
    free.find(|mac| !used.contains(mac)).unwrap_or_else(|| format!("{start}{first:02x}"))
}

/// Notes on the other end of a card.
fn connection(netdev: Option<&Properties>) -> Vec<String> {
    let Some(netdev) = netdev else {
        return vec!["it is connected to nothing; in berth it is on the Network default".to_owned()];
    };
    let kind = netdev.get("type").unwrap_or_default();
    let of = |names: &[&str]| names.iter().find_map(|name| netdev.get(name));
    match kind {
        "user" | "passt" => {
            let mut notes = vec![USER_NETWORK.to_owned()];
            if netdev.is_on("restrict") {
                notes.push(ISOLATED.to_owned());
            }
            let servers = SERVERS.into_iter().filter(|server| netdev.get(server).is_some());
            notes.extend(servers.map(|server| format!("the {server} of its user network is not taken over")));
            let forwards = netdev.all().filter(|(name, _)| {
                name.split('.')
                    .next()
                    .is_some_and(|name| matches!(name, "hostfwd" | "tcp-ports" | "udp-ports"))
            });
            notes.extend(forwards.map(|(_, forward)| {
                format!(
                    "the forwarding {} is not taken over: berth port-forward, or a berth_public_ip",
                    short(forward)
                )
            }));
            notes
        }
        "bridge" => vec![on_the_hosts_network("bridge", &short(of(&["br"]).unwrap_or("br0")))],
        "tap" if netdev.get("br").is_some() || netdev.get("helper").is_some() => {
            vec![on_the_hosts_network("bridge", &short(of(&["br"]).unwrap_or("br0")))]
        }
        "tap" => vec![on_the_hosts_network("tap", &short(of(&["ifname", "fd", "fds"]).unwrap_or("tap0")))],
        kind => {
            let places =
                ["chardev", "sock", "path", "addr.path", "addr.host", "connect", "listen", "mcast", "ifname"];
            vec![on_the_hosts_network(&short(kind), &short(of(&places).unwrap_or_default()))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isolated_user_network_and_its_servers_are_noted() {
        let notes = |netdev: &str| {
            let netdev = Properties::parse(netdev, "type").expect("properties");
            connection(Some(&netdev)).join("\n")
        };
        assert_eq!(notes("user,id=n0,restrict=off"), USER_NETWORK);
        let closed = notes("user,id=n0,restrict=on,tftp=/srv,hostfwd=tcp::2222-:22");
        for part in ["egress = \"None\"", "the tftp of its user network", "the forwarding tcp::2222-:22"] {
            assert!(closed.contains(part), "no {part} in {closed}");
        }
    }
}
