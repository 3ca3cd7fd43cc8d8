//! Label and field selectors together: matching against what the store knows of an object.

mod fields;
mod labels;

use crate::error::{ApiError, Result};
use crate::meta::NameRule;
use crate::store::{Entry, Interest};

/// Text one selector may have.
const MAX_LENGTH: usize = 8192;

/// A label and a field selector together, and nothing else: both must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<(String, labels::Test)>,
    fields: Vec<fields::Requirement>,
}

impl Selector {
    /// Parses both. `selectable` says of each field besides name and namespace why the resource cannot be selected by
    /// it, if so.
    pub(crate) fn parse(
        labels: &str,
        fields: &str,
        selectable: impl Fn(&str) -> Result<(), String>,
    ) -> Result<Self> {
        if labels.len() > MAX_LENGTH || fields.len() > MAX_LENGTH {
            return Err(ApiError::bad_request("selector is too long"));
        }
        let read = || -> Result<Self, String> {
            let selector = Self { labels: labels::parse(labels)?, fields: fields::parse(fields)? };
            let fields = selector.fields.iter().map(|(field, _, _)| field.as_str());
            fields
                .filter(|field| !matches!(*field, "metadata.name" | "metadata.namespace"))
                .try_for_each(selectable)?;
            Ok(selector)
        };
        read().map_err(ApiError::bad_request)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        let labels = self.labels.iter().all(|(label, test)| test.holds(entry.facts.label(label)));
        labels && self.fields.iter().all(|(field, wanted, equal)| (read(entry, field) == wanted) == *equal)
    }

    /// The narrowest way to be woken: by an exact field value if one is asked for, the name before others.
    pub(crate) fn interest(&self) -> Interest {
        let exact = |field: &&fields::Requirement| field.2;
        let by_name = self.fields.iter().filter(exact).find(|f| f.0 == "metadata.name");
        match by_name.or_else(|| self.fields.iter().find(exact)) {
            Some((name, value, _)) => {
                Interest::Field { name: name.as_str().into(), value: value.as_str().into() }
            }
            None => Interest::Resource,
        }
    }

    /// Only the object with this name, as a watch of a single object asks.
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        self.fields.push(("metadata.name".into(), name.into(), true));
        self
    }
}

/// The one name that a field selector allows, if it is so narrow.
pub(crate) fn exact_name(fields: &str) -> Option<String> {
    let exact = |(field, _, equal): &fields::Requirement| *equal && field == "metadata.name";
    let name = fields::parse(fields).ok()?.into_iter().find(exact)?.1;
    NameRule::PathSegment.problems(&name).is_empty().then_some(name)
}

fn read<'a>(entry: &'a Entry, field: &str) -> &'a str {
    match field {
        "metadata.name" => &entry.key.name,
        "metadata.namespace" => &entry.key.namespace,
        _ => entry.facts.field(field).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_cannot_be_selected_by_are_refused() {
        let only_host = |field: &str| match field {
            "spec.host" => Ok(()),
            other => Err(format!("not by {other}")),
        };
        let parse = |fields: &str| Selector::parse("", fields, only_host).map_err(|error| error.message);
        assert!(parse("metadata.name=a,metadata.namespace=b,spec.host!=c").is_ok());
        assert_eq!(parse("spec.x=1").unwrap_err(), "not by spec.x");
        assert_eq!(parse(" metadata.name =a").unwrap_err(), "not by  metadata.name ");
    }

    #[test]
    fn a_selector_of_one_name_is_known() {
        assert_eq!(exact_name("spec.x=1,metadata.name=a").as_deref(), Some("a"));
        for none in ["", "metadata.name!=a", "metadata.namespace=a", "metadata.name=a/b", "metadata.name"] {
            assert_eq!(exact_name(none), None, "{none}");
        }
    }

    #[test]
    fn a_watch_by_name_is_woken_by_that_name_only() {
        let selector = Selector::parse("", "spec.host=h1,metadata.name=a", |_| Ok(())).unwrap();
        assert_eq!(selector.interest(), Interest::Field { name: "metadata.name".into(), value: "a".into() });
        let unequal = Selector::parse("", "spec.host!=h1", |_| Ok(())).unwrap();
        assert_eq!(unequal.interest(), Interest::Resource);
    }
}
