//! Hosts' claims to objects that have lost their status (after a restore): they exist already and must not be created again.
//!
//! A host lists everything it holds that no object bound to it owns, with the object it was created for. In a recovery that
//! an administrator opened, such an object is bound to that host again, with the identity it has there. Outside of a
//! recovery a host's report has no effect: it gives the host no VM, Secret or disk, and reserves no address.
//!
//! *Guarantees:* entries without a uid, with an epoch that no binding can have, or with a malformed identity are left out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{Ipv4Addr, Ipv6Addr},
};

use berth_api::{
    Host, former_uid,
    host::{LAST_EPOCH, Orphan},
    vm::InterfaceStatus,
};
use ipnet::IpNet;
use kube::ResourceExt;

use crate::{
    cache::recovery,
    key::{Key, ObjectKind},
};

/// A host lists no more, and of each no more than a VM can have.
const MOST: usize = 1000;
const MOST_OF_A_VM: usize = 64;

/// A host's claim to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The highest counts, should two hosts claim the object.
    pub(crate) epoch: i64,
    pub(crate) host: String,
    /// Its identity there: an `instanceID` or a `volumeID`.
    pub(crate) id: String,
    uid: String,
    /// The host is in a recovery and has reported since that was opened.
    trusted: bool,
    /// For a VM: the interfaces it was started with.
    pub(crate) interfaces: Vec<InterfaceStatus>,
    /// The public addresses and prefixes that lead to it, by the name of the PublicIP.
    pub(crate) public: BTreeMap<String, IpNet>,
}

/// The claims of all hosts. See the module.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    by_object: BTreeMap<Key, Vec<Claim>>,
    by_host: HashMap<String, BTreeSet<Key>>,
}

impl Claims {
    /// Records a host's claims (`None`: the host is gone); returns the objects it claims now or did before.
    pub(crate) fn set(&mut self, name: &str, host: Option<&Host>) -> Vec<Key> {
        let before = self.by_host.remove(name).unwrap_or_default();
        for key in &before {
            if let Some(claims) = self.by_object.get_mut(key) {
                claims.retain(|claim| claim.host != name);
                if claims.is_empty() {
                    self.by_object.remove(key);
                }
            }
        }
        // Everything on a fenced host is lost.
        let orphans = host
            .filter(|host| !host.spec.fenced)
            .and_then(|host| host.status.as_ref())
            .map(|s| s.orphans.as_slice())
            .unwrap_or_default();
        let trusted = host.is_some_and(recovery::has_reported);
        let mut now = BTreeSet::new();
        for orphan in orphans.iter().take(MOST) {
            let Some((key, claim)) = claim(name, orphan, trusted) else { continue };
            now.insert(key.clone());
            self.by_object.entry(key).or_default().push(claim);
        }
        let concerned = before.union(&now).cloned().collect();
        if !now.is_empty() {
            self.by_host.insert(name.to_owned(), now);
        }
        concerned
    }

    /// Returns the claim of a host in a recovery to this object. A claim under another uid is to another object of
    /// that name, unless an administrator has declared that uid as the object's former one; claims under its own
    /// uid take precedence.
    pub(crate) fn of<K: ResourceExt>(&self, key: &Key, object: &K) -> Option<&Claim> {
        let (uid, former) = (object.uid(), former_uid(object));
        let own = |claim: &Claim| Some(&claim.uid) == uid.as_ref();
        let its = |claim: &&Claim| claim.trusted && (own(claim) || former == Some(claim.uid.as_str()));
        let claims = self.by_object.get(key)?.iter().filter(its);
        claims.max_by_key(|claim| (own(claim), claim.epoch, &claim.host, &claim.id))
    }

    /// Returns a host that claims this very object outside of a recovery.
    pub(crate) fn untrusted<K: ResourceExt>(&self, key: &Key, object: &K) -> Option<&str> {
        let uid = object.uid()?;
        let claims = self.by_object.get(key)?.iter();
        claims.filter(|claim| !claim.trusted && claim.uid == uid).map(|claim| claim.host.as_str()).min()
    }

