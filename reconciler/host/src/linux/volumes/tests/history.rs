//! No sequence of operations, including interrupted ones, loses a disk that was not in the trash long enough.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Operation {
    Create,
    Grow,
    Trash,
    Restore,
    PurgeOld,
    PurgeAll,
    /// The state after a crash between the note and the file of a move to the trash.
    TrashUntilNote,
    /// The state after a crash between the note and the file of a restore.
    RestoreUntilNote,
}

fn operations() -> impl Strategy<Value = Vec<(u8, Operation)>> {
    use Operation::*;
    let one = prop_oneof![
        Just(Create),
        Just(Grow),
        Just(Trash),
        Just(Restore),
        Just(PurgeOld),
        Just(PurgeAll),
        Just(TrashUntilNote),
        Just(RestoreUntilNote)
    ];
    prop::collection::vec((0..2_u8, one), 0..24)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Nowhere,
    Pool,
    Trash,
    /// In the trash, being restored.
    Returning,
}

impl Where {
    fn in_trash(self) -> bool {
        matches!(self, Self::Trash | Self::Returning)
    }
}

fn id(n: u8) -> String {
    format!("v-000000000000000{n}")
}

fn apply(f: &Fixture, n: u8, operation: &Operation, state: &mut Where) {
    let id = id(n);
    let order = NewVolume { id: id.clone(), ..new(Some(MIB), None) };
    let place = f.volumes.place(POOL, &id).expect("names");
    match operation {
        Operation::Create => {
            let made = f.volumes.create(&order, None);
            assert_eq!(made.is_ok(), !state.in_trash(), "{made:?}");
            if *state == Where::Nowhere {
                *state = Where::Pool;
            }
        }
        Operation::Grow => {
            assert_eq!(f.volumes.grow(POOL, &id, 2 * MIB).is_ok(), *state == Where::Pool);
        }
        Operation::Trash => {
            f.volumes.trash(POOL, &id).expect("idempotent");
            if *state != Where::Nowhere {
                *state = Where::Trash;
            }
        }
        Operation::Restore => {
            assert_eq!(f.volumes.restore(POOL, &id, &owner("x")).is_ok(), *state != Where::Nowhere);
            if *state != Where::Nowhere {
                *state = Where::Pool;
            }
        }
        Operation::PurgeOld => {
            assert!(f.volumes.purge(POOL, Duration::from_secs(3600)).expect("purge").is_empty());
        }
        Operation::PurgeAll => unreachable!("of all disks at once"),
        Operation::TrashUntilNote if *state == Where::Pool => {
            let note = Note::read(&place.note).expect("read").expect("there").expect("readable");
            files::ensure_folder(&f.at("trash")).expect("folder");
            let deleted_at = Some(jiff::Timestamp::UNIX_EPOCH);
            Note { deleted_at, ..note }.write(&place.trashed_note).expect("note");
        }
        Operation::RestoreUntilNote if *state == Where::Trash => {
            let note = Note::read(&place.trashed_note).expect("read").expect("there").expect("readable");
            files::ensure_folder(&f.at("volumes")).expect("folder");
            Note { deleted_at: None, ..note }.write(&place.note).expect("note");
            *state = Where::Returning;
        }
        Operation::TrashUntilNote | Operation::RestoreUntilNote => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_disk_is_where_its_history_put_it(history in operations()) {
        let f = Fixture::new();
        let mut states = [Where::Nowhere; 2];
        for (n, operation) in &history {
            if matches!(operation, Operation::PurgeAll) {
                f.volumes.purge(POOL, Duration::ZERO).expect("purge");
                states.iter_mut().filter(|s| **s == Where::Trash).for_each(|s| *s = Where::Nowhere);
            } else {
                apply(&f, *n, operation, &mut states[usize::from(*n)]);
            }
            for (n, state) in (0_u8..).zip(states) {
                let found = f.volumes.volume(POOL, &id(n)).expect("never lost").is_some();
                let trashed = f.volumes.trashed().expect("list").iter().any(|t| t.volume.id == id(n));
                let expected = (state == Where::Pool, state.in_trash());
                prop_assert_eq!((found, trashed), expected, "disk {} after {:?} of {:?}", n, operation, &history);
            }
        }
    }
}
