//! The members of groups that rules name: sets of addresses, which are changed without the rules. Pure.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::{Family, joined, set, set_name};
use crate::Filters;

pub(super) fn member_set(name: &str, ranges: &[(Ipv4Addr, Ipv4Addr)]) -> Value {
    let next = |address: Ipv4Addr| u32::from(address).checked_add(1).map(Ipv4Addr::from);
    let element = |(first, last): (Ipv4Addr, Ipv4Addr)| match first == last {
        true => json!(first),
        false => json!({"range": [first, last]}),
    };
    let mut set =
        set(&set_name(name), Family::V4.kind(), joined(ranges, next).into_iter().map(element).collect());
    set["add"]["set"]["flags"] = json!(["interval"]);
    set
}

pub(super) fn ipv6_member_set(name: &str, ranges: &[(Ipv6Addr, Ipv6Addr)]) -> Value {
    let next = |address: Ipv6Addr| u128::from(address).checked_add(1).map(Ipv6Addr::from);
    let element = |(first, last): (Ipv6Addr, Ipv6Addr)| match first == last {
        true => json!(first),
        false => json!({"range": [first, last]}),
    };
    let elements = joined(ranges, next).into_iter().map(element).collect();
    let mut set = set(&Family::V6.named(&set_name(name)), Family::V6.kind(), elements);
    set["add"]["set"]["flags"] = json!(["interval"]);
    set
}

/// Returns the commands that change only the members of groups, where nothing else differs between these filters, which are not
/// equal.
pub(in super::super) fn change_members(before: &Filters, after: &Filters) -> Option<Vec<Value>> {
    let is_rest_equal = before.ports == after.ports
        && before.groups == after.groups
        && before.sets.keys().eq(after.sets.keys())
        && before.ipv6_sets.keys().eq(after.ipv6_sets.keys());
    // Without ports there are no sets.
    if !is_rest_equal || after.ports.is_empty() {
        return None;
    }
    let of_ipv4 = after.sets.iter().map(|(name, ranges)| {
        let former = before.sets.get(name).map(Vec::as_slice).unwrap_or_default();
        (member_set(name, former), member_set(name, ranges))
    });
    let of_ipv6 = after.ipv6_sets.iter().map(|(name, ranges)| {
        let former = before.ipv6_sets.get(name).map(Vec::as_slice).unwrap_or_default();
        (ipv6_member_set(name, former), ipv6_member_set(name, ranges))
    });
    Some(of_ipv4.chain(of_ipv6).flat_map(|(before, after)| change_elements(&before, &after)).collect())
}

/// Returns the commands that change the elements of a set, as it was declared before and is to be.
fn change_elements(before: &Value, after: &Value) -> Vec<Value> {
    let elements =
        |set: &Value| -> Vec<Value> { set["add"]["set"]["elem"].as_array().cloned().unwrap_or_default() };
    let (before, elements) = (elements(before), elements(after));
    // By their texts, as they may be thousands.
    let texts = |elements: &[Value]| -> BTreeSet<String> { elements.iter().map(Value::to_string).collect() };
    let (old, new) = (texts(&before), texts(&elements));
    let gone: Vec<Value> = before.into_iter().filter(|one| !new.contains(&one.to_string())).collect();
    let come: Vec<Value> = elements.into_iter().filter(|one| !old.contains(&one.to_string())).collect();
    let set = &after["add"]["set"];
    let command = |verb: &str, elements: Vec<Value>| {
        let element =
            json!({"family": set["family"], "table": set["table"], "name": set["name"], "elem": elements});
        json!({verb: {"element": element}})
    };
    let mut commands = Vec::new();
    if !gone.is_empty() {
        commands.push(command("delete", gone));
    }
    if !come.is_empty() {
        commands.push(command("add", come));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FilteredPort, Port};

    fn filters(members: &[(u8, u8)]) -> Filters {
        let address = |last| Ipv4Addr::new(10, 0, 0, last);
        let port = Port { tap: "btt2".into(), mac: "52:54:00:00:00:02".into(), address: None, ipv6: None };
        let ranges = members.iter().map(|(first, last)| (address(*first), address(*last))).collect();
        Filters {
            ports: vec![FilteredPort {
                port,
                groups: vec!["ns/web".into()],
                asks_dhcp: false,
                prefixes: Vec::new(),
            }],
            sets: [("ns/db".to_owned(), ranges)].into(),
            ipv6_sets: [("ns/db".to_owned(), Vec::new())].into(),
            ..Filters::default()
        }
    }

    /// The commands, each as its verb and its elements.
    fn changes(before: &Filters, after: &Filters) -> Option<Vec<(String, Value)>> {
        let verb = |command: Value| {
            let (verb, of) = command.as_object()?.iter().next()?;
            Some((verb.clone(), of["element"]["elem"].clone()))
        };
        change_members(before, after)?.into_iter().map(verb).collect()
    }

    #[test]
    fn a_member_that_comes_or_goes_is_one_command() {
        let few = filters(&[(2, 4), (9, 9)]);
        let more = filters(&[(2, 4), (7, 7), (9, 9)]);
        assert_eq!(changes(&few, &more), Some(vec![("add".into(), json!(["10.0.0.7"]))]));
        assert_eq!(changes(&more, &few), Some(vec![("delete".into(), json!(["10.0.0.7"]))]));
        let longer = filters(&[(2, 5), (9, 9)]);
        let range = |last: &str| json!([{"range": ["10.0.0.2", last]}]);
        let both = vec![("delete".to_owned(), range("10.0.0.4")), ("add".to_owned(), range("10.0.0.5"))];
        assert_eq!(changes(&few, &longer), Some(both));
    }

    #[test]
    fn where_more_differs_than_members_all_is_written() {
        let before = filters(&[(2, 4)]);
        let mut after = filters(&[(2, 5)]);
        after.groups.push(crate::FilterGroup::default());
        assert_eq!(changes(&before, &after), None);
        let mut after = filters(&[(2, 5)]);
        after.sets.insert("ns/other".to_owned(), Vec::new());
        assert_eq!(changes(&before, &after), None);
        assert_eq!(changes(&Filters::default(), &before), None);
    }
}
