use std::path::PathBuf;

use berth_host::linux::{
    DoctorEmulation, DoctorHugePages, DoctorKvm, DoctorMemory, DoctorQemu, DoctorService,
};

use super::*;

/// A machine without findings.
fn good() -> DoctorFacts {
    let qemu = DoctorQemu {
        version: (7, 2, 9),
        binary: "/usr/bin/qemu-system-x86_64".into(),
        q35: true,
        uefi: true,
        secure_boot: true,
        tpm: true,
    };
    DoctorFacts {
        is_root: true,
        kvm: DoctorKvm {
            flag: Some("vmx".into()),
            usable: true,
            reason: "/dev/kvm runs 2000 million instructions a second".into(),
            exists: true,
            nested: Some(true),
            is_guest: false,
        },
        qemu: Ok(qemu),
        architecture: "x86_64".to_owned(),
        emulation: DoctorEmulation { architecture: "aarch64".to_owned(), missing: Vec::new() },
        programs: ["nft", "dnsmasq", "swtpm", "virtiofsd", "wg", "wireguard-go"]
            .map(|program| (program.to_owned(), None))
            .into(),
        devices: [("/dev/kvm".to_owned(), Ok(())), ("/dev/net/tun".to_owned(), Ok(()))].into(),
        modules: ["bridge", "vxlan", "wireguard"].map(|module| (module.to_owned(), true)).into(),
        cgroups: ["cpu", "memory", "pids"].map(str::to_owned).into(),
        ip_forward: true,
        firewall: Ok(None),
        state_dir: PathBuf::from("/var/lib/berth"),
        storage: Ok((100 << 30, 50 << 30)),
        pools: [("fast".to_owned(), Ok((1 << 40, 1 << 39)))].into(),
        open_files: Some(524_288),
        memory: DoctorMemory { total: 64 << 30, available: 60 << 30 },
        huge_pages: Vec::new(),
        clock: Some("chronyd".into()),
        vhost_net: true,
        vhost_vsock: true,
        service: DoctorService { systemd: true, machines: true },
    }
}

/// Returns the checks that are not ok, as `name level`, and their text.
fn findings(facts: &DoctorFacts) -> Vec<(String, String)> {
    let checks = checks(facts);
    let bad = checks.iter().filter(|check| check.level != Level::Ok);
    bad.map(|check| {
        let fix = check.fix.as_deref().unwrap_or("no fix");
        (format!("{} {}", check.name, check.level.as_str()), format!("{} → {fix}", check.found))
    })
    .collect()
}

/// Returns the single finding about a machine that differs in one fact.
fn finding(change: impl FnOnce(&mut DoctorFacts)) -> (String, String) {
    let mut facts = good();
    change(&mut facts);
    let mut found = findings(&facts);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_good_machine_has_no_findings() {
    assert_eq!(findings(&good()), []);
    assert_eq!(json(&checks(&good()))["level"], "ok");
}

#[test]
fn each_cause_of_a_missing_kvm_has_its_own_remedy() {
    let without = |flag: Option<&str>, exists: bool, is_guest: bool| {
        finding(|facts| {
            let flag = flag.map(str::to_owned);
            facts.kvm = DoctorKvm {
                flag,
                exists,
                is_guest,
                usable: false,
                nested: Some(true),
                reason: "slow".into(),
            };
        })
    };
    let (name, text) = without(None, false, false);
    assert_eq!(name, "kvm warning");
    assert!(text.contains("VT-x or AMD-V"), "{text}");
    assert!(without(None, false, true).1.contains("nested virtualisation"));
    assert!(without(Some("svm"), false, false).1.contains("modprobe kvm_amd"));
    assert!(without(Some("vmx"), true, false).1.starts_with("slow: guests are emulated"));
    let (_, text) = finding(|facts| {
        facts.kvm.usable = false;
        facts.devices.insert("/dev/kvm".into(), Err("Permission denied (os error 13)".into()));
    });
    assert!(text.contains("cannot be opened: Permission denied"), "{text}");
}

#[test]
fn what_no_vm_can_run_without_is_a_failure() {
    let failure = |change: fn(&mut DoctorFacts)| {
        let (name, text) = finding(change);
        assert!(name.ends_with("failure"), "{name}: {text}");
        name
    };
    assert_eq!(failure(|facts| facts.is_root = false), "user failure");
    assert_eq!(failure(|facts| facts.modules.retain(|name, _| name != "bridge")), "bridge failure");
    assert_eq!(
        failure(|facts| drop(facts.programs.insert("nft".into(), Some("apt install nftables".into())))),
        "nftables failure"
    );
    assert_eq!(
        failure(|facts| drop(facts.devices.insert("/dev/net/tun".into(), Err("No such file".into())))),
        "tun failure"
    );
    assert_eq!(failure(|facts| facts.storage = Err("not a directory".into())), "storage failure");
    let mut facts = good();
    facts.qemu = Err("qemu-system-x86_64 was not found".into());
    let names: Vec<String> = findings(&facts).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["qemu failure", "firmware warning"]);
    assert_eq!(json(&checks(&facts))["level"], "failure");
}

