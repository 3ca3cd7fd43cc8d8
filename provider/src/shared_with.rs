//! Namespaces that an object is shared with.

use berth_api::ResourceName;
use tfplugin6::{AttributePath, Diagnostic, Value};

/// Refuses what is no namespace that an object can be shared with.
pub(crate) fn check_shared_with(config: &Value) -> Option<Diagnostic> {
    let is_wrong = |name: &str| name != "*" && !ResourceName::is_dns_label(name);
    let names = config.get("shared_with").elements().iter().map(|name| name.as_str().unwrap_or("*"));
    let (index, name) = names.enumerate().find(|(_, name)| is_wrong(name))?;
    let at = AttributePath::root("shared_with").index(index);
    let detail = format!(
        "{at}: {name:?} is not the name of a namespace. Write \"*\" to share it with every namespace."
    );
    Some(Diagnostic::error("Invalid namespace", detail).at(at))
}