    /// Returns the identity under which this host holds something for an object of this name, except under the object's
    /// declared former uid. The caller has checked that no recovery gives it to the object.
    pub(crate) fn of_namesake<K: ResourceExt>(&self, host: &str, key: &Key, object: &K) -> Option<&str> {
        let former = former_uid(object);
        let claims = self.by_object.get(key)?.iter();
        let foreign = |claim: &&Claim| claim.host == host && former != Some(claim.uid.as_str());
        claims.filter(foreign).map(|claim| claim.id.as_str()).min()
    }

    /// Returns the objects a host claims.
    pub(crate) fn by(&self, host: &str) -> impl Iterator<Item = &Key> {
        self.by_host.get(host).into_iter().flatten()
    }

    /// Returns the public addresses and prefixes of guests that run on a host their VM is not bound to.
    pub(crate) fn public_addresses(&self) -> BTreeSet<IpNet> {
        self.trusted().flat_map(|claim| claim.public.values().copied()).collect()
    }

    pub(crate) fn is_ipv6_address_held(&self, network: &str, address: Ipv6Addr) -> bool {
        self.interfaces().any(|i| i.network == network && i.ipv6_address.parse() == Ok(address))
    }

    /// Whether such a guest has this private address, or this MAC.
    pub(crate) fn is_address_held(&self, network: &str, address: Ipv4Addr) -> bool {
        self.interfaces().any(|i| i.network == network && i.address.parse() == Ok(address))
    }

    pub(crate) fn is_mac_held(&self, mac: &str) -> bool {
        self.interfaces().any(|i| i.mac_address.eq_ignore_ascii_case(mac))
    }

    fn interfaces(&self) -> impl Iterator<Item = &InterfaceStatus> {
        self.trusted().flat_map(|claim| &claim.interfaces)
    }

    fn trusted(&self) -> impl Iterator<Item = &Claim> {
        self.by_object.values().flatten().filter(|claim| claim.trusted)
    }

    /// Returns the VMs that hosts claim.
    pub(crate) fn vms(&self) -> impl Iterator<Item = &Key> {
        self.by_object.keys().filter(|key| key.kind == ObjectKind::VM)
    }
}

