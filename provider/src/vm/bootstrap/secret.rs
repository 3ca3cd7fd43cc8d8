//! The Secret beside a VM with its user data, the hash of its password and its answer file.
//!
//! A part that is write-only is in no plan and no state: its version, kept in an annotation, represents it.

use std::collections::BTreeMap;

use berth_api::{password, sysprep};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use tfplugin6::Value;

use super::{field, restart};
use crate::{
    api::{Address, Api, ApiError, ApplyOptions, RetryLimit},
    form::Form,
    kind::SideObject,
    private::Private,
};

/// A part of the Secret.
struct Part {
    /// Its key in the Secret.
    key: &'static str,
    /// The attribute with its text.
    plain: &'static str,
    /// The write-only attribute instead, the attribute with its version, and the annotation with that version.
    write_only: Option<(&'static str, &'static str, &'static str)>,
    form: Form,
}

const PARTS: [Part; 3] = [
    Part {
        key: "userData",
        plain: "user_data",
        write_only: Some((
            "user_data_wo",
            "user_data_wo_version",
            "terraform.berth.dev/user-data-wo-version",
        )),
        form: Form::UserData,
    },
    Part {
        key: "password",
        plain: "password_hash",
        write_only: Some(("password_wo", "password_wo_version", "terraform.berth.dev/password-wo-version")),
        form: Form::PasswordHash,
    },
    Part { key: sysprep::UNATTEND, plain: "sysprep_unattend", write_only: None, form: Form::Unattend },
];

impl Part {
    /// The checksum of the planned text, or its version; none when there is none.
    fn checksum(&self, bootstrap: &Value) -> Option<String> {
        if let Some(text) = bootstrap.get(self.plain).as_str() {
            return Some(sha256(self.form.canonical(text).as_bytes()));
        }
        let (_, version, _) = self.write_only?;
        // Plans never see the text.
        bootstrap.get(version).as_i64().map(|version| format!("version:{version}"))
    }

    /// The text to write.
    fn text(&self, planned: &Value, config: &Value) -> Option<String> {
        let plain = planned.get(self.plain).as_str();
        let hidden = || config.get(self.write_only?.0).as_str();
        plain.or_else(hidden).map(str::to_owned)
    }
}

fn sha256(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The checksum stored in the VM, so that a change of the Secret is visible there; none without a Secret. That of user data alone
/// is the one that earlier versions have stored.
fn planned_checksum(planned: &Value) -> Option<String> {
    let bootstrap = planned.get("bootstrap");
    let parts: BTreeMap<&str, String> =
        PARTS.iter().filter_map(|part| Some((part.key, part.checksum(bootstrap)?))).collect();
    match parts.iter().next() {
        None => None,
        Some((&"userData", checksum)) if parts.len() == 1 => Some(checksum.clone()),
        Some(_) => Some(sha256(json!(parts).to_string().as_bytes())),
    }
}

/// Removes the provider's own Secret from the view: it is not the user's `secret_name`.
pub(in crate::vm) fn view(object: &mut Json) {
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

/// Sets the reference to the Secret in the VM.
pub(in crate::vm) fn declare(spec: &mut Json, name: &str, planned: &Value, _private: &Private) {
    let Some(checksum) = planned_checksum(planned) else { return };
    let Some(spec) = spec.as_object_mut() else { return };
    let bootstrap = spec.entry("bootstrap").or_insert_with(|| Json::Object(Map::new()));
    if let Some(bootstrap) = bootstrap.as_object_mut() {
        bootstrap.insert("secretName".into(), secret_name(name).into());
        bootstrap.insert("checksum".into(), checksum.into());
    }
}

/// The texts for the Secret that has not been written yet, by key.
pub(in crate::vm) fn content_to_write(
    side_object: &SideObject<'_>,
) -> Option<BTreeMap<&'static str, String>> {
    let checksum = planned_checksum(side_object.planned)?;
    if side_object.private.checksum.as_deref() == Some(checksum.as_str()) {
        return None;
    }
    let (planned, config) = (side_object.planned.get("bootstrap"), side_object.config.get("bootstrap"));
    let texts = PARTS.iter().filter_map(|part| Some((part.key, part.text(planned, config)?)));
    Some(texts.collect()).filter(|texts: &BTreeMap<_, _>| !texts.is_empty())
}

/// Writes the Secret, owned by the VM: it is deleted with the VM.
pub(in crate::vm) async fn write(side_object: SideObject<'_>) -> Result<(), ApiError> {
    let Some(texts) = content_to_write(&side_object) else { return Ok(()) };
    let SideObject { api, manager, at, object, planned, ref retry_limit, .. } = side_object;
    let name = secret_name(&at.name);
    let uid = object.pointer("/metadata/uid");
    let owner =
        json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": at.name, "uid": uid});
    let mut metadata = json!({"name": name, "namespace": at.namespace, "ownerReferences": [owner]});
    let annotations = versions(planned.get("bootstrap"));
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    let salt = salt(uid.and_then(Json::as_str).unwrap_or_default());
    let stored = |(key, text): (&'static str, String)| {
        let text = if key == "password" { password::hashed(&text, salt).unwrap_or_default() } else { text };
        (key, encode(&text))
    };
    let data: BTreeMap<&str, String> = texts.into_iter().map(stored).collect();
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data});
    let place = Address::secret(&at.namespace, &name);
    // Forced: the Secret's name is derived from the VM's, and the VM is ours.
    let options = ApplyOptions { manager, force: true, dry_run: false };
    api.apply(&place, &secret, options, retry_limit).await.map(|_| ())
}

