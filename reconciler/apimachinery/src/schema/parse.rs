//! Parsing of `openAPIV3Schema` into [`Node`]s; schemas that are not structural are refused.

use serde_json::{Map, Value};

use super::message::{child, forbidden, index, invalid, key, required};
use super::node::{Additional, Checks, ListType, Node, Type};
use super::pattern::Pattern;
use super::rules;
use super::{FieldError, MAX_DEPTH, StructuralSchema, defaults, validate};

/// The maximum number of errors reported for one schema; more would only bury the first.
const MAX_ERRORS: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Inner,
}

pub(super) fn parse(path: &str, schema: &Value) -> Result<StructuralSchema, Vec<FieldError>> {
    let mut parser = Parser::default();
    let mut root = parser.node(schema, Level::Root, path, 0);
    if root.nullable {
        parser.general.push(forbidden(&child(path, "nullable"), "nullable cannot be true at the root"));
    }
    mark(&mut root);
    if parser.errors.is_empty() && !parser.unsupported {
        check_defaults(&root, path, &mut parser.errors);
    }
    // A schema with unsupported fields is not checked for being structural.
    let mut errors = if parser.unsupported { Vec::new() } else { parser.errors };
    errors.extend(parser.general);
    if errors.is_empty() {
        rules::resolve_paths(&mut root, &mut errors);
        rules::check_all(&root, &mut errors);
    }
    finish(root, errors)
}

/// Parses a schema that was accepted before, possibly by older rules. Its own rules are compiled when they are used.
pub(super) fn parse_stored(schema: &Value) -> Result<StructuralSchema, Vec<FieldError>> {
    let mut parser = Parser { stored: true, ..Parser::default() };
    let mut root = parser.node(schema, Level::Root, "openAPIV3Schema", 0);
    mark(&mut root);
    if parser.errors.is_empty() {
        rules::resolve_paths(&mut root, &mut parser.errors);
    }
    finish(root, parser.errors)
}

fn finish(root: Node, mut errors: Vec<FieldError>) -> Result<StructuralSchema, Vec<FieldError>> {
    if errors.is_empty() {
        return Ok(StructuralSchema { root });
    }
    errors.sort_by_key(ToString::to_string);
    errors.truncate(MAX_ERRORS);
    Err(errors)
}

#[derive(Default)]
struct Parser {
    /// Whether the schema was accepted before.
    stored: bool,
    /// Violations of the rules of structural schemas.
    errors: Vec<FieldError>,
    /// Violations of the rules of any schema of a definition.
    general: Vec<FieldError>,
    /// Whether there are unsupported fields.
    unsupported: bool,
}

impl Parser {
    fn node(&mut self, schema: &Value, level: Level, path: &str, depth: usize) -> Node {
        let Some(map) = schema.as_object() else {
            self.errors.push(invalid(path, schema, "must be an object"));
            return Node::default();
        };
        if depth > MAX_DEPTH / 2 {
            self.errors.push(forbidden(path, "nests too deeply"));
            return Node::default();
        }
        let mut node = self.own_fields(map, path);
        self.unsupported_members(map, path);
        if let Some(items) = map.get("items") {
            node.items = Some(Box::new(self.node(items, Level::Inner, &child(path, "items"), depth + 1)));
        }
        for (name, of) in members(map, "properties") {
            let here = key(&child(path, "properties"), name);
            let parsed = self.node(of, Level::Inner, &here, depth + 1);
            node.properties.insert(name.clone(), parsed);
        }
        node.additional = match map.get("additionalProperties") {
            None | Some(Value::Null | Value::Bool(false)) => Additional::Absent,
            Some(Value::Bool(true)) => Additional::Any,
            Some(of) => {
                let here = child(path, "additionalProperties");
                Additional::Schema(Box::new(self.node(of, Level::Inner, &here, depth + 1)))
            }
        };
        node.checks = Box::new(self.checks(map, node.int_or_string, path, depth));
        self.structure(map, &node, level, path);
        node.rules = rules::declared(map, path, &mut self.errors);
        node
    }

