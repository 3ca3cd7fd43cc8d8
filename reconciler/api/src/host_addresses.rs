//! The addresses of all hosts of a site, in one ConfigMap that the controllers write and the hosts watch. Guests are kept
//! from reaching them. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The ConfigMap in `berth-system`.
pub const HOST_ADDRESSES: &str = "berth-host-addresses";
/// Further IPv4 addresses are left out: each host has one.
pub const MAX_HOST_ADDRESSES: usize = 4096;
/// Further IPv6 addresses are left out: each host has one or a few, and reports at most 64.
pub const MAX_HOST_IPV6_ADDRESSES: usize = 8192;
/// IPv4 addresses only: earlier agents read no others.
const KEY: &str = "addresses";
const IPV6_KEY: &str = "ipv6Addresses";

/// The ConfigMap's data: one address a line, by family.
pub fn to_data(addresses: impl Iterator<Item = IpAddr>) -> BTreeMap<String, String> {
    let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(_) if ipv4.len() < MAX_HOST_ADDRESSES => ipv4.push(format!("{address}\n")),
            IpAddr::V6(_) if ipv6.len() < MAX_HOST_IPV6_ADDRESSES => ipv6.push(format!("{address}\n")),
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
    }
    BTreeMap::from([(KEY.to_owned(), ipv4.concat()), (IPV6_KEY.to_owned(), ipv6.concat())])
}

/// Reads the ConfigMap's data; `None` if it is not a list of addresses. Earlier controllers write no IPv6 addresses.
pub fn from_data(data: &BTreeMap<String, String>) -> Option<Vec<IpAddr>> {
    let mut all: Vec<IpAddr> = addresses::<Ipv4Addr>(data.get(KEY)?, MAX_HOST_ADDRESSES)?;
    if let Some(text) = data.get(IPV6_KEY) {
        all.extend(addresses::<Ipv6Addr>(text, MAX_HOST_IPV6_ADDRESSES)?);
    }
    Some(all)
}

fn addresses<A: FromStr + Into<IpAddr>>(text: &str, most: usize) -> Option<Vec<IpAddr>> {
    text.lines().take(most).map(|line| line.parse::<A>().ok().map(Into::into)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_gives_the_addresses_it_was_made_from_and_other_data_gives_none() {
        let addresses: [IpAddr; 3] =
            ["192.0.2.1", "192.0.2.7", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        assert_eq!(from_data(&to_data(addresses.into_iter())), Some(addresses.to_vec()));
        assert_eq!(from_data(&to_data(std::iter::empty())), Some(Vec::new()));
        assert_eq!(from_data(&BTreeMap::new()), None);
        for text in ["192.0.2.1\nhost", "192.0.2.0/24\n", "\n", "2001:db8::1\n"] {
            assert_eq!(from_data(&BTreeMap::from([(KEY.to_owned(), text.to_owned())])), None, "{text:?}");
        }
        let only = |text: &str| BTreeMap::from([(KEY.to_owned(), text.to_owned())]);
        let earlier = from_data(&only("192.0.2.1\n"));
        assert_eq!(earlier, Some(vec![addresses[0]]), "by controllers that list no IPv6 addresses");
        for text in ["2001:db8::/64\n", "192.0.2.1\n", "host"] {
            let mut data = only("192.0.2.1\n");
            data.insert(IPV6_KEY.to_owned(), text.to_owned());
            assert_eq!(from_data(&data), None, "{text:?}");
        }
        let many = (0..10_000_u32).map(|n| IpAddr::from(Ipv4Addr::from(n)));
        assert_eq!(from_data(&to_data(many)).map(|all| all.len()), Some(MAX_HOST_ADDRESSES));
        let many = (0..10_000_u128).map(|n| IpAddr::from(Ipv6Addr::from(n)));
        assert_eq!(from_data(&to_data(many)).map(|all| all.len()), Some(MAX_HOST_IPV6_ADDRESSES));
    }
}
