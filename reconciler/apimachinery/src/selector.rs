//! Label and field selectors combined: matching against the store's index of an object.

mod fields;
mod labels;

use crate::error::{ApiError, Result};
use crate::meta::NameRule;

/// The maximum length of a selector in bytes.
const MAX_LENGTH: usize = 8192;

/// A label selector and a field selector: both must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<(String, labels::Test)>,
    fields: Vec<fields::Requirement>,
}

impl Selector {
    /// Parses both selectors. `selectable` returns an error for a field, other than name and namespace, by
    /// which the resource cannot be selected.
    pub fn parse(
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

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object is selected. `label` and `field` read the object: a label, if it has it, and a field
    /// as text, empty if absent.
    pub fn matches<'a>(
        &self,
        label: impl Fn(&str) -> Option<&'a str>,
        field: impl Fn(&str) -> &'a str,
    ) -> bool {
        let labels = self.labels.iter().all(|(name, test)| test.holds(label(name)));
        labels && self.fields.iter().all(|(name, wanted, equal)| (field(name) == wanted) == *equal)
    }

    /// Returns a field and a value that every selected object has, preferably the name.
    pub fn exact_field(&self) -> Option<(&str, &str)> {
        let exact = |field: &&fields::Requirement| field.2;
        let by_name = self.fields.iter().filter(exact).find(|f| f.0 == "metadata.name");
        let (name, value, _) = by_name.or_else(|| self.fields.iter().find(exact))?;
        Some((name, value))
    }

    /// Restricts the selector to the object with this name, for a watch of a single object.
    pub fn and_name(mut self, name: &str) -> Self {
        self.fields.push(("metadata.name".into(), name.into(), true));
        self
    }
}

/// Returns the name if a field selector allows only one.
pub fn exact_name(fields: &str) -> Option<String> {
    let exact = |(field, _, equal): &fields::Requirement| *equal && field == "metadata.name";
    let name = fields::parse(fields).ok()?.into_iter().find(exact)?.1;
    NameRule::PathSegment.problems(&name).is_empty().then_some(name)
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
    fn a_selector_by_name_is_told_by_its_name_first() {
        let selector = Selector::parse("", "spec.host=h1,metadata.name=a", |_| Ok(())).unwrap();
        assert_eq!(selector.exact_field(), Some(("metadata.name", "a")));
        let unequal = Selector::parse("", "spec.host!=h1", |_| Ok(())).unwrap();
        assert_eq!(unequal.exact_field(), None);
    }
}
