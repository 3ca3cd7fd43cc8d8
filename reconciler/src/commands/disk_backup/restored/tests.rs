use berth_api::backup::declaration::VMIdentity;

use super::*;

const MOMENT: &str = "2026-01-01T03:00:00Z";

fn spec() -> Value {
    json!({
        "class": "small", "power": "Suspended", "uuid": "0a0a0a0a-0000-4000-8000-000000000001", "restartToken": "1",
        "disks": [{"name": "web-root", "boot": true, "bus": "virtio-scsi"},
            {"name": "data", "template": {"size": "1Gi", "image": "x"}}],
        "networkInterfaces": [{"name": "nic0", "network": "lan", "address": "10.0.0.9", "publicIP": "front", "securityGroups": ["web"],
            "allowedAddresses": ["10.0.0.50"]}],
        "placement": {"host": "h1"}, "pciDevices": [{"name": "gpu"}],
        "bootstrap": {"secretName": "login", "metaData": "role: web"},
    })
}

fn source(disk: &str, backup: &str, disk_spec: Value) -> Source {
    let nic0 = InterfaceIdentity {
        name: "nic0".into(),
        mac_address: "02:00:00:00:00:01".into(),
        address: "10.0.0.9".into(),
        ipv6_address: String::new(),
    };
    let identity = VMIdentity {
        instance_id: Some("i-1".into()),
        uuid: Some("0b0b0b0b-0000-4000-8000-000000000002".into()),
        interfaces: vec![nic0],
    };
    let declaration = VMDeclaration {
        vm: "web".into(),
        labels: [("app".to_owned(), "shop".to_owned())].into(),
        spec: spec(),
        identity,
        disk: disk.into(),
        disk_spec,
        left_out: Vec::new(),
    };
    Source { backup: backup.into(), taken_at: Some(MOMENT.into()), declaration }
}

fn both() -> [Source; 2] {
    [
        source("web-root", "nightly-root", json!({"size": "4Gi", "image": "debian", "limits": {"iops": 9}})),
        source("data", "nightly-data", json!({"size": "1Gi", "image": "x", "restore": {"snapshot": "s"}})),
    ]
}

fn wanted() -> WantedVm<'static> {
    WantedVm { namespace: "ns", ..WantedVm::default() }
}

#[test]
fn a_vm_and_its_disks_are_made_again_under_their_names_with_a_new_identity() {
    let made = restored(&both(), wanted()).expect("they are whole");
    let root = json!({"size": "4Gi", "limits": {"iops": 9}, "source": {"backup": "nightly-root"}});
    assert_eq!(made.disks, [object("Disk", "ns", "web-root", root)]);
    let expected = json!({
        "class": "small", "power": "Running",
        "disks": [{"name": "web-root", "boot": true, "bus": "virtio-scsi"},
            {"name": "data", "template": {"size": "1Gi", "source": {"backup": "nightly-data"}}}],
        "networkInterfaces": [{"name": "nic0", "network": "lan", "securityGroups": ["web"]}],
        "placement": {}, "pciDevices": [{"name": "gpu"}],
        "bootstrap": {"secretName": "login", "metaData": "role: web"},
    });
    assert_eq!(made.vm["spec"], expected);
    assert_eq!(made.vm["metadata"], json!({"name": "web", "namespace": "ns", "labels": {"app": "shop"}}));
    let notes = made.notes.join("\n");
    assert!(notes.contains("Network lan, Secret login, SecurityGroup web, VMClass small"), "{notes}");
    assert!(notes.contains("on its host: PCI devices gpu"), "{notes}");
    assert!(notes.contains("placement.host") && !notes.contains("one moment"), "{notes}");
}

#[test]
fn the_key_classes_and_pools_of_the_disks_are_needed_and_names_that_no_disk_has_are_refused() {
    let encrypted = json!({"size": "4Gi", "pool": "fast", "encryption": {"keyClass": "default"}});
    let [_, data] = both();
    let made = restored(&[source("web-root", "nightly-root", encrypted), data], wanted()).expect("whole");
    let notes = made.notes.join("\n");
    assert!(notes.contains("KeyClass default") && notes.contains("StoragePool fast"), "{notes}");
    let [_, data] = both();
    let chosen =
        source("web-root", "nightly-root", json!({"size": "4Gi", "pool": "default", "pools": ["a", "b"]}));
    let made = restored(&[chosen, data], wanted()).expect("whole");
    assert!(made.notes.join("\n").contains("StoragePool a or b"), "{:?}", made.notes);
    let mut forged = both();
    forged[0].declaration.spec["disks"][0]["name"] = "\u{1b}[31m".into();
    let error = restored(&forged[..1], wanted()).expect_err("refused").to_string();
    assert_eq!(error, "the declaration of VM web in the backup has an invalid list of disks");
}

