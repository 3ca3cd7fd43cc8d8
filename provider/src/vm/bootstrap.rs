//! Bootstrap data: possible secrets go into a Secret beside the VM, and never into the VM, an error or a log.

mod secret;

use berth_api::user_data::{decoded, has_top_key, is_cloud_config, is_ignition};
use tfplugin6::{AttributePath, Diagnostic, Value};

pub(super) use secret::{content_to_write, declare, read, view, write};

use super::restart;
use crate::{
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    planning,
    references::SECRET,
};

/// The parts that a guest sees, all of them at its first boot.
const PARTS: [&str; 15] = [
    "user_data",
    "user_data_wo_version",
    "user",
    "password_hash",
    "password_wo_version",
    "password_expires",
    "sysprep_unattend",
    "ssh_authorized_keys_secret",
    "ssh_authorized_keys",
    "hostname",
    "domain",
    "network_config",
    "meta_data",
    "secret_name",
    "guest_agent",
];

/// The parts that Ignition does not read.
const CLOUD_INIT_ONLY: [&str; 9] = [
    "ssh_authorized_keys",
    "ssh_authorized_keys_secret",
    "user",
    "password_hash",
    "password_wo_version",
    "domain",
    "network_config",
    "meta_data",
    "guest_agent",
];
/// The parts that are kept in one Secret, which a Secret of the user's own replaces.
const IN_SECRET: [&str; 5] =
    ["user_data", "user_data_wo", "password_hash", "password_wo", "sysprep_unattend"];
/// The write-only parts.
const WRITE_ONLY: [&str; 2] = ["user_data_wo", "password_wo"];

/// The attribute `bootstrap`.
pub(super) fn field() -> Field {
    let fields = vec![
        Field::spec("ssh_authorized_keys", Shape::TextList(Form::SshKey)).effect(Effect::Policy),
        Field::spec("ssh_authorized_keys_secret", Shape::Text(Form::DottedName))
            .refers(SECRET)
            .effect(Effect::Policy),
        Field::spec("user", Shape::Text(Form::UserName)).effect(Effect::Policy),
        Field::local(
            "password_wo",
            Shape::Text(Form::Password),
            "The password of the default user, in no plan and no state (Terraform 1.11 and later). Only its hash is stored, in a \
             Secret beside the VM. Written again when `password_wo_version` changes.",
        )
        .sensitive()
        .write_only(),
        Field::local("password_wo_version", Shape::Integer, "Increase it when `password_wo` changes. 0 or more.")
            .at_least(0)
            .effect(Effect::Policy),
        Field::local(
            "password_hash",
            Shape::Text(Form::PasswordHash),
            "The hash of the password of the default user, as `mkpasswd -m sha-512` prints it: instead of `password_wo`.",
        )
        .sensitive()
        .effect(Effect::Policy),
        Field::spec("password_expires", Shape::Bool).effect(Effect::Policy),
        Field::local(
            "sysprep_unattend",
            Shape::Text(Form::Unattend),
            "An answer file for Windows Setup and Sysprep (XML). The guest gets it as `Unattend.xml` and `Autounattend.xml` on a \
             removable disk. Kept in a Secret beside the VM, and in Terraform's state as a sensitive value.",
        )
        .sensitive()
        .effect(Effect::Policy),
        Field::local(
            "user_data",
            Shape::Text(Form::UserData),
            "cloud-init user data, or an Ignition configuration (JSON); also in base64, and compressed with gzip before. Kept in a \
             Secret beside the VM, and in Terraform's state as a sensitive value; `user_data_wo` keeps it out of the state. \
             Its own users and passwords come before `user` and the password.",
        )
        .sensitive()
        .effect(Effect::Policy),
        Field::local(
            "user_data_wo",
            Shape::Text(Form::UserData),
            "cloud-init user data that is in no plan and no state (Terraform 1.11 and later). Written again when \
             `user_data_wo_version` changes.",
        )
        .sensitive()
        .write_only(),
        Field::local("user_data_wo_version", Shape::Integer, "Increase it when `user_data_wo` changes. 0 or more.")
            .at_least(0)
            .effect(Effect::Policy),
        Field::spec("guest_agent", Shape::Text(Form::Any)).effect(Effect::Policy),
        Field::spec("hostname", Shape::Text(Form::Name)).effect(Effect::Policy),
        Field::spec("domain", Shape::Text(Form::Domain)).effect(Effect::Policy),
        Field::spec("network_config", Shape::Text(Form::NetworkConfig)).effect(Effect::Policy),
        Field::spec("meta_data", Shape::Text(Form::MetaData)).effect(Effect::Policy),
        Field::spec("secret_name", Shape::Text(Form::DottedName))
            .refers(SECRET)
            .text(
                "Name of a Secret of your own in the VM's namespace, instead of `user_data`, a password and `sysprep_unattend`. Its key \
                 `userData` is the cloud-init user data. `networkConfig`, when present, replaces the configuration that berth \
                 generates; the keys of `metaData` (YAML) are added to those that berth generates; `password` is that of the default \
                 user, as text or as a hash; `unattend.xml` is an answer file for Windows.",
            )
            .effect(Effect::Policy),
        Field::local(
            "user_data_policy",
            Shape::Text(Form::Any),
            "The effect of changed bootstrap data on an existing VM, as a guest reads it at its first boot only: \
             `refuse` (default) refuses the change; `ignore` keeps the original data; `reboot` provides the new data \
             and restarts the VM; `replace` creates another VM.",
        )
        .one_of(&["refuse", "ignore", "reboot", "replace"])
        .default("refuse"),
    ];
    Field::spec("bootstrap", Shape::Object(fields))
        .presence(Presence::Optional)
        .text("Data for the guest's first boot (cloud-init, NoCloud).")
}