/// The annotations with the versions of the write-only texts.
fn versions(bootstrap: &Value) -> BTreeMap<&'static str, String> {
    let version = |part: &Part| {
        let (_, version, annotation) = part.write_only?;
        let is_plain = bootstrap.get(part.plain).as_str().is_some();
        let version = bootstrap.get(version).as_i64().filter(|_| !is_plain)?;
        Some((annotation, version.to_string()))
    };
    PARTS.iter().filter_map(version).collect()
}

/// A salt needs no secret: it is another one for each VM.
fn salt(uid: &str) -> [u8; password::SALT] {
    let mut salt = [0; password::SALT];
    salt.iter_mut().zip(Sha256::digest(uid)).for_each(|(byte, from)| *byte = from);
    salt
}

/// Fills in the texts of a state. Sends one more request only when the checksum differs from the state's.
pub(in crate::vm) async fn read(
    api: &Api,
    object: &Json,
    private: &Private,
    state: &mut Value,
) -> Result<Private, ApiError> {
    let now = object.pointer("/spec/bootstrap/checksum").and_then(Json::as_str).map(str::to_owned);
    let private = Private { checksum: now.clone(), restart_token: restart::kept(object), ..private.clone() };
    if planned_checksum(state) == now {
        return Ok(private);
    }
    let mut found: BTreeMap<&str, Value> = BTreeMap::new();
    if has_our_secret(object) {
        let text = |pointer| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
        let place = Address::secret(text("/metadata/namespace"), &secret_name(text("/metadata/name")));
        let retry_limit = RetryLimit::seconds(5, &tfplugin6::CancellationToken::new());
        if let Some(secret) = api.get(&place, &retry_limit).await? {
            found = PARTS.iter().filter_map(|part| part.found_in(&secret)).collect();
        }
    } else if let Some(inline) = object.pointer("/spec/bootstrap/userData").and_then(Json::as_str) {
        found.insert("user_data", inline.into());
    }
    if state.get("bootstrap").is_null() && found.values().all(Value::is_null) {
        return Ok(private);
    }
    let mut bootstrap = state.get("bootstrap").clone();
    if bootstrap.is_null() {
        bootstrap = Value::object(field().children().iter().map(|field| (field.name, Value::Null)));
        bootstrap.set("user_data_policy", "refuse");
    }
    for part in &PARTS {
        let names = [Some(part.plain), part.write_only.map(|(_, version, _)| version)];
        for name in names.into_iter().flatten() {
            bootstrap.set(name, found.get(name).cloned().unwrap_or(Value::Null));
        }
    }
    state.set("bootstrap", bootstrap);
    Ok(private)
}

impl Part {
    /// The attribute, and its value in the Secret: the version of a write-only text, or else the text.
    fn found_in(&self, secret: &Json) -> Option<(&'static str, Value)> {
        let annotations = secret.pointer("/metadata/annotations");
        if let Some((_, version, annotation)) = self.write_only
            && let Some(written) = annotations.and_then(|all| all.get(annotation)).and_then(Json::as_str)
        {
            return Some((version, Value::from(written.parse::<i64>().ok())));
        }
        let text = secret.pointer("/data").and_then(|data| decode(data.get(self.key)?));
        Some((self.plain, text.into()))
    }
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
