//! Evaluation of selectors against the index of the store.

use berth_apimachinery::selector::Selector;
use berth_store::{Entry, Interest};

pub(crate) fn matches(selector: &Selector, entry: &Entry) -> bool {
    selector.matches(|name| entry.facts.label(name), |name| read(entry, name))
}

/// Returns the narrowest interest of a watcher: an exact field value if the selector has one, preferably the
/// name.
pub(crate) fn interest(selector: &Selector) -> Interest {
    match selector.exact_field() {
        Some((name, value)) => Interest::Field { name: name.into(), value: value.into() },
        None => Interest::Resource,
    }
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
    fn a_watch_by_name_is_woken_by_that_name_only() {
        let selector = Selector::parse("", "spec.host=h1,metadata.name=a", |_| Ok(())).unwrap();
        assert_eq!(interest(&selector), Interest::Field { name: "metadata.name".into(), value: "a".into() });
        let unequal = Selector::parse("", "spec.host!=h1", |_| Ok(())).unwrap();
        assert_eq!(interest(&unequal), Interest::Resource);
    }
}