#[test]
fn a_machine_with_systemd_and_without_the_units_has_a_note() {
    let (name, text) = finding(|facts| facts.service.machines = false);
    assert_eq!(name, "service note");
    assert!(text.ends_with("ends guests without asking them → `berth service install`"), "{text}");
    let mut facts = good();
    facts.service = DoctorService::default();
    assert_eq!(findings(&facts), [], "another init system");
}

#[test]
fn what_makes_vms_slow_or_rare_is_a_warning() {
    let warning = |change: fn(&mut DoctorFacts)| {
        let (name, text) = finding(change);
        assert!(name.ends_with("warning"), "{name}: {text}");
        text
    };
    assert!(warning(|facts| facts.cgroups.truncate(2)).contains("without pids"));
    assert!(warning(|facts| facts.storage = Ok((100 << 30, 4 << 30))).contains("4.0 GiB of 100.0 GiB"));
    let nearly_full = |facts: &mut DoctorFacts| {
        facts.pools.insert("fast".to_owned(), Ok((1 << 40, 1 << 30)));
    };
    assert!(warning(nearly_full).contains("fast: 1.0 GiB of 1024.0 GiB"));
    let away = |facts: &mut DoctorFacts| {
        facts.pools.insert("fast".to_owned(), Err("no marker".to_owned()));
    };
    assert!(warning(away).contains("fast is away: no marker"));
    assert!(warning(|facts| facts.open_files = Some(1024)).contains("1024"));
    assert!(warning(|facts| facts.clock = None).contains("chrony"));
    assert!(warning(|facts| facts.memory.available = 512 << 20).contains("too little"));
    assert!(warning(|facts| facts.modules.retain(|name, _| name != "vxlan")).contains("span hosts"));
    let old = |facts: &mut DoctorFacts| facts.qemu.as_mut().expect("QEMU").version = (6, 2, 0);
    assert!(warning(old).contains("older than 7.2"));
    const CLOSED: &str = "the firewall chain ip filter FORWARD drops forwarded packets: accept them there";
    let text = warning(|facts| facts.firewall = Ok(Some(CLOSED.into())));
    assert_eq!(text, "the firewall chain ip filter FORWARD drops forwarded packets → accept them there");
}

#[test]
fn a_machine_that_can_share_no_folders_is_told_how_to() {
    let missing = |facts: &mut DoctorFacts| {
        drop(facts.programs.insert("virtiofsd".into(), Some("install virtiofsd".into())));
    };
    let (name, text) = finding(missing);
    let found =
        "virtiofsd is not installed: no VM here can mount folders of this machine → install virtiofsd";
    assert_eq!((name.as_str(), text.as_str()), ("shares note", found));
}

#[test]
fn a_machine_that_formats_no_disks_has_a_note_with_the_package() {
    let missing = |facts: &mut DoctorFacts| {
        drop(facts.programs.insert("mkfs.ext4".into(), Some("install e2fsprogs".into())));
    };
    let (name, text) = finding(missing);
    assert_eq!(name, "filesystems note");
    assert!(text.starts_with("mkfs.ext4 is not installed") && text.ends_with("e2fsprogs"), "{text}");
}

#[test]
fn a_machine_that_can_emulate_no_tpm_is_told_how_to() {
    let (name, text) =
        finding(|facts| drop(facts.programs.insert("swtpm".into(), Some("apt install swtpm".into()))));
    assert_eq!(
        (name.as_str(), text.as_str()),
        ("tpm note", "swtpm is not installed: no VM here can have a TPM → apt install swtpm")
    );
    let (name, text) = finding(|facts| facts.qemu.as_mut().expect("QEMU").tpm = false);
    assert!(name == "tpm note" && text.contains("QEMU has no TPM device"), "{name}: {text}");
}

#[test]
fn a_machine_that_cannot_encrypt_between_hosts_has_a_note_with_the_package() {
    let missing = |program: &str, package: &str| {
        let advice = Some(format!("apt install {package}"));
        finding(|facts| {
            facts.modules.insert("wireguard".into(), false);
            facts.programs.insert(program.into(), advice);
        })
    };
    let (name, text) = missing("wg", "wireguard-tools");
    assert!(name == "wireguard note" && text.ends_with("→ apt install wireguard-tools"), "{name}: {text}");
    let (_, text) = missing("wireguard-go", "wireguard-go");
    assert!(text.contains("the kernel has no WireGuard") && text.ends_with("wireguard-go"), "{text}");
    let mut facts = good();
    facts.programs.insert("wireguard-go".into(), Some("apt install wireguard-go".into()));
    assert_eq!(findings(&facts), [], "the kernel has it");
}

