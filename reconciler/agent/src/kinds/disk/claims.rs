//! Assigns a disk to a user: first come, first served, and stable. Pure.

use berth_api::{MOST_DISK_READERS, ObjectUse, UseKind};
use jiff::Timestamp;

/// A VM's or attachment's claim to a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UseRequest {
    pub(crate) by: ObjectUse,
    pub(crate) since: Option<Timestamp>,
    /// The claimant is being deleted: it keeps what it has until it releases it, and gets nothing new.
    pub(crate) leaving: bool,
}

/// Returns the users of a disk, given its current users, the claims and the machines that have it open. `orphan` is the
/// use by a machine that has it open without its VM being bound here.
///
/// *Guarantees:* at most one VM; a user keeps the disk while it wants or holds it, unless an orphan has it open and the
/// user does not; a machine that has it open is always among the users.
pub(crate) fn users(
    have: &[ObjectUse],
    requests: &[UseRequest],
    orphan: Option<&ObjectUse>,
    holds: impl Fn(&ObjectUse) -> bool,
) -> Vec<ObjectUse> {
    let is_held = || have.iter().chain(requests.iter().map(|w| &w.by)).any(&holds);
    if let Some(orphan) = orphan.filter(|_| !is_held()) {
        return vec![orphan.clone()];
    }
    let keeps = |user: &ObjectUse| {
        let wants = requests.iter().any(|w| !w.leaving && w.by.vm_uid == user.vm_uid);
        wants || holds(user)
    };
    if let Some(user) = have.iter().find(|user| keeps(user)) {
        return vec![best_of(user, requests)];
    }
    // A machine has it open although no status lists it as a user, for example after the status was lost.
    if let Some(holder) = requests.iter().find(|w| holds(&w.by)) {
        return vec![holder.by.clone()];
    }
    let mut waiting: Vec<&UseRequest> = requests.iter().filter(|w| !w.leaving).collect();
    waiting.sort_by_key(|w| (w.since, w.by.use_kind == UseKind::Hotswap, &w.by.vm, &w.by.attachment));
    waiting.first().map(|w| w.by.clone()).into_iter().collect()
}

/// Returns the users of a disk for several VMs, as [`users`] does.
///
/// *Guarantees:* at most [`MOST_DISK_READERS`] VMs; a machine that has it open is among them, since only users open it; a user keeps the
/// disk while it wants or holds it; of the others, those that have waited longest get it.
pub(crate) fn sharers(
    have: &[ObjectUse],
    requests: &[UseRequest],
    orphan: Option<&ObjectUse>,
    holds: impl Fn(&ObjectUse) -> bool,
) -> Vec<ObjectUse> {
    let wants = |user: &ObjectUse| requests.iter().any(|w| !w.leaving && w.by.vm_uid == user.vm_uid);
    let mut waiting: Vec<&UseRequest> = requests.iter().filter(|w| !w.leaving).collect();
    waiting.sort_by_key(|w| (w.since, &w.by.vm));
    let holding = have.iter().chain(requests.iter().map(|w| &w.by)).filter(|user| holds(user));
    let keeping = have.iter().filter(|user| wants(user));
    let mut users: Vec<ObjectUse> = Vec::new();
    for user in orphan.into_iter().chain(holding).chain(keeping).chain(waiting.iter().map(|w| &w.by)) {
        if users.len() < MOST_DISK_READERS && users.iter().all(|known| known.vm_uid != user.vm_uid) {
            users.push(user.clone());
        }
    }
    users
}