/// Validates an orphan and converts it to a claim.
fn claim(host: &str, orphan: &Orphan, trusted: bool) -> Option<(Key, Claim)> {
    let owner = orphan.owner.as_ref()?;
    let (kind, prefix) = match owner.kind.as_str() {
        "VM" => (ObjectKind::VM, "i-"),
        "Disk" => (ObjectKind::Disk, "v-"),
        _ => return None,
    };
    let uid = owner.uid.clone().filter(|uid| !uid.is_empty())?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let id = Some(&orphan.name)
        .filter(|id| id.starts_with(prefix) && id.len() <= 64 && id.chars().all(is_plain))?;
    if !(0..=LAST_EPOCH).contains(&owner.epoch) {
        return None;
    }
    let public = owner.public_ips.iter().take(MOST_OF_A_VM);
    let claim = Claim {
        host: host.to_owned(),
        id: id.clone(),
        epoch: owner.epoch,
        uid,
        trusted,
        interfaces: owner.interfaces.iter().take(MOST_OF_A_VM).cloned().collect(),
        public: public.filter_map(|ip| Some((ip.name.clone(), ip.range()?))).collect(),
    };
    Some((Key::namespaced(kind, &owner.namespace, &owner.name), claim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::Disk;
    use serde_json::json;

    fn host(orphans: serde_json::Value) -> Host {
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": "h1", "generation": 2},
            "spec": {"recovery": {"since": "2026-01-01T00:00:00Z"}},
            "status": {"observedGeneration": 2, "inventory": {"complete": true}, "orphans": orphans}});
        serde_json::from_value(host).expect("a host")
    }

    fn disk(uid: &str) -> Disk {
        let disk = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": "root", "namespace": "ns", "uid": uid}, "spec": {}});
        serde_json::from_value(disk).expect("a disk")
    }

    #[test]
    fn what_a_host_has_is_the_objects_it_was_made_for_and_no_other_of_that_name() {
        let owner = json!({"kind": "Disk", "namespace": "ns", "name": "root", "uid": "u1"});
        let has = host(json!([{"kind": "Volume", "name": "v-1", "detail": "", "owner": owner},
            {"kind": "Process", "name": "7 theirs", "detail": ""}]));
        let key = Key::namespaced(ObjectKind::Disk, "ns", "root");
        let mut claims = Claims::default();
        assert_eq!(claims.set("h1", Some(&has)), std::slice::from_ref(&key));
        assert_eq!(
            claims.of(&key, &disk("u1")).map(|c| (c.host.as_str(), c.id.as_str())),
            Some(("h1", "v-1"))
        );
        assert_eq!(claims.of(&key, &disk("u2")), None);
        let former = |uid: &str, former: &str| {
            let mut disk = disk(uid);
            disk.annotations_mut().insert(berth_api::FORMER_UID_ANNOTATION.into(), former.into());
            disk
        };
        assert_eq!(claims.of(&key, &former("u2", "u1")).map(|c| c.id.as_str()), Some("v-1"));
        assert_eq!(claims.of(&key, &former("u2", "u3")), None);
        assert_eq!(
            claims.set("h1", Some(&host(json!([])))),
            std::slice::from_ref(&key),
            "it is woken when the claim is released"
        );
        assert_eq!(claims.of(&key, &disk("u1")), None);
        assert!(claims.set("h1", None).is_empty() && claims.by_object.is_empty());
    }

    #[test]
    fn a_hosts_word_counts_only_in_a_recovery_that_it_has_reported_in() {
        let owner = json!({"kind": "Disk", "namespace": "ns", "name": "root", "uid": "u1"});
        let open = host(json!([{"kind": "Volume", "name": "v-1", "detail": "", "owner": owner}]));
        let key = Key::namespaced(ObjectKind::Disk, "ns", "root");
        let mut claims = Claims::default();
        let mut closed = open.clone();
        closed.spec.recovery = None;
        claims.set("h1", Some(&closed));
        assert_eq!(claims.of(&key, &disk("u1")), None);
        assert_eq!(claims.untrusted(&key, &disk("u1")), Some("h1"));
        assert_eq!(claims.untrusted(&key, &disk("u2")), None);
        let mut before = open.clone();
        before.metadata.generation = Some(3);
        claims.set("h1", Some(&before));
        assert_eq!(claims.of(&key, &disk("u1")), None, "it has not reported since the recovery was opened");
        claims.set("h1", Some(&open));
        assert!(claims.of(&key, &disk("u1")).is_some() && claims.untrusted(&key, &disk("u1")).is_none());
    }

    #[test]
    fn what_cannot_be_so_is_left_out_also_in_a_recovery() {
        let orphan = |name: &str, kind: &str, uid: serde_json::Value, epoch: i64| {
            let owner = json!({"kind": kind, "namespace": "ns", "name": "root", "uid": uid, "epoch": epoch});
            json!({"kind": "Volume", "name": name, "detail": "", "owner": owner})
        };
        for wrong in [
            orphan("v-1", "Disk", json!(null), 1),
            orphan("v-1", "Disk", json!(""), 1),
            orphan("v-1", "Secret", json!("u1"), 1),
            orphan("i-1", "Disk", json!("u1"), 1),
            orphan("v-../../etc", "Disk", json!("u1"), 1),
            orphan("v-1", "Disk", json!("u1"), -1),
            orphan("v-1", "Disk", json!("u1"), i64::MAX),
        ] {
            let mut claims = Claims::default();
            assert!(claims.set("h1", Some(&host(json!([wrong])))).is_empty(), "{wrong}");
        }
    }
}