#[test]
fn guests_of_another_architecture_are_no_finding_and_name_what_is_missing() {
    let text = |missing: &[&str]| {
        let mut facts = good();
        facts.emulation.missing = missing.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(findings(&facts), []);
        let checks = checks(&facts);
        checks.into_iter().find(|check| check.name == "emulation").expect("a check").found
    };
    assert_eq!(text(&[]), "VMs of aarch64 can run here with --emulate aarch64, emulated");
    assert!(
        text(&["no QEMU (apt install qemu-system-arm)"]).ends_with("no QEMU (apt install qemu-system-arm)")
    );
}

#[test]
fn a_machine_of_aarch64_has_its_own_packages() {
    let mut facts = good();
    facts.architecture = "aarch64".to_owned();
    assert_eq!(findings(&facts), [], "Secure Boot is not expected");
    facts.qemu.as_mut().expect("QEMU").uefi = false;
    let found = findings(&facts);
    assert!(
        found.iter().any(|(name, text)| name == "firmware failure" && text.contains("qemu-efi-aarch64")),
        "{found:?}"
    );
}

#[test]
fn a_machine_without_vsock_devices_has_a_note_with_the_module() {
    let (name, text) = finding(|facts| facts.vhost_vsock = false);
    assert!(name == "vhost-vsock note" && text.ends_with("→ modprobe vhost_vsock"), "{name}: {text}");
}

#[test]
fn the_text_has_a_line_for_each_check_and_one_for_each_remedy() {
    let mut facts = good();
    facts.vhost_net = false;
    let text = text(&checks(&facts));
    assert_eq!(text.lines().count(), checks(&facts).len() + 1);
    let line = text.lines().find(|line| line.contains("vhost-net")).expect("a line");
    assert!(line.starts_with("note     vhost-net"), "{line}");
    assert!(text.contains("→ modprobe vhost_net"), "{text}");
}

#[test]
fn findings_are_those_of_the_machine_and_escaped_by_the_command() {
    let mut facts = good();
    facts.pools.insert("a".to_owned(), Err("no \u{1b}[2J\u{9b}".to_owned()));
    let all = checks(&facts);
    let shown = crate::printable::printable(&text(&all));
    assert!(
        shown.contains("a is away: no \\u{1b}[2J\\u{9b}") && shown.lines().count() > all.len(),
        "{shown}"
    );
}

#[test]
fn huge_pages_are_checked_by_size_and_node() {
    let pages = |total: u64, free: u64, wanted: Option<u64>, nodes: &[(u32, u64)]| DoctorHugePages {
        page_bytes: 2 << 20,
        total,
        free,
        wanted,
        nodes: nodes.iter().copied().collect(),
    };
    let of = |pages: DoctorHugePages| {
        let huge = DoctorHugePages { page_bytes: 1 << 30, total: 2, ..DoctorHugePages::default() };
        let facts = DoctorFacts { huge_pages: vec![pages, huge], ..good() };
        findings(&facts)
    };
    assert!(of(pages(16_384, 0, Some(16_384), &[(0, 8192), (1, 8192)])).is_empty(), "VMs use them");
    assert!(of(pages(16_384, 0, Some(0), &[(0, 16_384)])).is_empty(), "more than the configuration has");
    let found = of(pages(16_384, 15_360, None, &[]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "huge pages warning");
    assert!(found[0].1.contains("30.0 GiB are free, and only VMs with `huge_pages`"), "{found:?}");
    assert!(
        found[0].1.contains("`echo 1024 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages`"),
        "{found:?}"
    );
    let found = of(pages(100, 0, Some(128), &[]));
    assert_eq!(found[0].0, "huge pages warning");
    assert!(found[0].1.contains("asks for 128 of 2Mi"), "{found:?}");
    assert!(found[0].1.contains("hugepagesz=2M hugepages=128"), "{found:?}");
    let found = of(pages(100, 0, None, &[(0, 100), (1, 0)]));
    assert_eq!(found[0].0, "huge pages note");
    assert!(
        found[0].1.starts_with(
            "100 of 2Mi reserved (node 0: 100, node 1: 0), 0.2 GiB, 0 free; 2 of 1Gi reserved, 2.0 GiB, 0 free: node 1 has none of 2Mi"
        ),
        "{found:?}"
    );
    assert!(found[0].1.contains("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/"), "{found:?}");
}
