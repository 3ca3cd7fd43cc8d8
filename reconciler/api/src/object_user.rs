//! The users of an object that any number of others may use: a few of them by name.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The largest number of users that an object lists: an object that 10,000 VMs use stays small and is not written for each.
pub const LISTED_USERS: usize = 4;

/// One of the users of an object. While there is one, a deleted object stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectUser {
    /// `VM`, `Disk`, `HotswapDiskAttachment`, `PublicIP`, or another kind.
    #[schemars(length(max = 64))]
    pub kind: String,
    /// The user's namespace.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// The user's name.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// The users that an object lists: those it listed before that still use it, and as many of `all` as there is room for.
///
/// *Guarantees:* empty if and only if nothing uses it; sorted; the same again as long as those listed stay and there is
/// no room for more, whatever other users come and go. Looks at `LISTED_USERS` of `all` beyond those listed, at most.
pub fn listed_users(
    before: &[ObjectUser],
    is_user: impl Fn(&ObjectUser) -> bool,
    all: impl IntoIterator<Item = ObjectUser>,
) -> Vec<ObjectUser> {
    let mut listed: Vec<ObjectUser> =
        before.iter().filter(|user| is_user(user)).take(LISTED_USERS).cloned().collect();
    let mut all = all.into_iter();
    while listed.len() < LISTED_USERS {
        let Some(user) = all.next() else { break };
        if !listed.contains(&user) {
            listed.push(user);
        }
    }
    listed.sort();
    listed
}

/// The message of an object that is deleted and still used. A full list may not name all users, so that its last one is
/// left out.
pub fn in_use(users: &[ObjectUser]) -> String {
    let named = users.iter().take(LISTED_USERS - 1).map(|u| format!("{} {}/{}", u.kind, u.namespace, u.name));
    let named: Vec<String> = named.collect();
    let more = if users.len() >= LISTED_USERS { " and others" } else { "" };
    format!("deleted, and held until nothing uses it: used by {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(n: usize) -> ObjectUser {
        ObjectUser { kind: "VM".into(), namespace: "default".into(), name: format!("vm-{n:05}") }
    }

    #[test]
    fn the_list_is_bounded_and_stays_while_others_come_and_go() {
        let mut all: Vec<ObjectUser> = (100..10_000).map(vm).collect();
        let first = listed_users(&[], |_| true, all.clone());
        assert_eq!(first, [vm(100), vm(101), vm(102), vm(103)]);
        all.insert(0, vm(0));
        all.truncate(500);
        assert_eq!(listed_users(&first, |user| all.contains(user), all.clone()), first);
    }

    #[test]
    fn a_user_that_is_gone_makes_room_and_without_users_the_list_is_empty() {
        let before = [vm(1), vm(2)];
        let now = [vm(2), vm(3)];
        assert_eq!(listed_users(&before, |user| now.contains(user), now.clone()), now);
        assert!(listed_users(&before, |_| false, []).is_empty());
    }
}
