//! The addresses and prefixes of PublicIPs: which PublicIP has an address, and which addresses in a row are taken, so that a search for a
//! free prefix passes those without a look at each PublicIP.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
};

use berth_api::PublicIP;
use ipnet::{IpNet, Ipv6Net};

use crate::key::{Key, ObjectKind};

/// The allocated addresses and prefixes. PublicIPs get none that overlap.
#[derive(Debug, Default)]
pub(super) struct PublicAddresses {
    /// By the first address of a range.
    holders: BTreeMap<IpAddr, (IpNet, Key)>,
    /// PublicIP → its addresses, and its pool.
    ranges: HashMap<Key, (IpNet, Key)>,
    taken: TakenAddresses,
}

impl PublicAddresses {
    /// Records a PublicIP (`None`: gone); returns the pools whose allocated addresses have changed.
    pub(super) fn set(&mut self, key: &Key, ip: Option<&PublicIP>) -> Vec<Key> {
        let new = ip.and_then(|ip| {
            let first: IpAddr = ip.status.as_ref()?.address.as_ref()?.parse().ok()?;
            // An address that begins no prefix of that length counts by itself.
            let range = ip.spec.range_at(first).unwrap_or_else(|| first.into());
            Some((range, Key::cluster(ObjectKind::IPPool, ip.spec.pool.as_str())))
        });
        let old = match &new {
            Some(new) => self.ranges.insert(key.clone(), new.clone()),
            None => self.ranges.remove(key),
        };
        if old != new {
            if let Some((range, _)) = &old {
                self.release(key, *range);
            }
            if let Some((range, _)) = &new {
                self.holders.insert(range.network(), (*range, key.clone()));
                self.taken.insert(*range);
            }
        }
        old.into_iter().chain(new).map(|(_, pool)| pool).collect()
    }

    fn release(&mut self, key: &Key, range: IpNet) {
        if self.holders.get(&range.network()).is_some_and(|(_, holder)| holder == key) {
            self.holders.remove(&range.network());
        }
        self.taken.remove(range);
        // Of ranges that overlap nevertheless, the other one stays taken.
        let left: Vec<IpNet> = self.over(range).map(|(range, _)| *range).collect();
        for range in left {
            self.taken.insert(range);
        }
    }

    /// The ranges that overlap this one, from the highest on.
    fn over(&self, range: IpNet) -> impl Iterator<Item = &(IpNet, Key)> {
        let (first, last) = (range.network(), range.broadcast());
        // Ranges are prefixes: one that begins below this one and reaches into it contains it.
        let within = self.holders.range(first..=last).rev();
        let below =
            self.holders.range(..first).next_back().filter(move |(_, (of, _))| of.broadcast() >= first);
        within.chain(below).map(|(_, holder)| holder)
    }

    /// Returns the PublicIP that has the address, or the first one that has an address of the prefix.
    pub(super) fn holder(&self, range: IpNet) -> Option<&Key> {
        self.over(range).last().map(|(_, key)| key)
    }

    /// Returns the last of the taken addresses in a row from one of this prefix on. None: the prefix is free.
    pub(super) fn taken_until(&self, prefix: Ipv6Net) -> Option<Ipv6Addr> {
        self.taken.until(prefix)
    }

    /// Returns the number of allocated addresses of the pool.
    pub(super) fn count(&self, pool: &Key) -> u128 {
        let of_pool = self.ranges.values().filter(|(_, of)| of == pool);
        of_pool.map(|(range, _)| size(*range)).fold(0, u128::saturating_add)
    }
}

fn size(range: IpNet) -> u128 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    1_u128.checked_shl(bits).unwrap_or(u128::MAX)
}

/// Rows of taken IPv6 addresses. No two adjoin.
#[derive(Debug, Default)]
struct TakenAddresses {
    /// First → last.
    rows: BTreeMap<u128, u128>,
}

