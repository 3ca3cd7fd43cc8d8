//! A range of addresses of a pool: declared as a CIDR or by its first and last address. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

/// The lowest lengths of prefixes of a pool.
const SHORTEST_IPV4: u8 = 16;
const SHORTEST_IPV6: u8 = 64;
/// The part of an IPv6 address that is zero in the anycast address of all routers of a segment (RFC 4291, section 2.6.1).
const INTERFACE_ID: u128 = u64::MAX as u128;

/// The addresses from the first to the last, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
    /// Whether it was declared as a CIDR with more than two addresses, whose ends may be special.
    has_ends: bool,
}

impl AddressRange {
    /// Reads a range such as `203.0.113.16/28`, `203.0.113.10-203.0.113.20` or `2001:db8:0:7::/112`.
    ///
    /// *Errors*: the cause, as the end of a sentence that begins with the range.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text.split_once('-') {
            Some((first, last)) => Self::between(first, last),
            None => Self::of_cidr(text),
        }
    }

    fn between(first: &str, last: &str) -> Result<Self, &'static str> {
        let (Ok(first), Ok(last)) = (first.parse::<IpAddr>(), last.parse::<IpAddr>()) else {
            return Err("is not a range: write two addresses, such as 203.0.113.10-203.0.113.20");
        };
        if first.is_ipv4() != last.is_ipv4() {
            return Err("has addresses of both families");
        }
        if first > last {
            return Err("has its first address above its last");
        }
        must_be_public(first)?;
        let length = if first.is_ipv4() { SHORTEST_IPV4 } else { SHORTEST_IPV6 };
        let widest = IpNet::new(first, length).map_err(|_| "is not a range")?;
        if !widest.contains(&last) {
            return Err("is too long: both addresses must be of one /16, or of one /64 of IPv6");
        }
        Ok(Self { first, last, has_ends: false })
    }

    fn of_cidr(text: &str) -> Result<Self, &'static str> {
        let Ok(net) = text.parse::<IpNet>() else {
            return Err("is not a range: write one such as 203.0.113.16/28 or 203.0.113.10-203.0.113.20");
        };
        let shortest = if net.addr().is_ipv4() { SHORTEST_IPV4 } else { SHORTEST_IPV6 };
        if net.prefix_len() < shortest {
            return Err("is too large: the prefix must have at least 16 bits, or 64 of IPv6");
        }
        must_be_public(net.network())?;
        let has_ends = net.max_prefix_len() - net.prefix_len() > 1;
        Ok(Self { first: net.network(), last: net.broadcast(), has_ends })
    }

    /// Whether its addresses are of IPv6.
    #[must_use]
    pub fn is_ipv6(self) -> bool {
        self.first.is_ipv6()
    }

    /// Its first and its last address, given out or not.
    #[must_use]
    pub fn bounds(self) -> (IpAddr, IpAddr) {
        (self.first, self.last)
    }

    /// Whether an address of it is in this prefix, given out or not.
    #[must_use]
    pub fn overlaps(self, prefix: IpNet) -> bool {
        prefix.addr().is_ipv4() == self.first.is_ipv4()
            && self.first <= prefix.broadcast()
            && prefix.network() <= self.last
    }

    /// Whether the address is in it, given out or not.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && (self.first..=self.last).contains(&address)
    }

    /// Returns the addresses that are given out, as numbers; None if there are none. The ends of a CIDR are the network's and the
    /// broadcast address of IPv4, and the anycast address of the routers of IPv6, which has no broadcast.
    fn usable(self, with_ends: bool) -> Option<(u128, u128)> {
        let (mut first, mut last) = (number(self.first), number(self.last));
        if self.has_ends && !with_ends {
            first += 1;
            last -= u128::from(!self.is_ipv6());
        } else if self.is_ipv6() && first & INTERFACE_ID == 0 {
            first += 1;
        }
        (first <= last).then_some((first, last))
    }

    /// Returns the number of addresses that are given out.
    #[must_use]
    pub fn size(self, with_ends: bool) -> u128 {
        self.usable(with_ends).map_or(0, |(first, last)| last - first + 1)
    }

    /// Whether the address is given out.
    #[must_use]
    pub fn is_usable(self, address: IpAddr, with_ends: bool) -> bool {
        let number = number(address);
        self.contains(address)
            && self.usable(with_ends).is_some_and(|(first, last)| (first..=last).contains(&number))
    }

    /// Whether all addresses of the prefix are in it. Its ends are of no meaning to a prefix that is routed.
    #[must_use]
    pub fn contains_prefix(self, prefix: IpNet) -> bool {
        self.contains(prefix.network()) && self.contains(prefix.broadcast())
    }

    /// Returns the lowest IPv6 prefix of this length within it that is free. `taken`: of a prefix that is not, the last of the taken
    /// addresses from one in it on.
    pub fn lowest_prefix(self, length: u8, taken: impl Fn(Ipv6Net) -> Option<Ipv6Addr>) -> Option<Ipv6Net> {
        self.is_ipv6().then(|| lowest((number(self.first), number(self.last)), length, taken))?
    }

    /// Returns the lowest IPv6 address that is given out and free, as [`AddressRange::lowest_prefix`] does.
    pub fn lowest_address(
        self,
        with_ends: bool,
        taken: impl Fn(Ipv6Net) -> Option<Ipv6Addr>,
    ) -> Option<Ipv6Addr> {
        let usable = self.usable(with_ends).filter(|_| self.is_ipv6())?;
        lowest(usable, 128, taken).map(|address| address.addr())
    }

    /// Returns the addresses that are given out, from the lowest on.
    pub fn addresses(self, with_ends: bool) -> impl Iterator<Item = IpAddr> {
        let numbers = self.usable(with_ends).into_iter().flat_map(|(first, last)| first..=last);
        numbers.map(move |number| address(number, self.is_ipv6()))
    }
}