/// The problems with the attribute.
pub(super) fn check(bootstrap: &Value) -> Vec<Diagnostic> {
    let path = |name: &str| AttributePath::root("bootstrap").attribute(name);
    let set = |name: &str| bootstrap.get(name).is_set();
    let mut found = Vec::new();
    for (own, other) in exclusive() {
        if set(own) && set(other) {
            let detail = format!("Only one of {own} and {other} can be set: leave the other out.");
            let what = if own.starts_with("user_data") { "User data" } else { "Bootstrap data" };
            found.push(Diagnostic::error(format!("{what} from two places"), detail).at(path(other)));
        }
    }
    for name in WRITE_ONLY {
        let version = format!("{name}_version");
        if set(name) && bootstrap.get(&version).is_null() {
            let detail = format!(
                "Set {version} too, for example 1, and raise it when {name} changes: Terraform keeps no trace of a write-only \
                 value to compare with."
            );
            found.push(Diagnostic::error(format!("Missing {version}"), detail).at(path(&version)));
        }
        if set(&version) && bootstrap.get(name).is_null() {
            let detail = format!(
                "It is the version of {name}, which is not set: set {name}, or leave out the version."
            );
            found.push(Diagnostic::error(format!("Missing {name}"), detail).at(path(&version)));
        }
    }
    if set("password_expires")
        && ["password_hash", "password_wo", "secret_name"].iter().all(|name| bootstrap.get(name).is_null())
    {
        let detail = "It applies to the password of the default user, which is not set: set password_wo or password_hash too.";
        found.push(Diagnostic::error("Missing password", detail).at(path("password_expires")));
    }
    found.extend(check_user_data(bootstrap));
    found.extend(check_meta_data(bootstrap));
    found.extend(check_ignition(bootstrap));
    for name in ["user_data", "user_data_wo"] {
        if bootstrap.get(name).as_str().is_some_and(|text| text.len() > 65_536) {
            let detail = "User data can be 65,536 bytes at most. Fetch what is larger from within the guest.";
            found.push(Diagnostic::error("User data is too long", detail).at(path(name)));
        }
    }
    found
}

/// The pairs of parts of which only one can be set; of three, the message is about each pair.
fn exclusive() -> Vec<(&'static str, &'static str)> {
    let alternatives = [("user_data", "user_data_wo"), ("password_hash", "password_wo")];
    alternatives.into_iter().chain(IN_SECRET.map(|name| (name, "secret_name"))).collect()
}

/// The parts that the user data declares a second time.
fn check_user_data(bootstrap: &Value) -> Vec<Diagnostic> {
    let twice = [("user", "user"), ("password", "password_hash"), ("password", "password_wo")];
    let mut found = Vec::new();
    for name in ["user_data", "user_data_wo"] {
        let Some(text) = bootstrap.get(name).as_str().and_then(|text| decoded(text.as_bytes()).ok()) else {
            continue;
        };
        if !is_cloud_config(&text) {
            continue;
        }
        for (key, part) in twice {
            if bootstrap.get(part).as_str().is_some() && has_top_key(&text, &[key]) {
                let detail = format!(
                    "The key {key} of the cloud-config would take the place of {part}, so that {part} would have no effect: \
                     leave out one of them."
                );
                let at = AttributePath::root("bootstrap").attribute(name);
                found.push(Diagnostic::error(format!("{name} and {part} declare the same"), detail).at(at));
            }
        }
    }
    found
}

