//! Notices that another program has removed berth's tables, as `nft flush ruleset` does, by the kernel's messages about nftables.
//!
//! The kernel has a message for each rule, and drops messages that exceed the socket's buffer, as when the rules of many guests are replaced.
//! After that, a list of the tables that are there takes the place of the messages.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use serde_json::Value;

use super::firewall::NFT;
use super::netlink::network;
use super::{Result, ruleset};

/// The multicast group of messages about nftables (`NFNLGRP_NFTABLES`, 7), as a bit.
const GROUP: u32 = 1 << 6;
/// `NFNL_SUBSYS_NFTABLES` in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
/// `NFTA_TABLE_NAME`
const NAME: u16 = 1;
/// The names of berth's tables: those of the rules, and that of senders.
const NAMES: [&str; 2] = [ruleset::TABLE, ruleset::senders::SENDERS.name];
/// The lengths of a netlink message's header, and of the one of netfilter behind it.
const HEADER: usize = 16;
const NETFILTER: usize = 4;
/// After a removal, the time in which its program may write the tables again itself.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same for a program that goes on changing rules: guests are not filtered meanwhile.
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);

/// The messages of the kernel. One receiver, which sees all messages since it was opened.
pub(super) struct Removals {
    socket: TokioSocket,
}

impl fmt::Debug for Removals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Removals").finish_non_exhaustive()
    }
}

impl Removals {
    pub(super) fn open() -> Result<Self> {
        let open = || {
            let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
            socket.socket_mut().bind(&SocketAddr::new(0, GROUP))?;
            Ok(socket)
        };
        let socket = open().map_err(|e: io::Error| network("listen to", "nftables", e.to_string()))?;
        Ok(Self { socket })
    }

    /// Returns once a table of berth's is removed and not made again at once. `guards`: whether that of senders counts, which the agent
    /// itself removes when no rule relies on it.
    pub(super) async fn next(&self, guards: impl Fn() -> bool) {
        let mut removed = [false; 2];
        let mut missing_since: Option<Instant> = None;
        loop {
            let [rules, senders] = removed;
            let received = match rules || (senders && guards()) {
                false => {
                    missing_since = None;
                    self.socket.recv_from_full().await
                }
                true => {
                    let since = *missing_since.get_or_insert_with(Instant::now);
                    let Some(wait) = patience(since.elapsed()) else { return };
                    match tokio::time::timeout(wait, self.socket.recv_from_full()).await {
                        Ok(received) => received,
                        Err(_) => return,
                    }
                }
            };
            match received {
                Ok((bytes, _)) => {
                    for (removed, table) in removed.iter_mut().zip(NAMES) {
                        if let Some(last) = last_change(&bytes, table) {
                            *removed = last == Change::Removed;
                        }
                    }
                }
                // Messages were lost: one of them may have been about a removal, or about a replacement by the agent itself.
                Err(_) => {
                    self.discard();
                    removed = missing().await;
                }
            }
        }
    }

