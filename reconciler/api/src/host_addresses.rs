//! The addresses of all hosts of a site, in one ConfigMap that the controllers write and the hosts watch. Guests are kept
//! from reaching them. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The ConfigMap in `berth-system`.
pub const HOST_ADDRESSES: &str = "berth-host-addresses";
/// Further addresses are left out.
pub const MAX_HOST_ADDRESSES: usize = 4096;
const KEY: &str = "addresses";

/// The ConfigMap's data: one address a line.
pub fn to_data(addresses: impl Iterator<Item = Ipv4Addr>) -> BTreeMap<String, String> {
    let lines: String = addresses.take(MAX_HOST_ADDRESSES).map(|address| format!("{address}\n")).collect();
    BTreeMap::from([(KEY.to_owned(), lines)])
}

/// Reads the ConfigMap's data; `None` if it is not a list of addresses.
pub fn from_data(data: &BTreeMap<String, String>) -> Option<Vec<Ipv4Addr>> {
    data.get(KEY)?.lines().take(MAX_HOST_ADDRESSES).map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_gives_the_addresses_it_was_made_from_and_other_data_gives_none() {
        let addresses = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 7)];
        assert_eq!(from_data(&to_data(addresses.into_iter())), Some(addresses.to_vec()));
        assert_eq!(from_data(&to_data(std::iter::empty())), Some(Vec::new()));
        assert_eq!(from_data(&BTreeMap::new()), None);
        for text in ["192.0.2.1\nhost", "192.0.2.0/24\n", "\n"] {
            assert_eq!(from_data(&BTreeMap::from([(KEY.to_owned(), text.to_owned())])), None, "{text:?}");
        }
        let many = (0..10_000).map(Ipv4Addr::from);
        assert_eq!(from_data(&to_data(many)).map(|all| all.len()), Some(MAX_HOST_ADDRESSES));
    }
}
