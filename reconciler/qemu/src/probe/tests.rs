use std::os::unix::fs::PermissionsExt;

use super::*;

#[tokio::test]
async fn this_machine_is_measured_within_the_limit_and_the_reason_says_the_outcome() {
    let probe = tokio::time::timeout(LIMIT * 4, kvm()).await.expect("the probe has a limit of its own");
    assert!(!probe.reason.is_empty());
    match probe.mips {
        Some(mips) => assert_eq!(probe.usable, mips >= MIN_MIPS),
        None => assert!(!probe.usable),
    }
}

#[test]
fn a_device_that_emulates_is_refused_with_its_speed() {
    let slow = KvmProbe::judge(1.7, 12);
    assert!(!slow.usable);
    assert!(slow.reason.contains("1.7 million"), "{}", slow.reason);
    assert!(KvmProbe::judge(2400.0, 12).usable);
}

#[tokio::test]
async fn a_guest_that_never_comes_back_does_not_hang_the_caller() {
    let forever = || loop {
        std::thread::sleep(Duration::from_secs(60));
    };
    let probe = within(Duration::from_millis(50), forever).await;
    assert!(!probe.usable && probe.reason.contains("did not come back"), "{probe:?}");
}

#[test]
fn a_missing_device_is_named() {
    let why = not_openable(Path::new("/dev/no-such-kvm")).expect("not there");
    assert!(why.contains("/dev/no-such-kvm does not exist"), "{why}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).expect("ours");
    assert_eq!(not_openable(file.path()), None);
}
