//! Network: refused when its range overlaps that of an older one, because a host routes both; else given its
//! identifier on the wire, what fits between its hosts, and the list of hosts it is on, from which their agents make
//! the tunnels.

use std::{net::Ipv4Addr, sync::Arc};

use berth_api::{
    ConditionType, Network, NetworkHost, NetworkStatus, Readiness, Reason,
    condition::{self, set_bool},
};
use ipnet::Ipv4Net;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::{
    Config, Key, World,
    draft::Draft,
    plan::{Need, Outcome},
};

/// What guests are told where nothing else is declared or needed.
const DEFAULT_MTU: i64 = 1500;
/// The largest identifier VXLAN has: 24 bits.
const LAST_VNI: u32 = 0x00ff_ffff;

#[derive(Debug, Default)]
struct Observed {
    /// An older network whose range overlaps this one's.
    overlapped: Option<Arc<Network>>,
    /// The identifier it gets if it has none.
    vni: Option<u32>,
    /// The largest packet that fits between any two hosts; None while there are no two.
    fits: Option<i64>,
    /// The hosts with VMs of it.
    hosts: Vec<(String, Ipv4Addr)>,
}

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(network) = world.networks.get(key).cloned() else { return Outcome::Settled };
    let observed = observe(world, &network);
    let readiness = plan(&network, observed.overlapped.as_deref());
    let mut status = status(&network, &observed, &readiness, config.clock.now());
    status.used_by = world.listed_users(key, &status.used_by);
    draft.status(network.as_ref(), status);
    match observed.overlapped {
        Some(other) => Outcome::Blocked(vec![Need::Object(Key::of(other.as_ref()))]),
        None => Outcome::Settled,
    }
}

/// Whether VMs may be on it: it was looked at and not refused.
pub(super) fn is_accepted(network: &Network) -> bool {
    network.status.as_ref().is_some_and(|s| s.vni.is_some())
}

/// What a VM is told that needs a network on which none may be.
pub(super) fn why_not(network: &Network) -> Option<String> {
    if is_accepted(network) {
        return None;
    }
    let name = network.name_any();
    let conditions = network.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    Some(match condition::find(conditions, "Stalled") {
        Some(refused) => format!("Network {name} is refused: {}", refused.message),
        None => format!("Network {name} is new and being looked at"),
    })
}

fn observe(world: &World, network: &Network) -> Observed {
    let name = format!("{}/{}", network.namespace().unwrap_or_default(), network.name_any());
    let given = network.status.as_ref().is_some_and(|s| s.vni.is_some());
    let taken = |vni: u32| {
        let has = |other: &Arc<Network>| other.status.as_ref().and_then(|s| s.vni) == Some(i64::from(vni));
        world.networks.all().any(|other| has(other) && other.uid() != network.uid())
    };
    let hosts = world.index.hosts_of(&name);
    Observed {
        overlapped: older_overlap(world, network),
        vni: if given { None } else { pick_vni(&name, taken) },
        fits: world.underlay.fits(),
        hosts: hosts.filter_map(|host| Some((host.to_owned(), world.underlay.address(host)?))).collect(),
    }
}

fn older_overlap(world: &World, network: &Network) -> Option<Arc<Network>> {
    let range: Ipv4Net = network.spec.cidr.parse().ok()?;
    let age = |n: &Network| (n.creation_timestamp(), n.uid());
    let overlaps = |other: &&Arc<Network>| {
        let other_range: Option<Ipv4Net> = other.spec.cidr.parse().ok();
        let meets = other_range.is_some_and(|o| o.contains(&range) || range.contains(&o));
        meets && other.uid() != network.uid() && age(other) < age(network)
    };
    world.networks.all().find(overlaps).cloned()
}

/// An identifier nobody has, 1 to 16,777,215. It follows from the network's name, so that one whose status was lost
/// in a restore nearly always gets the one it had.
fn pick_vni(name: &str, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
    let digest = Sha256::digest(name.as_bytes());
    let first = u32::from_be_bytes([0, digest[0], digest[1], digest[2]]);
    // So many taken ones in a row are no accident.
    (0..65_536).map(|n| (first + n) % LAST_VNI + 1).find(|vni| !is_taken(*vni))
}

fn plan(network: &Network, overlapped: Option<&Network>) -> Readiness {
    match overlapped {
        None => Readiness::Ready(Reason::Available, String::new()),
        Some(other) => Readiness::Stalled(
            Reason::InvalidSpec,
            format!(
                "its range {} overlaps {} of network {}/{}: create it with another range",
                network.spec.cidr,
                other.spec.cidr,
                other.namespace().unwrap_or_default(),
                other.name_any()
            ),
        ),
    }
}

