//! Bootstrap data: possible secrets go into a Secret beside the VM, and never into the VM, an error or a log.

use berth_api::user_data::{has_top_key, is_ignition};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use tfplugin6::{AttributePath, Diagnostic, Value};

use super::restart;
use crate::{
    api::{Address, Api, ApiError, ApplyOptions, RetryLimit},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::SideObject,
    planning,
    private::Private,
    references::SECRET,
};

/// The annotation that keeps a Secret's content out of the state, with the version of the content written.
const WRITE_ONLY_VERSION: &str = "terraform.berth.dev/user-data-wo-version";
/// The Secret's key.
const KEY: &str = "userData";
/// The parts that a guest sees, all of them at its first boot.
const PARTS: [&str; 8] = [
    "user_data",
    "user_data_wo_version",
    "ssh_authorized_keys",
    "hostname",
    "domain",
    "network_config",
    "meta_data",
    "secret_name",
];

/// The parts that Ignition does not read.
const CLOUD_INIT_ONLY: [&str; 4] = ["ssh_authorized_keys", "domain", "network_config", "meta_data"];

/// The attribute `bootstrap`.
pub(super) fn field() -> Field {
    let fields = vec![
        Field::spec("ssh_authorized_keys", Shape::TextList(Form::SshKey)).effect(Effect::Policy),
        Field::local(
            "user_data",
            Shape::Text(Form::UserData),
            "cloud-init user data, or an Ignition configuration (JSON). Kept in a Secret beside the VM, and in Terraform's \
             state as a sensitive value; `user_data_wo` keeps it out of the state.",
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
        Field::spec("hostname", Shape::Text(Form::Name)).effect(Effect::Policy),
        Field::spec("domain", Shape::Text(Form::Domain)).effect(Effect::Policy),
        Field::spec("network_config", Shape::Text(Form::NetworkConfig)).effect(Effect::Policy),
        Field::spec("meta_data", Shape::Text(Form::MetaData)).effect(Effect::Policy),
        Field::spec("secret_name", Shape::Text(Form::DottedName))
            .refers(SECRET)
            .text(
                "Name of a Secret of your own in the VM's namespace, instead of `user_data`. Its key `userData` is the \
                 cloud-init user data. `networkConfig`, when present, replaces the configuration that berth generates; the keys \
                 of `metaData` (YAML) are added to those that berth generates.",
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
    // An unknown value may become null, for example when a module passes on its variables.
    let set = |name: &str| !bootstrap.get(name).is_null() && !bootstrap.get(name).is_unknown();
    let mut found = Vec::new();
    let sources: Vec<&str> =
        ["user_data", "user_data_wo", "secret_name"].into_iter().filter(|name| set(name)).collect();
    if let [_, second, ..] = sources.as_slice() {
        let detail = format!(
            "Only one of user_data, user_data_wo and secret_name can be set; {} are.",
            sources.join(" and ")
        );
        found.push(Diagnostic::error("User data from two places", detail).at(path(second)));
    }
    if set("user_data_wo") && bootstrap.get("user_data_wo_version").is_null() {
        let detail = "Set user_data_wo_version too, for example 1, and raise it when user_data_wo changes: Terraform keeps no \
                      trace of a write-only value to compare with.";
        found
            .push(Diagnostic::error("Missing user_data_wo_version", detail).at(path("user_data_wo_version")));
    }
    if set("user_data_wo_version") && bootstrap.get("user_data_wo").is_null() {
        let detail = "It is the version of user_data_wo, which is not set: set user_data_wo, or leave out the version.";
        found.push(Diagnostic::error("Missing user_data_wo", detail).at(path("user_data_wo_version")));
    }
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
    if !["user_data", "user_data_wo"].into_iter().filter_map(text).any(is_ignition) {
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
    value.as_str().is_some() || !value.elements().is_empty()
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

/// Removes the provider's own Secret from the view: it is not the user's `secret_name`.
pub(super) fn view(object: &mut Json) {
    let ours = has_our_secret(object);
    if let Some(bootstrap) = object.pointer_mut("/spec/bootstrap").and_then(Json::as_object_mut)
        && ours
    {
        bootstrap.remove("secretName");
    }
}

fn has_our_secret(object: &Json) -> bool {
    let text = |pointer| object.pointer(pointer).and_then(Json::as_str);
    let name = text("/metadata/name").unwrap_or_default();
    text("/spec/bootstrap/secretName") == Some(secret_name(name).as_str())
        && text("/spec/bootstrap/checksum").is_some()
}

fn secret_name(vm: &str) -> String {
    format!("{vm}-bootstrap")
}

/// The checksum stored in the VM, so that a change of the Secret is visible there.
fn checksum(user_data: &str) -> String {
    let digest = Sha256::digest(Form::UserData.canonical(user_data).as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The checksum of a write-only text: plans never see the text, so its version represents it.
fn checksum_of_version(version: i64) -> String {
    format!("version:{version}")
}

/// The checksum of the planned user data; none when there is none.
fn planned_checksum(planned: &Value) -> Option<String> {
    let bootstrap = planned.get("bootstrap");
    let plain = bootstrap.get("user_data").as_str().map(checksum);
    plain.or_else(|| bootstrap.get("user_data_wo_version").as_i64().map(checksum_of_version))
}

/// Sets the reference to the Secret in the VM.
pub(super) fn declare(spec: &mut Json, name: &str, planned: &Value, _private: &Private) {
    let Some(checksum) = planned_checksum(planned) else { return };
    let Some(spec) = spec.as_object_mut() else { return };
    let bootstrap = spec.entry("bootstrap").or_insert_with(|| Json::Object(Map::new()));
    if let Some(bootstrap) = bootstrap.as_object_mut() {
        bootstrap.insert("secretName".into(), secret_name(name).into());
        bootstrap.insert("checksum".into(), checksum.into());
    }
}

/// The user data for the Secret that has not been written yet.
pub(super) fn user_data_to_write<'a>(side_object: &SideObject<'a>) -> Option<&'a str> {
    let checksum = planned_checksum(side_object.planned)?;
    if side_object.private.checksum.as_deref() == Some(checksum.as_str()) {
        return None;
    }
    let (planned, config) = (side_object.planned.get("bootstrap"), side_object.config.get("bootstrap"));
    planned.get("user_data").as_str().or_else(|| config.get("user_data_wo").as_str())
}

/// Writes the Secret, owned by the VM: it is deleted with the VM.
pub(super) async fn write_secret(side_object: SideObject<'_>) -> Result<(), ApiError> {
    let Some(user_data) = user_data_to_write(&side_object) else { return Ok(()) };
    let SideObject { api, manager, at, object, planned, ref retry_limit, .. } = side_object;
    let planned = planned.get("bootstrap");
    let plain = planned.get("user_data").as_str();
    let name = secret_name(&at.name);
    let uid = object.pointer("/metadata/uid");
    let owner =
        json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": at.name, "uid": uid});
    let mut metadata = json!({"name": name, "namespace": at.namespace, "ownerReferences": [owner]});
    if let (None, Some(version)) = (plain, planned.get("user_data_wo_version").as_i64()) {
        metadata["annotations"] = json!({ WRITE_ONLY_VERSION: version.to_string() });
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque",
        "data": {KEY: encode(user_data)},
    });
    let place = Address::secret(&at.namespace, &name);
    // Forced: the Secret's name is derived from the VM's, and the VM is ours.
    let options = ApplyOptions { manager, force: true, dry_run: false };
    api.apply(&place, &secret, options, retry_limit).await.map(|_| ())
}

/// Fills in the user data of a state. Sends one more request only when the checksum differs from the state's.
pub(super) async fn read(
    api: &Api,
    object: &Json,
    private: &Private,
    state: &mut Value,
) -> Result<Private, ApiError> {
    let now = object.pointer("/spec/bootstrap/checksum").and_then(Json::as_str).map(str::to_owned);
    let private = Private { checksum: now.clone(), restart_token: restart::kept(object), ..private.clone() };
    let expected = planned_checksum(state);
    if expected == now {
        return Ok(private);
    }
    let (mut user_data, mut version) = (Value::Null, Value::Null);
    if has_our_secret(object) {
        let text = |pointer| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
        let place = Address::secret(text("/metadata/namespace"), &secret_name(text("/metadata/name")));
        let retry_limit = RetryLimit::seconds(5, &tfplugin6::CancellationToken::new());
        if let Some(secret) = api.get(&place, &retry_limit).await? {
            let annotations = secret.pointer("/metadata/annotations");
            let written = annotations.and_then(|all| all.get(WRITE_ONLY_VERSION)).and_then(Json::as_str);
            match written {
                Some(written) => version = Value::from(written.parse::<i64>().ok()),
                None => user_data = secret.pointer("/data").and_then(|data| decode(data.get(KEY)?)).into(),
            }
        }
    } else if let Some(inline) = object.pointer("/spec/bootstrap/userData").and_then(Json::as_str) {
        user_data = inline.into();
    }
    if state.get("bootstrap").is_null() && user_data.is_null() && version.is_null() {
        return Ok(private);
    }
    let mut bootstrap = state.get("bootstrap").clone();
    if bootstrap.is_null() {
        bootstrap = Value::object(field().children().iter().map(|field| (field.name, Value::Null)));
        bootstrap.set("user_data_policy", "refuse");
    }
    bootstrap.set("user_data", user_data);
    bootstrap.set("user_data_wo_version", version);
    state.set("bootstrap", bootstrap);
    Ok(private)
}

fn encode(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn decode(data: &Json) -> Option<String> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(data.as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}
