//! The control plane's refusals as diagnostics: the failure, the attribute, the remedy.

use tfplugin6::{AttributePath, Diagnostic};

use super::KindResource;
use crate::{
    api::{Address, Api, ApiError},
    field::{Field, Shape, Source},
    session::Settings,
};

impl KindResource {
    /// The diagnostics of a failed request.
    pub(crate) fn request_diagnostics(&self, error: &ApiError, at: &Address) -> Vec<Diagnostic> {
        let title = self.title(at);
        let one = |summary: String, detail: String| vec![Diagnostic::error(summary, detail)];
        let shared = |summary: &str, detail: String| {
            vec![self.session().settings().shared_failure(&title, Diagnostic::error(summary, detail))]
        };
        if let Some(words) = error.denial() {
            return one(format!("{title} was refused"), format!("{words}."));
        }
        match (error, error.code()) {
            (ApiError::Misconfigured(problem), _) => {
                shared("The control plane cannot be reached as configured", format!("{problem}."))
            }
            (ApiError::Unreachable(problem), _) => shared(
                "The control plane does not respond",
                format!(
                    "{problem}. Check that it runs (a local one: \"berth up\"). If the request did reach it, the next apply \
                     finds the object and continues."
                ),
            ),
            (ApiError::Cancelled, _) => {
                one(format!("Stopped before {title} was changed"), "Apply again to continue.".into())
            }
            (ApiError::InvalidRequest(_) | ApiError::InvalidResponse(_), _) => {
                one(format!("The exchange with the control plane about {title} failed"), format!("{error}."))
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
                     --server-side -f -\", or use the provider version that matches them."
                ),
            ),
            (_, 401) => shared(
                "The control plane rejected the credentials",
                format!(
                    "{error}. The token or certificate is invalid or expired: get another, for a local control plane with \"sudo berth kubeconfig\"."
                ),
            ),
            (_, 403) => one(
                format!("{title}: not allowed"),
                if at.namespace.is_empty() {
                    format!(
                        "{error}. Only an administrator of the control plane changes a {}.",
                        self.info.kind
                    )
                } else {
                    format!("{error}. The role berth-editor in namespace {} allows it.", at.namespace)
                },
            ),
            _ if error.is_namespace_missing() => vec![
                Diagnostic::error(
                    format!("Namespace {} does not exist", at.namespace),
                    format!("{error}. Create it first: kubectl create namespace {}.", at.namespace),
                )
                .at("namespace"),
            ],
            _ if !at.name.is_empty() && error.is_object_missing(at) => one(
                format!("{title} is gone"),
                format!("{error}. Another client deleted it during this apply: plan again."),
            ),
            (_, 404) => one(
                format!("The control plane does not serve the kind {}", self.info.kind),
                "Install berth's definitions there: berth crds | kubectl apply --server-side -f -".into(),
            ),
            (_, 409) if error.to_string().to_lowercase().contains("uid") => one(
                format!("{title} is another object now"),
                format!("{error}. It was deleted and created again by another client: plan again."),
            ),
            _ => one(format!("{title} was refused"), error.to_string()),
        }
    }

    /// The client, once it is known that reads can succeed.
    ///
    /// # Errors
    /// Why the control plane cannot be read.
    pub(crate) async fn reader<'a>(
        &self,
        settings: &'a Settings,
        at: &Address,
    ) -> Result<&'a Api, Vec<Diagnostic>> {
        let api =
            settings.api.as_ref().map_err(|problem| vec![self.no_control_plane(settings, at, problem)])?;
        match settings.readable(api).await {
            Ok(()) => Ok(api),
            Err(error) => Err(self.request_diagnostics(&error, at)),
        }
    }

    /// The error for a missing connection to the control plane.
    pub(crate) fn no_control_plane(&self, settings: &Settings, at: &Address, problem: &str) -> Diagnostic {
        settings.shared_failure(&self.title(at), Diagnostic::error("No control plane", problem))
    }

    fn refused_field(&self, title: &str, field: &str, message: &str) -> Diagnostic {
        let summary = format!("{title} was refused");
        match attribute_path(&self.fields, field) {
            Some(path) => Diagnostic::error(summary, format!("{path}: {message}")).at(path),
            // A rule about the object as a whole.
            None if field.is_empty() || field == "<nil>" => Diagnostic::error(summary, message),
            None => Diagnostic::error(summary, format!("{field}: {message}")),
        }
    }
}

/// The attribute for a path in the object: `spec.disks[1].boot`, or in the notation of managed fields,
/// `.spec.disks[name="web"].boot`. Ends where the path no longer matches a field.
pub(super) fn attribute_path(fields: &[Field], path: &str) -> Option<AttributePath> {
    let path = path.trim_start_matches('.');
    let Some(rest) = path.strip_prefix("spec.") else {
        return match path {
            "metadata.name" => Some(AttributePath::root("name")),
            "metadata.namespace" => Some(AttributePath::root("namespace")),
            _ if path.starts_with("metadata.labels") => Some(AttributePath::root("labels")),
            _ if path.starts_with("metadata.annotations")
                && fields.iter().any(|field| matches!(field.shape, Shape::Annotations)) =>
            {
                Some(AttributePath::root("annotations"))
            }
            _ => None,
        };
    };
    let mut found = AttributePath::empty();
    let mut fields = fields;
    // A dot inside brackets would belong to a key, but the keys of these lists are DNS labels, which have no dots.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::core::Status;
    use kube::core::response::StatusDetails;
    use serde_json::json;

    use super::*;
    use crate::disk::Disk;

    #[test]
    fn an_object_that_is_gone_is_no_kind_that_is_not_served() {
        let disks = KindResource::new(Disk, Arc::default());
        let at = Address::berth("disks", "default", "d");
        let summary = |details: Option<StatusDetails>| {
            let status = Status { details, ..Status::failure("not found", "NotFound").with_code(404) };
            let found = disks.request_diagnostics(&ApiError::Refused(status.boxed()), &at);
            found.into_iter().map(|found| found.summary).collect::<String>()
        };
        let named = serde_json::from_value(json!({"name": "d", "kind": "disks"})).expect("details");
        assert_eq!(summary(Some(named)), "Disk default/d is gone");
        assert!(summary(None).contains("does not serve the kind Disk"));
    }
}