    fn own_fields(&mut self, map: &Map<String, Value>, path: &str) -> Node {
        let ty = match map.get("type").and_then(Value::as_str).filter(|t| !t.is_empty()) {
            Some(name) => {
                let ty = Type::parse(name);
                if ty.is_none() {
                    let allowed =
                        ["array", "boolean", "integer", "number", "object", "string"].map(Value::from);
                    let here = child(path, "type");
                    self.general.push(super::message::unsupported(&here, &Value::from(name), &allowed));
                }
                ty
            }
            None => None,
        };
        let list_type = match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
            None | Some("atomic") => ListType::Atomic,
            Some("set") => ListType::Set,
            Some("map") => ListType::Map,
            Some(other) => {
                let allowed = ["atomic", "set", "map"].map(Value::from);
                let here = child(path, "x-kubernetes-list-type");
                self.general.push(super::message::unsupported(&here, &Value::from(other), &allowed));
                ListType::Atomic
            }
        };
        Node {
            ty,
            nullable: flag(map, "nullable"),
            default: map.get("default").filter(|v| !v.is_null()).cloned(),
            preserve_unknown: flag(map, "x-kubernetes-preserve-unknown-fields"),
            embedded: flag(map, "x-kubernetes-embedded-resource"),
            int_or_string: flag(map, "x-kubernetes-int-or-string"),
            list_type,
            list_map_keys: strings(map, "x-kubernetes-list-map-keys"),
            atomic_map: map.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
            ..Node::default()
        }
    }

    /// Reports OpenAPI fields that definitions cannot have.
    fn unsupported_members(&mut self, map: &Map<String, Value>, path: &str) {
        for name in ["id", "$ref", "patternProperties", "definitions", "dependencies", "additionalItems"] {
            if map.get(name).is_some_and(|value| !value.is_null()) {
                self.general.push(forbidden(&child(path, name), &format!("{name} is not supported")));
                self.unsupported = true;
            }
        }
        if map.get("items").is_some_and(Value::is_array) {
            let why = "items must be a schema object and not an array";
            self.general.push(forbidden(&child(path, "items"), why));
            self.unsupported = true;
        }
        if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let here = child(path, "x-kubernetes-preserve-unknown-fields");
            self.general.push(invalid(&here, &Value::Bool(false), "must be true or undefined"));
            self.unsupported = true;
        }
    }

    /// Checks Kubernetes' rules of a structural schema that go beyond well-formed fields.
    fn structure(&mut self, map: &Map<String, Value>, node: &Node, level: Level, path: &str) {
        if node.ty == Some(Type::Array) && node.items.is_none() {
            self.errors.push(required(&child(path, "items"), "must be specified"));
        }
        if level == Level::Root && map.get("additionalProperties").is_some_and(|v| !v.is_null()) {
            self.errors.push(forbidden(&child(path, "additionalProperties"), "must not be used at the root"));
        }
        if !node.properties.is_empty() && !matches!(node.additional, Additional::Absent) {
            let detail = "additionalProperties and properties are mutual exclusive";
            self.general.push(forbidden(&child(path, "additionalProperties"), detail));
        }
        let says_type = map.get("type").and_then(Value::as_str).is_some_and(|t| !t.is_empty());
        self.declared_type(node, says_type, level, path);
        if node.list_type == ListType::Map {
            self.list_map(node, path);
        }
    }

    fn declared_type(&mut self, node: &Node, says_type: bool, level: Level, path: &str) {
        let here = child(path, "type");
        if node.embedded && node.ty != Some(Type::Object) {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            self.errors.push(match node.ty {
                Some(ty) => invalid(&here, &Value::from(ty.name()), why),
                None => required(&here, why),
            });
        } else if !says_type && !node.int_or_string && !node.preserve_unknown {
            self.errors.push(required(&here, "must not be empty"));
        }
        if let (Level::Root, Some(ty)) = (level, node.ty)
            && ty != Type::Object
        {
            self.errors.push(invalid(&here, &Value::from(ty.name()), "must be object at the root"));
        }
    }

    fn list_map(&mut self, node: &Node, path: &str) {
        let here = child(path, "x-kubernetes-list-map-keys");
        if node.list_map_keys.is_empty() {
            self.general.push(required(&here, "must not be empty if x-kubernetes-list-type is map"));
        }
        let of_items = child(path, "items");
        for name in &node.list_map_keys {
            let scalar = |of: &&Node| !matches!(of.ty, Some(Type::Array | Type::Object));
            let items = node.items.as_deref();
            let Some(of) = items.and_then(|items| items.properties.get(name)).filter(scalar) else {
                let why = "entries must all be names of scalar item properties";
                self.general.push(invalid(&here, &Value::from(name.as_str()), why));
                continue;
            };
            if of.default.is_none() && !items.is_some_and(|items| items.checks.required.contains(name)) {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                let of_key = key(&child(&of_items, "properties"), name);
                self.general.push(required(&child(&of_key, "default"), why));
            }
        }
    }

    fn checks(&mut self, map: &Map<String, Value>, int_or_string: bool, path: &str, depth: usize) -> Checks {
        let number = |name: &str| map.get(name).and_then(Value::as_f64);
        let count = |name: &str| map.get(name).and_then(Value::as_u64);
        let mut checks = Checks {
            format: map.get("format").and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned),
            allowed: map.get("enum").and_then(Value::as_array).cloned(),
            maximum: number("maximum"),
            exclusive_maximum: flag(map, "exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: flag(map, "exclusiveMinimum"),
            multiple_of: number("multipleOf"),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            pattern: self.pattern(map, path),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            unique_items: flag(map, "uniqueItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            required: strings(map, "required"),
            ..Checks::default()
        };
        if checks.unique_items {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.general.push(forbidden(&child(path, "uniqueItems"), detail));
        }
        checks.all_of = self.nested_list(map, "allOf", int_or_string, path, depth);
        checks.any_of = self.nested_list(map, "anyOf", int_or_string, path, depth);
        checks.one_of = self.nested_list(map, "oneOf", false, path, depth);
        checks.not = map
            .get("not")
            .filter(|v| !v.is_null())
            .map(|not| Box::new(self.nested(not, false, &child(path, "not"), depth + 1)));
        checks
    }

    fn pattern(&mut self, map: &Map<String, Value>, path: &str) -> Option<Pattern> {
        let pattern = map.get("pattern").and_then(Value::as_str).filter(|p| !p.is_empty())?;
        if self.stored {
            return Some(Pattern::stored(pattern));
        }
        match Pattern::new(pattern) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                let error = error.to_string();
                // The last line has the reason; those before it show the place.
                let why = error.lines().next_back().unwrap_or_default().trim_start_matches("error: ");
                let detail = format!("must be a valid regular expression, but isn't: {why}");
                self.errors.push(invalid(&child(path, "pattern"), &Value::from(pattern), &detail));
                None
            }
        }
    }

    fn nested_list(
        &mut self,
        map: &Map<String, Value>,
        name: &str,
        types_allowed: bool,
        path: &str,
        depth: usize,
    ) -> Vec<Node> {
        let Some(list) = map.get(name).and_then(Value::as_array) else { return Vec::new() };
        let here = child(path, name);
        list.iter()
            .enumerate()
            .map(|(at, of)| self.nested(of, types_allowed, &index(&here, at), depth + 1))
            .collect()
    }

    /// Parses a value validation under a combinator, which may not declare structure. The one exception is
    /// `x-kubernetes-int-or-string`, which may spell out `anyOf: [{type: integer}, {type: string}]`.
    fn nested(&mut self, schema: &Value, types_allowed: bool, path: &str, depth: usize) -> Node {
        let Some(map) = schema.as_object() else {
            self.errors.push(invalid(path, schema, "must be an object"));
            return Node::default();
        };
        if depth > MAX_DEPTH / 2 {
            self.errors.push(forbidden(path, "nests too deeply"));
            return Node::default();
        }
        self.not_structural(map, types_allowed, path);
        let checks = Box::new(self.checks(map, types_allowed, path, depth));
        let mut node = Node { checks, ..Node::default() };
        if types_allowed {
            node.ty = map.get("type").and_then(Value::as_str).and_then(Type::parse);
        }
        if let Some(items) = map.get("items") {
            node.items = Some(Box::new(self.nested(items, false, &child(path, "items"), depth + 1)));
        }
        for (name, of) in members(map, "properties") {
            let here = key(&child(path, "properties"), name);
            let parsed = self.nested(of, false, &here, depth + 1);
            node.properties.insert(name.clone(), parsed);
        }
        node
    }

    fn not_structural(&mut self, map: &Map<String, Value>, types_allowed: bool, path: &str) {
        const FORBIDDEN: [&str; 9] = [
            "type",
            "additionalProperties",
            "default",
            "nullable",
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-embedded-resource",
            "x-kubernetes-int-or-string",
            "x-kubernetes-list-type",
            "x-kubernetes-validations",
        ];
        for name in FORBIDDEN {
            let said = match map.get(name) {
                None | Some(Value::Null | Value::Bool(false)) => false,
                Some(Value::String(s)) => !s.is_empty(),
                Some(Value::Array(items)) => !items.is_empty(),
                Some(_) => true,
            };
            if said && !(name == "type" && types_allowed) {
                let why = "must not be set below allOf, anyOf, oneOf or not";
                self.errors.push(forbidden(&child(path, name), why));
            }
        }
    }
}