/// The parts that `meta_data` declares a second time.
fn check_meta_data(bootstrap: &Value) -> Vec<Diagnostic> {
    let Some(text) = bootstrap.get("meta_data").as_str() else { return Vec::new() };
    let twice = [
        ("public-keys", "ssh_authorized_keys"),
        ("local-hostname", "hostname"),
        ("local-hostname", "domain"),
    ];
    let twice =
        twice.into_iter().filter(|(key, name)| has_content(bootstrap.get(name)) && has_top_key(text, &[key]));
    twice
        .map(|(key, name)| {
            let detail = format!(
                "The key {key} of meta_data would take the place of {name}, so that {name} would have no effect: leave out \
                 one of them."
            );
            let at = AttributePath::root("bootstrap").attribute("meta_data");
            Diagnostic::error(format!("meta_data and {name} declare the same"), detail).at(at)
        })
        .collect()
}

/// The parts that no guest reads beside an Ignition configuration.
fn check_ignition(bootstrap: &Value) -> Vec<Diagnostic> {
    let text = |name: &str| bootstrap.get(name).as_str();
    let is_one = |text: &str| decoded(text.as_bytes()).is_ok_and(|text| is_ignition(&text));
    if !["user_data", "user_data_wo"].into_iter().filter_map(text).any(is_one) {
        return Vec::new();
    }
    let ignored = CLOUD_INIT_ONLY.into_iter().filter(|name| has_content(bootstrap.get(name)));
    ignored
        .map(|name| {
            let detail = format!(
                "The user data is an Ignition configuration. {name} is for cloud-init, and Ignition would ignore it: leave it \
                 out, and declare the same in the Ignition configuration."
            );
            let at = AttributePath::root("bootstrap").attribute(name);
            Diagnostic::error(format!("{name} beside an Ignition configuration"), detail).at(at)
        })
        .collect()
}

fn has_content(value: &Value) -> bool {
    value.as_str().is_some() || value.as_i64().is_some() || !value.elements().is_empty()
}

/// Applies `user_data_policy` to a change.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    let changed: Vec<AttributePath> =
        change.with_effect(Effect::Policy).map(|change| change.path.clone()).collect();
    if change.is_create() || changed.is_empty() || !change.replace.is_empty() {
        return;
    }
    let policy = change.planned.get("bootstrap").get("user_data_policy");
    let policy = policy
        .as_str()
        .or(change.prior.get("bootstrap").get("user_data_policy").as_str())
        .unwrap_or("refuse")
        .to_owned();
    match policy.as_str() {
        "ignore" => {
            let (was, mut is) =
                (change.prior.get("bootstrap").clone(), change.planned.get("bootstrap").clone());
            for name in PARTS {
                // Terraform lets a plan keep the prior value only if there was one and one is configured.
                if !was.get(name).is_null() && !is.get(name).is_null() {
                    is.set(name, was.get(name).clone());
                }
            }
            change.planned.set("bootstrap", is);
            planning::undo_provider_only_changes(change.fields, change.prior, &mut change.planned);
            change.recompute_changes();
        }
        "replace" => change.replace.extend(changed),
        "reboot" => {
            let first = changed.into_iter().next().unwrap_or_default();
            let runs = [change.prior, &change.planned]
                .iter()
                .all(|state| state.get("power").as_str() == Some("Running"));
            if runs {
                let detail = "user_data_policy is \"reboot\": the VM is restarted once, as declared in stop, and has the new \
                              data then.";
                change.diagnostics.push(Diagnostic::warning(restart::RESTART, detail).at(first));
                restart::request(change);
            }
        }
        _ => {
            // An unknown value may become the current one: the plan within the apply decides.
            let known = |path: &AttributePath| change.planned.at(path).is_wholly_known();
            let Some(first) = changed.into_iter().find(known) else { return };
            let detail = "A guest reads its bootstrap data at its first boot only, so this change would not reach it. Set \
                          bootstrap.user_data_policy: \"replace\" creates another VM, \"reboot\" provides the new data and \
                          restarts the VM, \"ignore\" keeps the original data.";
            let summary = format!("Change of {first} refused by user_data_policy");
            change.refuse(summary, detail, first);
        }
    }
}
