use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn host(available: u64) -> HostMemory {
    HostMemory { total: 100 * GIB, available, reserved: GIB }
}

/// A guest that keeps a half and uses this many bytes.
fn guest(base: u64, used: u64) -> Guest {
    let reported = GuestMemory { total: base, available: base - used, ..GuestMemory::default() };
    Guest { base, plugged: 0, reserved: base / 2, left: base, reported: Some(reported) }
}

#[test]
fn nothing_changes_between_the_thresholds() {
    let (full, part) = (guest(8 * GIB, GIB), Guest { left: 5 * GIB, ..guest(8 * GIB, GIB) });
    for available in [20, 22, 25] {
        assert_eq!(targets(&host(available * GIB), &[full, part]), [None, None], "{available} %");
    }
    assert!(targets(&host(19 * GIB), &[full, part])[0].is_some());
    assert_eq!(targets(&host(26 * GIB), &[full, part])[0], None, "it has all of its memory");
    assert!(targets(&host(26 * GIB), &[full, part])[1].is_some());
}

#[test]
fn a_step_takes_what_is_lacking_and_no_more_than_a_twentieth_of_a_guest() {
    let lacking = |bytes: u64| host(20 * GIB - bytes);
    let idle = guest(8 * GIB, GIB);
    assert_eq!(targets(&lacking(100 * MIB), &[idle]), [Some(8 * GIB - 100 * MIB)]);
    assert_eq!(targets(&lacking(10 * GIB), &[idle]), [Some(8 * GIB - idle.step())]);
    let small = guest(64 * MIB, MIB);
    assert_eq!(targets(&lacking(10 * GIB), &[small]), [Some(48 * MIB)], "not by 3.2 MiB");
    assert_eq!(targets(&lacking(MIB), &[idle]), [None], "not worth the work");
    let at_the_end = Guest { left: 4 * GIB, ..idle };
    assert_eq!(targets(&lacking(10 * GIB), &[at_the_end]), [None], "the rest is kept for it");
}

#[test]
fn guests_with_memory_to_spare_give_before_those_that_use_theirs() {
    let (idle, busy) = (guest(8 * GIB, GIB), guest(8 * GIB, 7 * GIB));
    let step = idle.step();
    assert_eq!(step, 410 * MIB, "a twentieth of 8 GiB");
    assert_eq!(targets(&host(20 * GIB - step), &[busy, idle]), [None, Some(8 * GIB - step)]);
    let both = targets(&host(20 * GIB - 2 * step), &[busy, idle]);
    assert_eq!(
        both,
        [Some(8 * GIB - step), Some(8 * GIB - step)],
        "the busy one, too, if that is not enough"
    );
}

#[test]
fn a_guest_is_never_asked_for_memory_that_it_uses() {
    let full = guest(8 * GIB, 8 * GIB);
    assert_eq!(targets(&host(0), &[full]), [None]);
    let nearly = guest(8 * GIB, 8 * GIB - 100 * MIB);
    assert_eq!(targets(&host(0), &[nearly, full]), [Some(8 * GIB - 100 * MIB), None]);
}

#[test]
fn equal_guests_give_the_same_and_larger_ones_more() {
    let all = [guest(20 * GIB, GIB), guest(20 * GIB, GIB), guest(40 * GIB, GIB)];
    let given: Vec<u64> = targets(&host(20 * GIB - 400 * MIB), &all)
        .into_iter()
        .zip(&all)
        .map(|(target, guest)| guest.left - target.expect("each gives something"))
        .collect();
    assert_eq!(given, [100 * MIB, 100 * MIB, 200 * MIB]);
}

#[test]
fn nothing_is_taken_from_a_guest_that_reports_nothing_and_it_gets_back_what_it_lacks() {
    let silent = Guest { reported: None, ..guest(8 * GIB, GIB) };
    assert_eq!(targets(&host(0), &[silent]), [None]);
    let silent = Guest { left: 6 * GIB, ..silent };
    assert_eq!(targets(&host(60 * GIB), &[silent]), [Some(6 * GIB + silent.step())]);
}

#[test]
fn what_is_kept_for_a_guest_is_given_back_at_once_also_on_a_full_host() {
    let raised = Guest { reserved: 7 * GIB, left: 4 * GIB, ..guest(8 * GIB, GIB) };
    assert_eq!(targets(&host(0), &[raised]), [Some(7 * GIB)]);
    let whole = Guest { reserved: 8 * GIB, left: 4 * GIB, reported: None, ..guest(8 * GIB, GIB) };
    assert_eq!(targets(&host(0), &[whole]), [Some(8 * GIB)]);
}

