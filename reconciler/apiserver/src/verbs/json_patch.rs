//! JSON patches, as the library that kube-apiserver uses applies them.
//!
//! Where it departs from RFC 6902 so does this: what is absent tests equal to null, what is replaced need not be there, and
//! `-1` is the last item of a list.

use serde_json::{Map, Value};

use crate::schema::message::json_type;

/// Operations one patch may have, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// Bytes all `copy` operations of one patch may add up to, as in Kubernetes.
const MAX_COPIED: usize = 3 << 20;
const MEMBERS: [&str; 4] = ["op", "path", "from", "value"];

/// Why a patch is none, or is too long.
#[derive(Debug, PartialEq)]
pub(super) enum Malformed {
    /// Where Go's JSON library stops.
    Decoding(String),
    TooMany(String),
}

/// A patch that is well formed.
#[derive(Debug, Default)]
pub(super) struct Patch {
    operations: Vec<Map<String, Value>>,
}

impl Patch {
    pub(super) fn parse(patch: &Value) -> Result<Self, Malformed> {
        let wrong = |value: &Value, what: &str| {
            Malformed::Decoding(format!("json: cannot unmarshal {} into Go {what}", json_type(value)))
        };
        let Some(list) = patch.as_array() else {
            return Err(wrong(patch, "value of type []handlers.jsonPatchOp"));
        };
        let mut operations = Vec::with_capacity(list.len().min(MAX_OPERATIONS));
        for one in list {
            let Some(operation) = one.as_object() else {
                return Err(wrong(one, "value of type handlers.jsonPatchOp"));
            };
            for name in ["op", "path", "from"] {
                if let Some(value) =
                    operation.get(name).filter(|value| !value.is_string() && !value.is_null())
                {
                    return Err(wrong(value, &format!("struct field jsonPatchOp.{name} of type string")));
                }
            }
            operations.push(operation.clone());
        }
        if operations.len() > MAX_OPERATIONS {
            return Err(Malformed::TooMany(format!(
                "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                operations.len()
            )));
        }
        Ok(Self { operations })
    }

    /// Members of operations that mean nothing: `[0].wheels`.
    pub(super) fn unknown(&self) -> Vec<String> {
        let of = |(at, operation): (usize, &Map<String, Value>)| {
            let names = operation.keys().filter(|name| !MEMBERS.contains(&name.as_str()));
            names.map(|name| format!("[{at}].{name}")).collect::<Vec<_>>()
        };
        self.operations.iter().enumerate().flat_map(of).collect()
    }

    /// # Errors
    /// The first operation that cannot be done; what came before it is done.
    pub(super) fn apply(&self, document: &mut Value) -> Result<(), String> {
        let mut copied = 0;
        self.operations.iter().try_for_each(|operation| {
            copied += size_copied(operation, document)?;
            // Each copy can double the document, and nothing need be left of it in the end.
            if copied > MAX_COPIED {
                let message = "Unable to complete the copy, the accumulated size increase of copy is";
                return Err(format!("{message} {copied}, exceeding the limit {MAX_COPIED}"));
            }
            apply(operation, document)
        })
    }
}

/// Bytes of what an operation copies.
fn size_copied(operation: &Map<String, Value>, document: &mut Value) -> Result<usize, String> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let (Some("copy"), Some(from)) = (text("op"), text("from")) else { return Ok(0) };
    let copied = find(document, from)?;
    Ok(copied.map_or(0, |value| serde_json::to_vec(&value).map_or(0, |text| text.len())))
}

fn apply(operation: &Map<String, Value>, document: &mut Value) -> Result<(), String> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let path = || text("path").ok_or("operation missing path field: missing value");
    let from = || text("from").ok_or("operation, missing from field: missing value");
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    match text("op").unwrap_or("unknown") {
        "add" => add(document, path()?, value()),
        "remove" => take(document, path()?).map(drop),
        "replace" => replace(document, path()?, value()),
        "move" => {
            let moved = take(document, from()?)?;
            add(document, path()?, moved)
        }
        "copy" => {
            let copied = find(document, from()?)?.unwrap_or(Value::Null);
            add(document, path()?, copied)
        }
        "test" => {
            let path = path()?;
            let found = find(document, path)?.unwrap_or(Value::Null);
            if crate::schema::equal(&found, &value()) {
                Ok(())
            } else {
                Err(format!("testing value {path} failed: test failed"))
            }
        }
        other => Err(format!("Unexpected kind: {other}")),
    }
}

/// What holds the last step of a path, and that step.
fn holder<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), String> {
    let missing = || format!("doc is missing path: {path:?}: missing value");
    let mut steps: Vec<String> = path.split('/').skip(1).map(unescaped).collect();
    let last = steps.pop().ok_or_else(missing)?;
    let mut at = document;
    for step in &steps {
        at = match at {
            Value::Object(members) => members.get_mut(step),
            Value::Array(items) => {
                position(step, items.len(), items.len()).ok().and_then(|at| items.get_mut(at))
            }
            _ => None,
        }
        .ok_or_else(missing)?;
    }
    if at.is_object() || at.is_array() { Ok((at, last)) } else { Err(missing()) }
}

fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// An index below `end`, counted from the end of `length` items if negative.
fn position(step: &str, length: usize, end: usize) -> Result<usize, String> {
    let index: i64 = step.parse().map_err(|_| format!("value was not a proper array index: '{step}'"))?;
    let length = i64::try_from(length).map_err(|error| error.to_string())?;
    let at = if index < 0 { index + length } else { index };
    usize::try_from(at)
        .ok()
        .filter(|at| *at < end)
        .ok_or_else(|| format!("Unable to access invalid index: {index}: invalid index referenced"))
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    match holder(document, path)? {
        (Value::Object(members), name) => {
            members.insert(name, value);
        }
        (Value::Array(items), step) if step == "-" => items.push(value),
        (Value::Array(items), step) => {
            let end = items.len() + 1;
            items.insert(position(&step, end, end)?, value);
        }
        _ => {}
    }
    Ok(())
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err("replace operation value must be object or array".into());
        }
        *document = value;
        return Ok(());
    }
    match holder(document, path)? {
        (Value::Object(members), name) => {
            members.insert(name, value);
        }
        (Value::Array(items), step) => {
            let at = position(&step, items.len(), items.len())?;
            items[at] = value;
        }
        _ => {}
    }
    Ok(())
}

fn take(document: &mut Value, path: &str) -> Result<Value, String> {
    match holder(document, path)? {
        (Value::Object(members), name) => members
            .shift_remove(&name)
            .ok_or_else(|| format!("Unable to remove nonexistent key: {name}: missing value")),
        (Value::Array(items), step) => Ok(items.remove(position(&step, items.len(), items.len())?)),
        _ => Ok(Value::Null),
    }
}

/// `None`: the member is not there.
fn find(document: &mut Value, path: &str) -> Result<Option<Value>, String> {
    if path.is_empty() {
        return Ok(Some(document.clone()));
    }
    match holder(document, path)? {
        (Value::Object(members), name) => Ok(members.get(&name).cloned()),
        (Value::Array(items), step) => Ok(items.get(position(&step, items.len(), items.len())?).cloned()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(patch: Value) -> Result<Value, String> {
        let mut document = json!({"a": {"b": 1, "c/d~": 2}, "l": ["x", "y", "z"], "n": null});
        Patch::parse(&patch).expect("a patch").apply(&mut document).map(|()| document)
    }

    #[test]
    fn operations_do_what_they_say() {
        for (patch, at, wanted) in [
            (json!({"op": "add", "path": "/a/e", "value": 3}), "/a/e", json!(3)),
            (json!({"op": "add", "path": "/l/-", "value": 3}), "/l", json!(["x", "y", "z", 3])),
            (json!({"op": "add", "path": "/l/1", "value": 3}), "/l", json!(["x", 3, "y", "z"])),
            (json!({"op": "add", "path": "/l/3", "value": 3}), "/l", json!(["x", "y", "z", 3])),
            (json!({"op": "add", "path": "/l/-1", "value": 3}), "/l", json!(["x", "y", "z", 3])),
            (json!({"op": "remove", "path": "/l/-1"}), "/l", json!(["x", "y"])),
            (json!({"op": "remove", "path": "/a/c~1d~0"}), "/a", json!({"b": 1})),
            (json!({"op": "replace", "path": "/a/new", "value": 3}), "/a/new", json!(3)),
            (json!({"op": "replace", "path": "/l/0", "value": 3}), "/l/0", json!(3)),
            (json!({"op": "replace", "path": "", "value": {"z": 1}}), "", json!({"z": 1})),
            (json!({"op": "move", "from": "/l/0", "path": "/l/1"}), "/l", json!(["y", "x", "z"])),
            (json!({"op": "copy", "from": "/a/b", "path": "/m"}), "/m", json!(1)),
            (json!({"op": "test", "path": "/a/none", "value": null}), "/a/b", json!(1)),
            (json!({"op": "test", "path": "/a/none"}), "/a/b", json!(1)),
            (json!({"op": "test", "path": "/a/b", "value": 1.0}), "/a/b", json!(1)),
        ] {
            let done = patched(json!([patch])).expect("it can be done");
            assert_eq!(done.pointer(at), Some(&wanted), "{patch}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (patch, why) in [
            (json!({"op": "add", "path": "/x/y", "value": 1}), "doc is missing path"),
            (json!({"op": "add", "path": "/l/5", "value": 1}), "invalid index"),
            (json!({"op": "add", "path": "/a/b/c", "value": 1}), "doc is missing path"),
            (json!({"op": "add", "path": "/l/x", "value": 1}), "proper array index"),
            (json!({"op": "remove", "path": "/a/none"}), "nonexistent key"),
            (json!({"op": "replace", "path": "/l/3", "value": 1}), "invalid index"),
            (json!({"op": "test", "path": "/a/b", "value": 2}), "test failed"),
            (json!({"op": "move", "path": "/l/1"}), "missing from"),
            (json!({"op": "remove"}), "missing path"),
            (json!({"op": "jump", "path": "/l"}), "Unexpected kind: jump"),
            (json!({"path": "/l"}), "Unexpected kind: unknown"),
        ] {
            let error = patched(json!([patch])).expect_err("it cannot be done");
            assert!(error.contains(why), "{patch}: {error}");
        }
    }

    #[test]
    fn what_is_no_patch_is_told_as_gos_json_library_does() {
        let why = |patch: Value| Patch::parse(&patch).expect_err("it is none");
        let told = |text: &str| Malformed::Decoding(text.to_owned());
        assert_eq!(
            why(json!({"op": "add"})),
            told("json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp")
        );
        assert_eq!(
            why(json!([{"op": 1}])),
            told("json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string")
        );
        assert!(matches!(why(vec![json!({}); 10_001].into()), Malformed::TooMany(_)));
        let patch = Patch::parse(&json!([{}, {"op": "test", "wheels": 4}])).expect("a patch");
        assert_eq!(patch.unknown(), ["[1].wheels"]);
    }
}
