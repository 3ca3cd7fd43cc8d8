//! `source.file`: a file of the machine that runs Terraform, and the checksum that is declared for it.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use berth_console_client::{FileError, MeasuredFile, measure};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Field, Shape},
    form::Form,
    planning,
};

/// The files that were read in this run: Terraform plans a resource several times.
static READ: Mutex<Vec<MeasuredFile>> = Mutex::new(Vec::new());
/// The most of them that are remembered.
const MOST: usize = 256;

/// The attribute.
pub(super) fn field() -> Field {
    Field::local(
        "file",
        Shape::Text(Form::Any),
        "A file of the machine that runs Terraform, of at most 256 GiB: an apply uploads it. The provider computes `sha256` and `upload`; \
         other content replaces the image. A change of the path alone changes nothing. It is read again only when its size or a time of \
         it has changed.",
    )
}

fn path(name: &str) -> AttributePath {
    AttributePath::root("source").attribute(name)
}

/// Returns the file with its checksum, which is computed unless it is known.
pub(super) async fn measured(path: &str, stored: Option<&MeasuredFile>) -> Result<MeasuredFile, FileError> {
    let path = PathBuf::from(path);
    let seen = read().iter().find(|file| file.path == path).cloned();
    let known = seen.or_else(|| stored.cloned());
    let work = tokio::task::spawn_blocking({
        let path = path.clone();
        move || measure(&path, known.as_ref())
    });
    let file = work.await.unwrap_or_else(|error| Err(FileError::Unreadable { path, error: error.into() }))?;
    let mut read = read();
    read.retain(|other| other.path != file.path);
    if read.len() >= MOST {
        read.clear();
    }
    read.push(file.clone());
    Ok(file)
}

fn read() -> MutexGuard<'static, Vec<MeasuredFile>> {
    READ.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Declares the checksum and the size of the file.
///
/// A file that is needed and cannot be read is a refusal, as an error in a plan would also block `terraform destroy`.
pub(super) async fn derive(change: &mut PlannedChange<'_>) {
    let config = change.config.get("source");
    let declared = config.get("sha256").clone();
    let name = match (config.get("file"), config.get("file").as_str()) {
        _ if config.is_unknown() || config.is_null() => return,
        (file, _) if file.is_null() => {
            let upload = config.get("upload").clone();
            return plan(change, declared, upload);
        }
        (_, None) => return plan(change, known_later(declared), Value::UNKNOWN),
        (_, Some(name)) => name.to_owned(),
    };
    match measured(&name, change.private.file.as_ref()).await {
        Ok(file) => use_file(change, &declared, file),
        Err(error) => {
            let prior = change.prior.get("source");
            let (sha256, upload) = (prior.get("sha256").clone(), prior.get("upload").clone());
            let is_away = matches!(error, FileError::Missing(_) | FileError::Unreadable { .. });
            if is_away && !upload.is_null() && (declared.is_null() || declared == sha256) {
                // The image has its content: the file is not needed.
                if !change.is_applied && prior.get("file").as_str().is_some_and(|before| before != name) {
                    let detail = format!(
                        "source.file: {error}. The plan assumes that the file has the content of the image."
                    );
                    change.diagnostics.push(
                        Diagnostic::warning("The file is not on this machine", detail).at(path("file")),
                    );
                }
                return plan(change, sha256, upload);
            }
            let base = if Path::new(&name).is_relative() {
                " A relative path begins at the folder in which Terraform runs."
            } else {
                ""
            };
            let detail = format!("source.file: {error}. The image is uploaded from it.{base}");
            change.refuse("The file cannot be uploaded", detail, path("file"));
            plan(change, known_later(declared), Value::UNKNOWN);
        }
    }
}

fn use_file(change: &mut PlannedChange<'_>, declared: &Value, file: MeasuredFile) {
    if declared.as_str().is_some_and(|declared| declared != file.sha256) {
        let detail = format!(
            "source.sha256: {} has the SHA-256 {}. Correct it, or leave it out: the provider computes it.",
            file.path.display(),
            file.sha256
        );
        change.refuse("The file has another checksum", detail, path("sha256"));
    }
    let planned = change.planned.get("source").get("sha256");
    if change.is_applied && planned.as_str().is_some_and(|planned| planned != file.sha256) {
        let detail =
            format!("source.file: {} has other content than at the plan: plan again.", file.path.display());
        change.refuse("The file has changed since the plan", detail, path("file"));
    }
    let upload = Value::object([("size", Value::from(i64::try_from(file.size()).unwrap_or(i64::MAX)))]);
    let sha256 = if declared.is_null() { Value::from(file.sha256.clone()) } else { declared.clone() };
    plan(change, sha256, upload);
    change.private.file = Some(file);
}

/// The value, or an unknown one.
fn known_later(value: Value) -> Value {
    if value.is_null() { Value::UNKNOWN } else { value }
}

/// Plans these values.
fn plan(change: &mut PlannedChange<'_>, sha256: Value, upload: Value) {
    if let Some(source) = change.planned.get_mut("source") {
        source.set("sha256", sha256);
        source.set("upload", upload);
    }
    change.recompute_changes();
    let changes = change.changes.iter().any(|change| planning::root(&change.path) == Some("source"));
    if changes && !change.is_applied {
        change.planned.set("state", Value::UNKNOWN);
    }
}
