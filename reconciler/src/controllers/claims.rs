//! What hosts hold of objects that have lost their status (a restore): made once already, and not to be made again.
//!
//! A host lists what it has that no object bound to it owns, with the object it was made for. Such an object is bound to
//! that host again, with the identity it has there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
};

use berth_api::{Host, former_uid, vm::InterfaceStatus};
use kube::ResourceExt;

use super::{Key, Kind};

/// What a host has that was made for an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// The highest counts, should two hosts have something.
    pub(super) epoch: i64,
    pub(super) host: String,
    /// Its identity there: an `instanceID` or a `volumeID`.
    pub(super) id: String,
    uid: Option<String>,
    /// A VM's, as it was started with them.
    pub(super) interfaces: Vec<InterfaceStatus>,
    /// The public addresses that lead to it, by the name of the PublicIP.
    pub(super) public: BTreeMap<String, Ipv4Addr>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Claims {
    by_object: BTreeMap<Key, Vec<Claim>>,
    by_host: HashMap<String, BTreeSet<Key>>,
}

impl Claims {
    /// Notes what a host says (`None`: it is gone); returns the objects it speaks of now or did before.
    pub(super) fn set(&mut self, name: &str, host: Option<&Host>) -> Vec<Key> {
        let before = self.by_host.remove(name).unwrap_or_default();
        for key in &before {
            if let Some(claims) = self.by_object.get_mut(key) {
                claims.retain(|claim| claim.host != name);
                if claims.is_empty() {
                    self.by_object.remove(key);
                }
            }
        }
        // What was on a host that is gone for good is lost.
        let orphans = host
            .filter(|host| !host.spec.fenced)
            .and_then(|host| host.status.as_ref())
            .map(|s| s.orphans.as_slice())
            .unwrap_or_default();
        let mut now = BTreeSet::new();
        for orphan in orphans {
            let Some(owner) = &orphan.owner else { continue };
            let kind = if owner.kind == "VM" { Kind::VM } else { Kind::Disk };
            let key = Key::namespaced(kind, &owner.namespace, &owner.name);
            now.insert(key.clone());
            self.by_object.entry(key).or_default().push(Claim {
                host: name.to_owned(),
                id: orphan.name.clone(),
                epoch: owner.epoch,
                uid: owner.uid.clone(),
                interfaces: owner.interfaces.clone(),
                public: owner
                    .public_ips
                    .iter()
                    .filter_map(|ip| Some((ip.name.clone(), ip.address.parse().ok()?)))
                    .collect(),
            });
        }
        let concerned = before.union(&now).cloned().collect();
        if !now.is_empty() {
            self.by_host.insert(name.to_owned(), now);
        }
        concerned
    }

    /// What a host has of this object. One of the same name with another uid is another object, unless an administrator
    /// said that it is the same one: what it has under its own uid counts before that.
    pub(super) fn of<K: ResourceExt>(&self, key: &Key, object: &K) -> Option<&Claim> {
        let (uid, former) = (object.uid(), former_uid(object));
        let own = |claim: &Claim| claim.uid.is_none() || claim.uid == uid;
        let its = |claim: &&Claim| own(claim) || (former.is_some() && claim.uid.as_deref() == former);
        let claims = self.by_object.get(key)?.iter().filter(its);
        claims.max_by_key(|claim| (own(claim), claim.epoch, &claim.host, &claim.id))
    }

    /// The public addresses that guests have whose VMs are not bound where they run.
    pub(super) fn public_addresses(&self) -> BTreeSet<Ipv4Addr> {
        self.by_object.values().flatten().flat_map(|claim| claim.public.values().copied()).collect()
    }

    /// Whether such a guest has this private address, or this MAC.
    pub(super) fn is_address_held(&self, network: &str, address: Ipv4Addr) -> bool {
        self.interfaces().any(|i| i.network == network && i.address.parse() == Ok(address))
    }

    pub(super) fn is_mac_held(&self, mac: &str) -> bool {
        self.interfaces().any(|i| i.mac_address.eq_ignore_ascii_case(mac))
    }

    fn interfaces(&self) -> impl Iterator<Item = &InterfaceStatus> {
        self.by_object.values().flatten().flat_map(|claim| &claim.interfaces)
    }

    /// The VMs that hosts have something of.
    pub(super) fn vms(&self) -> impl Iterator<Item = &Key> {
        self.by_object.keys().filter(|key| key.kind == Kind::VM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::Disk;
    use serde_json::json;

    fn host(orphans: serde_json::Value) -> Host {
        let host = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host", "metadata": {"name": "h1"}, "spec": {},
            "status": {"orphans": orphans}});
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
        let key = Key::namespaced(Kind::Disk, "ns", "root");
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
            "it is told when it is given back"
        );
        assert_eq!(claims.of(&key, &disk("u1")), None);
        assert!(claims.set("h1", None).is_empty() && claims.by_object.is_empty());
    }
}