/// What guests are told, and whether that is what was declared.
fn mtu(declared: Option<i64>, fits: Option<i64>) -> (i64, bool) {
    let wanted = declared.unwrap_or(DEFAULT_MTU);
    match fits {
        Some(fits) if fits < wanted => (fits, declared.is_none()),
        _ => (wanted, true),
    }
}

fn status(network: &Network, observed: &Observed, readiness: &Readiness, now: Timestamp) -> NetworkStatus {
    let mut status = network.status.clone().unwrap_or_default();
    let generation = network.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    if observed.overlapped.is_none() {
        status.vni = status.vni.or(observed.vni.map(i64::from));
    }
    let (told, as_declared) = mtu(network.spec.mtu, observed.fits);
    status.mtu = Some(told);
    if as_declared {
        condition::remove(&mut status.conditions, ConditionType::MTUFits);
    } else {
        let text = format!(
            "{} bytes are declared and {told} fit through the tunnels between hosts, so guests are told {told}: raise the \
             MTU of the hosts' interfaces to {} at least (Host status.mtu), or declare at most {told}",
            network.spec.mtu.unwrap_or(DEFAULT_MTU),
            network.spec.mtu.unwrap_or(DEFAULT_MTU) + 50,
        );
        let reason = Reason::MTUTooLarge;
        set_bool(&mut status.conditions, ConditionType::MTUFits, false, reason, &text, generation, now);
    }
    let host = |(name, address): &(String, Ipv4Addr)| NetworkHost {
        name: name.clone(),
        address: address.to_string(),
    };
    status.hosts = observed.hosts.iter().map(host).collect();
    status.hosts.sort();
    status
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use berth_api::NetworkSpec;

    fn network(mtu: Option<i64>) -> Network {
        let mut network =
            Network::new("n", NetworkSpec { cidr: "10.0.0.0/24".into(), mtu, ..NetworkSpec::default() });
        network.metadata.namespace = Some("ns".into());
        network
    }

    fn told(network: &Network, observed: &Observed) -> NetworkStatus {
        let readiness = plan(network, observed.overlapped.as_deref());
        status(network, observed, &readiness, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn identifiers_follow_from_names_and_differ_all_the_same() {
        let mut taken = BTreeSet::new();
        for n in 0..3000 {
            let vni = pick_vni(&format!("ns/{n}"), |vni| taken.contains(&vni)).expect("few are taken");
            assert!((1..=LAST_VNI).contains(&vni) && taken.insert(vni));
        }
        let first = pick_vni("ns/a", |_| false).expect("none is taken");
        assert_eq!(pick_vni("ns/a", |_| false), Some(first), "the same again");
        assert_eq!(pick_vni("ns/a", |vni| vni == first), Some(first % LAST_VNI + 1));
        assert_eq!(pick_vni("ns/a", |_| true), None);
    }

    #[test]
    fn an_identifier_that_was_given_stays_and_a_refused_network_gets_none() {
        let mut seen = Observed { vni: Some(5), ..Observed::default() };
        let mut given = network(None);
        given.status = Some(told(&given, &seen));
        seen.vni = Some(6);
        assert_eq!(told(&given, &seen).vni, Some(5));
        assert!(is_accepted(&given) && why_not(&given).is_none());
        let mut refused = network(None);
        seen.overlapped = Some(Arc::new(network(None)));
        refused.status = Some(told(&refused, &seen));
        assert!(!is_accepted(&refused));
        let why = why_not(&refused).expect("refused");
        assert_eq!(
            why,
            "Network n is refused: its range 10.0.0.0/24 overlaps 10.0.0.0/24 of network ns/n: create it with another range"
        );
        assert_eq!(told(&given, &seen).vni, Some(5), "what has VMs keeps what they run with");
    }

    #[test]
    fn guests_are_told_what_fits_and_a_declared_mtu_that_does_not_is_a_condition() {
        assert_eq!(mtu(None, None), (1500, true));
        assert_eq!(mtu(None, Some(1450)), (1450, true));
        assert_eq!(mtu(None, Some(8950)), (1500, true), "nobody asked for more");
        assert_eq!(mtu(Some(8950), Some(8950)), (8950, true));
        assert_eq!(mtu(Some(9000), None), (9000, true), "one host alone has no tunnels");
        let seen = Observed { fits: Some(1450), ..Observed::default() };
        let mut large = network(Some(1500));
        let status = told(&large, &seen);
        assert_eq!(status.mtu, Some(1450));
        let condition = condition::find(&status.conditions, "MTUFits").expect("said");
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "MTUTooLarge"));
        assert!(condition.message.contains("1550 at least"), "{}", condition.message);
        large.status = Some(status);
        let seen = Observed { fits: Some(8950), ..Observed::default() };
        assert_eq!(condition::find(&told(&large, &seen).conditions, "MTUFits"), None);
    }
}
