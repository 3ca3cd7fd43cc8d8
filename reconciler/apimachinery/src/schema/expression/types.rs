//! The fields that an expression reads, and the type of its result, as far as they are certain: a misspelt field
//! and a rule that is no condition are refused when they are written. Operands of the wrong type are errors of the
//! evaluation.

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};

use super::is_called;
use crate::schema::node::{Additional, Node, Type};

/// A type.
#[derive(Clone, Debug)]
pub enum Ty<'a> {
    /// An unknown type, which fits everywhere.
    Dyn,
    Bool,
    String,
    /// Any other value without fields: a number, a time, bytes.
    Scalar,
    List(Box<Ty<'a>>),
    Map(Box<Ty<'a>>),
    /// An object with declared fields.
    Object(&'a Node),
}

impl<'a> Ty<'a> {
    /// Returns the type of values with a schema.
    pub(crate) fn of(node: &'a Node) -> Self {
        // The value of a nullable field may also be null.
        if node.int_or_string || node.nullable {
            return Self::Dyn;
        }
        match node.ty {
            Some(Type::Boolean) => Self::Bool,
            Some(Type::Integer | Type::Number) => Self::Scalar,
            Some(Type::String) => match node.checks.format.as_deref() {
                Some("date" | "date-time" | "duration" | "byte") => Self::Scalar,
                _ => Self::String,
            },
            Some(Type::Array) => Self::List(Box::new(node.items.as_deref().map_or(Self::Dyn, Self::of))),
            Some(Type::Object) => match &node.additional {
                Additional::Schema(of) => Self::Map(Box::new(Self::of(of))),
                // An embedded resource also has the fields of every resource.
                Additional::Absent if !node.embedded && !node.preserve_unknown => Self::Object(node),
                _ => Self::Dyn,
            },
            None => Self::Dyn,
        }
    }

    pub fn may_be_bool(&self) -> bool {
        matches!(self, Self::Dyn | Self::Bool)
    }

    pub fn may_be_string(&self) -> bool {
        matches!(self, Self::Dyn | Self::String)
    }

    /// Returns the type of a field.
    fn member(&self, name: &str) -> Result<Self, String> {
        match self {
            Self::Object(node) => match node.properties.iter().find(|(known, _)| is_called(known, name)) {
                Some((_, field)) => Ok(Self::of(field)),
                // Every resource has these fields; rules use them only at the root.
                None if matches!(name, "apiVersion" | "kind" | "metadata") => Ok(Self::Dyn),
                None => Err(format!("undefined field '{name}'")),
            },
            Self::Map(value) => Ok((**value).clone()),
            Self::Dyn => Ok(Self::Dyn),
            _ => Err(format!("a value without fields has no '{name}'")),
        }
    }
}

/// The variables in scope, the innermost last.
type Known<'a> = Vec<(String, Ty<'a>)>;

/// Returns the type of an expression with variables of these types; other variables have an unknown type.
///
/// # Errors
/// The expression reads a field that its operand cannot have.
pub(crate) fn infer<'a>(tree: &IdedExpr, variables: &[(&str, Ty<'a>)]) -> Result<Ty<'a>, String> {
    let mut known = variables.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
    visit(tree, &mut known)
}

fn visit<'a>(tree: &IdedExpr, known: &mut Known<'a>) -> Result<Ty<'a>, String> {
    Ok(match &tree.expr {
        Expr::Literal(LiteralValue::Boolean(_)) => Ty::Bool,
        Expr::Literal(LiteralValue::String(_)) => Ty::String,
        Expr::Literal(LiteralValue::Null) => Ty::Dyn,
        Expr::Literal(_) => Ty::Scalar,
        Expr::Ident(name) => {
            let of = known.iter().rev().find(|(known, _)| known == name);
            of.map_or(Ty::Dyn, |(_, ty)| ty.clone())
        }
        Expr::Select(select) => {
            let field = visit(&select.operand, known)?.member(&select.field)?;
            if select.test { Ty::Bool } else { field }
        }
        Expr::List(list) => {
            list.elements.iter().try_for_each(|element| visit(element, known).map(drop))?;
            Ty::List(Box::new(Ty::Dyn))
        }
        Expr::Call(call) => visit_call(call, known)?,
        Expr::Comprehension(of) => comprehension(of, known)?,
        Expr::Map(_) => Ty::Map(Box::new(Ty::Dyn)),
        Expr::Struct(_) | Expr::Unspecified => Ty::Dyn,
    })
}

