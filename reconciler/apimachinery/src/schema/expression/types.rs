//! The fields that an expression reads, and the type of its result, as far as they are certain: a misspelt field
//! and a rule that is no condition are refused when they are written. Operands of the wrong type are errors of the
//! evaluation.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};

/// A type.
#[derive(Clone, Debug)]
pub enum Ty {
    /// An unknown type, which fits everywhere.
    Dyn,
    Bool,
    String,
    /// Any other value without fields: a number, a time, bytes.
    Scalar,
    List(Box<Ty>),
    Map(Box<Ty>),
    /// An object with declared fields, by their names in expressions.
    Object(Arc<HashMap<String, Ty>>),
}

impl Ty {
    pub fn may_be_bool(&self) -> bool {
        matches!(self, Self::Dyn | Self::Bool)
    }

    pub fn may_be_string(&self) -> bool {
        matches!(self, Self::Dyn | Self::String)
    }

    /// Returns the type of a field.
    fn member(&self, name: &str) -> Result<Self, String> {
        match self {
            Self::Object(fields) => match fields.get(name) {
                Some(field) => Ok(field.clone()),
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
type Known = Vec<(String, Ty)>;

/// Returns the type of an expression with variables of these types; other variables have an unknown type.
///
/// # Errors
/// The expression reads a field that its operand cannot have.
pub(crate) fn infer(tree: &IdedExpr, variables: &[(&str, Ty)]) -> Result<Ty, String> {
    let mut known = variables.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
    visit(tree, &mut known)
}

fn visit(tree: &IdedExpr, known: &mut Known) -> Result<Ty, String> {
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

fn comprehension(of: &ComprehensionExpr, known: &mut Known) -> Result<Ty, String> {
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

fn visit_call(call: &CallExpr, known: &mut Known) -> Result<Ty, String> {
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
