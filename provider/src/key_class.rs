//! `berth_key_class`

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
    references::SECRET,
    replacement,
    vm_class::seen,
};

/// Whether a text is valid.
type Validity = fn(&str) -> bool;

/// The key that protects the keys of encrypted disks.
#[derive(Debug)]
pub struct KeyClass;

#[async_trait]
impl ResourceKind for KeyClass {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_key_class",
            kind: "KeyClass",
            plural: "keyclasses",
            description: "The key that protects the keys of encrypted disks. It is in a Secret, which Terraform never reads, or in the transit engine of a Vault. A `berth_disk` names the class in `encryption`; with another class, the key of the disk is protected by that one at once, while its VM runs. A disk with `encryption = {}` has the class `default`, of its namespace or of `berth-shared`.\n\nDestroying a class that disks or snapshots have is accepted; a finalizer keeps it until none has it. The Secret, and the key in a Vault, are not destroyed with it.",
            example: include_str!("../../examples/resources/berth_key_class/resource.tf"),
            shown: "status.used_by",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let secret = vec![
            Field::spec("name", Shape::Text(Form::Name)).required().effect(Effect::Replace).refers(SECRET),
            Field::spec("key", Shape::Text(Form::Any)).default("key").effect(Effect::Replace),
        ];
        vec![
            Field::spec("secret", Shape::Object(secret)).effect(Effect::Replace),
            Field::spec("vault", Shape::Object(vault_fields())).effect(Effect::Replace),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let key = check_entry(config.get("secret"), &AttributePath::root("secret"));
        check_source(config).into_iter().chain(key).chain(check_vault(config.get("vault"))).collect()
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let changed = if change.prior.get("secret").is_null() { "vault" } else { "secret" };
        replacement::refuse_in_use(api, change, self.info().plural, changed, "The class is in use").await;
    }

    /// Nothing is lost with it: the Secret stays.
    fn is_worth_keeping(&self, _object: &Json) -> bool {
        false
    }

    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        seen(object)
    }
}

/// The key in a Vault. Its identity is fixed; the way to it may change.
fn vault_fields() -> Vec<Field> {
    let text = |name| Field::spec(name, Shape::Text(Form::Any));
    let entry = |name| {
        let fields =
            vec![Field::spec("name", Shape::Text(Form::Name)).required().refers(SECRET), text("key")];
        Field::spec(name, Shape::Object(fields))
    };
    let role = vec![text("role_id").key("roleID").required(), entry("secret").required()];
    vec![
        text("address").required(),
        text("mount").default("transit").effect(Effect::Replace),
        text("key").required().effect(Effect::Replace),
        text("namespace").effect(Effect::Replace),
        entry("ca_secret"),
        entry("token_secret"),
        Field::spec("app_role", Shape::Object(role)),
    ]
}

fn wrong(at: AttributePath, summary: &str, detail: &str) -> Diagnostic {
    Diagnostic::error(summary, format!("{at}: {detail}")).at(at)
}

/// Refuses a class that does not have exactly one key.
fn check_source(config: &Value) -> Option<Diagnostic> {
    let (secret, vault) = (config.get("secret"), config.get("vault"));
    if secret.is_unknown() || vault.is_unknown() || secret.is_null() != vault.is_null() {
        return None;
    }
    let summary = if secret.is_null() { "Neither secret nor vault" } else { "Both secret and vault" };
    let detail =
        "set either `secret`, a key in a Secret, or `vault`, a key in the transit engine of a Vault.";
    Some(wrong(AttributePath::root("secret"), summary, detail))
}

/// Refuses texts that name no key in a Vault, and a way to it that is not exactly one.
fn check_vault(vault: &Value) -> Option<Diagnostic> {
    if vault.is_null() || vault.is_unknown() {
        return None;
    }
    let root = || AttributePath::root("vault");
    let remedies: [(&str, Validity, &str); 4] = [
        (
            "address",
            is_address,
            "is not the URL of a Vault: write for example \"https://vault.example:8200\", without a path. \"http://\" is for a loopback \
             address of the host only.",
        ),
        (
            "mount",
            is_path,
            "is not the path of an engine: write for example \"transit\", without \"/\" at either end.",
        ),
        (
            "key",
            is_key,
            "is not the name of a key: use letters, digits, \"_\", \".\" and \"-\", with a letter, digit or \"_\" at both ends.",
        ),
        (
            "namespace",
            is_path,
            "is not a namespace of a Vault: write for example \"team/a\", without \"/\" at either end.",
        ),
    ];
    let text = remedies.into_iter().find_map(|(name, is_valid, remedy)| {
        let text = vault.get(name).as_str().filter(|text| !text.is_empty() && !is_valid(text))?;
        Some(wrong(root().attribute(name), "Invalid Vault", &format!("{text:?} {remedy}")))
    });
    let (token, role) = (vault.get("token_secret"), vault.get("app_role"));
    let login = || {
        let is_known = !token.is_unknown() && !role.is_unknown();
        let detail = "set either `token_secret`, a token, or `app_role`, a role by which hosts log in.";
        (is_known && token.is_null() == role.is_null())
            .then(|| wrong(root(), "Neither or both of token_secret and app_role", detail))
    };
    let entries = || {
        let entries = [
            (token, root().attribute("token_secret")),
            (vault.get("ca_secret"), root().attribute("ca_secret")),
            (role.get("secret"), root().attribute("app_role").attribute("secret")),
        ];
        entries.into_iter().find_map(|(secret, at)| check_entry(secret, &at))
    };
    text.or_else(login).or_else(|| check_role(role)).or_else(entries)
}

fn check_role(role: &Value) -> Option<Diagnostic> {
    let id = role.get("role_id").as_str().filter(|id| !id.bytes().all(is_of_name))?;
    let at = AttributePath::root("vault").attribute("app_role").attribute("role_id");
    Some(wrong(
        at,
        "Invalid role ID",
        &format!("{id:?} is not a role ID: use letters, digits, \"_\", \".\" and \"-\"."),
    ))
}

/// Refuses a text that names no entry of a Secret. Its length is checked by the table of fields.
fn check_entry(secret: &Value, at: &AttributePath) -> Option<Diagnostic> {
    let key = secret.get("key").as_str().filter(|key| !key.bytes().all(is_of_name))?;
    let detail = format!("{key:?} is not the name of an entry: use letters, digits, \"-\", \"_\" and \".\".");
    Some(wrong(at.clone().attribute("key"), "Invalid key", &detail))
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

fn is_address(text: &str) -> bool {
    let is_loopback = text.starts_with("http://127.") || text.starts_with("http://[::1]");
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://").filter(|_| is_loopback));
    let rest = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:[]-".contains(&byte))
    })
}

fn is_path(text: &str) -> bool {
    text.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_of_name))
}

fn is_key(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    text.bytes().all(is_of_name) && is_end(text.bytes().next()) && is_end(text.bytes().last())
}
