//! Bad images, disks, and classes of keys.

use serde_json::{Value as Json, json};

use super::{Bad, everywhere, here, with};

pub(super) fn images() -> Vec<Bad> {
    let image = |source: Json| json!({"name": "i", "source": source});
    let sum = "0".repeat(64);
    let from = |url: &str| image(json!({"url": url, "sha256": sum}));
    vec![
        everywhere(from("ftp://x"), "source.url", "must start with http://, https:// or oci://"),
        everywhere(from("oci:///x"), "source.url", "and a host"),
        everywhere(from("oci://r.example/x"), "source.sha256", "has its checksum in the registry"),
        everywhere(from("https://"), "source.url", "and a host"),
        everywhere(
            image(json!({"url": "https://me:p@a/x", "sha256": sum, "secret_name": "login"})),
            "source.secret_name",
            "exclude each other",
        ),
        everywhere(
            image(json!({"url": "file:///a/x", "sha256": sum, "secret_name": "login"})),
            "source.secret_name",
            "needs no Secret",
        ),
        everywhere(
            image(json!({"url": "https://a/x", "sha256": sum, "secret_name": "Log_in"})),
            "source.secret_name",
            "Log_in",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": "0"})),
            "source.sha256",
            "64 hexadecimal digits",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha512": "0"})),
            "source.sha512",
            "128 hexadecimal digits",
        ),
        everywhere(image(json!({"url": "http://x"})), "source", "needs the checksum"),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "trust_on_first_use": true})),
            "source.trust_on_first_use",
            "a url without a checksum",
        ),
        everywhere(
            image(json!({"url": "oci://x/y", "trust_on_first_use": true})),
            "source.trust_on_first_use",
            "a url without a checksum",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "sha512": "0".repeat(128)})),
            "source.sha512",
            "Exactly one of",
        ),
        everywhere(
            image(json!({"url": "http://x", "checksum_url": "file:///SHA512SUMS"})),
            "source.checksum_url",
            "must start with http:// or https://",
        ),
        everywhere(image(json!({})), "source", "exactly one of"),
        everywhere(image(json!({"url": "http://x", "sha256": sum, "disk": "d"})), "source", "exactly one of"),
        everywhere(image(json!({"disk": "d", "snapshot": "s"})), "source", "exactly one of"),
        here(image(json!({"file": "/f", "url": "http://x"})), "source", "exactly one of"),
        here(image(json!({"file": "/f", "upload": {"size": 1}})), "source", "exactly one of"),
        here(
            image(json!({"file": "/f", "sha512": "0".repeat(128)})),
            "source.sha512",
            "computes the SHA-256",
        ),
        here(image(json!({"file": "/f", "secret_name": "login"})), "source.secret_name", "belongs to a url"),
        everywhere(image(json!({"upload": {}, "sha256": sum})), "source.upload", "set size"),
        everywhere(
            image(json!({"upload": {"size": 0}, "sha256": sum})),
            "source.upload.size",
            "not between 1 and",
        ),
        everywhere(image(json!({"upload": {"size": 1}})), "source", "needs the checksum"),
        everywhere(
            image(json!({"upload": {"size": 1}, "sha256": sum, "sha512": "0".repeat(128)})),
            "source.sha512",
            "Exactly one of",
        ),
        everywhere(
            image(json!({"upload": {"size": 1}, "sha256": sum, "checksum_url": "http://a/b"})),
            "source.checksum_url",
            "belongs to a url",
        ),
        everywhere(image(json!({"disk": "D"})), "source.disk", "not a DNS label"),
        everywhere(image(json!({"disk": "d", "sha256": sum})), "source.sha256", "url"),
        everywhere(image(json!({"snapshot": "s", "secret_name": "login"})), "source.secret_name", "url"),
        everywhere(image(json!({"image": "other", "url": "http://x"})), "source", "exactly one of"),
        everywhere(image(json!({"image": "other", "sha256": sum})), "source.sha256", "url"),
        everywhere(image(json!({"image": "i"})), "source.image", "another image"),
        everywhere(
            image(json!({"image": "other", "image_namespace": "Golden"})),
            "source.image_namespace",
            "not a DNS label",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "image_namespace": "golden"})),
            "source.image_namespace",
            "namespace of the image in `image`",
        ),
        everywhere(with(from("http://x"), "/ova_disk", json!(1)), "ova_disk", "set format = \"ova\""),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "token": "2"})),
            "source.token",
            "fixes the content",
        ),
        everywhere(
            with(image(json!({"disk": "d", "token": "2"})), "/format", json!("iso")),
            "format",
            "has the format qcow2",
        ),
        everywhere(
            image(json!({"disk": "d", "snapshot_namespace": "golden"})),
            "source.snapshot_namespace",
            "namespace of the snapshot in `snapshot`",
        ),
        everywhere(
            with(from("http://x"), "/shared_with", json!(["team-a", "Team B"])),
            "shared_with[1]",
            "is not the name of a namespace",
        ),
        everywhere(image(json!({"disk": "d", "retries": 1})), "source.retries", "belongs to a url"),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "timeout_seconds": 5})),
            "source.timeout_seconds",
            "not between 10 and",
        ),
        everywhere(
            image(json!({"url": "http://x", "sha256": sum, "retries": 1001})),
            "source.retries",
            "not between 0 and",
        ),
        everywhere(with(image(json!({"disk": "d"})), "/format", json!("raw")), "format", "format qcow2"),
        everywhere(
            with(image(json!({"disk": "d"})), "/compression", json!("xz")),
            "compression",
            "from a url",
        ),
        everywhere(with(from("http://x"), "/format", json!("ovf")), "format", "is not one of"),
        everywhere(with(from("http://x"), "/compression", json!("zip")), "compression", "is not one of"),
    ]
}

