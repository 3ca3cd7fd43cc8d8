//! Decoding of built-in objects: the types of their fields.

use berth_apimachinery::builtin::builtin_schema;
use berth_apimachinery::error::ApiError;
use serde_json::Value;

/// Decodes an object that is answered and never stored; removes unknown fields and returns their paths.
///
/// # Errors
/// The object declares another kind, or has a field of a wrong type. Assumptions: the kind is built in, in version `v1`.
pub(crate) fn accept(group: &str, kind: &str, object: &mut Value) -> Result<Vec<String>, String> {
    let schema = builtin_schema(group, kind).ok_or("there is no such kind")?;
    berth_apimachinery::meta::well_formed(object)?;
    for (member, own) in [("apiVersion", format!("{group}/v1").as_str()), ("kind", kind)] {
        let sent = object[member].as_str().unwrap_or_default();
        if !sent.is_empty() && sent != own {
            return Err(format!("{member} is {sent}, not {own}"));
        }
    }
    schema.check_types("", object)?;
    Ok(schema.prune(object))
}

/// The error of a body that cannot be read as an object of the expected kind.
pub(crate) fn unreadable(kind: &str, version: &str, why: &str) -> ApiError {
    ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}