/// Returns how the VM that has the disk uses it now: unchanged if it still wants that use, else the other use it wants.
fn best_of(user: &ObjectUse, requests: &[UseRequest]) -> ObjectUse {
    let same_vm = || requests.iter().filter(|w| w.by.vm_uid == user.vm_uid);
    if same_vm().any(|w| w.by == *user) {
        return user.clone();
    }
    let wanted = same_vm().find(|w| !w.leaving).or_else(|| same_vm().next());
    wanted.map_or_else(|| user.clone(), |w| w.by.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fixed(vm: &str) -> ObjectUse {
        ObjectUse { use_kind: UseKind::Fixed, vm: vm.into(), vm_uid: format!("uid-{vm}"), attachment: None }
    }

    fn hotswap(vm: &str, attachment: &str) -> ObjectUse {
        let attachment = Some(attachment.to_owned());
        ObjectUse { use_kind: UseKind::Hotswap, vm: vm.into(), vm_uid: format!("uid-{vm}"), attachment }
    }

    fn request(by: ObjectUse, second: i64) -> UseRequest {
        UseRequest { by, since: Timestamp::from_second(second).ok(), leaving: false }
    }

    fn leaving(by: ObjectUse) -> UseRequest {
        UseRequest { by, since: None, leaving: true }
    }

    #[test]
    fn of_two_vms_that_want_a_disk_the_older_gets_it_and_keeps_it() {
        let requests = [request(fixed("b"), 1), request(fixed("a"), 2)];
        let users_now = users(&[], &requests, None, |_| false);
        assert_eq!(users_now, [fixed("b")]);
        let requests = [request(fixed("a"), 0), request(fixed("b"), 1)];
        assert_eq!(users(&users_now, &requests, None, |_| false), [fixed("b")]);
    }

    #[test]
    fn a_disk_passes_on_once_its_user_neither_wants_nor_holds_it() {
        let have = [fixed("a")];
        let requests = [leaving(fixed("a")), request(fixed("b"), 1)];
        assert_eq!(users(&have, &requests, None, |u| u.vm == "a"), [fixed("a")], "its machine has it open");
        assert_eq!(users(&have, &requests, None, |_| false), [fixed("b")]);
    }

    #[test]
    fn a_detaching_attachment_keeps_the_disk_until_the_machine_let_go() {
        let have = [hotswap("a", "x")];
        assert_eq!(users(&have, &[leaving(hotswap("a", "x"))], None, |_| true), have);
        assert_eq!(users(&have, &[leaving(hotswap("a", "x"))], None, |_| false), []);
    }

    #[test]
    fn a_disk_moved_from_attachment_to_the_vms_own_list_stays_with_the_vm() {
        let requests = [leaving(hotswap("a", "x")), request(fixed("a"), 5), request(fixed("b"), 1)];
        assert_eq!(users(&[hotswap("a", "x")], &requests, None, |_| false), [hotswap("a", "x")]);
        assert_eq!(users(&[hotswap("a", "x")], &requests[1..], None, |_| false), [fixed("a")]);
    }

    #[test]
    fn a_user_whose_vm_is_gone_and_holds_nothing_is_dropped() {
        assert_eq!(users(&[fixed("a")], &[], None, |_| false), []);
        assert_eq!(
            users(&[fixed("a")], &[], None, |_| true),
            [fixed("a")],
            "an orphaned machine still has it open"
        );
    }

    #[test]
    fn a_disk_that_an_orphan_has_open_is_its_whoever_wants_it_and_was_said_to_have_it() {
        let orphan = ObjectUse { vm_uid: "uid-before".into(), ..fixed("a") };
        let requests = [request(fixed("a"), 1), request(fixed("b"), 2)];
        for have in [vec![], vec![fixed("b")], vec![orphan.clone()]] {
            let users_now = users(&have, &requests, Some(&orphan), |_| false);
            assert_eq!(users_now.as_slice(), std::slice::from_ref(&orphan), "{have:?}");
        }
        assert_eq!(
            users(&[], &requests, Some(&orphan), |u| u.vm == "b"),
            [fixed("b")],
            "its machine is known to have it open, and no two machines have"
        );
        assert_eq!(users(&[orphan], &requests, None, |_| false), [fixed("a")], "once it has ended");
    }

    #[test]
    fn a_disk_that_vms_only_read_is_given_to_each_of_them() {
        let requests = [request(fixed("b"), 1), request(fixed("a"), 2), leaving(fixed("c"))];
        let first = sharers(&[], &requests, None, |_| false);
        assert_eq!(first, [fixed("b"), fixed("a")], "one that leaves gets nothing new");
        let holds = |user: &ObjectUse| user.vm == "c";
        let with_holder = sharers(&first, &requests, None, holds);
        assert_eq!(with_holder, [fixed("c"), fixed("b"), fixed("a")]);
        assert_eq!(sharers(&with_holder, &requests, None, holds), with_holder, "it is stable");
        assert_eq!(sharers(&with_holder, &requests[..1], None, |_| false), [fixed("b")]);
        let orphan = fixed("orphan");
        assert_eq!(sharers(&[], &requests[..1], Some(&orphan), |_| false), [orphan, fixed("b")]);
    }

    #[test]
    fn a_disk_has_a_limited_number_of_readers_and_they_keep_it() {
        let name = |n: usize| fixed(&format!("vm-{n:02}"));
        let requests: Vec<UseRequest> = (0..20).map(|n| request(name(n), 20 - n as i64)).collect();
        let have: Vec<ObjectUse> = (0..4).map(name).collect();
        let users_now = sharers(&have, &requests, None, |_| false);
        assert_eq!(users_now.len(), MOST_DISK_READERS);
        assert_eq!(users_now[..4], have, "those that have it keep it");
        assert_eq!(users_now[4], name(19), "the oldest comes next");
    }

    proptest! {
        #[test]
        fn there_is_never_more_than_one_user_and_never_another_than_the_holder(
            have in prop::option::of(0usize..4),
            wants in prop::collection::vec((0usize..4, 0i64..9, any::<bool>()), 0..6),
            holder in prop::option::of(0usize..4),
            is_orphaned in any::<bool>(),
        ) {
            let names = ["a", "b", "c", "d"];
            let have: Vec<ObjectUse> = have.map(|i| fixed(names[i])).into_iter().collect();
            let requests: Vec<UseRequest> = wants
                .iter()
                .map(|(i, t, leaving)| UseRequest { leaving: *leaving, ..request(fixed(names[*i]), *t) })
                .collect();
            // Only a user of a disk opens it.
            let holder = holder.map(|i| names[i]).filter(|h| have.is_empty() || have[0].vm == *h);
            let known = |h: &str| have.iter().any(|u| u.vm == h) || requests.iter().any(|w| w.by.vm == h);
            let orphan = is_orphaned.then(|| fixed("orphan"));
            let got = users(&have, &requests, orphan.as_ref(), |u| Some(u.vm.as_str()) == holder);
            prop_assert!(got.len() <= 1);
            if let Some(holder) = holder.filter(|h| known(h)).or(orphan.as_ref().map(|o| o.vm.as_str())) {
                prop_assert_eq!(got[0].vm.as_str(), holder);
            }
            prop_assert_eq!(users(&got, &requests, orphan.as_ref(), |u| Some(u.vm.as_str()) == holder), got);
        }
    }
}
