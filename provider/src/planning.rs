//! Planning by the field table: the planned values, the changes, and the effect of each change.
//!
//! Pure and total. Terraform's rules hold by construction: a configured attribute is planned as configured, or as in the prior
//! state if both mean the same; only computed attributes may differ.

use std::collections::{BTreeMap, BTreeSet};

use tfplugin6::{AttributePath, Value};

use crate::{
    field::{Effect, Field, Presence, Shape, Source},
    mapping::{find_named, same},
    selector::{LABEL_KEY, LABEL_VALUE, is_label_key, is_label_value},
};

/// The problem with an element of a list that is null: no object can have it, so that each plan would declare it again.
const NULL_ELEMENT: &str =
    "This element is null. Leave it out, for example with [for one in LIST : one if one != null].";
/// The same of an entry of a map.
const NULL_ENTRY: &str = "This value is null. Leave its key out, for example with { for key, value in MAP : key => value if value != null }.";

/// The change of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path of the attribute.
    pub path: AttributePath,
    /// The effect of the change.
    pub effect: Effect,
}

/// The planned values of all fields.
///
/// *Guarantees:* without a relevant difference the result is `prior`, so that a second plan is empty; values that the control
/// plane reports stay unchanged unless an attribute changes that they follow.
#[must_use]
pub fn plan(fields: &[Field], prior: &Value, config: &Value) -> Value {
    let mut planned = plan_fields(fields, prior, config, Place::default());
    if prior.is_null() {
        return planned;
    }
    undo_provider_only_changes(fields, prior, &mut planned);
    let changes = changes(fields, prior, &planned);
    let changed: BTreeSet<&str> = changes.iter().filter_map(|change| root(&change.path)).collect();
    for field in fields.iter().filter(|field| field.follows.iter().any(|name| changed.contains(name))) {
        planned.set(field.name, Value::UNKNOWN);
    }
    planned
}

/// Undoes a change of settings for waiting or conflicts alone: it affects no object and is not worth an update.
pub fn undo_provider_only_changes(fields: &[Field], prior: &Value, planned: &mut Value) {
    let changes = changes(fields, prior, planned);
    let matters =
        changes.iter().any(|change| change.effect != Effect::Local || prior.at(&change.path).is_null());
    if !matters {
        keep_provider_only_fields(fields, prior, planned);
    }
}

fn keep_provider_only_fields(fields: &[Field], prior: &Value, planned: &mut Value) {
    for field in fields.iter().filter(|field| field.is_input() && !field.write_only) {
        let was = prior.get(field.name);
        if was.is_null() || planned.get(field.name).is_null() {
            continue;
        }
        match (&field.source, &field.shape) {
            (Source::Local, _) => {
                planned.set(field.name, was.clone());
            }
            (_, Shape::Object(fields)) => {
                if let Some(planned) = planned.get_mut(field.name) {
                    keep_provider_only_fields(fields, was, planned);
                }
            }
            _ => {}
        }
    }
}

/// The top-level attribute of a path.
#[must_use]
pub fn root(path: &AttributePath) -> Option<&str> {
    match path.steps().first() {
        Some(tfplugin6::Step::Attribute(name)) => Some(name),
        _ => None,
    }
}

/// The place of planned values.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The index of the element of a list that they are in.
    index: Option<usize>,
    /// Whether an element that they are in had another index before. Terraform compares elements by their indices, and refuses a spelling
    /// that neither the configuration nor the prior element of the same index has.
    is_moved: bool,
}

fn plan_fields(fields: &[Field], prior: &Value, config: &Value, place: Place) -> Value {
    let planned = fields.iter().map(|field| {
        let value = plan_field(field, prior.get(field.name), config.get(field.name), place, !prior.is_null());
        (field.name.to_owned(), value)
    });
    Value::Map(planned.collect())
}

