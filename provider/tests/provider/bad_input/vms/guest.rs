//! Bad bootstrap data and users of a guest.

use serde_json::{Value as Json, json};

use super::vm;
use crate::bad_input::{Bad, everywhere, here, with};

const IGNITION: &str = "{\"ignition\": {\"version\": \"3.4.0\"}}";

pub(super) fn guest() -> Vec<Bad> {
    let boots = |name: &str, value: Json| with(vm(), &format!("/bootstrap/{name}"), value);
    let users = |users: Json| with(vm(), "/guest_users", users);
    let write_only = json!({"user_data_wo": "#!/bin/sh", "user_data_wo_version": -1});
    vec![
        everywhere(
            boots("ssh_authorized_keys", json!(["x"])),
            "bootstrap.ssh_authorized_keys[0]",
            "not an SSH public key",
        ),
        everywhere(users(json!([{"name": "A b"}])), "guest_users[0].name", "not the name of a user"),
        everywhere(
            users(json!([{"name": "a", "ssh_authorized_keys": ["ssh-rsa A", "x"]}])),
            "guest_users[0].ssh_authorized_keys[1]",
            "not an SSH public key",
        ),
        everywhere(
            users(json!([{"name": "a", "ssh_authorized_keys_secret": "a b"}])),
            "guest_users[0].ssh_authorized_keys_secret",
            "is not a name",
        ),
        everywhere(
            users(json!([{"name": "a", "password_secret": "a_b"}])),
            "guest_users[0].password_secret",
            "is not a name",
        ),
        everywhere(users(json!([{"name": "a"}, {"name": "a"}])), "guest_users", "is used twice"),
        everywhere(
            with(vm(), "/guest_agent", json!({"policy": "Purge"})),
            "guest_agent.policy",
            "is not one of",
        ),
        everywhere(
            with(
                with(vm(), "/guest_agent", json!({"policy": "Remove"})),
                "/guest_users",
                json!([{"name": "a"}]),
            ),
            "guest_agent.policy",
            "the guest agent sets guest_users",
        ),
        everywhere(boots("hostname", json!("a_b")), "bootstrap.hostname", "not a DNS label"),
        everywhere(boots("domain", json!("example_org")), "bootstrap.domain", "is not a domain"),
        here(
            boots("network_config", json!("ethernets: {}\n")),
            "bootstrap.network_config",
            "The network configuration has no version",
        ),
        here(boots("meta_data", json!("- a\n")), "bootstrap.meta_data", "The meta-data is a list at line 1"),
        here(
            with(
                vm(),
                "/bootstrap",
                json!({"ssh_authorized_keys": ["ssh-rsa A"], "meta_data": "public-keys: [a]\n"}),
            ),
            "bootstrap.meta_data",
            "The key public-keys of meta_data would take the place of ssh_authorized_keys",
        ),
        here(
            with(vm(), "/bootstrap", json!({"domain": "example.org", "meta_data": "local-hostname: a\n"})),
            "bootstrap.meta_data",
            "meta_data and domain declare the same",
        ),
        here(
            with(vm(), "/bootstrap", json!({"ssh_authorized_keys": ["ssh-rsa A"], "user_data": IGNITION})),
            "bootstrap.ssh_authorized_keys",
            "Ignition would ignore it",
        ),
        here(
            with(vm(), "/bootstrap", json!({"network_config": "version: 2\n", "user_data": IGNITION})),
            "bootstrap.network_config",
            "network_config beside an Ignition configuration",
        ),
        everywhere(boots("secret_name", json!("a b")), "bootstrap.secret_name", "is not a name"),
        here(boots("user_data", json!("hello")), "bootstrap.user_data", "begin it with \"#cloud-config\""),
        here(
            boots("user_data", json!("#cloud-config\na: 1\na: 2\n")),
            "bootstrap.user_data",
            "line 3 that line 2 has too",
        ),
        here(boots("user_data", json!("#cloud-config\na: [\n")), "bootstrap.user_data", "not YAML: line"),
        here(
            boots("user_data", json!("# cloud-config\n")),
            "bootstrap.user_data",
            "not exactly \"#cloud-config\"",
        ),
        here(boots("user_data", json!("#!".repeat(40_000))), "bootstrap.user_data", "65,536 bytes at most"),
        here(with(vm(), "/bootstrap", write_only), "bootstrap.user_data_wo_version", "-1 is less than 0"),
        here(
            boots("user_data_wo_version", json!(1)),
            "bootstrap.user_data_wo_version",
            "version of user_data_wo, which is not set",
        ),
        here(
            boots("user_data_wo", json!("#!/bin/sh")),
            "bootstrap.user_data_wo_version",
            "Set user_data_wo_version too",
        ),
        here(
            with(vm(), "/bootstrap", json!({"user_data": "#!a", "secret_name": "b"})),
            "bootstrap.secret_name",
            "Only one of",
        ),
        everywhere(boots("user", json!("A b")), "bootstrap.user", "is not the name of a user"),
        here(boots("password_hash", json!("hunter2")), "bootstrap.password_hash", "begins with $6$"),
        here(boots("password_wo", json!("a\nb")), "bootstrap.password_wo", "no line break"),
        here(
            boots("password_wo", json!("hunter2")),
            "bootstrap.password_wo_version",
            "Set password_wo_version too",
        ),
        here(
            boots("password_wo_version", json!(1)),
            "bootstrap.password_wo_version",
            "password_wo, which is not set",
        ),
        everywhere(boots("guest_agent", json!("Upgrade")), "bootstrap.guest_agent", "Install"),
        here(
            boots("password_expires", json!(true)),
            "bootstrap.password_expires",
            "set password_wo or password_hash",
        ),
        here(boots("sysprep_unattend", json!("<a/>")), "bootstrap.sysprep_unattend", "another root element"),
        everywhere(
            boots("ssh_authorized_keys_secret", json!("a b")),
            "bootstrap.ssh_authorized_keys_secret",
            "is not a name",
        ),
        here(
            with(vm(), "/bootstrap", json!({"password_hash": "$6$a$b", "secret_name": "b"})),
            "bootstrap.secret_name",
            "Only one of password_hash and secret_name",
        ),
        here(
            with(vm(), "/bootstrap", json!({"user": "admin", "user_data": "#cloud-config\nuser: root\n"})),
            "bootstrap.user_data",
            "user_data and user declare the same",
        ),
        here(
            with(
                vm(),
                "/bootstrap",
                json!({"user": "admin", "user_data": "#cloud-config # Windows\r\nuser: root\r\n"}),
            ),
            "bootstrap.user_data",
            "user_data and user declare the same",
        ),
        here(
            with(vm(), "/bootstrap", json!({"user": "admin", "user_data": IGNITION})),
            "bootstrap.user",
            "Ignition would ignore it",
        ),
        here(boots("user_data", json!("H4sIAAAAAAAA/0rOz0vLTAcEAAD//w==")), "bootstrap.user_data", "damaged"),
        here(boots("user_data_policy", json!("maybe")), "bootstrap.user_data_policy", "is not one of"),
    ]
}
