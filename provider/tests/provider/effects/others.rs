//! The effect of each change of an object of another kind.

use serde_json::{Value as Json, json};

use super::Announced;

/// The network without `dhcp4` and `dhcp6`, which are `true` then, without `encryption`, which is `None`, and without
/// `ipv6_autoconfiguration` and `ipv6_privacy_addresses`, which are `false`.
fn as_by_default(network: &Json) -> Json {
    let mut network = network.clone();
    (network["dhcp4"], network["dhcp6"]) = (Json::Null, Json::Null);
    (network["encryption"], network["ipv6_autoconfiguration"]) = (Json::Null, Json::Null);
    network["ipv6_privacy_addresses"] = Json::Null;
    network
}

pub(super) fn others() -> Vec<(&'static str, Json, &'static str, Json, Announced)> {
    let source = json!({"url": "https://a/x", "sha256": "0".repeat(64)});
    let image =
        json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2", "guest_os": null});
    let from =
        |source: Json| json!({"name": "i", "namespace": "default", "source": source, "format": "qcow2"});
    let by_sha512 = from(json!({"url": "https://a/x", "sha512": "0".repeat(128)}));
    let by_file = from(json!({"url": "https://a/x", "checksum_url": "https://a/SHA512SUMS"}));
    let with_token =
        from(json!({"url": "https://a/x", "checksum_url": "https://a/SHA512SUMS", "token": "1"}));
    let mut of_ova = image.clone();
    (of_ova["format"], of_ova["ova_disk"]) = ("ova".into(), 1.into());
    let by_trust = from(json!({"url": "https://a/x", "trust_on_first_use": true}));
    let by_sha256 = from(json!({"url": "https://a/x", "sha256": "0".repeat(64), "trust_on_first_use": null}));
    let mut described = image.clone();
    (described["display_name"], described["description"], described["version"]) =
        ("a".into(), "a".into(), "1".into());
    (described["owner"], described["shared_with"]) = ("a".into(), json!(["team-a"]));
    described["os"] =
        json!({"family": "a", "distribution": "a", "version": "a", "variant": "a", "architecture": "a"});
    let (of_disk, of_snapshot) = (from(json!({"disk": "d"})), from(json!({"snapshot": "s"})));
    let foreign_disk = from(json!({"disk": "d", "disk_namespace": "golden"}));
    let foreign_snapshot = from(json!({"snapshot": "s", "snapshot_namespace": "golden"}));
    let of_image = from(json!({"image": "other", "image_namespace": "golden"}));
    let limited =
        from(json!({"url": "https://a/x", "sha256": "0".repeat(64), "timeout_seconds": 600, "retries": 3}));
    let of_upload = from(json!({"upload": {"size": 5}, "sha256": "0".repeat(64)}));
    let disk = json!({"name": "d", "namespace": "default", "size": "2Gi", "image": "i", "clone_mode": "Linked", "pool": "default", "deletion_policy": "Delete",
        "access": "ReadWriteOnce", "expand_policy": "Online", "provisioning": "Thin", "encryption": null, "limits": {"iops": 100, "bandwidth": "1Mi", "burst_iops": 200, "burst_bandwidth": "2Mi", "burst_seconds": 60}});
    let copy =
        |from: &str| json!({"name": "d", "namespace": "default", "size": "2Gi", "source": {from: "x"}});
    let foreign = |from: &str| {
        let mut foreign = copy(from);
        foreign["source"][format!("{from}_namespace")] = "golden".into();
        foreign["shared_with"] = json!(["team-a"]);
        foreign
    };
    let of_file = json!({"name": "d", "namespace": "default", "source": {"file": "/x", "format": "raw"}});
    let of_device =
        json!({"name": "d", "namespace": "default", "source": {"device": "nvme"}, "pool": "default"});
    let formatted = json!({"name": "d", "namespace": "default", "size": "2Gi", "filesystem": {"type": "ext4", "label": "data"}});
    let mut imported = of_file.clone();
    imported["imported_from"] =
        json!({"system": "libvirt", "guest": "a", "guest_identity": "1", "disk": "vda"});
    let mut zoned = disk.clone();
    zoned["placement"] = json!({"host_selector": {"zone": "a"}});
    let mut chosen = disk.clone();
    chosen["pools"] = json!(["a", "b"]);
    let mut labelled = disk.clone();
    labelled["pool_selector"] = json!({"media": "ssd"});
    let restored = json!({"name": "d", "namespace": "default", "size": "2Gi", "restore": {"snapshot": "s", "token": "1"}});
    let snapshot = json!({"name": "s", "namespace": "default", "disk": "d", "shared_with": ["team-a"]});
    let of_vm = json!({"name": "s", "namespace": "default", "vm": "web", "memory": false});
    let without_memory = json!({"name": "s", "namespace": "default", "vm": "web", "memory": null});
    let mut linked = disk.clone();
    linked["clone_mode"] = Json::Null;
    let backup = json!({"name": "b", "namespace": "default", "repository": "r", "snapshot": "s", "deletion_policy": "Delete"});
    let found = json!({"name": "b", "namespace": "default", "repository": "r", "existing": "v-1/b-1"});
    let nas = json!({"name": "r", "namespace": "default", "folder": "nas", "password_secret_name": "p",
        "verification": {"interval_days": 30, "bandwidth": "20Mi"}});
    let s3 = json!({"name": "r", "namespace": "default", "credentials_secret_name": "c", "password_secret_name": "p",
        "s3": {"endpoint": "https://s3.example.org", "region": "us-east-1", "bucket": "b-1", "prefix": "a"}});
    let each = json!({"name": "d", "namespace": "default", "size": "2Gi",
        "limits": {"read_iops": 1, "write_iops": 2, "read_bandwidth": "1Mi", "write_bandwidth": "2Mi"}});
    let class = json!({"name": "c", "namespace": "default", "cpus": 1, "memory": "1Gi", "firmware": "UEFI",
        "tpm": false, "architecture": "x86_64", "huge_pages": "None", "dedicated_cpu_placement": false, "io_threads_policy": "Shared", "network_interface_model": "virtio", "qemu_options": [{"name": "cpu.vmx", "value": "on"}], "pci_devices": [{"name": "nic-vf", "count": 1}], "usb_devices": [{"name": "licence-key", "count": 1}], "vgpus": [{"name": "a40-8q", "count": 1}], "cpu_topology": {"sockets": 1, "cores": 1, "threads": 1}});
    let mut of_x86 = class.clone();
    of_x86["architecture"] = Json::Null;
    let mut with_scratch = class.clone();
    let class_with = |limits: Json| {
        let mut class = class.clone();
        class["disk_limits"] = limits;
        class
    };
    let with_limits = class_with(
        json!({"iops": 100, "bandwidth": "1Mi", "burst_iops": 200, "burst_bandwidth": "2Mi", "burst_seconds": 60}),
    );
    let with_each = class_with(
        json!({"read_iops": 1, "write_iops": 2, "read_bandwidth": "1Mi", "write_bandwidth": "2Mi"}),
    );
    with_scratch["scratch_disk"] = json!({"size": "2Gi", "filesystem": {"type": "ext4", "label": "a"}});
    let ip = json!({"name": "p", "namespace": "default", "pool": "default", "address": "198.18.100.1"});
    let with_prefix = json!({"name": "p", "namespace": "default", "pool": "default", "address": "2001:db8:0:8:1::", "prefix_length": 80});
    let hda = json!({"name": "a", "namespace": "default", "vm": "v", "disk": "d", "force": false});
    let network = json!({"name": "n", "namespace": "default", "cidr": "10.80.0.0/24", "egress": "Masquerade", "ipv6_cidr": "fd00:60::/64", "ipv6_egress": "None", "ipv6_autoconfiguration": false, "ipv6_privacy_addresses": false, "dns": ["10.80.0.1"], "mtu": 1400, "isolated": false, "security_groups": ["web"], "encryption": "None", "dhcp4": true, "dhcp6": true,
        "dns_domain": "app.internal", "search_domains": ["example.org"], "routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.80.0.9"}]});
    let lan = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0", "trunk_vlans": ["10"]}, "cidr": "10.80.0.0/24",
        "ipv4": {"allocation": "Static", "gateway": "10.80.0.1", "range": "10.80.0.9-10.80.0.10", "dhcp": false}});
    let named = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.80.0.0/24",
        "dns_domain": "app.internal", "ipv4": {"allocation": "Static", "name_server": "10.80.0.53"}});
    let vlan = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"interface": "eth1", "vlan": 120}, "cidr": "10.80.0.0/24",
        "ipv4": {"allocation": "Static"}});
    let office = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": {"allocation": "External", "source_check": "None"}});
    let lan6 = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6_cidr": "2001:db8:7::/64",
        "ipv6": {"allocation": "Static", "gateway": "fe80::1", "range": "2001:db8:7::10-2001:db8:7::1f", "dhcp": false}});
    let office6 = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6": {"allocation": "External", "source_check": "None"}});
    let pooled = json!({"name": "n", "namespace": "default", "ipv6": {"allocation": "Static", "pool": "p"}});
    let pool = json!({"name": "p", "cidrs": ["192.0.2.0/24"], "network_prefixes": ["2001:db8:100::/56"], "mode": "local", "use_all_addresses": false});
    let bounded = json!({"name": "p", "cidrs": ["2001:db8::/64"], "mode": "local", "use_all_addresses": false, "min_prefix_length": 80});
    let storage = json!({"name": "s", "type": "Local", "trash_retention_seconds": 60, "overcommit_percent": 200, "default_for_namespaces": ["a"]});
    let host = json!({"name": "h", "cordoned": false, "draining": false, "reserved": {"cpus": 1, "memory": "1Gi"},
        "namespaces": ["team-a"]});
    let check = json!({"type": "http", "path": "/a", "port": 80, "interval": "2s", "timeout": "1s", "healthy_threshold": 1, "unhealthy_threshold": 2});
    let port = json!({"name": "p", "port": 443, "target_port": 8443, "protocol": "tcp", "targets": ["a"], "session_affinity": "ClientIP",
        "health_check": check});
    let balancer =
        json!({"name": "b", "namespace": "default", "pool": "default", "port_range": null, "ports": [port]});
    let rule = json!({"name": "r", "protocol": "tcp", "ports": ["80"], "cidrs": ["10.0.0.0/8"], "security_groups": ["web"]});
    let security = json!({"name": "g", "namespace": "default", "ingress": [rule], "egress": [rule]});
    let ping = json!({"name": "g", "namespace": "default", "ingress": [{"name": "r", "protocol": "icmp", "icmp_types": ["info-request"], "cidrs": ["::/0"]}]});
    let quota = json!({"name": "q", "namespace": "default", "hard": {"disk_size": "1Ti", "used_storage": "1Ti", "image_storage": "1Ti", "backup_storage": "1Ti", "memory": "1Gi", "cpus": 1, "vms": 2,
        "disks": 2, "snapshots": 2, "images": 2, "backups": 2, "public_ips": 2}});
    let group = json!({"name": "g", "namespace": "default", "strategy": "spread", "enforcement": "required",
        "host_selector": {"a": "b"}, "preferred_host_selector": {"a": "b"}});
    let step = json!({"name": "step0", "vms": ["a"], "groups": ["b"], "power_on_delay_seconds": 0});
    let vm_group = json!({"name": "g", "namespace": "default", "power": "Running", "parent": "site", "boot_order": [step]});
    let keep = json!({"last": 1, "hourly": 0, "daily": 1, "weekly": 0, "monthly": 0, "yearly": 0});
    let schedule = json!({"name": "s", "namespace": "default", "schedule": "@daily", "time_zone": "UTC", "vms": ["web"], "keep": keep,
        "backup": {"repository": "offsite", "keep": keep}, "starting_deadline_seconds": 3600, "suspend": false});
    let key_class =
        json!({"name": "k", "namespace": "default", "secret": {"name": "disk-key", "key": "key"}});
    let mut by_token = json!({"name": "k", "namespace": "default", "vault": {"address": "https://a:8200", "mount": "transit",
        "key": "berth", "namespace": "team", "ca_secret": {"name": "ca", "key": "ca.crt"}, "token_secret": {"name": "t", "key": "token"}}});
    let mut by_role = by_token.clone();
    by_token["vault"]["app_role"] = Json::Null;
    by_role["vault"]["token_secret"] = Json::Null;
    by_role["vault"]["app_role"] = json!({"role_id": "r", "secret": {"name": "t", "key": "secretID"}});
    let mut encrypted = disk.clone();
    encrypted["encryption"] = json!({"key_class": "default"});
    let mut selecting = schedule.clone();
    selecting["vms"] = Json::Null;
    selecting["vm_selector"] = json!({"tier": "web"});
    let mut of_disks = schedule.clone();
    of_disks["vms"] = Json::Null;
    let mut selecting_disks = of_disks.clone();
    of_disks["disks"] = json!(["data"]);
    selecting_disks["disk_selector"] = json!({"tier": "web"});
    vec![
        ("berth_image", image.clone(), "/source/url", json!("https://b/x"), Announced::Live),
        ("berth_image", image.clone(), "/source/sha256", json!("1".repeat(64)), Announced::Replace),
        ("berth_image", by_sha512, "/source/sha512", json!("1".repeat(128)), Announced::Replace),
        ("berth_image", by_trust, "/source/trust_on_first_use", Json::Null, Announced::Replace),
        ("berth_image", by_sha256, "/source/trust_on_first_use", json!(false), Announced::Live),
        ("berth_image", of_ova, "/ova_disk", json!(2), Announced::Replace),
        ("berth_image", with_token, "/source/token", json!("2"), Announced::Live),
        ("berth_image", by_file, "/source/checksum_url", json!("https://b/SHA512SUMS"), Announced::Replace),
        ("berth_image", image.clone(), "/guest_os", json!("Windows"), Announced::PowerCycle),
        ("berth_image", image, "/format", json!("raw"), Announced::Replace),
        ("berth_image", described.clone(), "/display_name", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/description", Json::Null, Announced::Live),
        ("berth_image", described.clone(), "/version", json!("2"), Announced::Live),
        ("berth_image", described.clone(), "/owner", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/shared_with", json!(["*"]), Announced::Live),
        ("berth_image", described.clone(), "/os", Json::Null, Announced::Live),
        ("berth_image", described.clone(), "/os/family", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/os/distribution", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/os/version", json!("b"), Announced::Live),
        ("berth_image", described.clone(), "/os/variant", json!("b"), Announced::Live),
        ("berth_image", described, "/os/architecture", json!("b"), Announced::Live),
        ("berth_image", of_disk, "/source/disk", json!("other"), Announced::Replace),
        ("berth_image", of_snapshot, "/source/snapshot", json!("other"), Announced::Replace),
        ("berth_image", foreign_disk, "/source/disk_namespace", json!("silver"), Announced::Replace),
        ("berth_image", foreign_snapshot, "/source/snapshot_namespace", json!("silver"), Announced::Replace),
        ("berth_image", limited.clone(), "/source/timeout_seconds", json!(900), Announced::Live),
        ("berth_image", limited, "/source/retries", Json::Null, Announced::Live),
        ("berth_image", of_image.clone(), "/source/image", json!("another"), Announced::Replace),
        ("berth_image", of_image, "/source/image_namespace", json!("silver"), Announced::Replace),
        ("berth_image", of_upload, "/source/upload/size", json!(6), Announced::Replace),
        ("berth_disk", disk.clone(), "/size", json!("3Gi"), Announced::Live),
        ("berth_disk", disk.clone(), "/size", json!("1Gi"), Announced::Refused),
        ("berth_disk", disk.clone(), "/image", json!("j"), Announced::Replace),
        ("berth_disk", disk.clone(), "/pool", json!("fast"), Announced::Live),
        ("berth_disk", disk.clone(), "/access", json!("ReadOnlyMany"), Announced::Replace),
        ("berth_disk", copy("disk"), "/source/disk", json!("other"), Announced::Replace),
        ("berth_disk", copy("snapshot"), "/source/snapshot", json!("other"), Announced::Replace),
        ("berth_disk", copy("backup"), "/source/backup", json!("other"), Announced::Replace),
        ("berth_disk", foreign("disk"), "/source/disk_namespace", json!("silver"), Announced::Replace),
        (
            "berth_disk",
            foreign("snapshot"),
            "/source/snapshot_namespace",
            json!("silver"),
            Announced::Replace,
        ),
        ("berth_disk", foreign("disk"), "/shared_with", json!(["*"]), Announced::Live),
        ("berth_disk", zoned.clone(), "/placement", Json::Null, Announced::Live),
        ("berth_disk", zoned, "/placement/host_selector", json!({"zone": "b"}), Announced::Live),
        ("berth_disk", chosen, "/pools", json!(["b"]), Announced::Live),
        ("berth_disk", labelled, "/pool_selector", json!({"media": "nvme"}), Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from", Json::Null, Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from/system", json!("QEMU"), Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from/guest", json!("b"), Announced::Live),
        ("berth_disk", imported.clone(), "/imported_from/guest_identity", json!("2"), Announced::Live),
        ("berth_disk", imported, "/imported_from/disk", json!("vdb"), Announced::Live),
        ("berth_disk", of_file.clone(), "/source/file", json!("/other"), Announced::Replace),
        ("berth_disk", of_file, "/source/format", json!("qcow2"), Announced::Replace),
        ("berth_disk", of_device.clone(), "/source/device", json!("other"), Announced::Replace),
        ("berth_disk", of_device, "/pool", json!("fast"), Announced::Replace),
        ("berth_disk", encrypted.clone(), "/encryption/key_class", json!("other"), Announced::Live),
        ("berth_disk", encrypted, "/encryption", Json::Null, Announced::Replace),
        ("berth_disk", disk.clone(), "/encryption", json!({"key_class": "default"}), Announced::Replace),
        ("berth_key_class", key_class.clone(), "/secret/name", json!("other"), Announced::Replace),
        ("berth_key_class", key_class, "/secret/key", json!("other"), Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/address", json!("https://b:8200"), Announced::Live),
        ("berth_key_class", by_token.clone(), "/vault/mount", json!("other"), Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/key", json!("other"), Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/namespace", Json::Null, Announced::Replace),
        ("berth_key_class", by_token.clone(), "/vault/token_secret/name", json!("other"), Announced::Live),
        ("berth_key_class", by_token.clone(), "/vault/token_secret/key", json!("other"), Announced::Live),
        ("berth_key_class", by_token.clone(), "/vault/ca_secret/name", json!("other"), Announced::Live),
        ("berth_key_class", by_token, "/vault/ca_secret", Json::Null, Announced::Live),
        ("berth_key_class", by_role.clone(), "/vault/app_role/role_id", json!("other"), Announced::Live),
        ("berth_key_class", by_role.clone(), "/vault/app_role/secret/name", json!("other"), Announced::Live),
        ("berth_key_class", by_role, "/vault/app_role/secret/key", json!("other"), Announced::Live),
        ("berth_disk_snapshot", snapshot.clone(), "/shared_with", Json::Null, Announced::Live),
        ("berth_disk_snapshot", snapshot, "/disk", json!("other"), Announced::Replace),
        ("berth_backup", backup.clone(), "/repository", json!("other"), Announced::Replace),
        ("berth_backup", backup.clone(), "/snapshot", json!("other"), Announced::Replace),
        ("berth_backup", backup, "/deletion_policy", json!("Retain"), Announced::Live),
        ("berth_backup", found, "/existing", json!("v-1/b-2"), Announced::Replace),
        ("berth_backup_repository", nas.clone(), "/folder", json!("other"), Announced::Replace),
        ("berth_backup_repository", nas.clone(), "/password_secret_name", json!("other"), Announced::Live),
        ("berth_backup_repository", nas.clone(), "/verification/interval_days", json!(7), Announced::Live),
        ("berth_backup_repository", nas.clone(), "/verification/bandwidth", json!("1Gi"), Announced::Live),
        ("berth_backup_repository", nas, "/verification", Json::Null, Announced::Live),
        (
            "berth_backup_repository",
            s3.clone(),
            "/s3/endpoint",
            json!("https://s3.example.net"),
            Announced::Replace,
        ),
        ("berth_backup_repository", s3.clone(), "/s3/region", json!("eu-north-1"), Announced::Replace),
        ("berth_backup_repository", s3.clone(), "/s3/bucket", json!("b-2"), Announced::Replace),
        ("berth_backup_repository", s3.clone(), "/s3/prefix", Json::Null, Announced::Replace),
        ("berth_backup_repository", s3, "/credentials_secret_name", json!("other"), Announced::Live),
        ("berth_vm_snapshot", of_vm.clone(), "/vm", json!("other"), Announced::Replace),
        ("berth_vm_snapshot", of_vm, "/memory", json!(true), Announced::Replace),
        ("berth_vm_snapshot", without_memory, "/memory", json!(false), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/schedule", json!("@hourly"), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/time_zone", json!("Asia/Tokyo"), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/vms", json!(["web", "db"]), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/last", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/hourly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/daily", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/weekly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/monthly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/keep/yearly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup", Json::Null, Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/repository", json!("other"), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/last", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/hourly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/daily", json!(90), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/weekly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/monthly", json!(2), Announced::Live),
        ("berth_snapshot_schedule", schedule.clone(), "/backup/keep/yearly", json!(2), Announced::Live),
        (
            "berth_snapshot_schedule",
            schedule.clone(),
            "/starting_deadline_seconds",
            json!(60),
            Announced::Live,
        ),
        ("berth_snapshot_schedule", schedule.clone(), "/suspend", json!(true), Announced::Live),
        ("berth_snapshot_schedule", selecting, "/vm_selector", json!({"tier": "db"}), Announced::Live),
        ("berth_snapshot_schedule", of_disks, "/disks", json!(["data", "logs"]), Announced::Live),
        (
            "berth_snapshot_schedule",
            selecting_disks,
            "/disk_selector",
            json!({"tier": "db"}),
            Announced::Live,
        ),
        ("berth_disk", disk.clone(), "/expand_policy", json!("Offline"), Announced::Live),
        ("berth_disk", disk.clone(), "/provisioning", json!("Thick"), Announced::Replace),
        ("berth_disk", disk.clone(), "/clone_mode", json!("Full"), Announced::Replace),
        ("berth_disk", linked.clone(), "/clone_mode", json!("Full"), Announced::Replace),
        ("berth_disk", linked, "/clone_mode", json!("Linked"), Announced::Live),
        ("berth_disk", formatted.clone(), "/filesystem", Json::Null, Announced::Replace),
        ("berth_disk", formatted.clone(), "/filesystem/type", json!("xfs"), Announced::Replace),
        ("berth_disk", formatted, "/filesystem/label", json!("other"), Announced::Replace),
        ("berth_disk", disk.clone(), "/access", json!("ReadOnlyMany"), Announced::Replace),
        ("berth_disk", disk.clone(), "/limits", Json::Null, Announced::Live),
        ("berth_disk", disk.clone(), "/limits/iops", json!(150), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/bandwidth", json!("2Mi"), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/burst_iops", json!(300), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/burst_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_disk", disk.clone(), "/limits/burst_seconds", json!(1), Announced::Live),
        ("berth_disk", each.clone(), "/limits/read_iops", json!(3), Announced::Live),
        ("berth_disk", each.clone(), "/limits/write_iops", json!(3), Announced::Live),
        ("berth_disk", each.clone(), "/limits/read_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_disk", each, "/limits/write_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_disk", restored.clone(), "/restore", Json::Null, Announced::Live),
        ("berth_disk", restored.clone(), "/restore/snapshot", json!("other"), Announced::Live),
        ("berth_disk", restored, "/restore/token", json!("2"), Announced::Live),
        ("berth_disk", disk, "/deletion_policy", json!("Retain"), Announced::Live),
        ("berth_vm_class", class.clone(), "/cpus", json!(2), Announced::PowerCycle),
        ("berth_vm_class", with_limits.clone(), "/disk_limits", Json::Null, Announced::Live),
        ("berth_vm_class", with_limits.clone(), "/disk_limits/iops", json!(150), Announced::Live),
        ("berth_vm_class", with_limits.clone(), "/disk_limits/bandwidth", json!("2Mi"), Announced::Live),
        ("berth_vm_class", with_limits.clone(), "/disk_limits/burst_iops", json!(300), Announced::Live),
        (
            "berth_vm_class",
            with_limits.clone(),
            "/disk_limits/burst_bandwidth",
            json!("3Mi"),
            Announced::Live,
        ),
        ("berth_vm_class", with_limits, "/disk_limits/burst_seconds", json!(1), Announced::Live),
        ("berth_vm_class", with_each.clone(), "/disk_limits/read_iops", json!(3), Announced::Live),
        ("berth_vm_class", with_each.clone(), "/disk_limits/write_iops", json!(3), Announced::Live),
        ("berth_vm_class", with_each.clone(), "/disk_limits/read_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_vm_class", with_each, "/disk_limits/write_bandwidth", json!("3Mi"), Announced::Live),
        ("berth_vm_class", with_scratch.clone(), "/scratch_disk", Json::Null, Announced::PowerCycle),
        ("berth_vm_class", with_scratch.clone(), "/scratch_disk/size", json!("1Gi"), Announced::PowerCycle),
        (
            "berth_vm_class",
            with_scratch.clone(),
            "/scratch_disk/filesystem",
            Json::Null,
            Announced::PowerCycle,
        ),
        (
            "berth_vm_class",
            with_scratch.clone(),
            "/scratch_disk/filesystem/type",
            json!("xfs"),
            Announced::PowerCycle,
        ),
        ("berth_vm_class", with_scratch, "/scratch_disk/filesystem/label", json!("b"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/memory", json!("2Gi"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/memory", Json::Null, Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/firmware", json!("BIOS"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/huge_pages", json!("2Mi"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/dedicated_cpu_placement", json!(true), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/tpm", json!(true), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/network_interface_model", json!("e1000e"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/io_threads_policy", json!("PerDisk"), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/architecture", json!("aarch64"), Announced::Replace),
        ("berth_vm_class", of_x86, "/architecture", json!("x86_64"), Announced::Live),
        ("berth_vm_class", class.clone(), "/qemu_options", json!([]), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/qemu_options/0/value", json!("off"), Announced::PowerCycle),
        (
            "berth_vm_class",
            class.clone(),
            "/pci_devices",
            json!([{"name": "gpu-a100"}]),
            Announced::PowerCycle,
        ),
        ("berth_vm_class", class.clone(), "/usb_devices/0/count", json!(2), Announced::PowerCycle),
        ("berth_vm_class", class.clone(), "/vgpus", json!([]), Announced::PowerCycle),
        ("berth_vm_class", class, "/cpu_topology", Json::Null, Announced::PowerCycle),
        ("berth_public_ip", ip.clone(), "/pool", json!("other"), Announced::Replace),
        ("berth_public_ip", with_prefix, "/prefix_length", json!(96), Announced::Replace),
        ("berth_public_ip", ip, "/address", json!("198.18.100.2"), Announced::Replace),
        ("berth_public_ip", balancer.clone(), "/port_range", json!("20000-20099"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/port", json!(8443), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/target_port", json!(443), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/protocol", json!("udp"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/targets", json!(["b"]), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/session_affinity", json!("None"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check", Json::Null, Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/type", Json::Null, Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/path", json!("/b"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/port", json!(81), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/interval", json!("3s"), Announced::Live),
        ("berth_public_ip", balancer.clone(), "/ports/0/health_check/timeout", json!("3s"), Announced::Live),
        (
            "berth_public_ip",
            balancer.clone(),
            "/ports/0/health_check/healthy_threshold",
            json!(3),
            Announced::Live,
        ),
        ("berth_public_ip", balancer, "/ports/0/health_check/unhealthy_threshold", json!(3), Announced::Live),
        ("berth_hotswap_disk_attachment", hda.clone(), "/vm", json!("w"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda.clone(), "/disk", json!("e"), Announced::Replace),
        ("berth_hotswap_disk_attachment", hda, "/force", json!(true), Announced::Live),
        ("berth_network", network.clone(), "/cidr", json!("10.81.0.0/24"), Announced::Replace),
        ("berth_network", network.clone(), "/ipv6_cidr", json!("fd00:61::/64"), Announced::Replace),
        ("berth_network", network.clone(), "/egress", json!("None"), Announced::Live),
        ("berth_network", network.clone(), "/ipv6_egress", json!("Routed"), Announced::Live),
        ("berth_network", network.clone(), "/dns", json!(["10.80.0.2"]), Announced::Live),
        ("berth_network", network.clone(), "/dns_domain", json!("db.internal"), Announced::Live),
        ("berth_network", network.clone(), "/search_domains", json!(["example.net"]), Announced::Live),
        ("berth_network", network.clone(), "/routes/0/to", json!("192.168.0.0/24"), Announced::Live),
        ("berth_network", network.clone(), "/routes/0/via", json!("10.80.0.8"), Announced::Live),
        ("berth_network", network.clone(), "/isolated", json!(true), Announced::Live),
        ("berth_network", network.clone(), "/security_groups", json!(["db"]), Announced::Live),
        ("berth_network", network.clone(), "/encryption", json!("WireGuard"), Announced::Replace),
        ("berth_network", as_by_default(&network), "/encryption", json!("None"), Announced::Live),
        ("berth_network", network.clone(), "/dhcp4", json!(false), Announced::Replace),
        ("berth_network", network.clone(), "/dhcp6", json!(false), Announced::Replace),
        ("berth_network", as_by_default(&network), "/dhcp4", json!(true), Announced::Live),
        ("berth_network", as_by_default(&network), "/dhcp6", json!(true), Announced::Live),
        (
            "berth_network",
            as_by_default(&network),
            "/ipv6_autoconfiguration",
            json!(true),
            Announced::Replace,
        ),
        ("berth_network", as_by_default(&network), "/ipv6_autoconfiguration", json!(false), Announced::Live),
        (
            "berth_network",
            as_by_default(&network),
            "/ipv6_privacy_addresses",
            json!(true),
            Announced::Replace,
        ),
        ("berth_network", as_by_default(&network), "/ipv6_privacy_addresses", json!(false), Announced::Live),
        ("berth_network", network, "/mtu", json!(1450), Announced::PowerCycle),
        ("berth_network", lan.clone(), "/bridge/name", json!("vmbr1"), Announced::Replace),
        ("berth_network", lan.clone(), "/bridge/trunk_vlans", json!(["20"]), Announced::Live),
        ("berth_network", vlan.clone(), "/bridge/interface", json!("eth2"), Announced::Replace),
        ("berth_network", vlan, "/bridge/vlan", json!(121), Announced::Replace),
        ("berth_network", lan.clone(), "/ipv4/gateway", json!("10.80.0.2"), Announced::Live),
        ("berth_network", lan.clone(), "/ipv4/range", json!("10.80.0.9-10.80.0.20"), Announced::Live),
        ("berth_network", lan.clone(), "/ipv4/dhcp", json!(true), Announced::Live),
        ("berth_network", named, "/ipv4/name_server", json!("10.80.0.54"), Announced::Live),
        ("berth_network", lan, "/type", json!("Overlay"), Announced::Replace),
        ("berth_network", office.clone(), "/ipv4/source_check", json!("Lease"), Announced::Live),
        ("berth_network", office, "/ipv4/allocation", json!("Static"), Announced::Replace),
        ("berth_network", lan6.clone(), "/ipv6/gateway", json!("fe80::2"), Announced::Live),
        ("berth_network", lan6.clone(), "/ipv6/dhcp", json!(true), Announced::Live),
        ("berth_network", lan6, "/ipv6/range", json!("2001:db8:7::10-2001:db8:7::2f"), Announced::Live),
        ("berth_network", office6.clone(), "/ipv6/source_check", json!("Learned"), Announced::Live),
        ("berth_network", office6, "/ipv6/allocation", json!("Static"), Announced::Replace),
        ("berth_network", pooled, "/ipv6/pool", json!("q"), Announced::Replace),
        ("berth_ip_pool", pool.clone(), "/network_prefixes", json!(["2001:db8:200::/56"]), Announced::Live),
        ("berth_ip_pool", pool.clone(), "/cidrs", json!(["192.0.2.0/25"]), Announced::Live),
        ("berth_ip_pool", pool.clone(), "/mode", json!("l2"), Announced::Replace),
        ("berth_ip_pool", pool, "/use_all_addresses", json!(true), Announced::Live),
        ("berth_ip_pool", bounded, "/min_prefix_length", json!(96), Announced::Live),
        ("berth_storage_pool", storage.clone(), "/type", json!("Shared"), Announced::Replace),
        ("berth_storage_pool", storage.clone(), "/type", json!("RBD"), Announced::Replace),
        ("berth_storage_pool", storage.clone(), "/trash_retention_seconds", json!(0), Announced::Live),
        ("berth_storage_pool", storage.clone(), "/overcommit_percent", json!(100), Announced::Live),
        ("berth_storage_pool", storage, "/default_for_namespaces", json!(["a", "b"]), Announced::Live),
        ("berth_host", host.clone(), "/name", json!("h2"), Announced::Replace),
        ("berth_host", host.clone(), "/cordoned", json!(true), Announced::Live),
        ("berth_host", host.clone(), "/draining", json!(true), Announced::Live),
        ("berth_host", host.clone(), "/namespaces", json!(["team-b"]), Announced::Live),
        ("berth_host", host.clone(), "/reserved/cpus", json!(2), Announced::Live),
        ("berth_host", host, "/reserved/memory", json!("2Gi"), Announced::Live),
        ("berth_security_group", security.clone(), "/ingress/0/ports", json!(["443"]), Announced::Live),
        ("berth_security_group", security.clone(), "/ingress/0/protocol", json!("udp"), Announced::Live),
        ("berth_security_group", security.clone(), "/ingress/0/cidrs", json!(["::/0"]), Announced::Live),
        ("berth_security_group", ping, "/ingress/0/icmp_types", json!(["echo-request"]), Announced::Live),
        (
            "berth_security_group",
            security.clone(),
            "/ingress/0/security_groups",
            json!(["db"]),
            Announced::Live,
        ),
        ("berth_security_group", security, "/egress", json!([]), Announced::Live),
        ("berth_placement_group", group.clone(), "/enforcement", json!("preferred"), Announced::Live),
        ("berth_placement_group", group.clone(), "/host_selector", json!({"a": "c"}), Announced::Live),
        ("berth_placement_group", group, "/preferred_host_selector", json!({"a": "c"}), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/power", json!("Stopped"), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/parent", json!("other"), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/boot_order/0/vms", json!(["db"]), Announced::Live),
        ("berth_vm_group", vm_group.clone(), "/boot_order/0/groups", json!(["front"]), Announced::Live),
        ("berth_vm_group", vm_group, "/boot_order/0/power_on_delay_seconds", json!(5), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/disk_size", json!("2Ti"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/used_storage", json!("2Ti"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/image_storage", json!("2Ti"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/backup_storage", json!("2Ti"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/backups", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/memory", json!("8Gi"), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/cpus", json!(8), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/vms", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/disks", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/snapshots", json!(1), Announced::Live),
        ("berth_quota", quota.clone(), "/hard/images", json!(1), Announced::Live),
        ("berth_quota", quota, "/hard/public_ips", json!(1), Announced::Live),
    ]
}