impl TakenAddresses {
    fn insert(&mut self, range: IpNet) {
        let IpNet::V6(range) = range else { return };
        let (mut first, mut last) = ends(range);
        // Those that overlap or adjoin it become one row with it.
        while let Some((from, to)) =
            self.row_to(last.saturating_add(1)).filter(|(_, to)| to.saturating_add(1) >= first)
        {
            self.rows.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.rows.insert(first, last);
    }

    fn remove(&mut self, range: IpNet) {
        let IpNet::V6(range) = range else { return };
        let (first, last) = ends(range);
        while let Some((from, to)) = self.row_to(last).filter(|(_, to)| *to >= first) {
            self.rows.remove(&from);
            if from < first {
                self.rows.insert(from, first - 1);
            }
            if to > last {
                self.rows.insert(last + 1, to);
            }
        }
    }

    /// Returns the last row that begins at an address or before it.
    fn row_to(&self, address: u128) -> Option<(u128, u128)> {
        self.rows.range(..=address).next_back().map(|(first, last)| (*first, *last))
    }

    fn until(&self, prefix: Ipv6Net) -> Option<Ipv6Addr> {
        let (first, last) = ends(prefix);
        let (_, until) = self.row_to(last).filter(|(_, until)| *until >= first)?;
        Some(until.into())
    }
}

fn ends(range: Ipv6Net) -> (u128, u128) {
    (range.network().into(), range.broadcast().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn public_ip(address: &str, length: Option<u8>) -> PublicIP {
        let mut ip = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"pool": "six"}, "status": {"observedGeneration": 1, "address": address},
        });
        if let Some(length) = length {
            ip["spec"]["prefixLength"] = length.into();
        }
        serde_json::from_value(ip).expect("a PublicIP")
    }

    fn key(number: usize) -> Key {
        Key::namespaced(ObjectKind::PublicIP, "ns", &format!("p{number}"))
    }

    fn prefix(text: &str) -> Ipv6Net {
        text.parse().expect("a prefix")
    }

    #[test]
    fn an_address_of_a_prefix_and_a_prefix_around_an_address_have_a_holder() {
        let mut all = PublicAddresses::default();
        all.set(&key(1), Some(&public_ip("2001:db8:0:0:1::", Some(80))));
        all.set(&key(2), Some(&public_ip("2001:db8::2:0:0:9", None)));
        all.set(&key(3), Some(&public_ip("192.0.2.7", None)));
        let holder = |range: &str| all.holder(range.parse().expect("a range")).cloned();
        assert_eq!(holder("2001:db8::1:ffff:ffff:ffff/128"), Some(key(1)));
        assert_eq!(holder("2001:db8::1:8000:0:0/82"), Some(key(1)), "a part of it");
        assert_eq!(holder("2001:db8:0:0:2::/80"), Some(key(2)));
        assert_eq!(holder("192.0.2.7/32"), Some(key(3)));
        assert_eq!((holder("192.0.2.8/32"), holder("2001:db8:0:0:3::/80")), (None, None));
        assert_eq!(all.count(&Key::cluster(ObjectKind::IPPool, "six")), (1 << 48) + 2);
    }

    #[test]
    fn prefixes_in_a_row_are_passed_by_one_look_and_are_free_again_when_their_public_ip_is_gone() {
        let mut all = PublicAddresses::default();
        for number in 0..1000_usize {
            let address = format!("2001:db8:0:0:{number:x}::");
            all.set(&key(number), Some(&public_ip(&address, Some(80))));
        }
        assert_eq!(all.taken.rows.len(), 1);
        let until = all.taken_until(prefix("2001:db8::/80")).map(|until| until.to_string());
        assert_eq!(until.as_deref(), Some("2001:db8::3e7:ffff:ffff:ffff"));
        all.set(&key(7), None);
        assert_eq!((all.taken_until(prefix("2001:db8:0:0:7::/80")), all.taken.rows.len()), (None, 2));
        let pools = all.set(&key(8), None);
        assert_eq!(pools, [Key::cluster(ObjectKind::IPPool, "six")]);
        assert_eq!(all.taken_until(prefix("2001:db8:0:0:8::/80")), None);
    }

    #[test]
    fn an_address_that_two_have_stays_taken_until_none_has_it() {
        let mut all = PublicAddresses::default();
        all.set(&key(1), Some(&public_ip("2001:db8:0:0:1::", Some(80))));
        all.set(&key(2), Some(&public_ip("2001:db8::1:0:0:9", None)));
        all.set(&key(1), None);
        assert!(all.taken_until(prefix("2001:db8::1:0:0:9/128")).is_some());
        assert_eq!(all.taken_until(prefix("2001:db8::1:0:0:a/128")), None);
        all.set(&key(2), None);
        assert!(all.taken.rows.is_empty() && all.holders.is_empty() && all.ranges.is_empty());
    }

    fn numbered(number: usize) -> Ipv6Addr {
        u128::try_from(number).expect("small").into()
    }

    proptest! {
        #[test]
        fn a_prefix_is_free_exactly_if_no_public_ip_has_an_address_of_it(
            changes in prop::collection::vec((0_u8..64, 122_u8..=128, any::<bool>()), 0..40),
        ) {
            let mut taken = TakenAddresses::default();
            let mut model = [false; 64];
            for (address, length, insert) in changes {
                let at = Ipv6Net::new(u128::from(address).into(), length).expect("a length").trunc();
                if insert { taken.insert(at.into()) } else { taken.remove(at.into()) }
                for address in at.hosts() {
                    model[usize::try_from(u128::from(address)).expect("small")] = insert;
                }
                for (number, is_taken) in model.iter().enumerate() {
                    let one = Ipv6Net::from(numbered(number));
                    let row = model[number..].iter().take_while(|taken| **taken).count();
                    let until = is_taken.then(|| numbered(number + row - 1));
                    prop_assert_eq!(taken.until(one), until);
                }
            }
        }
    }
}
