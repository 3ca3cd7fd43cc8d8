//! `terraform-provider-berth export DIR`: the configuration of the objects that exist, with their import blocks. A plan with it
//! imports them and changes nothing.

mod values;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use berth_api::vm_snapshot::VM_SNAPSHOT_LABEL;
use berth_hcl::{self as hcl, Expression};
use tfplugin6::{
    CancellationToken, Diagnostic, Provider as _, Value, diagnostic,
    provider::{ClientCapabilities, ConfigureRequest},
};

use crate::{BerthProvider, data_source::listing, resource::KindResource};

/// The file with the configuration.
const CONFIGURATION: &str = "berth.tf";
const HEAD: &str = "# Written by terraform-provider-berth export.\n\n";

/// A configuration in files.
#[derive(Debug, Default)]
pub struct Export {
    /// The number of objects.
    pub objects: usize,
    /// The names and texts of the files.
    pub files: Vec<(String, String)>,
    /// The values that the configuration lacks.
    pub warnings: Vec<Diagnostic>,
    labels: BTreeSet<(&'static str, String)>,
}

/// The error of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is no connection, or objects cannot be listed.
    #[error("{}", .0.iter().map(|one| format!("{}: {}", one.summary, one.detail)).collect::<Vec<_>>().join("\n"))]
    Objects(Vec<Diagnostic>),
    /// A file exists, or cannot be written.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
}

/// Reads all objects of all namespaces, with the connection that the environment names.
///
/// # Errors
/// When the control plane cannot be reached, or refuses to list a kind.
pub async fn export() -> Result<Export, ExportError> {
    let provider = BerthProvider::default();
    let request = ConfigureRequest {
        config: Value::Null,
        terraform_version: String::new(),
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    let found = provider.configure(request).await;
    if diagnostic::has_errors(&found) {
        return Err(ExportError::Objects(found));
    }
    export_from(&provider).await
}

/// Reads all objects of all namespaces with a configured provider.
///
/// # Errors
/// When the control plane cannot be reached, or refuses to list a kind.
pub async fn export_from(provider: &BerthProvider) -> Result<Export, ExportError> {
    let mut export = Export::default();
    let mut text = format!("{HEAD}{}", include_str!("../../examples/provider/provider.tf"));
    for resource in provider.kinds() {
        export.add_kind(resource, &mut text).await.map_err(ExportError::Objects)?;
    }
    export.files.insert(0, (CONFIGURATION.to_owned(), text));
    Ok(export)
}

impl Export {
    async fn add_kind(&mut self, resource: &KindResource, text: &mut String) -> Result<(), Vec<Diagnostic>> {
        let settings = resource.session().settings();
        let api = resource.reader(&settings, &resource.any()).await?;
        let all = if resource.is_namespaced() {
            Value::object([("all_namespaces", Value::Bool(true))])
        } else {
            Value::Null
        };
        let objects = listing::objects(resource, api, &all, usize::MAX, &CancellationToken::new()).await?;
        for object in objects {
            // A part of a VMSnapshot is created with it.
            let is_part = object["metadata"]["labels"][VM_SNAPSHOT_LABEL].is_string();
            if is_part || object.pointer("/metadata/deletionTimestamp").is_some() {
                continue;
            }
            let (result, warnings) = resource.found_with_state(api, object).await;
            self.warnings.extend(warnings);
            if let Some(state) = result.resource {
                self.add(resource, &state, text);
            }
        }
        Ok(())
    }

    fn add(&mut self, resource: &KindResource, state: &Value, text: &mut String) {
        let type_name = resource.info().type_name;
        let label = self.label(type_name, state);
        let config = resource.generated(state).config;
        let id = resource.address(state).id();
        self.warnings.extend(resource.write_only(&config).into_iter().map(|name| {
            let detail = format!("It is write-only. Set {name} to its value: a plan is refused without it.");
            Diagnostic::warning(format!("{} {id} is exported without {name}", resource.info().kind), detail)
        }));
        let import = vec![
            ("to".to_owned(), Expression::Raw(format!("{type_name}.{label}"))),
            ("id".to_owned(), Expression::Raw(hcl::quoted(&id))),
        ];
        let mut keep = |name: &str, secret: &str| {
            let file = secret_file(&id, name);
            self.files.push((file.clone(), secret.to_owned()));
            Expression::Raw(format!("file(\"${{path.module}}/{file}\")"))
        };
        let arguments = values::object(resource.fields(), &config, &mut keep);
        let mut body = hcl::arguments(&arguments, 1);
        let timeouts = values::texts(config.get("timeouts"));
        if !timeouts.is_empty() {
            let _ = write!(body, "  timeouts {{\n{}  }}\n", hcl::arguments(&timeouts, 2));
        }
        let _ = write!(text, "\n{}", hcl::block("import", &[], &import));
        let _ = write!(text, "\nresource \"{type_name}\" \"{label}\" {{\n{body}}}\n");
        self.objects += 1;
    }

    /// A label that no other resource of the type has: the object's name, else with its namespace, else with a number.
    fn label(&mut self, type_name: &'static str, state: &Value) -> String {
        let text = |name: &str| state.get(name).as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text("name"), text("namespace"));
        let mut candidates = [name.clone(), format!("{namespace}_{name}")].into_iter();
        let numbered = (2_usize..).map(|number| format!("{namespace}_{name}_{number}"));
        let free = candidates
            .by_ref()
            .chain(numbered)
            .map(|candidate| hcl::identifier(&candidate))
            .find(|candidate| !self.labels.contains(&(type_name, candidate.clone())))
            .unwrap_or_default();
        self.labels.insert((type_name, free.clone()));
        free
    }

    /// Writes the files into a directory, which is created. Files with secrets are readable by their owner only.
    ///
    /// # Errors
    /// When one of the files exists, or cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), ExportError> {
        let failed = |path: &Path, error| ExportError::File(path.to_owned(), error);
        fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        for (name, _) in &self.files {
            let path = directory.join(name);
            if path.exists() {
                return Err(failed(&path, io::ErrorKind::AlreadyExists.into()));
            }
        }
        for (name, text) in &self.files {
            let path = directory.join(name);
            let mode = if name == CONFIGURATION { 0o644 } else { 0o600 };
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }
}

/// The file with a secret of an object. Namespaces have no dots, so that no other object has this file.
fn secret_file(id: &str, attribute: &str) -> String {
    format!("{}-{attribute}", id.replace('/', "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_whose_names_resemble_each_other_have_secrets_in_files_of_their_own() {
        let files = ["a/b-c", "a-b/c"].map(|id| secret_file(id, "user_data"));
        assert_eq!(files, ["a.b-c-user_data", "a-b.c-user_data"]);
    }
}