fn plan_field(field: &Field, prior: &Value, config: &Value, place: Place, exists: bool) -> Value {
    if field.write_only {
        return Value::Null;
    }
    if config.is_unknown() {
        return Value::UNKNOWN;
    }
    let fallback;
    let config = if config.is_null() {
        match &field.presence {
            // The configuration has been filled in already.
            Presence::Required | Presence::Optional | Presence::Filled => return Value::Null,
            // Until the kind derives it.
            Presence::Derived => return prior.clone(),
            Presence::Computed | Presence::Kept if exists => return prior.clone(),
            Presence::Computed | Presence::Kept => return Value::UNKNOWN,
            Presence::Implied(value) if same(&field.shape, prior, value) => return prior.clone(),
            Presence::Implied(_) => return Value::Null,
            Presence::Default(value) => value,
            Presence::Numbered(prefix) => {
                fallback = Value::from(format!("{prefix}{}", place.index.unwrap_or_default()));
                &fallback
            }
        }
    } else {
        config
    };
    match &field.shape {
        Shape::Object(fields) => plan_fields(fields, prior, config, Place { index: None, ..place }),
        Shape::Keyed(fields) => {
            let elements = config.elements().iter().enumerate().map(|(i, element)| {
                if element.is_unknown() {
                    return Value::UNKNOWN;
                }
                let named = named_element(fields, element, i);
                let was = find_named(prior.elements(), &named).unwrap_or(&Value::Null);
                let is_moved = place.is_moved || prior.index(i).get("name") != was.get("name");
                plan_fields(fields, was, element, Place { index: Some(i), is_moved })
            });
            Value::List(elements.collect())
        }
        shape if !place.is_moved && same(shape, prior, config) && !prior.is_null() => prior.clone(),
        _ => config.clone(),
    }
}

/// An object with the name of an element of a list: the configured one, or the one of its position.
#[must_use]
pub fn named_element(fields: &[Field], element: &Value, place: usize) -> Value {
    let name = fields.iter().find(|field| field.name == "name");
    let place = Place { index: Some(place), is_moved: false };
    let name = name.map(|name| plan_field(name, &Value::Null, element.get("name"), place, false));
    Value::object([("name", name.unwrap_or_default())])
}

/// The differences between two values of the same fields, leaf by leaf; a list with different names is one change.
#[must_use]
pub fn changes(fields: &[Field], prior: &Value, planned: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    find_changes(fields, prior, planned, &AttributePath::empty(), &mut found);
    found
}

fn find_changes(
    fields: &[Field],
    prior: &Value,
    planned: &Value,
    at: &AttributePath,
    found: &mut Vec<Change>,
) {
    for field in fields.iter().filter(|field| field.is_input() && !field.write_only) {
        let path = at.clone().attribute(field.name);
        let (was, is) = (field.meant(prior.get(field.name)), field.meant(planned.get(field.name)));
        // Local fields are compared exactly: the state is their only copy.
        let equal = if field.source == Source::Local { was == is } else { same(&field.shape, was, is) };
        // Without a prior value the control plane decides; with one, an unknown value is configured and may differ.
        if equal || (field.presence == Presence::Kept && is.is_unknown() && was.is_null()) {
            continue;
        }
        match &field.shape {
            Shape::Object(fields) if !is.is_unknown() => {
                find_changes(fields, was, is, &path, found);
            }
            Shape::Keyed(fields) if !is.is_unknown() && names(was) == names(is) => {
                for (i, element) in is.elements().iter().enumerate() {
                    find_changes(fields, was.index(i), element, &path.clone().index(i), found);
                }
            }
            _ => found.push(Change { path, effect: field.effect }),
        }
    }
}

fn names(list: &Value) -> Option<Vec<&str>> {
    list.as_list()?.iter().map(|element| element.get("name").as_str()).collect()
}

/// The problems with the configured values, as far as these are known: `(path, problem and remedy)`.
#[must_use]
pub fn problems(fields: &[Field], config: &Value) -> Vec<(AttributePath, String)> {
    let mut found = Vec::new();
    find_problems(fields, config, &AttributePath::empty(), &mut found);
    found
}