pub(super) fn disks() -> Vec<Bad> {
    let disk = || json!({"name": "d", "size": "1Gi"});
    let device = || json!({"name": "d", "source": {"device": "nvme"}});
    vec![
        everywhere(json!({"name": "d"}), "size", "needs a size"),
        everywhere(with(disk(), "/size", json!("1 Gi")), "size", "is not a quantity"),
        everywhere(with(disk(), "/size", json!("0")), "size", "not a positive amount"),
        everywhere(with(disk(), "/image", json!("a/b")), "image", "not a DNS label"),
        everywhere(with(disk(), "/pool", json!("")), "pool", "empty"),
        everywhere(
            with(with(disk(), "/pools", json!(["a", "b"])), "/pool", json!("fast")),
            "pool",
            "the choice of the pool",
        ),
        everywhere(
            with(with(disk(), "/pools", json!(["a", "b"])), "/pool_selector", json!({"media": "ssd"})),
            "pool_selector",
            "either",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"file": "/b"})), "/pools", json!(["a"])),
            "pools",
            "file that is taken over",
        ),
        everywhere(with(device(), "/source/device", json!("a/b")), "source.device", "not a DNS label"),
        everywhere(with(device(), "/access", json!("ReadOnlyMany")), "access", "for one VM at a time"),
        everywhere(with(device(), "/provisioning", json!("Thick")), "provisioning", "has its space"),
        everywhere(
            with(device(), "/encryption", json!({"key_class": "k"})),
            "encryption",
            "not encrypted by berth",
        ),
        everywhere(with(device(), "/restore", json!({"snapshot": "s"})), "restore", "has no snapshots"),
        everywhere(with(device(), "/shared_with", json!(["team-a"])), "shared_with", "source of no other"),
        everywhere(with(device(), "/pools", json!(["a"])), "pools", "is in no pool"),
        everywhere(with(device(), "/source", json!({"device": "nvme", "file": "/f"})), "source", "either"),
        everywhere(with(disk(), "/pools", json!(["a/b"])), "pools[0]", "not a DNS label"),
        everywhere(with(disk(), "/deletion_policy", json!("Keep")), "deletion_policy", "is not one of"),
        everywhere(with(disk(), "/expand_policy", json!("Never")), "expand_policy", "is not one of"),
        everywhere(with(disk(), "/provisioning", json!("Eager")), "provisioning", "is not one of"),
        everywhere(with(disk(), "/clone_mode", json!("Instant")), "clone_mode", "is not one of"),
        everywhere(with(disk(), "/clone_mode", json!("Full")), "clone_mode", "made from an image"),
        everywhere(with(disk(), "/filesystem", json!({"type": "ntfs"})), "filesystem.type", "is not one of"),
        everywhere(
            with(with(disk(), "/image", json!("i")), "/filesystem", json!({"type": "ext4"})),
            "filesystem",
            "a blank disk",
        ),
        everywhere(with(disk(), "/access", json!("WriteMany")), "access", "is not one of"),
        everywhere(
            with(with(disk(), "/image", json!("i")), "/access", json!("ReadWriteMany")),
            "access",
            "is blank at first",
        ),
        everywhere(with(disk(), "/access", json!("ReadOnlyMany")), "access", "set the image or the source"),
        here(with(disk(), "/source", json!({})), "source", "either"),
        everywhere(with(disk(), "/source", json!({"disk": "a", "snapshot": "b"})), "source", "either"),
        everywhere(
            with(with(disk(), "/source", json!({"disk": "a"})), "/image", json!("i")),
            "source",
            "an image or",
        ),
        everywhere(with(disk(), "/source", json!({"disk": "a/b"})), "source.disk", "not a DNS label"),
        everywhere(
            with(disk(), "/source", json!({"snapshot": "a", "disk_namespace": "b"})),
            "source.disk_namespace",
            "which is not set",
        ),
        everywhere(with(disk(), "/shared_with", json!(["A b"])), "shared_with[0]", "is not the name of a"),
        everywhere(with(disk(), "/source", json!({"disk": "a", "file": "/b"})), "source", "either"),
        everywhere(with(disk(), "/source", json!({"snapshot": "a", "backup": "b"})), "source", "either"),
        everywhere(with(disk(), "/source", json!({"backup": "a/b"})), "source.backup", "not a DNS label"),
        everywhere(
            with(disk(), "/source", json!({"file": "b.qcow2"})),
            "source.file",
            "the absolute path of a file",
        ),
        everywhere(
            with(disk(), "/source", json!({"disk": "a", "format": "raw"})),
            "source.format",
            "which is not set",
        ),
        everywhere(
            with(disk(), "/source", json!({"file": "/b", "format": "vmdk"})),
            "source.format",
            "qcow2",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"file": "/b"})), "/provisioning", json!("Thick")),
            "provisioning",
            "file that is taken over",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"file": "/b"})), "/encryption", json!({"key_class": "k"})),
            "encryption",
            "file that is taken over",
        ),
        everywhere(
            with(disk(), "/encryption", json!({"key_class": "a/b"})),
            "encryption.key_class",
            "not a DNS label",
        ),
        everywhere(
            with(with(disk(), "/source", json!({"snapshot": "a"})), "/restore", json!({"snapshot": "a"})),
            "restore.snapshot",
            "a snapshot of itself",
        ),
        everywhere(
            with(disk(), "/restore", json!({"snapshot": "a/b"})),
            "restore.snapshot",
            "not a DNS label",
        ),
        everywhere(
            with(disk(), "/restore", json!({"snapshot": "a", "token": "t".repeat(65)})),
            "restore.token",
            "64",
        ),
        here(with(disk(), "/limits", json!({})), "limits", "at least one of"),
        everywhere(with(disk(), "/limits", json!({"iops": 0})), "limits.iops", "0 is not between"),
        everywhere(
            with(disk(), "/limits", json!({"iops": 9, "read_iops": 1})),
            "limits.iops",
            "set either iops, or read_iops",
        ),
        everywhere(
            with(disk(), "/limits", json!({"bandwidth": "1Mi", "write_bandwidth": "1Mi"})),
            "limits.bandwidth",
            "set either bandwidth",
        ),
        everywhere(
            with(disk(), "/limits", json!({"read_iops": 9, "burst_iops": 10})),
            "limits.burst_iops",
            "set iops too",
        ),
        everywhere(
            with(disk(), "/limits", json!({"bandwidth": "2Mi", "burst_bandwidth": "1Mi"})),
            "limits.burst_bandwidth",
            "it is less than bandwidth",
        ),
        everywhere(
            with(disk(), "/limits", json!({"iops": 9, "burst_seconds": 5})),
            "limits.burst_seconds",
            "burst_iops or burst_bandwidth",
        ),
    ]
}

