//! The pages of the functions, generated from their signatures.

use std::fmt::Write as _;

use tfplugin6::{Function as _, Type};

use super::{cell, front_matter};
use crate::functions::PureFunction;

/// The page of a function.
pub(super) fn page(function: &PureFunction) -> String {
    let (name, signature) = (function.name, function.signature());
    let mut text = front_matter(&format!("{name} Function - berth"), &signature.summary);
    let _ = write!(text, "# Function: {name}\n\n{}\n\n{}\n\n", signature.summary, signature.description);
    let _ = write!(text, "## Example Usage\n\n```terraform\n{}```\n\n", function.example);
    let parameters: Vec<String> =
        signature.parameters.iter().map(|one| format!("{} {}", one.name, type_name(&one.ty))).collect();
    let returned = type_name(&signature.returns);
    let _ = write!(text, "## Signature\n\n```text\n{name}({}) {returned}\n```\n\n", parameters.join(", "));
    text.push_str("## Arguments\n\n| argument | type | description |\n|---|---|---|\n");
    for parameter in &signature.parameters {
        let description = cell(&parameter.description);
        let _ = writeln!(text, "| `{}` | {} | {description} |", parameter.name, type_name(&parameter.ty));
    }
    text
}

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Bool => "bool".to_owned(),
        Type::Number => "number".to_owned(),
        Type::String => "string".to_owned(),
        Type::Dynamic => "dynamic".to_owned(),
        Type::List(element) => format!("list of {}", type_name(element)),
        Type::Set(element) => format!("set of {}", type_name(element)),
        Type::Map(element) => format!("map of {}", type_name(element)),
        Type::Object(_) => "object".to_owned(),
        Type::Tuple(_) => "tuple".to_owned(),
    }
}
