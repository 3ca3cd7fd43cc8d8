//! The objects of the other kinds.

use serde_json::json;

use super::spec_of;

#[test]
fn every_other_kind_becomes_its_custom_resource() {
    let cases = [
        (
            "berth_vm_class",
            json!({"cpus": 2, "memory": "1Gi", "qemu_options": [{"name": "cpu.vmx", "value": "on"}], "usb_devices": [{"name": "licence-key"}], "vgpus": [{"name": "a40-8q"}],
                "disk_limits": {"iops": 500, "burst_iops": 2000}}),
            json!({"cpus": 2, "diskLimits": {"iops": 500, "burstIops": 2000}, "memory": "1Gi", "firmware": "UEFI", "qemuOptions": [{"name": "cpu.vmx", "value": "on"}],
                "usbDevices": [{"name": "licence-key", "count": 1}], "vgpus": [{"name": "a40-8q", "count": 1}]}),
        ),
        (
            "berth_key_class",
            json!({"secret": {"name": "disk-key"}}),
            json!({"secret": {"name": "disk-key", "key": "key"}}),
        ),
        (
            "berth_key_class",
            json!({"vault": {"address": "https://vault.example:8200", "key": "berth", "token_secret": {"name": "vault"}}}),
            json!({"vault": {"address": "https://vault.example:8200", "mount": "transit", "key": "berth",
                "tokenSecret": {"name": "vault"}}}),
        ),
        (
            "berth_key_class",
            json!({"vault": {"address": "https://vault.example:8200", "mount": "team/transit", "key": "berth", "namespace": "team/a",
                "ca_secret": {"name": "vault-ca", "key": "ca.pem"}, "app_role": {"role_id": "r-1", "secret": {"name": "vault", "key": "id"}}}}),
            json!({"vault": {"address": "https://vault.example:8200", "mount": "team/transit", "key": "berth", "namespace": "team/a",
                "caSecret": {"name": "vault-ca", "key": "ca.pem"}, "appRole": {"roleID": "r-1", "secret": {"name": "vault", "key": "id"}}}}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "encryption": {"key_class": "strong"}}),
            json!({"size": "1Gi", "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin", "encryption": {"keyClass": "strong"}}),
        ),
        (
            "berth_image",
            json!({"source": {"url": "https://a/b", "sha256": "0"}}),
            json!({"source": {"url": "https://a/b", "sha256": "0"}, "format": "qcow2", "deletionProtection": false}),
        ),
        (
            "berth_image",
            json!({"source": {"url": "https://a/b", "sha256": "0", "timeout_seconds": 600, "retries": 3}}),
            json!({"source": {"url": "https://a/b", "sha256": "0", "timeoutSeconds": 600, "retries": 3}, "format": "qcow2",
                "deletionProtection": false}),
        ),
        (
            "berth_image",
            json!({"source": {"url": "https://a/b", "sha256": "0"}, "display_name": "Debian 13", "version": "13.2",
                "os": {"family": "Linux", "distribution": "debian"}}),
            json!({"source": {"url": "https://a/b", "sha256": "0"}, "format": "qcow2", "deletionProtection": false,
                "displayName": "Debian 13", "version": "13.2", "os": {"family": "Linux", "distribution": "debian"}}),
        ),
        (
            "berth_image",
            json!({"source": {"image": "debian", "image_namespace": "golden"}, "owner": "Team A", "shared_with": ["team-b", "*"]}),
            json!({"source": {"image": "debian", "imageNamespace": "golden"}, "format": "qcow2", "deletionProtection": false,
                "owner": "Team A", "sharedWith": ["team-b", "*"]}),
        ),
        (
            "berth_image",
            json!({"source": {"url": "https://a/b.ova", "sha256": "0"}, "format": "ova", "ova_disk": 2}),
            json!({"source": {"url": "https://a/b.ova", "sha256": "0"}, "format": "ova", "ovaDisk": 2, "deletionProtection": false}),
        ),
        (
            "berth_image",
            json!({"source": {"snapshot": "root", "snapshot_namespace": "golden", "token": "2"}}),
            json!({"source": {"snapshot": "root", "snapshotNamespace": "golden", "token": "2"}, "format": "qcow2", "deletionProtection": false}),
        ),
        (
            "berth_disk",
            json!({"source": {"disk": "root", "disk_namespace": "golden"}, "shared_with": ["team-b"]}),
            json!({"source": {"disk": "root", "diskNamespace": "golden"}, "sharedWith": ["team-b"], "pool": "default",
                "deletionPolicy": "Delete", "access": "ReadWriteOnce", "deletionProtection": false, "expandPolicy": "Online",
                "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "deletion_policy": "Retain"}),
            json!({"size": "1Gi", "pool": "default", "deletionPolicy": "Retain", "deletionProtection": false,
                "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "filesystem": {"type": "xfs", "label": "data"}}),
            json!({"size": "1Gi", "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin",
                "filesystem": {"type": "xfs", "label": "data"}}),
        ),
        (
            "berth_disk",
            json!({"image": "debian", "clone_mode": "Full"}),
            json!({"image": "debian", "cloneMode": "Full", "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "provisioning": "Thick", "expand_policy": "Offline",
                "limits": {"iops": 500, "burst_iops": 2000, "write_bandwidth": "20Mi"}}),
            json!({"size": "1Gi", "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadWriteOnce", "expandPolicy": "Offline", "provisioning": "Thick",
                "limits": {"iops": 500, "writeBandwidth": "20Mi", "burstIops": 2000}}),
        ),
        (
            "berth_disk",
            json!({"source": {"snapshot": "before"}}),
            json!({"source": {"snapshot": "before"}, "pool": "default", "deletionPolicy": "Delete",
                "access": "ReadWriteOnce", "deletionProtection": false, "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "restore": {"snapshot": "before", "token": "2"}}),
            json!({"size": "1Gi", "restore": {"snapshot": "before", "token": "2"}, "pool": "default",
                "deletionPolicy": "Delete", "deletionProtection": false, "expandPolicy": "Online",
                "access": "ReadWriteOnce", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"source": {"backup": "data-1"}}),
            json!({"source": {"backup": "data-1"}, "pool": "default", "deletionPolicy": "Delete",
                "access": "ReadWriteOnce", "deletionProtection": false, "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"source": {"file": "/srv/web.qcow2"}, "imported_from": {"system": "libvirt", "guest": "web", "guest_identity": "7", "disk": "vda"}}),
            json!({"source": {"file": "/srv/web.qcow2"}, "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin",
                "importedFrom": {"system": "libvirt", "guest": "web", "guestIdentity": "7", "disk": "vda"}}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "placement": {"host_selector": {"topology.kubernetes.io/zone": "b"}}}),
            json!({"size": "1Gi", "placement": {"hostSelector": {"topology.kubernetes.io/zone": "b"}}, "pool": "default",
                "deletionPolicy": "Delete", "deletionProtection": false, "access": "ReadWriteOnce", "expandPolicy": "Online",
                "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "pools": ["fast-a", "fast-b"]}),
            json!({"size": "1Gi", "pools": ["fast-a", "fast-b"], "pool": "default", "deletionPolicy": "Delete",
                "deletionProtection": false, "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "pool_selector": {"media": "ssd"}}),
            json!({"size": "1Gi", "poolSelector": {"media": "ssd"}, "pool": "default", "deletionPolicy": "Delete",
                "deletionProtection": false, "access": "ReadWriteOnce", "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"size": "1Gi", "access": "ReadWriteMany"}),
            json!({"size": "1Gi", "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadWriteMany", "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk",
            json!({"image": "i", "access": "ReadOnlyMany"}),
            json!({"image": "i", "pool": "default", "deletionPolicy": "Delete", "deletionProtection": false,
                "access": "ReadOnlyMany", "expandPolicy": "Online", "provisioning": "Thin"}),
        ),
        (
            "berth_disk_snapshot",
            json!({"disk": "d", "shared_with": ["*"]}),
            json!({"disk": "d", "sharedWith": ["*"]}),
        ),
        (
            "berth_backup",
            json!({"repository": "nas", "snapshot": "s"}),
            json!({"repository": "nas", "snapshot": "s", "deletionPolicy": "Delete"}),
        ),
        (
            "berth_backup",
            json!({"repository": "nas", "existing": "v-1/b-1", "deletion_policy": "Retain"}),
            json!({"repository": "nas", "existing": "v-1/b-1", "deletionPolicy": "Retain"}),
        ),
        (
            "berth_backup_repository",
            json!({"folder": "nas", "password_secret_name": "p"}),
            json!({"folder": "nas", "passwordSecretName": "p"}),
        ),
        (
            "berth_backup_repository",
            json!({"s3": {"endpoint": "https://s3.example.org", "bucket": "b-1"}, "credentials_secret_name": "c",
                "password_secret_name": "p"}),
            json!({"s3": {"endpoint": "https://s3.example.org", "region": "us-east-1", "bucket": "b-1"},
                "credentialsSecretName": "c", "passwordSecretName": "p"}),
        ),
        ("berth_vm_snapshot", json!({"vm": "web"}), json!({"vm": "web"})),
        ("berth_vm_snapshot", json!({"vm": "web", "memory": true}), json!({"vm": "web", "memory": true})),
        (
            "berth_snapshot_schedule",
            json!({"schedule": "0 3 * * MON-FRI", "vms": ["web"], "keep": {"daily": 7, "weekly": 4}}),
            json!({"schedule": "0 3 * * MON-FRI", "timeZone": "UTC", "vms": ["web"], "startingDeadlineSeconds": 3600, "suspend": false,
                "keep": {"last": 0, "hourly": 0, "daily": 7, "weekly": 4, "monthly": 0, "yearly": 0}}),
        ),
        (
            "berth_snapshot_schedule",
            json!({"schedule": "@daily", "time_zone": "Asia/Tokyo", "vm_selector": {"backup": "nightly"}, "keep": {"last": 1},
                "starting_deadline_seconds": 60, "suspend": true}),
            json!({"schedule": "@daily", "timeZone": "Asia/Tokyo", "vmSelector": {"backup": "nightly"}, "startingDeadlineSeconds": 60,
                "suspend": true, "keep": {"last": 1, "hourly": 0, "daily": 0, "weekly": 0, "monthly": 0, "yearly": 0}}),
        ),
        (
            "berth_snapshot_schedule",
            json!({"schedule": "@daily", "disks": ["data"], "keep": {"last": 1}}),
            json!({"schedule": "@daily", "timeZone": "UTC", "disks": ["data"], "startingDeadlineSeconds": 3600, "suspend": false,
                "keep": {"last": 1, "hourly": 0, "daily": 0, "weekly": 0, "monthly": 0, "yearly": 0}}),
        ),
        (
            "berth_snapshot_schedule",
            json!({"schedule": "@daily", "vms": ["web"], "keep": {"last": 1},
                "backup": {"repository": "offsite", "keep": {"daily": 30, "monthly": 12}}}),
            json!({"schedule": "@daily", "timeZone": "UTC", "vms": ["web"], "startingDeadlineSeconds": 3600, "suspend": false,
                "keep": {"last": 1, "hourly": 0, "daily": 0, "weekly": 0, "monthly": 0, "yearly": 0},
                "backup": {"repository": "offsite",
                    "keep": {"last": 0, "hourly": 0, "daily": 30, "weekly": 0, "monthly": 12, "yearly": 0}}}),
        ),
        (
            "berth_quota",
            json!({"hard": {"disk_size": "1Ti", "used_storage": "200Gi", "image_storage": "50Gi", "backup_storage": "500Gi", "memory": "64Gi",
                "cpus": 32, "vms": 20, "disks": 40, "snapshots": 100, "images": 5, "backups": 60, "public_ips": 4}}),
            json!({"hard": {"diskSize": "1Ti", "usedStorage": "200Gi", "imageStorage": "50Gi", "backupStorage": "500Gi", "memory": "64Gi",
                "cpus": 32, "vms": 20, "disks": 40, "snapshots": 100, "images": 5, "backups": 60, "publicIps": 4}}),
        ),
        ("berth_quota", json!({"hard": {"vms": 0}}), json!({"hard": {"vms": 0}})),
        (
            "berth_placement_group",
            json!({}),
            json!({"strategy": "spread", "enforcement": "required", "topologyKey": "kubernetes.io/hostname"}),
        ),
        (
            "berth_placement_group",
            json!({"strategy": "pack", "host_selector": {"zone": "b"}, "preferred_host_selector": {"disk": "ssd"}}),
            json!({"strategy": "pack", "enforcement": "required", "topologyKey": "kubernetes.io/hostname",
                "hostSelector": {"zone": "b"}, "preferredHostSelector": {"disk": "ssd"}}),
        ),
        ("berth_vm_group", json!({}), json!({"power": "Running"})),
        (
            "berth_vm_group",
            json!({"power": "Stopped", "parent": "site", "boot_order": [{"vms": ["db"]},
                {"name": "front", "vms": ["web"], "groups": ["cache"], "power_on_delay_seconds": 30}]}),
            json!({"power": "Stopped", "parent": "site", "bootOrder": [
                {"name": "step0", "vms": ["db"], "powerOnDelaySeconds": 0},
                {"name": "front", "vms": ["web"], "groups": ["cache"], "powerOnDelaySeconds": 30},
            ]}),
        ),
        ("berth_security_group", json!({}), json!({})),
        (
            "berth_security_group",
            json!({"ingress": [{"protocol": "tcp", "ports": ["22"], "security_groups": ["db"]}, {"cidrs": ["::/0"]},
                {"protocol": "icmp", "icmp_types": ["echo-request"], "cidrs": ["::/0"]}], "egress": []}),
            json!({"ingress": [
                {"name": "rule0", "protocol": "tcp", "ports": ["22"], "securityGroups": ["db"]},
                {"name": "rule1", "protocol": "any", "cidrs": ["::/0"]},
                {"name": "rule2", "protocol": "icmp", "icmpTypes": ["echo-request"], "cidrs": ["::/0"]},
            ], "egress": []}),
        ),
        (
            "berth_network",
            json!({"cidr": "10.80.0.0/24"}),
            json!({"cidr": "10.80.0.0/24", "type": "Overlay", "ipv6Egress": "None"}),
        ),
        (
            "berth_network",
            json!({"cidr": "10.80.0.0/24", "encryption": "WireGuard"}),
            json!({"cidr": "10.80.0.0/24", "type": "Overlay", "encryption": "WireGuard", "ipv6Egress": "None"}),
        ),
        (
            "berth_network",
            json!({"ipv6_cidr": "fd00:60::/64", "ipv6_autoconfiguration": true, "ipv6_privacy_addresses": true}),
            json!({"ipv6CIDR": "fd00:60::/64", "type": "Overlay", "ipv6Autoconfiguration": true, "ipv6PrivacyAddresses": true,
                "ipv6Egress": "None"}),
        ),
        (
            "berth_network",
            json!({"cidr": "10.80.0.0/24", "dhcp4": false, "dhcp6": true}),
            json!({"cidr": "10.80.0.0/24", "type": "Overlay", "dhcp4": false, "dhcp6": true, "ipv6Egress": "None"}),
        ),
        (
            "berth_network",
            json!({"cidr": "10.80.0.0/24", "egress": "None", "ipv6_cidr": "FD00:0060::/64", "ipv6_egress": "Routed"}),
            json!({"cidr": "10.80.0.0/24", "type": "Overlay", "egress": "None", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Routed"}),
        ),
        (
            "berth_network",
            json!({"ipv6_cidr": "fd00:60::/64", "dns": ["2620:FE::FE"]}),
            json!({"type": "Overlay", "ipv6CIDR": "fd00:60::/64", "dns": ["2620:fe::fe"], "ipv6Egress": "None"}),
        ),
        (
            "berth_network",
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6_cidr": "2001:db8:7::/64",
                "ipv6": {"gateway": "FE80::1", "range": "2001:DB8:7::10-2001:db8:7::1f"}}),
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6CIDR": "2001:db8:7::/64", "ipv6Egress": "None",
                "ipv6": {"allocation": "Static", "gateway": "fe80::1", "range": "2001:db8:7::10-2001:db8:7::1f"}}),
        ),
        (
            "berth_network",
            json!({"cidr": "10.80.0.0/24", "dns_domain": "app.internal"}),
            json!({"cidr": "10.80.0.0/24", "type": "Overlay", "dnsDomain": "app.internal", "ipv6Egress": "None"}),
        ),
        (
            "berth_network",
            json!({"type": "Bridge", "bridge": {"name": "vmbr0", "trunk_vlans": ["20", "100-199"]}, "cidr": "10.80.0.0/24", "ipv4": {"gateway": "10.80.0.1", "dhcp": true}}),
            json!({"type": "Bridge", "bridge": {"name": "vmbr0", "trunkVLANs": ["20", "100-199"]}, "cidr": "10.80.0.0/24", "ipv6Egress": "None",
                "ipv4": {"allocation": "Static", "gateway": "10.80.0.1", "dhcp": true}}),
        ),
        (
            "berth_network",
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": {"allocation": "External", "source_check": "Lease"}}),
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6Egress": "None",
                "ipv4": {"allocation": "External", "sourceCheck": "Lease"}}),
        ),
        (
            "berth_network",
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6": {"allocation": "External", "source_check": "Learned"}}),
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv6Egress": "None",
                "ipv6": {"allocation": "External", "sourceCheck": "Learned"}}),
        ),
        (
            "berth_network",
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.80.0.0/24", "dns_domain": "app.internal", "ipv4": {"name_server": "10.80.0.53"}}),
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.80.0.0/24", "dnsDomain": "app.internal", "ipv6Egress": "None",
                "ipv4": {"allocation": "Static", "nameServer": "10.80.0.53"}}),
        ),
        (
            "berth_network",
            json!({"type": "Bridge", "bridge": {"interface": "eth1", "vlan": 120}, "cidr": "10.80.0.0/24"}),
            json!({"type": "Bridge", "bridge": {"interface": "eth1", "vlan": 120}, "cidr": "10.80.0.0/24", "ipv6Egress": "None"}),
        ),
        (
            "berth_ip_pool",
            json!({"cidrs": ["192.0.2.0/24"]}),
            json!({"cidrs": ["192.0.2.0/24"], "mode": "local", "useAllAddresses": false}),
        ),
        (
            "berth_ip_pool",
            json!({"network_prefixes": ["2001:db8:100::/56"]}),
            json!({"networkPrefixes": ["2001:db8:100::/56"], "mode": "local", "useAllAddresses": false}),
        ),
        (
            "berth_ip_pool",
            json!({"cidrs": ["2001:db8::/64"], "min_prefix_length": 80}),
            json!({"cidrs": ["2001:db8::/64"], "mode": "local", "useAllAddresses": false, "minPrefixLength": 80}),
        ),
        (
            "berth_network",
            json!({"ipv6": {"pool": "p"}, "ipv6_egress": "Routed"}),
            json!({"ipv6": {"allocation": "Static", "pool": "p"}, "ipv6Egress": "Routed", "type": "Overlay"}),
        ),
        (
            "berth_storage_pool",
            json!({}),
            json!({"type": "Local", "trashRetentionSeconds": 86_400, "overcommitPercent": 1000}),
        ),
        (
            "berth_storage_pool",
            json!({"default_for_namespaces": ["team-a"]}),
            json!({"type": "Local", "trashRetentionSeconds": 86_400, "overcommitPercent": 1000, "defaultForNamespaces": ["team-a"]}),
        ),
        (
            "berth_storage_pool",
            json!({"type": "RBD"}),
            json!({"type": "RBD", "trashRetentionSeconds": 86_400, "overcommitPercent": 1000}),
        ),
        ("berth_host", json!({"cordoned": true}), json!({"cordoned": true})),
        ("berth_host", json!({"reserved": {"memory": "2Gi"}}), json!({"reserved": {"memory": "2Gi"}})),
        ("berth_host", json!({"namespaces": ["team-a"]}), json!({"namespaces": ["team-a"]})),
        ("berth_host", json!({"namespaces": []}), json!({"namespaces": []})),
        ("berth_public_ip", json!({}), json!({"pool": "default", "deletionProtection": false})),
        (
            "berth_public_ip",
            json!({"ports": [
                {"port": 443, "target_port": 8443, "targets": ["a", "b"], "health_check": {"path": "/healthz", "interval": "2s"}},
                {"name": "dns", "port": 53, "protocol": "udp", "targets": ["a"], "session_affinity": "ClientIP"},
            ]}),
            json!({"pool": "default", "deletionProtection": false, "ports": [
                {"name": "port0", "port": 443, "targetPort": 8443, "protocol": "tcp", "targets": ["a", "b"], "sessionAffinity": "None",
                    "healthCheck": {"path": "/healthz", "interval": "2s", "timeout": "2s", "healthyThreshold": 1, "unhealthyThreshold": 2}},
                {"name": "dns", "port": 53, "protocol": "udp", "targets": ["a"], "sessionAffinity": "ClientIP"},
            ]}),
        ),
        (
            "berth_public_ip",
            json!({"pool": "routed6", "address": "2001:db8:0:8:1::", "prefix_length": 80}),
            json!({"pool": "routed6", "deletionProtection": false, "address": "2001:db8:0:8:1::", "prefixLength": 80}),
        ),
        (
            "berth_public_ip",
            json!({"port_range": "20000-20099", "ports": [{"name": "ssh", "target_port": 22, "targets": ["a"]}]}),
            json!({"pool": "default", "deletionProtection": false, "portRange": "20000-20099", "ports": [
                {"name": "ssh", "targetPort": 22, "protocol": "tcp", "targets": ["a"], "sessionAffinity": "None"},
            ]}),
        ),
        (
            "berth_hotswap_disk_attachment",
            json!({"vm": "v", "disk": "d"}),
            json!({"vm": "v", "disk": "d", "force": false}),
        ),
    ];
    for (type_name, config, spec) in cases {
        assert_eq!(spec_of(type_name, &config), spec, "{type_name}");
    }
}