    /// Discards the messages of the time before: the kernel drops all others, without another error, until these are read.
    fn discard(&self) {
        loop {
            match self.socket.socket_ref().recv_from_full() {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

/// Returns the time to wait for the next message while a table has been missing for this long. None: it was long enough.
fn patience(missing: Duration) -> Option<Duration> {
    let left = LONGEST_PATIENCE.checked_sub(missing).filter(|left| !left.is_zero())?;
    Some(left.min(PATIENCE))
}

/// Returns which of the tables, as in [`NAMES`], the kernel does not have: all of them if it cannot be asked.
async fn missing() -> [bool; 2] {
    let listed = NFT.run(&["-j", "list", "tables"], Vec::new()).await;
    let listing = listed.ok().filter(|output| output.ok).map(|output| serde_json::from_slice(&output.stdout));
    listing.and_then(std::result::Result::ok).map_or([true; 2], |listing| missing_in(&listing))
}

/// A write makes the tables of the rules of all families.
fn missing_in(listing: &Value) -> [bool; 2] {
    let is_there = |table: &ruleset::Table| {
        let mut tables = listing["nftables"].as_array().into_iter().flatten().map(|item| &item["table"]);
        tables.any(|there| there["family"] == table.family && there["name"] == table.name)
    };
    [!ruleset::TABLES.iter().all(is_there), !is_there(&ruleset::senders::SENDERS)]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Made,
    Removed,
}

/// Returns the last change of the tables with this name among these messages. A replacement removes a table and makes it again.
fn last_change(mut bytes: &[u8], table: &str) -> Option<Change> {
    let mut last = None;
    while bytes.len() >= HEADER {
        let length = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let Some(length) = usize::try_from(length).ok().filter(|l| (HEADER..=bytes.len()).contains(l)) else {
            return last;
        };
        let attributes = bytes.get(HEADER + NETFILTER..length).unwrap_or_default();
        if name(attributes).is_some_and(|name| name == table.as_bytes()) {
            last = match kind {
                NEW_TABLE => Some(Change::Made),
                DELETE_TABLE => Some(Change::Removed),
                _ => last,
            };
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    last
}

/// Returns the name among the attributes of a table. Other messages have other attributes under this number, which do not matter:
/// their kind is another.
fn name(mut attributes: &[u8]) -> Option<&[u8]> {
    while let [a, b, c, d, ..] = attributes {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let kind = u16::from_ne_bytes([*c, *d]);
        let value = attributes.get(4..length)?;
        if kind == NAME {
            return Some(value.strip_suffix(&[0]).unwrap_or(value));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(kind: u16, name: &str) -> Vec<u8> {
        let mut attribute = u16::try_from(4 + name.len() + 1).expect("short").to_ne_bytes().to_vec();
        attribute.extend(NAME.to_ne_bytes());
        attribute.extend(name.as_bytes());
        attribute.push(0);
        attribute.resize(attribute.len().next_multiple_of(4), 0);
        let length = u32::try_from(HEADER + NETFILTER + attribute.len()).expect("short");
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.resize(HEADER + NETFILTER, 0);
        message.extend(attribute);
        message
    }

    #[test]
    fn a_replacement_of_a_table_is_no_removal_and_other_tables_do_not_matter() {
        let of_rules = |bytes: &[u8]| last_change(bytes, ruleset::TABLE);
        let removed = message(DELETE_TABLE, "berth");
        let replaced = [removed.clone(), message(NEW_TABLE, "berth")].concat();
        assert_eq!(of_rules(&removed), Some(Change::Removed));
        assert_eq!(of_rules(&replaced), Some(Change::Made));
        assert_eq!(of_rules(&message(DELETE_TABLE, "berths")), None);
        let of_senders = message(DELETE_TABLE, "berth_senders");
        assert_eq!(of_rules(&of_senders), None);
        assert_eq!(last_change(&of_senders, NAMES[1]), Some(Change::Removed));
        assert_eq!(of_rules(&[replaced, message(DELETE_TABLE, "filter")].concat()), Some(Change::Made));
    }

    #[test]
    fn a_program_that_goes_on_writing_rules_delays_the_return_of_the_tables_by_a_second_at_most() {
        assert_eq!(patience(Duration::ZERO), Some(PATIENCE));
        assert_eq!(patience(Duration::from_millis(950)), Some(Duration::from_millis(50)));
        assert_eq!(patience(LONGEST_PATIENCE), None);
        assert_eq!(patience(Duration::from_secs(60)), None);
    }

    #[test]
    fn messages_that_are_cut_are_not_read_beyond_their_end() {
        let whole = message(DELETE_TABLE, "berth");
        for end in 0..whole.len() {
            assert_eq!(last_change(&whole[..end], "berth"), None, "{end}");
        }
        let mut lies = whole;
        lies[HEADER + NETFILTER] = 0;
        assert_eq!(last_change(&lies, "berth"), None, "an attribute without length");
    }

    #[test]
    fn a_list_of_tables_lacks_those_of_the_rules_if_one_family_has_none() {
        let table =
            |family: &str, name: &str| json!({"table": {"family": family, "name": name, "handle": 1}});
        let (routed, bridged) = (table("inet", "berth"), table("bridge", "berth"));
        let senders = table("bridge", "berth_senders");
        let missing = |tables: &[&Value]| {
            let version = json!({"metainfo": {"version": "1"}});
            let items = [&[&version], tables].concat();
            missing_in(&json!({"nftables": items}))
        };
        assert_eq!(missing(&[&routed, &bridged, &senders]), [false, false]);
        assert_eq!(missing(&[&routed, &bridged]), [false, true]);
        assert_eq!(missing(&[&routed, &senders]), [true, false]);
        assert_eq!(
            missing(&[&table("ip", "berth"), &bridged, &table("inet", "berth_senders")]),
            [true, true]
        );
        assert_eq!(missing(&[]), [true, true]);
    }
}