fn find_problems(
    fields: &[Field],
    config: &Value,
    at: &AttributePath,
    found: &mut Vec<(AttributePath, String)>,
) {
    for field in fields.iter().filter(|field| field.is_input()) {
        let path = at.clone().attribute(field.name);
        let value = config.get(field.name);
        if let Some(problem) = problem(field, value) {
            found.push((path.clone(), problem));
        }
        match &field.shape {
            Shape::Object(fields) => find_problems(fields, value, &path, found),
            Shape::Keyed(fields) => {
                for (i, element) in value.elements().iter().enumerate() {
                    if element.is_null() {
                        found.push((path.clone().index(i), NULL_ELEMENT.to_owned()));
                    }
                    find_problems(fields, element, &path.clone().index(i), found);
                }
                if let Some(name) = repeated_name(fields, value) {
                    found.push((
                        path,
                        format!("The name {name:?} is used twice: each needs a name of its own."),
                    ));
                }
            }
            Shape::TextMap => find_label_problems(value, &path, found),
            Shape::Annotations => find_key_problems(value, &path, "an annotation", found),
            Shape::TextList(form) => {
                for (i, text) in value.elements().iter().enumerate() {
                    let null = text.is_null().then(|| NULL_ELEMENT.to_owned());
                    if let Some(problem) = null.or_else(|| form.problem(text.as_str()?)) {
                        found.push((path.clone().index(i), problem));
                    }
                }
            }
            _ => {}
        }
    }
}

fn find_key_problems(map: &Value, at: &AttributePath, of: &str, found: &mut Vec<(AttributePath, String)>) {
    for key in map.as_map().into_iter().flatten().map(|(key, _)| key).filter(|key| !is_label_key(key)) {
        found.push((at.clone().key(key), format!("{key:?} is not the key of {of}: {LABEL_KEY}")));
    }
    for (key, _) in map.as_map().into_iter().flatten().filter(|(_, value)| value.is_null()) {
        found.push((at.clone().key(key), NULL_ENTRY.to_owned()));
    }
}

/// All other maps of texts are labels: of an object, or of a host.
fn find_label_problems(labels: &Value, at: &AttributePath, found: &mut Vec<(AttributePath, String)>) {
    find_key_problems(labels, at, "a label", found);
    for (key, value) in labels.as_map().into_iter().flatten() {
        if let Some(value) = value.as_str().filter(|value| !is_label_value(value)) {
            found
                .push((at.clone().key(key), format!("{value:?} is not the value of a label: {LABEL_VALUE}")));
        }
    }
}

fn problem(field: &Field, value: &Value) -> Option<String> {
    if let Shape::Text(form) = &field.shape
        && let Some(text) = value.as_str()
    {
        if !field.one_of.is_empty() && !field.one_of.iter().any(|word| word == text) {
            let words = field.one_of.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>();
            return Some(format!("{text:?} is not one of {}.", words.join(", ")));
        }
        if let Some(most) = field.max_length
            && text.chars().count() as u64 > most
        {
            return Some(format!("This text is longer than {most} characters."));
        }
        match field.min_length {
            Some(least) if text.is_empty() && least > 0 => return Some("This text is empty.".to_owned()),
            Some(least) if (text.chars().count() as u64) < least => {
                return Some(format!("This text is shorter than {least} characters."));
            }
            _ => {}
        }
        return form.problem(text);
    }
    if let (Shape::Integer, Some(number)) = (&field.shape, value.as_number()) {
        let Some(integer) = number.as_i64() else { return Some(format!("{number} is not a whole number.")) };
        return field.range.filter(|(least, most)| integer < *least || integer > *most).map(
            |(least, most)| match most {
                i64::MAX => format!("{integer} is less than {least}."),
                most => format!("{integer} is not between {least} and {most}."),
            },
        );
    }
    match (value.as_list(), field.max_length) {
        (Some(elements), Some(most)) if elements.len() as u64 > most => {
            Some(format!("There are {} of these; at most {most} are allowed.", elements.len()))
        }
        (Some([]), _) if field.min_length.is_some_and(|least| least > 0) => {
            Some("The list is empty; at least one is needed.".to_owned())
        }
        _ => None,
    }
}

