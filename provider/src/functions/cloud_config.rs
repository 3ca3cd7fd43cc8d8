//! `cloud_config` and `cloud_config_merge`: the user data that cloud-init reads, from values and from several documents.
//!
//! Errors name keys and never quote values: they may be secrets.

use berth_api::user_data;
use tfplugin6::{
    FunctionError, Type, Value,
    function::{Parameter, Signature},
};

use super::yaml::{self, Node};

const HEADER: &str = "#cloud-config";

pub(super) fn build_signature() -> Signature {
    let config = Parameter::new(
        "config",
        Type::Dynamic,
        "An object with the keys of cloud-init: `packages`, `runcmd`, `write_files`, and others.",
    );
    Signature {
        description: "Returns a cloud-config: the first line `#cloud-config`, then the object as YAML. Texts are quoted wherever \
                      cloud-init could read them as something else (`\"yes\"`, `\"0644\"`), and texts of several lines become \
                      blocks. Attributes that are null are left out."
            .into(),
        ..Signature::new(vec![config], Type::String, "A cloud-config from an object.")
    }
}

pub(super) fn build(arguments: &[Value]) -> Result<Value, FunctionError> {
    let config = arguments.first().unwrap_or(&Value::Null);
    match node(config) {
        Node::Map(entries) => Ok(Value::from(document(&Node::Map(entries)))),
        _ => {
            let text = "a cloud-config is an object, for example { packages = [\"nginx\"] }";
            Err(FunctionError::argument(0, text))
        }
    }
}

pub(super) fn merge_signature() -> Signature {
    let documents = Parameter::new(
        "documents",
        Type::list(Type::String),
        "Cloud-configs, each with the first line `#cloud-config`. An empty text is skipped.",
    );
    Signature {
        description: "Merges cloud-configs into one. Mappings are merged key by key, at every depth; lists are appended, in the \
                      order of the documents; of other values the last one counts. A value that is null does not replace \
                      another. The same key with a list in one document and something else in another is an error. Anchors are \
                      replaced by their values, and comments are left out."
            .into(),
        ..Signature::new(vec![documents], Type::String, "One cloud-config from several.")
    }
}

pub(super) fn merge(arguments: &[Value]) -> Result<Value, FunctionError> {
    let documents = arguments.first().map(Value::elements).unwrap_or_default();
    let mut merged = Node::Map(Vec::new());
    for (i, text) in documents.iter().enumerate() {
        let wrong = |why: String| FunctionError::argument(0, format!("documents[{i}]: {why}"));
        let Some(text) = text.as_str() else { return Err(wrong("it is null".into())) };
        if text.trim().is_empty() {
            continue;
        }
        let document = read(text).map_err(wrong)?;
        merged = merged_with(merged, document, "").map_err(wrong)?;
    }
    Ok(Value::from(document(&merged)))
}

fn document(node: &Node) -> String {
    format!("{HEADER}\n{}", yaml::write(node))
}

/// The mapping of a cloud-config.
fn read(text: &str) -> Result<Node, String> {
    let first = text.trim_start().lines().next().unwrap_or_default();
    let is_cloud_config = first.get(..HEADER.len()).is_some_and(|start| start.eq_ignore_ascii_case(HEADER))
        && first
            .get(HEADER.len()..)
            .is_none_or(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
    user_data::check(text).map_err(|error| error.to_string())?;
    if !is_cloud_config {
        return Err(format!("its first line is not \"{HEADER}\": only cloud-configs can be merged"));
    }
    match yaml::read(text) {
        Some(Node::Map(entries)) => Ok(Node::Map(entries)),
        Some(node) if node.is_null() => Ok(Node::Map(Vec::new())),
        _ => Err("it is nested too deeply, or too large with its anchors replaced".into()),
    }
}

/// Merges `other` into `node`. `at` is the place of both, for errors.
fn merged_with(node: Node, other: Node, at: &str) -> Result<Node, String> {
    match (node, other) {
        (node, other) if other.is_null() => Ok(node),
        (node, other) if node.is_null() => Ok(other),
        (Node::Map(mut entries), Node::Map(others)) => {
            for (key, value) in others {
                let Some(place) = entries.iter().position(|(known, _)| known.is_same_key(&key)) else {
                    entries.push((key, value));
                    continue;
                };
                let at =
                    format!("{at}{}{}", if at.is_empty() { "" } else { "." }, key.scalar().unwrap_or("?"));
                if let Some((_, current)) = entries.get_mut(place) {
                    let before = std::mem::replace(current, Node::Plain(String::new()));
                    *current = merged_with(before, value, &at)?;
                }
            }
            Ok(Node::Map(entries))
        }
        (Node::List(mut elements), Node::List(others)) => {
            elements.extend(others);
            Ok(Node::List(elements))
        }
        (node, other) if node.scalar().is_some() && other.scalar().is_some() => Ok(other),
        (node, other) => {
            Err(format!("{at} is {} here and {} in a document before it", kind(&other), kind(&node)))
        }
    }
}

fn kind(node: &Node) -> &'static str {
    match node {
        Node::List(_) => "a list",
        Node::Map(_) => "a mapping",
        _ => "a single value",
    }
}

