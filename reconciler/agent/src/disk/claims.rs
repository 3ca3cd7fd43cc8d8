//! Who uses a disk: first come, first served, and stable. Pure.

use berth_api::{ObjectUse, UseKind};
use jiff::Timestamp;

/// Somebody who wants a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) by: ObjectUse,
    pub(crate) since: Option<Timestamp>,
    /// Going away: keeps what it has until it lets go, and gets nothing new.
    pub(crate) leaving: bool,
}

/// The users of a disk, from those it has, those who want it, and whose machine has it open.
///
/// *Guarantees:* at most one VM; whoever has it keeps it while they want it or hold it; a machine that has it open
/// is always among the users.
pub(crate) fn users(
    have: &[ObjectUse],
    wishes: &[Wish],
    holds: impl Fn(&ObjectUse) -> bool,
) -> Vec<ObjectUse> {
    let keeps = |user: &ObjectUse| {
        let wants = wishes.iter().any(|w| !w.leaving && w.by.vm_uid == user.vm_uid);
        wants || holds(user)
    };
    if let Some(user) = have.iter().find(|user| keeps(user)) {
        return vec![best_of(user, wishes)];
    }
    // A machine that has it open although nobody says so: after status was lost, say.
    if let Some(holder) = wishes.iter().find(|w| holds(&w.by)) {
        return vec![holder.by.clone()];
    }
    let mut waiting: Vec<&Wish> = wishes.iter().filter(|w| !w.leaving).collect();
    waiting.sort_by_key(|w| (w.since, w.by.use_kind == UseKind::Hotswap, &w.by.vm, &w.by.attachment));
    waiting.first().map(|w| w.by.clone()).into_iter().collect()
}

/// How the VM that has it uses it now: as it did, if it still wants that, else in the other way it wants.
fn best_of(user: &ObjectUse, wishes: &[Wish]) -> ObjectUse {
    let same_vm = || wishes.iter().filter(|w| w.by.vm_uid == user.vm_uid);
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

    fn wish(by: ObjectUse, second: i64) -> Wish {
        Wish { by, since: Timestamp::from_second(second).ok(), leaving: false }
    }

    fn leaving(by: ObjectUse) -> Wish {
        Wish { by, since: None, leaving: true }
    }

    #[test]
    fn of_two_vms_that_want_a_disk_the_older_gets_it_and_keeps_it() {
        let wishes = [wish(fixed("b"), 1), wish(fixed("a"), 2)];
        let users_now = users(&[], &wishes, |_| false);
        assert_eq!(users_now, [fixed("b")]);
        let wishes = [wish(fixed("a"), 0), wish(fixed("b"), 1)];
        assert_eq!(users(&users_now, &wishes, |_| false), [fixed("b")]);
    }

    #[test]
    fn a_disk_passes_on_once_its_user_neither_wants_nor_holds_it() {
        let have = [fixed("a")];
        let wishes = [leaving(fixed("a")), wish(fixed("b"), 1)];
        assert_eq!(users(&have, &wishes, |u| u.vm == "a"), [fixed("a")], "its machine has it open");
        assert_eq!(users(&have, &wishes, |_| false), [fixed("b")]);
    }

    #[test]
    fn a_detaching_attachment_keeps_the_disk_until_the_machine_let_go() {
        let have = [hotswap("a", "x")];
        assert_eq!(users(&have, &[leaving(hotswap("a", "x"))], |_| true), have);
        assert_eq!(users(&have, &[leaving(hotswap("a", "x"))], |_| false), []);
    }

    #[test]
    fn a_disk_moved_from_attachment_to_the_vms_own_list_stays_with_the_vm() {
        let wishes = [leaving(hotswap("a", "x")), wish(fixed("a"), 5), wish(fixed("b"), 1)];
        assert_eq!(users(&[hotswap("a", "x")], &wishes, |_| false), [hotswap("a", "x")]);
        assert_eq!(users(&[hotswap("a", "x")], &wishes[1..], |_| false), [fixed("a")]);
    }

    #[test]
    fn a_user_whose_vm_is_gone_and_holds_nothing_is_dropped() {
        assert_eq!(users(&[fixed("a")], &[], |_| false), []);
        assert_eq!(
            users(&[fixed("a")], &[], |_| true),
            [fixed("a")],
            "an orphaned machine still has it open"
        );
    }

    proptest! {
        #[test]
        fn there_is_never_more_than_one_user_and_never_another_than_the_holder(
            have in prop::option::of(0usize..4),
            wants in prop::collection::vec((0usize..4, 0i64..9, any::<bool>()), 0..6),
            holder in prop::option::of(0usize..4),
        ) {
            let names = ["a", "b", "c", "d"];
            let have: Vec<ObjectUse> = have.map(|i| fixed(names[i])).into_iter().collect();
            let wishes: Vec<Wish> = wants
                .iter()
                .map(|(i, t, leaving)| Wish { leaving: *leaving, ..wish(fixed(names[*i]), *t) })
                .collect();
            // Nobody opens a disk who is not its user.
            let holder = holder.map(|i| names[i]).filter(|h| have.is_empty() || have[0].vm == *h);
            let known = |h: &str| have.iter().any(|u| u.vm == h) || wishes.iter().any(|w| w.by.vm == h);
            let got = users(&have, &wishes, |u| Some(u.vm.as_str()) == holder);
            prop_assert!(got.len() <= 1);
            if let Some(holder) = holder.filter(|h| known(h)) {
                prop_assert_eq!(got[0].vm.as_str(), holder);
            }
            prop_assert_eq!(users(&got, &wishes, |u| Some(u.vm.as_str()) == holder), got);
        }
    }
}