pub(super) fn key_classes() -> Vec<Bad> {
    let class = |secret: Json| json!({"name": "k", "secret": secret});
    let vault = || {
        json!({"name": "k", "vault": {"address": "https://vault.example:8200", "key": "berth",
            "token_secret": {"name": "t"}}})
    };
    let at = |name: &str, value: Json| with(vault(), &format!("/vault/{name}"), value);
    let role = json!({"role_id": "r", "secret": {"name": "t"}});
    let by = |name: &str, value: Json| {
        with(
            with(at("token_secret", Json::Null), "/vault/app_role", role.clone()),
            &format!("/vault/app_role/{name}"),
            value,
        )
    };
    vec![
        everywhere(json!({"name": "k"}), "secret", "set either"),
        everywhere(with(vault(), "/secret", json!({"name": "s"})), "secret", "set either"),
        everywhere(at("token_secret", Json::Null), "vault", "set either"),
        everywhere(at("app_role", role.clone()), "vault", "set either"),
        everywhere(at("address", json!("vault.example")), "vault.address", "is not the URL of a Vault"),
        everywhere(at("address", json!("https://vault.example/v1")), "vault.address", "without a path"),
        everywhere(
            at("address", json!("http://vault.example:8200")),
            "vault.address",
            "loopback address of the host only",
        ),
        everywhere(at("mount", json!("/transit")), "vault.mount", "is not the path of an engine"),
        everywhere(at("mount", json!("a/../b")), "vault.mount", "is not the path of an engine"),
        everywhere(at("key", json!("a/b")), "vault.key", "is not the name of a key"),
        everywhere(at("key", json!("k".repeat(129))), "vault.key", "longer than 128"),
        everywhere(at("namespace", json!("team/")), "vault.namespace", "is not a namespace"),
        everywhere(at("token_secret", json!({"name": "a/b"})), "vault.token_secret.name", "not a DNS label"),
        everywhere(
            at("token_secret", json!({"name": "t", "key": "a/b"})),
            "vault.token_secret.key",
            "not the name of an entry",
        ),
        everywhere(at("ca_secret", json!({"name": "t", "key": ""})), "vault.ca_secret.key", "empty"),
        everywhere(by("role_id", json!("a b")), "vault.app_role.role_id", "is not a role ID"),
        everywhere(
            by("secret", json!({"name": "t", "key": "/"})),
            "vault.app_role.secret.key",
            "not the name of an entry",
        ),
        everywhere(class(json!({"name": "a/b"})), "secret.name", "not a DNS label"),
        everywhere(class(json!({"name": "s", "key": ""})), "secret.key", "empty"),
        everywhere(class(json!({"name": "s", "key": "a/b"})), "secret.key", "not the name of an entry"),
        everywhere(class(json!({"name": "s", "key": "k".repeat(254)})), "secret.key", "longer than 253"),
    ]
}
