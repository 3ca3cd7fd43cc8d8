//! The pages of the data sources, generated from their schemas.

use std::fmt::Write as _;

use tfplugin6::{
    Attribute, DataSource, Type,
    schema::{AttributeKind, Nesting},
};

use super::{cell, front_matter};
use crate::data_source::{ListDataSource, ObjectDataSource};

/// The page of a data source that reads one object.
pub(super) fn object_page(source: &ObjectDataSource) -> String {
    let info = source.resource().info();
    let name = source.type_name();
    let example = format!(
        "data \"{name}\" \"example\" {{\n  name = \"example\"\n}}\n\noutput \"example\" {{\n  value = data.{name}.example.{}\n}}\n",
        info.shown
    );
    let mut text = head(source, &example);
    let schema = source.schema();
    attributes(&mut text, &schema.block.attributes);
    nested(&mut text, &schema.block.attributes, "");
    text.trim_end().to_owned() + "\n"
}

/// The page of a data source that lists objects.
pub(super) fn list_page(source: &ListDataSource) -> String {
    let (name, objects) = (source.type_name(), source.objects());
    let example = format!(
        "data \"{name}\" \"ready\" {{\n  label_selector = \"tier=web\"\n  ready          = true\n}}\n\noutput \"names\" {{\n  value = \
         data.{name}.ready.{objects}[*].name\n}}\n"
    );
    let mut text = head(source, &example);
    let page = source.resource().info().type_name.trim_start_matches("berth_").to_owned();
    let schema = source.schema();
    attributes(&mut text, &schema.block.attributes);
    let _ =
        writeln!(text, "The attributes of each object are those of [`berth_{page}`]({page}.md#attributes).");
    text
}

/// The page of a data source that reads no objects.
pub(super) fn page(source: &dyn DataSource, example: &str) -> String {
    let mut text = head(source, example);
    let schema = source.schema();
    attributes(&mut text, &schema.block.attributes);
    nested(&mut text, &schema.block.attributes, "");
    text.trim_end().to_owned() + "\n"
}

fn head(source: &dyn DataSource, example: &str) -> String {
    let (name, description) = (source.type_name(), source.schema().block.description);
    let mut text = front_matter(&format!("{name} Data Source - berth"), &description);
    let _ = write!(
        text,
        "# {name} (Data Source)\n\n{description}\n\n## Example Usage\n\n```terraform\n{example}```\n\n"
    );
    text
}

fn attributes(text: &mut String, attributes: &[Attribute]) {
    arguments(text, attributes);
    text.push_str("\n## Attributes\n\n");
    let outputs = attributes.iter().filter(|attribute| !attribute.required && !attribute.optional);
    table(text, outputs);
}

/// The table of the attributes that can be configured.
pub(super) fn arguments(text: &mut String, attributes: &[Attribute]) {
    text.push_str("## Arguments\n\n| argument | type | | description |\n|---|---|---|---|\n");
    let inputs = attributes.iter().filter(|attribute| attribute.required || attribute.optional);
    for attribute in inputs {
        let presence = if attribute.required { "required" } else { "optional" };
        let description = cell(&attribute.description);
        let _ = writeln!(
            text,
            "| `{}` | {} | {presence} | {description} |",
            attribute.name,
            type_name(attribute)
        );
    }
}

fn nested(text: &mut String, attributes: &[Attribute], outer: &str) {
    for attribute in attributes {
        let AttributeKind::Nested(inner) = &attribute.kind else { continue };
        let name = format!("{outer}{}", attribute.name);
        let _ = write!(text, "### `{name}`\n\n");
        table(text, inner.attributes.iter());
        nested(text, &inner.attributes, &format!("{name}."));
    }
}

/// The table of the attributes that are results.
pub(super) fn table<'a>(text: &mut String, attributes: impl Iterator<Item = &'a Attribute>) {
    text.push_str("| attribute | type | description |\n|---|---|---|\n");
    for attribute in attributes {
        let description = cell(&attribute.description);
        let _ = writeln!(text, "| `{}` | {} | {description} |", attribute.name, type_name(attribute));
    }
    text.push('\n');
}

fn type_name(attribute: &Attribute) -> &'static str {
    match &attribute.kind {
        AttributeKind::Nested(inner) => match inner.nesting {
            Nesting::Single => "object",
            Nesting::List => "list of objects",
            Nesting::Set => "set of objects",
            Nesting::Map => "map of objects",
        },
        AttributeKind::Type(Type::Bool) => "bool",
        AttributeKind::Type(Type::Number) => "number",
        AttributeKind::Type(Type::List(_)) => "list of strings",
        AttributeKind::Type(Type::Map(_)) => "map of strings",
        AttributeKind::Type(_) => "string",
    }
}
