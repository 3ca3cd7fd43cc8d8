//! What the control plane refuses, in Terraform's words: what failed, which attribute, what to do.

use tfplugin6::{AttributePath, Diagnostic};

use super::KindResource;
use crate::{
    api::{Address, ApiError},
    field::{Field, Shape, Source},
};

impl KindResource {
    /// What to tell of a request that failed.
    pub(super) fn refused(&self, error: &ApiError, at: &Address) -> Vec<Diagnostic> {
        let title = self.title(at);
        let one = |summary: String, detail: String| vec![Diagnostic::error(summary, detail)];
        match (error, error.code()) {
            (ApiError::Unreachable(problem), _) => one(
                format!("The control plane does not answer about {title}"),
                format!(
                    "{problem}. Is it running? For a local one: \"berth up\". If the request did reach it, the next apply \
                     finds what was made and goes on from there."
                ),
            ),
            (ApiError::Cancelled, _) => {
                one(format!("Stopped before {title} was changed"), "Apply again to go on.".into())
            }
            (ApiError::Answer(problem), _) => {
                one(format!("The control plane's answer about {title} could not be read"), problem.clone())
            }
            (_, 422) if !error.causes().is_empty() => error
                .causes()
                .iter()
                .map(|cause| self.refused_field(&title, &cause.field, &cause.message))
                .collect(),
            (_, 400) if error.to_string().contains("unknown field") => one(
                format!("The control plane does not know all fields of {title}"),
                format!(
                    "{error}. Its definitions are older than this provider: update them with \"berth crds | kubectl apply \
                     --server-side -f -\", or use the provider version that goes with them."
                ),
            ),
            (_, 401) => one(
                "The control plane does not know this user".into(),
                format!(
                    "{error}. The token or certificate is not valid (any more): get another, for a local control plane with \"sudo berth kubeconfig\"."
                ),
            ),
            (_, 403) => one(
                format!("{title}: not allowed"),
                format!("{error}. Ask for the role berth-editor in namespace {}.", at.namespace),
            ),
            (_, 404) if error.to_string().starts_with("namespaces ") => one(
                format!("Namespace {} does not exist", at.namespace),
                format!("{error}. Create it first: kubectl create namespace {}", at.namespace),
            ),
            (_, 404) => one(
                format!("The control plane does not serve the kind {}", self.facts.kind),
                "Install berth's definitions there: berth crds | kubectl apply --server-side -f -".into(),
            ),
            (_, 409) if error.to_string().to_lowercase().contains("uid") => one(
                format!("{title} is another object now"),
                format!("{error}. It was deleted and made again by somebody else: plan again."),
            ),
            _ => one(format!("{title} was refused"), error.to_string()),
        }
    }

    fn refused_field(&self, title: &str, field: &str, message: &str) -> Diagnostic {
        let diagnostic = Diagnostic::error(format!("{title} was refused"), format!("{field}: {message}"));
        match attribute_path(&self.fields, field) {
            Some(path) => diagnostic.at(path),
            None => diagnostic,
        }
    }
}

/// The attribute that a path in the object is about: `spec.disks[1].boot`, also as managers' fields are written,
/// `.spec.disks[name="web"].boot`. As far as the path leads.
pub(super) fn attribute_path(fields: &[Field], path: &str) -> Option<AttributePath> {
    let path = path.trim_start_matches('.');
    let Some(rest) = path.strip_prefix("spec.") else {
        return match path {
            "metadata.name" => Some(AttributePath::root("name")),
            "metadata.namespace" => Some(AttributePath::root("namespace")),
            _ if path.starts_with("metadata.labels") => Some(AttributePath::root("labels")),
            _ => None,
        };
    };
    let mut found = AttributePath::empty();
    let mut fields = fields;
    // A dot inside brackets belongs to a key, and keys of lists are DNS labels here: they have none.
    for segment in rest.split('.') {
        let (key, index) = match segment.split_once('[') {
            Some((key, index)) => (key, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (segment, None),
        };
        let field = fields.iter().find(|field| matches!(&field.source, Source::Spec(own) if own == key));
        let Some(field) = field else { break };
        found = found.attribute(field.name);
        if let (Some(index), Shape::Keyed(_) | Shape::TextList(_)) = (index, &field.shape) {
            found = found.index(index);
        } else if segment.contains('[') {
            break;
        }
        fields = field.children();
    }
    (!found.is_empty()).then_some(found)
}