#[test]
fn another_name_is_that_of_its_disks_too() {
    let made = restored(&both(), WantedVm { name: Some("shop"), ..wanted() }).expect("they are whole");
    assert_eq!(made.vm["metadata"]["name"], "shop");
    assert_eq!(made.disks[0]["metadata"]["name"], "shop-root");
    let names: Vec<_> = made.vm["spec"]["disks"].as_array().expect("a list").iter().map(disk_of).collect();
    assert_eq!(names, ["shop-root", "shop-data"]);
    let long = "x".repeat(60);
    let error =
        restored(&both(), WantedVm { name: Some(&long), ..wanted() }).expect_err("too long").to_string();
    assert!(error.contains("shorter --as"), "{error}");
}

#[test]
fn the_identity_is_kept_if_that_is_wanted() {
    let made = restored(&both(), WantedVm { keeps_identity: true, ..wanted() }).expect("they are whole");
    let spec = &made.vm["spec"];
    assert_eq!(spec["uuid"], "0b0b0b0b-0000-4000-8000-000000000002", "the one that the guest has seen");
    let nic = &spec["networkInterfaces"][0];
    assert_eq!((&nic["macAddress"], &nic["address"]), (&json!("02:00:00:00:00:01"), &json!("10.0.0.9")));
    assert_eq!((&nic["publicIP"], nic.get("ipv6Address")), (&json!("front"), None));
    assert_eq!(nic["allowedAddresses"], json!(["10.0.0.50"]));
    assert_eq!(spec["bootstrap"]["metaData"], "role: web\ninstance-id: i-1\n");
}

#[test]
fn each_disk_needs_one_backup_or_is_left_out() {
    let refused = |sources: &[Source], without: &[String]| {
        restored(sources, WantedVm { without, ..wanted() }).expect_err("refused").to_string()
    };
    let [root, data] = both();
    let data_only = ["data".to_owned()];
    let missing = refused(std::slice::from_ref(&root), &[]);
    assert!(missing.contains("--without data"), "{missing}");
    let made =
        restored(std::slice::from_ref(&root), WantedVm { without: &data_only, ..wanted() }).expect("without");
    assert_eq!(made.vm["spec"]["disks"].as_array().map(Vec::len), Some(1));
    assert!(made.notes.join("\n").contains("without its disks data"), "{:?}", made.notes);
    let boot = refused(std::slice::from_ref(&data), &["web-root".to_owned()]);
    assert!(boot.contains("from which VM web boots"), "{boot}");
    let [again, _] = both();
    let twice = refused(&[root, again, data], &[]);
    assert!(twice.contains("both of Disk web-root"), "{twice}");
    let unknown = refused(&both(), &["other".to_owned()]);
    assert!(unknown.contains("had no Disk other"), "{unknown}");
    assert!(refused(&both(), &data_only).contains("a Backup of this Disk is named too"));
    let gone = source("gone", "old", json!({}));
    let [root, data] = both();
    let gone = refused(&[root, data, gone], &[]);
    assert!(gone.contains("did not have Disk gone"), "{gone}");
    let [root, mut other] = both();
    other.declaration.vm = "db".into();
    let two = refused(&[root, other], &[]);
    assert!(two.contains("is of VM web, and Backup nightly-data of VM db"), "{two}");
    assert!(refused(&[], &[]).contains("no backup"));
}

#[test]
fn backups_of_several_moments_are_noted_and_the_last_declaration_counts() {
    let [root, mut data] = both();
    data.taken_at = Some("2026-01-02T03:00:00Z".into());
    data.declaration.spec["class"] = "large".into();
    data.declaration.left_out = vec!["userData".into()];
    let made = restored(&[root, data], wanted()).expect("they are whole");
    assert_eq!(made.vm["spec"]["class"], "large");
    let notes = made.notes.join("\n");
    assert!(notes.contains("not of one moment: nightly-root of 2026-01-01T03:00:00Z"), "{notes}");
    assert!(notes.contains("userData of bootstrap"), "{notes}");
}
