//! Small hand-written schemas of the built-in kinds: sufficient for ownership of their lists and maps, for
//! validation of their types and for `kubectl explain`.

use std::sync::LazyLock;

use serde_json::Value;

use crate::schema::StructuralSchema;
use crate::schema::object_meta::constant;

mod kinds;

/// Returns the schema of a built-in kind, if this server serves it.
pub fn builtin_schema(group: &str, kind: &str) -> Option<&'static StructuralSchema> {
    static SCHEMAS: LazyLock<Vec<(Name, StructuralSchema)>> =
        LazyLock::new(|| RAW.iter().map(|(name, raw)| (*name, constant(raw))).collect());
    SCHEMAS.iter().find(|(name, _)| *name == (group, kind)).map(|(_, schema)| schema)
}

/// Returns the same schema as OpenAPI, with descriptions; the caller adds `metadata`.
pub fn builtin_openapi(group: &str, kind: &str) -> Option<&'static Value> {
    RAW.iter().find(|(name, _)| *name == (group, kind)).map(|(_, raw)| raw)
}

/// Group and kind.
type Name = (&'static str, &'static str);

static RAW: LazyLock<Vec<(Name, Value)>> = LazyLock::new(kinds::all);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_schema_is_structural() {
        for (group, kind) in RAW.iter().map(|(name, _)| name) {
            assert!(builtin_schema(group, kind).is_some(), "{group}/{kind}");
        }
        assert!(builtin_schema("", "Secret").is_some());
        assert!(builtin_schema("", "Nothing").is_none());
    }
}