/// Sets the properties that depend on the children: whether any node below has rules or defaults.
fn mark(node: &mut Node) {
    let mut has_rules = !node.rules.is_empty();
    let mut has_defaults = node.default.is_some();
    let mut has_keyed_lists = node.list_type != ListType::Atomic;
    let additional = match &mut node.additional {
        Additional::Schema(of) => Some(of.as_mut()),
        _ => None,
    };
    for of in node.properties.values_mut().chain(node.items.as_deref_mut()).chain(additional) {
        mark(of);
        has_rules |= of.has_rules;
        has_defaults |= of.has_defaults;
        has_keyed_lists |= of.has_keyed_lists;
    }
    node.has_rules = has_rules;
    node.has_defaults = has_defaults;
    node.has_keyed_lists = has_keyed_lists;
}

/// Checks defaults. A default that its own schema refuses could never be stored, so it is refused with the
/// schema.
fn check_defaults(node: &Node, path: &str, errors: &mut Vec<FieldError>) {
    if !node.has_defaults {
        return;
    }
    if let Some(default) = &node.default {
        let mut filled = default.clone();
        defaults::default_object(node, &mut filled);
        errors.extend(validate::validate_value(node, &filled, &child(path, "default")));
    }
    for (name, of) in &node.properties {
        check_defaults(of, &key(&child(path, "properties"), name), errors);
    }
    if let Some(of) = &node.items {
        check_defaults(of, &child(path, "items"), errors);
    }
    if let Some(of) = node.additional_schema() {
        check_defaults(of, &child(path, "additionalProperties"), errors);
    }
}

fn flag(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn strings(map: &Map<String, Value>, name: &str) -> Vec<String> {
    map.get(name)
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

fn members<'a>(map: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    map.get(name).and_then(Value::as_object).into_iter().flatten()
}
