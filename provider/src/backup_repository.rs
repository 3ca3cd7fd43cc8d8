//! `berth_backup_repository`

use async_trait::async_trait;
use berth_api::Quantity;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    references::SECRET,
    replacement,
};

/// Whether a text is valid.
type Validity = fn(&str) -> bool;

/// Where backups are kept.
#[derive(Debug)]
pub struct BackupRepository;

#[async_trait]
impl ResourceKind for BackupRepository {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_backup_repository",
            kind: "BackupRepository",
            plural: "backuprepositories",
            description: "Where the backups of a namespace are kept: an S3-compatible object store, or a folder that hosts have (`--backup-folder`). All data in it is encrypted with a password, which is in a Secret. It is made with its first `berth_backup`, and opened by no apply of this resource: a wrong password shows in the backups.\n\nDestroying a repository that backups name is accepted; a finalizer keeps it until no backup does. The data in the object store or the folder is never deleted with this resource.",
            example: include_str!("../../examples/resources/berth_backup_repository/resource.tf"),
            shown: "status.used_by",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let text = |name| Field::spec(name, Shape::Text(Form::Any)).effect(Effect::Replace);
        let s3 = vec![
            text("endpoint").required(),
            text("region").default("us-east-1"),
            text("bucket").required(),
            text("prefix"),
        ];
        vec![
            Field::spec("s3", Shape::Object(s3)).effect(Effect::Replace),
            text("folder"),
            Field::spec("credentials_secret_name", Shape::Text(Form::Name)).refers(SECRET),
            Field::spec("password_secret_name", Shape::Text(Form::Name)).required().refers(SECRET),
            Field::spec(
                "verification",
                Shape::Object(vec![
                    Field::spec("interval_days", Shape::Integer).required(),
                    Field::spec("bandwidth", Shape::Text(Form::Quantity)),
                ]),
            ),
            Field::observed(
                "repository_id",
                "/status/repositoryID",
                "The identity that the repository has in itself. Set with its first backup.",
            ),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let place = check_location(config).into_iter().chain(check_s3(config.get("s3")));
        place.chain(check_bandwidth(config.get("verification"))).collect()
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let changed = if change.prior.get("s3").is_null() { "folder" } else { "s3" };
        replacement::refuse_in_use(api, change, self.info().plural, changed, "The repository is in use")
            .await;
    }

    /// Nothing is lost with it: the data stays where it is.
    fn is_worth_keeping(&self, _object: &Json) -> bool {
        false
    }
}

/// Refuses a location that is not exactly one, and what belongs to another one.
fn check_location(config: &Value) -> Option<Diagnostic> {
    let (s3, folder, credentials) =
        (config.get("s3"), config.get("folder"), config.get("credentials_secret_name"));
    let wrong = |name: &str, summary: &str, detail: &str| {
        let at = AttributePath::root(name);
        Some(Diagnostic::error(summary, format!("{at}: {detail}")).at(at))
    };
    if let Some(name) = folder.as_str()
        && !name.is_empty()
        && !is_folder(name)
    {
        let detail = format!(
            "{name:?} is not the name of a folder: use lower-case letters, digits and \"-\", with a letter or digit at both ends. It is \
             that of --backup-folder NAME=FOLDER of the hosts, not a path."
        );
        return wrong("folder", "Invalid folder", &detail);
    }
    if s3.is_unknown() || folder.is_unknown() {
        return None;
    }
    if s3.is_null() == folder.is_null() {
        let summary = if s3.is_null() { "Neither s3 nor folder" } else { "Both s3 and folder" };
        let detail =
            "set either `s3`, a place in an object store, or `folder`, the name of a folder of the hosts.";
        return wrong("s3", summary, detail);
    }
    match (s3.is_null(), credentials.is_null()) {
        (false, true) => {
            let detail = "an object store needs credentials: name a Secret with the keys accessKeyID and secretAccessKey.";
            wrong("credentials_secret_name", "Missing credentials", detail)
        }
        (true, false) if !credentials.is_unknown() => {
            let detail = "it is for s3: a folder needs no credentials. Leave it out.";
            wrong("credentials_secret_name", "credentials_secret_name without s3", detail)
        }
        _ => None,
    }
}

/// Refuses texts that name no place in an object store. Their lengths are checked by the table of fields.
fn check_s3(s3: &Value) -> Option<Diagnostic> {
    let remedies: [(&str, Validity, &str); 4] = [
        (
            "endpoint",
            is_endpoint,
            "is not the URL of a server: write for example \"https://s3.eu-north-1.amazonaws.com\" or \"https://minio.example:9000\", \
             without a path.",
        ),
        ("region", is_region, "is not a region: use letters, digits and \"-\"."),
        (
            "bucket",
            is_bucket,
            "is not the name of a bucket: use lower-case letters, digits, \".\" and \"-\", with a letter or digit at both ends.",
        ),
        (
            "prefix",
            is_key_prefix,
            "is not the beginning of keys: use letters, digits, \"_\", \".\", \"-\" and \"/\", without \"/\" at either end or twice.",
        ),
    ];
    remedies.into_iter().find_map(|(name, is_valid, remedy)| {
        let text = s3.get(name).as_str().filter(|text| !text.is_empty() && !is_valid(text))?;
        let at = AttributePath::root("s3").attribute(name);
        Some(Diagnostic::error("Invalid place", format!("{at}: {text:?} {remedy}")).at(at))
    })
}

/// Refuses a rate with which verifications would not end, or that no host reaches.
fn check_bandwidth(verification: &Value) -> Option<Diagnostic> {
    let bytes = verification.get("bandwidth").as_str()?.parse::<Quantity>().ok()?.bytes().ok()?;
    if (1 << 20..=100 << 30).contains(&bytes) {
        return None;
    }
    let at = AttributePath::root("verification").attribute("bandwidth");
    let detail = format!("{at}: use an amount from 1Mi to 100Gi a second. The default is 64Mi.");
    Some(Diagnostic::error("Invalid bandwidth", detail).at(at))
}

fn is_folder(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && is_end(text.bytes().next())
        && is_end(text.bytes().last())
}

fn is_endpoint(text: &str) -> bool {
    let rest = ["https://", "http://"].into_iter().find_map(|scheme| text.strip_prefix(scheme));
    let rest = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:[]-".contains(&byte))
    })
}

fn is_region(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_bucket(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.' || byte == b'-')
        && is_end(text.bytes().next())
        && is_end(text.bytes().last())
}

fn is_key_prefix(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.split('/').all(|part| !part.is_empty() && part.bytes().all(is_plain))
}
