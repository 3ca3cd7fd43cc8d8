//! The pages of what has a schema and is neither a resource nor a data source.

use std::fmt::Write as _;

use tfplugin6::Schema;

use super::{
    data_source::{arguments, table},
    front_matter,
};

/// A page. `kind` is the registry's word, such as `Ephemeral Resource`.
pub(super) fn page(name: &str, kind: &str, schema: &Schema, example: &str) -> String {
    let (block, mut text) =
        (&schema.block, front_matter(&format!("{name} {kind} - berth"), &schema.block.description));
    let _ = write!(
        text,
        "# {name} ({kind})\n\n{}\n\n## Example Usage\n\n```terraform\n{example}```\n\n",
        block.description
    );
    arguments(&mut text, &block.attributes);
    let mut outputs = block.attributes.iter().filter(|one| !one.required && !one.optional).peekable();
    if outputs.peek().is_some() {
        text.push_str("\n## Attributes\n\n");
        table(&mut text, outputs);
    }
    text.trim_end().to_owned() + "\n"
}