fn comprehension<'a>(of: &ComprehensionExpr, known: &mut Known<'a>) -> Result<Ty<'a>, String> {
    let item = match visit(&of.iter_range, known)? {
        Ty::List(item) if of.iter_var2.is_none() => *item,
        _ => Ty::Dyn,
    };
    let before = known.len();
    // An accumulator that starts empty may hold any type later.
    let gathered = match visit(&of.accu_init, known)? {
        Ty::List(_) | Ty::Map(_) => Ty::Dyn,
        other => other,
    };
    known.push((of.iter_var.clone(), item));
    known.extend(of.iter_var2.iter().map(|second| (second.clone(), Ty::Dyn)));
    known.push((of.accu_var.clone(), gathered));
    let result = visit(&of.loop_cond, known)
        .and_then(|_| visit(&of.loop_step, known))
        .and_then(|_| visit(&of.result, known));
    known.truncate(before);
    result
}

fn visit_call<'a>(call: &CallExpr, known: &mut Known<'a>) -> Result<Ty<'a>, String> {
    let parts = call.target.as_deref().into_iter().chain(&call.args);
    let types = parts.map(|part| visit(part, known)).collect::<Result<Vec<_>, _>>()?;
    Ok(match (call.func_name.as_str(), types.as_slice()) {
        (
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::IN
            | operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | "contains"
            | "startsWith"
            | "endsWith"
            | "matches"
            | "bool",
            _,
        ) => Ty::Bool,
        ("string", _) => Ty::String,
        ("size" | "int" | "double", _) => Ty::Scalar,
        (operators::CONDITIONAL, [_, Ty::Dyn, other]) => other.clone(),
        (operators::CONDITIONAL, [_, one, _]) => one.clone(),
        (operators::ADD | operators::SUBSTRACT | operators::MULTIPLY, [one, other])
            if !matches!(one, Ty::Dyn) && !matches!(other, Ty::Dyn) =>
        {
            one.clone()
        }
        (operators::INDEX, [Ty::List(item) | Ty::Map(item), _]) => (**item).clone(),
        _ => Ty::Dyn,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Expression;
    use super::*;
    use crate::schema::StructuralSchema;

    /// Returns whether the result may be a condition, or the error.
    fn reported(rule: &str) -> Result<bool, String> {
        let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "a-b": {"type": "string"},
            "l": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
        let schema = schema.expect("a schema");
        let expression =
            super::super::on_big_stack(|| Expression::compile(rule, &["self"])).expect("it parses");
        infer(&expression.tree, &[("self", Ty::of(&schema.root))]).map(|ty| ty.may_be_bool())
    }

    #[test]
    fn a_misspelt_field_is_refused_and_a_result_has_a_type() {
        for (rule, wanted) in [
            ("self.n <= 8", Ok(true)),
            ("self.n + 1", Ok(false)),
            ("has(self.s) ? self.s : 'x'", Ok(false)),
            ("self.l.all(x, x.a.startsWith('a'))", Ok(true)),
            ("self.l.map(x, x.a + 'b')", Ok(true)),
            ("self.m['a'] == 1 && self.m.a == 2", Ok(true)),
            ("self.any.whatever.there == 1", Ok(true)),
            ("self.a__dash__b == 'x'", Ok(true)),
            ("self.metadata.name == 'a'", Ok(true)),
            ("self.l[0].a", Ok(false)),
            ("self.none == 1", Err("undefined field 'none'")),
            ("self.l.exists(x, x.none == 1)", Err("undefined field 'none'")),
            ("self.n.a == 1", Err("a value without fields has no 'a'")),
        ] {
            assert_eq!(reported(rule), wanted.map_err(str::to_owned), "{rule}");
        }
    }
}
