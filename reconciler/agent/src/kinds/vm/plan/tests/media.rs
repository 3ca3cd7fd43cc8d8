//! CD-ROM drives: a start waits for media, and a running machine has them exchanged.

use berth_host::{Encoding, ImageFacts};
use berth_qemu::block::ObservedCdrom;
use berth_qemu::machine::Medium;

use super::super::super::cdroms::DeclaredCdrom;
use super::*;
use crate::journal::RunCdrom;
use crate::kinds::image::local::LocalImage;

fn cached(digit: &str, format: Format) -> LocalImage {
    LocalImage::Cached(ImageFacts {
        digest: digit.repeat(64),
        format,
        encoding: Encoding::default(),
        virtual_size: 1 << 20,
        bytes: 1 << 20,
        path: format!("/images/{digit}").into(),
        readers: Default::default(),
        made_for: std::collections::BTreeSet::new(),
    })
}

fn drive(name: &str, image: Option<LocalImage>) -> DeclaredCdrom {
    DeclaredCdrom {
        name: name.into(),
        boot_first: false,
        guest_can_eject: true,
        image: image.map(|image| ("iso".to_owned(), image)),
    }
}

/// A machine that was started with the drive `a`.
fn with_drive(node: Option<&str>, locked: bool, declared: Vec<DeclaredCdrom>) -> Observed {
    let mut observed = present(RunState::Running);
    let run = observed.journal.run.as_mut().expect("it runs");
    run.cdroms = vec![RunCdrom { name: "a".into(), boot_first: false }];
    let node = node.map(|digit| Medium::node(0, &digit.repeat(64)));
    let seen = ObservedCdrom { slot: 0, node, tray_open: false, locked };
    observed.machine.as_mut().expect("it runs").cdroms = vec![seen];
    Observed { cdroms: declared, ..observed }
}

#[test]
fn a_start_waits_for_its_media_and_has_the_drives_in_the_order_of_the_spec() {
    let with = |cdroms| plan(&vm(json!({})), &Observed { cdroms, ..ready_to_start() });
    assert_eq!(stands(&with(vec![drive("a", Some(LocalImage::Missing))])), (false, Reason::WaitingForImage));
    assert_eq!(stands(&with(vec![drive("a", Some(cached("c", Format::Raw)))])), (true, Reason::InvalidSpec));
    let started = with(vec![drive("b", None), drive("a", Some(cached("c", Format::Iso)))]);
    let launch = started.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.cdroms.clone()),
        _ => None,
    });
    let drives = launch.expect("it is launched");
    let shown: Vec<_> = drives.iter().map(|d| (d.slot, d.serial.as_str(), d.medium.is_some())).collect();
    assert_eq!(shown, [(0, "b", false), (1, "a", true)]);
    let Some(Step::WriteJournal(journal)) = started.steps.first() else { panic!("{started:?}") };
    assert_eq!(journal.run.as_ref().map(|run| run.cdroms.len()), Some(2));
}

#[test]
fn a_medium_is_changed_exactly_if_it_differs_whatever_the_guest_does_with_the_tray() {
    let planned = |observed: &Observed| plan(&vm(json!({})), observed);
    let wanted = || vec![drive("a", Some(cached("c", Format::Iso)))];
    assert_eq!(stands(&planned(&with_drive(Some("c"), false, wanted()))), (false, Reason::Running));
    assert_eq!(stands(&planned(&with_drive(Some("c"), true, wanted()))), (false, Reason::Running));
    let mut ejected = with_drive(Some("c"), false, wanted());
    ejected.machine.as_mut().expect("it runs").cdroms[0].tray_open = true;
    assert_eq!(stands(&planned(&ejected)), (false, Reason::Running));
    assert!(planned(&ejected).steps.is_empty(), "it stays open");
    ejected.cdroms[0].guest_can_eject = false;
    assert_eq!(names(&planned(&ejected)), ["CloseTray"]);
    for has in [None, Some("d")] {
        assert_eq!(names(&planned(&with_drive(has, false, wanted()))), ["ChangeMedium"]);
    }
    // A drive that is not declared any more is emptied.
    for declared in [vec![drive("a", None)], Vec::new()] {
        let emptied = planned(&with_drive(Some("c"), false, declared));
        let [Step::ChangeMedium(change)] = &emptied.steps[..] else { panic!("{emptied:?}") };
        assert_eq!((change.slot, &change.medium), (0, &None));
    }
    let busy = planned(&with_drive(Some("d"), true, wanted()));
    assert_eq!((names(&busy), busy.readiness.reason()), (vec!["ChangeMedium"], Reason::GuestBusy));
    let waits = planned(&with_drive(None, false, vec![drive("a", Some(LocalImage::Missing))]));
    assert_eq!(stands(&waits), (false, Reason::WaitingForImage), "it runs on meanwhile");
}

#[test]
fn other_drives_and_another_place_in_the_boot_order_wait_for_a_power_cycle() {
    let pending = |declared: Vec<DeclaredCdrom>| {
        let vm = vm(json!({}));
        let observed = with_drive(None, false, declared);
        status(&vm, &observed, &Readiness::Ready(Reason::Running, String::new()), at(NOW)).pending_power_cycle
    };
    assert!(pending(vec![drive("a", None)]).is_empty());
    assert_eq!(pending(vec![drive("a", None), drive("b", None)]), ["cdroms[b]"]);
    assert_eq!(pending(Vec::new()), ["cdroms[a]"]);
    assert_eq!(pending(vec![DeclaredCdrom { boot_first: true, ..drive("a", None) }]), ["cdroms[a]"]);
}