/// Checks the first address of a range: an IPv6 range is within one /64, so that the others are of the same kind.
fn must_be_public(first: IpAddr) -> Result<(), &'static str> {
    let IpAddr::V6(first) = first else { return Ok(()) };
    let is_of_one_machine = first.is_unspecified() || first.is_loopback();
    if is_of_one_machine || first.is_multicast() || first.is_unicast_link_local() {
        return Err("has addresses that are never public: declare global or unique local addresses of IPv6");
    }
    Ok(())
}

/// Returns the lowest free prefix of this length from the first to the last of these addresses.
fn lowest(
    (from, last): (u128, u128),
    length: u8,
    taken: impl Fn(Ipv6Net) -> Option<Ipv6Addr>,
) -> Option<Ipv6Net> {
    let size = 1_u128.checked_shl(128_u32.checked_sub(u32::from(length))?)?;
    let mut next = from;
    loop {
        let first = next.checked_next_multiple_of(size)?;
        if first.checked_add(size - 1)? > last {
            return None;
        }
        let prefix = Ipv6Net::new(first.into(), length).ok()?;
        match taken(prefix) {
            None => return Some(prefix),
            // Each step passes the prefix, whatever the answer.
            Some(until) => next = u128::from(until).max(first + (size - 1)).checked_add(1)?,
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Returns the address with this number; those of IPv4 have 32 bits.
fn address(number: u128, is_ipv6: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if !is_ipv6 => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        AddressRange::parse(text).expect("a range")
    }

    fn first(text: &str, with_ends: bool) -> Vec<String> {
        range(text).addresses(with_ends).take(2).map(|address| address.to_string()).collect()
    }

    #[test]
    fn the_ends_of_a_cidr_are_left_out_unless_the_pool_has_them_and_those_of_a_range_are_not() {
        assert_eq!(first("192.0.2.0/29", false), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(range("192.0.2.0/29").size(false), 6);
        assert_eq!(first("192.0.2.0/29", true), ["192.0.2.0", "192.0.2.1"]);
        assert_eq!(first("192.0.2.8/31", false), ["192.0.2.8", "192.0.2.9"]);
        assert_eq!(first("192.0.2.8-192.0.2.8", false), ["192.0.2.8"]);
        assert_eq!(range("192.0.2.250-192.0.3.5").size(false), 12);
        assert_eq!(first("2001:db8::70/124", false), ["2001:db8::71", "2001:db8::72"]);
        assert_eq!(range("2001:db8::70/124").size(false), 15, "IPv6 has no broadcast address");
        assert_eq!(first("2001:db8::70/124", true), ["2001:db8::70", "2001:db8::71"]);
    }

    #[test]
    fn the_anycast_address_of_the_routers_is_never_given_out() {
        for with_ends in [false, true] {
            assert_eq!(first("2001:db8::/64", with_ends), ["2001:db8::1", "2001:db8::2"]);
            assert_eq!(first("2001:db8::-2001:db8::9", with_ends), ["2001:db8::1", "2001:db8::2"]);
            assert!(first("2001:db8::/128", with_ends).is_empty());
        }
        let whole = range("2001:db8::/64");
        assert_eq!(whole.size(true), u128::from(u64::MAX), "it is counted, and not enumerated");
        let anycast = "2001:db8::".parse().expect("an address");
        assert!(whole.contains(anycast) && !whole.is_usable(anycast, true));
        assert!(!whole.is_usable("192.0.2.1".parse().expect("an address"), true));
    }

    #[test]
    fn the_lowest_free_prefix_is_aligned_and_lies_within_the_range() {
        let lowest = |text: &str, length: u8, taken: &[(&str, &str)]| {
            let taken: Vec<(Ipv6Addr, Ipv6Addr)> = taken
                .iter()
                .map(|(first, last)| (first.parse().expect("an address"), last.parse().expect("an address")))
                .collect();
            let over = |prefix: Ipv6Net| {
                let found = taken
                    .iter()
                    .find(|(first, last)| *first <= prefix.broadcast() && prefix.network() <= *last);
                found.map(|(_, last)| *last)
            };
            range(text).lowest_prefix(length, over).map(|prefix| prefix.to_string())
        };
        assert_eq!(lowest("2001:db8::/64", 80, &[]).as_deref(), Some("2001:db8::/80"));
        assert_eq!(lowest("2001:db8::/64", 64, &[]).as_deref(), Some("2001:db8::/64"));
        assert_eq!(lowest("2001:db8::5-2001:db8::1f", 124, &[]).as_deref(), Some("2001:db8::10/124"));
        assert_eq!(lowest("2001:db8::5-2001:db8::1e", 124, &[]), None, "it is cut");
        assert_eq!(lowest("2001:db8::/112", 80, &[]), None, "it is too short");
        let single = ("2001:db8::1:0:0:9", "2001:db8::1:0:0:9");
        let first = ("2001:db8::", "2001:db8::ffff:ffff:ffff");
        assert_eq!(lowest("2001:db8::/64", 80, &[first, single]).as_deref(), Some("2001:db8:0:0:2::/80"));
        let all = ("2001:db8::", "2001:db8::ffff:ffff:ffff:ffff");
        assert_eq!(lowest("2001:db8::/64", 127, &[all]), None);
        assert_eq!(range("192.0.2.0/24").lowest_prefix(28, |_| None), None, "of IPv6 only");
        let last = range("fdff:ffff:ffff:ffff::/64").lowest_prefix(64, |_| Some(Ipv6Addr::from(u128::MAX)));
        assert_eq!(last, None);
        let single = |until: &str| {
            let until: Ipv6Addr = until.parse().expect("an address");
            let over = move |address: Ipv6Net| (address.addr() <= until).then_some(until);
            range("2001:db8::/64").lowest_address(true, over).map(|address| address.to_string())
        };
        assert_eq!(single("2001:db8::").as_deref(), Some("2001:db8::1"));
        assert_eq!(single("2001:db8::ffff:ffff:ffff").as_deref(), Some("2001:db8:0:0:1::"));
        assert_eq!(single("2001:db8::ffff:ffff:ffff:ffff"), None, "a taken prefix is passed at once");
        let whole: IpNet = "2001:db8::/64".parse().expect("a prefix");
        assert!(
            range("2001:db8::/64").contains_prefix(whole) && !range("2001:db8::/65").contains_prefix(whole)
        );
    }

    #[test]
    fn a_range_overlaps_the_prefixes_that_have_an_address_of_it() {
        for (text, prefix, overlaps) in [
            ("2001:db8::/112", "2001:db8::/64", true),
            ("2001:db8::5-2001:db8::9", "2001:db8::8/125", true),
            ("2001:db8::5-2001:db8::9", "2001:db8::10/124", false),
            ("2001:db8:0:1::/64", "2001:db8::/64", false),
            ("192.0.2.0/28", "::/0", false),
            ("192.0.2.0/28", "192.0.2.0/24", true),
        ] {
            assert_eq!(range(text).overlaps(prefix.parse().expect("a prefix")), overlaps, "{text} {prefix}");
        }
    }

    #[test]
    fn a_range_that_is_none_says_why() {
        for (text, why) in [
            ("192.0.2.9-192.0.2.8", "above"),
            ("192.0.2.9-2001:db8::1", "both families"),
            ("192.0.2.9-192.1.0.1", "too long"),
            ("2001:db8::1-2001:db8:0:1::1", "too long"),
            ("192.0.2.9-", "two addresses"),
            ("192.0.0.0/15", "too large"),
            ("2001:db8::/63", "too large"),
            ("fe80::/64", "never public"),
            ("fe80::5-fe80::9", "never public"),
            ("ff02::/64", "never public"),
            ("::/64", "never public"),
            ("::1/128", "never public"),
            ("", "not a range"),
        ] {
            assert!(AddressRange::parse(text).unwrap_err().contains(why), "{text}");
        }
    }
}