fn repeated_name(fields: &[Field], list: &Value) -> Option<String> {
    let numbered = fields.iter().find(|field| field.name == "name")?;
    let mut seen = BTreeMap::new();
    for (i, element) in list.elements().iter().enumerate() {
        let place = Place { index: Some(i), is_moved: false };
        let name = plan_field(numbered, &Value::Null, element.get("name"), place, false);
        if let Some(name) = name.as_str()
            && seen.insert(name.to_owned(), ()).is_some()
        {
            return Some(name.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::Form;

    fn disks() -> Vec<Field> {
        let disk = vec![
            Field::spec("name", Shape::Text(Form::Name)).required(),
            Field::spec(
                "template",
                Shape::Object(vec![
                    Field::spec("size", Shape::Text(Form::Quantity)),
                    Field::spec("host", Shape::Text(Form::Any)).presence(Presence::Kept),
                ]),
            ),
        ];
        vec![
            Field::spec("disks", Shape::Keyed(disk)).effect(Effect::PowerCycle),
            Field::spec("dns", Shape::TextList(Form::Ip)),
            Field::spec("host_selector", Shape::TextMap),
        ]
    }

    fn text(text: &str) -> Value {
        Value::from(text)
    }

    fn disk(name: &str, size: &str, host: Value) -> Value {
        let template = Value::object([("size", text(size)), ("host", host)]);
        Value::object([("name", text(name)), ("template", template)])
    }

    fn vm(disks: Vec<Value>) -> Value {
        Value::object([("disks", Value::List(disks))])
    }

    #[test]
    fn an_element_at_another_index_has_the_spelling_of_the_configuration_and_keeps_what_was_decided() {
        let fields = disks();
        let prior = vm(vec![disk("root", "10240Mi", text("a"))]);
        let root = || disk("root", "10Gi", Value::Null);
        let size =
            |planned: &Value, i: usize| planned.get("disks").index(i).get("template").get("size").clone();
        let same_place = plan(&fields, &prior, &vm(vec![root()]));
        assert_eq!(size(&same_place, 0), text("10240Mi"), "the plan is empty");
        assert!(changes(&fields, &prior, &same_place).is_empty());
        let moved = plan(&fields, &prior, &vm(vec![disk("new", "1Gi", Value::Null), root()]));
        assert_eq!(size(&moved, 1), text("10Gi"), "Terraform refuses any other");
        assert_eq!(moved.get("disks").index(1).get("template").get("host"), &text("a"));
        let after = plan(&fields, &prior, &vm(vec![root(), disk("new", "1Gi", Value::Null)]));
        assert_eq!(size(&after, 0), text("10240Mi"), "it is where it was");
    }

    #[test]
    fn a_list_that_is_not_known_yet_and_was_null_is_a_change() {
        let fields = disks();
        let prior = Value::object([("disks", Value::Null)]);
        let planned = plan(&fields, &prior, &Value::object([("disks", Value::UNKNOWN)]));
        let found = changes(&fields, &prior, &planned);
        assert_eq!(
            found,
            [Change { path: AttributePath::root("disks"), effect: Effect::PowerCycle }],
            "values that follow it are not known either"
        );
    }

    #[test]
    fn elements_and_entries_that_are_null_are_problems() {
        let config = Value::object([
            ("disks", Value::List(vec![Value::Null, Value::UNKNOWN])),
            ("dns", Value::List(vec![text("192.0.2.1"), Value::Null, Value::UNKNOWN])),
            ("host_selector", Value::object([("a", Value::Null), ("b", text("x")), ("c", Value::UNKNOWN)])),
        ]);
        let found = problems(&disks(), &config);
        let paths: Vec<String> = found.iter().map(|(path, _)| path.to_string()).collect();
        assert_eq!(paths, ["disks[0]", "dns[1]", r#"host_selector["a"]"#]);
        assert!(found.iter().all(|(_, problem)| problem.contains("is null. Leave")), "{found:?}");
    }
}