/// A value as YAML. Attributes that are null are left out.
fn node(value: &Value) -> Node {
    match value {
        Value::Null | Value::Unknown(_) => Node::Plain("null".into()),
        Value::Bool(value) => Node::Plain(value.to_string()),
        Value::Number(number) => Node::Plain(number.to_string()),
        Value::String(text) => Node::Text(text.clone()),
        Value::List(elements) => Node::List(elements.iter().map(node).collect()),
        Value::Map(entries) => {
            let entries = entries.iter().filter(|(_, value)| !value.is_null());
            Node::Map(entries.map(|(key, value)| (Node::Text(key.clone()), node(value))).collect())
        }
        Value::Dynamic(typed) => node(&typed.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(documents: &[&str]) -> Result<String, FunctionError> {
        let documents = Value::List(documents.iter().map(|text| Value::from(*text)).collect());
        merge(&[documents]).map(|value| value.as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn an_object_becomes_a_cloud_config() {
        let file = Value::object([
            ("path", Value::from("/etc/motd")),
            ("permissions", Value::from("0644")),
            ("owner", Value::Null),
            ("content", Value::from("Hello,\n  world: yes\n")),
        ]);
        let config = Value::object([
            ("packages", Value::from(vec![Value::from("nginx")])),
            ("ssh_pwauth", Value::from(false)),
            ("users", Value::List(Vec::new())),
            ("write_files", Value::from(vec![file])),
        ]);
        let built = build(&[config]).expect("an object");
        insta::assert_snapshot!(built.as_str().unwrap_or_default(), @r##"
        #cloud-config
        packages:
          - nginx
        ssh_pwauth: false
        users: []
        write_files:
          - content: |
              Hello,
                world: yes
            path: /etc/motd
            permissions: "0644"
        "##);
        assert_eq!(user_data::check(built.as_str().unwrap_or_default()), Ok(()));
        for wrong in [Value::from("a"), Value::List(Vec::new()), Value::Null] {
            assert_eq!(build(&[wrong]).expect_err("no object").argument, Some(0));
        }
    }

    #[test]
    fn documents_are_merged_at_every_depth() {
        let merged = merged(&[
            "#cloud-config\npackages: [a]\nssh_pwauth: no\nchpasswd: {expire: true, users: [{name: x}]}\n",
            "",
            "#cloud-config # more\npackages:\n  - b\nssh_pwauth: yes\nchpasswd:\n  expire: False\n  users: [{name: y}]\nruncmd:\n",
            "#cloud-config\nruncmd: [[ls, -l], 'echo \"a\"']\npackages: ~\n",
        ]);
        insta::assert_snapshot!(merged.expect("they can be merged"), @r##"
        #cloud-config
        packages:
          - a
          - b
        ssh_pwauth: yes
        chpasswd:
          expire: False
          users:
            - name: x
            - name: y
        runcmd:
          - - ls
            - -l
          - "echo \"a\""
        "##);
    }

    #[test]
    fn what_cannot_be_merged_names_the_document_and_the_key() {
        let error = |documents: &[&str]| {
            let error = merged(documents).expect_err("it is refused");
            assert_eq!(error.argument, Some(0));
            error.text
        };
        let list = "#cloud-config\na: {b: [secret]}\n";
        insta::assert_snapshot!(error(&[list, "#cloud-config\na: {b: secret}\n"]), @"documents[1]: a.b is a single value here and a list in a document before it");
        insta::assert_snapshot!(error(&["#!/bin/sh\n"]), @r##"documents[0]: its first line is not "#cloud-config": only cloud-configs can be merged"##);
        insta::assert_snapshot!(error(&[list, "#cloud-config\na: b: secret\n"]), @"documents[1]: the cloud-config is not YAML: line 2, column 5: mapping values are not allowed in this context");
        assert!(error(&["#cloud-config-archive\n- a\n"]).contains("documents[0]"));
        assert!(error(&["packages: [a]\n"]).contains("without its first line"));
    }

    #[test]
    fn nothing_merged_is_an_empty_cloud_config() {
        assert_eq!(merged(&["", " \n", "#cloud-config\n"]).as_deref(), Ok("#cloud-config\n{}\n"));
    }
}