#[test]
fn memory_that_was_plugged_in_counts_for_what_is_kept() {
    let grown = Guest { plugged: 3 * GIB, reserved: 4 * GIB, left: GIB + 100 * MIB, ..guest(2 * GIB, GIB) };
    assert_eq!(targets(&host(0), &[grown]), [Some(GIB)], "1 GiB of its start and the 3 GiB are kept");
}

#[test]
fn a_host_keeps_what_it_reserves_if_that_is_more_than_a_fifth() {
    let host = HostMemory { reserved: 30 * GIB, ..host(25 * GIB) };
    assert_eq!(host.lacks(), 5 * GIB);
    assert!(targets(&host, &[guest(8 * GIB, GIB)])[0].is_some());
}

#[test]
fn the_oom_killer_prefers_a_qemu_that_uses_more_than_is_kept_for_it_to_any_of_which_all_is_kept() {
    let total = 64 * GIB;
    assert_eq!(oom_preference(None, total), 0);
    assert_eq!(oom_preference(Some(16 * GIB), total), 750);
    assert_eq!((oom_preference(Some(0), total), oom_preference(Some(u64::MAX), total)), (1000, 0));
    // The kernel adds the thousandths of all memory that a process uses.
    let score = |used: u64, reserved| used * 1000 / total + u64::from(oom_preference(reserved, total));
    assert!(score(17 * GIB, Some(16 * GIB)) > score(total, None));
}

fn any_guest() -> impl Strategy<Value = Guest> {
    let numbers = (1u64..64, 0u64..64, 0u64..130, 0u64..=64, any::<bool>(), any::<u64>(), any::<u64>());
    numbers.prop_map(|(base, plugged, reserved, left, reports, total, available)| Guest {
        base: base * GIB,
        plugged: plugged * GIB,
        reserved: reserved * GIB,
        left: left.min(base) * GIB,
        reported: reports.then(|| GuestMemory { total, available, ..GuestMemory::default() }),
    })
}

proptest! {
    #[test]
    fn no_step_goes_below_what_is_kept_or_above_what_there_is(
        guests in prop::collection::vec(any_guest(), 0..12),
        available in 0u64..100,
    ) {
        let host = host(available * GIB);
        let targets = targets(&host, &guests);
        prop_assert_eq!(targets.len(), guests.len());
        let mut taken = 0;
        for (guest, target) in guests.iter().zip(targets) {
            let Some(target) = target else { continue };
            prop_assert!((guest.least()..=guest.base).contains(&target), "{guest:?} {target}");
            if target < guest.left {
                prop_assert!(guest.reported.is_some() && guest.left - target <= guest.step(), "{guest:?}");
                taken += guest.left - target;
            }
        }
        prop_assert!(taken <= host.lacks(), "{taken}");
    }

    /// Guests that use a part of what they have follow each step; other programs of the host take what they take.
    #[test]
    fn steps_end_with_enough_memory_or_with_guests_that_have_what_is_kept(
        sizes in prop::collection::vec((1u64..16, 1u64..10), 1..12),
        others in 0u64..90,
    ) {
        let mut guests: Vec<Guest> = sizes.iter().map(|(size, tenths)| guest(size * GIB, size * GIB * tenths / 10)).collect();
        let available = |guests: &[Guest]| {
            let used: u64 = guests.iter().map(|guest| guest.left).sum();
            (100 * GIB).saturating_sub(used + others * GIB)
        };
        for _ in 0..60 {
            let now = targets(&host(available(&guests)), &guests);
            for (guest, target) in guests.iter_mut().zip(now) {
                guest.left = target.unwrap_or(guest.left);
            }
        }
        let (host, before) = (host(available(&guests)), guests.clone());
        let rest = targets(&host, &guests);
        prop_assert!(rest.iter().all(Option::is_none), "{rest:?} of {before:?}");
        let is_left_alone = |guest: &Guest| guest.gives() < LEAST_CHANGE;
        let gave_all = guests.iter().all(is_left_alone);
        // Each may keep what is not worth another step.
        let slack = LEAST_CHANGE * u64::try_from(guests.len()).expect("few");
        prop_assert!(host.lacks() <= slack || gave_all, "{} lacking, {guests:?}", host.lacks());
    }
}
