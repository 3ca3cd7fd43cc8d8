//! Static types of expressions, as far as they are certain: an ill-typed expression is refused when it is
//! written.
//!
//! Only errors that cel-go's checker is certain to report are errors here; an unknown type is [`Ty::Dyn`],
//! which fits everywhere.

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};

use super::is_called;
use crate::schema::node::{Additional, Node, Type};

/// A type.
#[derive(Clone, Debug)]
pub enum Ty<'a> {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    Timestamp,
    Duration,
    List(Box<Ty<'a>>),
    Map(Box<Ty<'a>>),
    /// An object with declared fields.
    Object(&'a Node),
}

impl<'a> Ty<'a> {
    /// Returns the type of values with a schema.
    pub(crate) fn of(node: &'a Node) -> Self {
        let value = match node.ty {
            _ if node.int_or_string => Self::Dyn,
            Some(Type::Boolean) => Self::Bool,
            Some(Type::Integer) => Self::Int,
            Some(Type::Number) => Self::Double,
            Some(Type::String) => match node.checks.format.as_deref() {
                Some("date" | "date-time") => Self::Timestamp,
                Some("duration") => Self::Duration,
                Some("byte") => Self::Bytes,
                _ => Self::String,
            },
            Some(Type::Array) => Self::List(Box::new(node.items.as_deref().map_or(Self::Dyn, Self::of))),
            Some(Type::Object) => match &node.additional {
                Additional::Schema(of) => Self::Map(Box::new(Self::of(of))),
                // An embedded resource also has the fields of every resource.
                _ if node.embedded || node.preserve_unknown => Self::Dyn,
                Additional::Any => Self::Dyn,
                Additional::Absent => Self::Object(node),
            },
            None => Self::Dyn,
        };
        // The value of a nullable field may also be null.
        if node.nullable { Self::Dyn } else { value }
    }

    /// Returns the type's name in cel-go.
    pub fn shown(&self) -> String {
        match self {
            Self::Dyn => "dyn".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Int => "int".to_owned(),
            Self::Uint => "uint".to_owned(),
            Self::Double => "double".to_owned(),
            Self::String => "string".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Null => "null".to_owned(),
            Self::Timestamp => "timestamp".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::List(of) => format!("list({})", of.shown()),
            Self::Map(of) => format!("map(string, {})", of.shown()),
            Self::Object(_) => "object".to_owned(),
        }
    }

    pub fn may_be_bool(&self) -> bool {
        matches!(self, Self::Dyn | Self::Bool)
    }

    pub fn may_be_string(&self) -> bool {
        matches!(self, Self::Dyn | Self::String)
    }

    fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            (Self::List(a), Self::List(b)) | (Self::Map(a), Self::Map(b)) => a.same(b),
            // A literal map may represent an object.
            (Self::Object(_), Self::Map(_)) | (Self::Map(_), Self::Object(_)) => true,
            (Self::Null, other) | (other, Self::Null) => !matches!(
                other,
                Self::Bool | Self::Int | Self::Uint | Self::Double | Self::String | Self::Bytes
            ),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Returns the type of an expression with variables of these types; other variables have an unknown type.
///
/// # Errors
/// An expression that is ill-typed for any values of the variables, as cel-go's checker words it.
pub(crate) fn infer<'a>(tree: &IdedExpr, variables: &[(&str, Ty<'a>)]) -> Result<Ty<'a>, String> {
    let mut known: Vec<(String, Ty<'a>)> =
        variables.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
    visit(tree, &mut known)
}

type Known<'a> = Vec<(String, Ty<'a>)>;

fn visit<'a>(tree: &IdedExpr, known: &mut Known<'a>) -> Result<Ty<'a>, String> {
    Ok(match &tree.expr {
        Expr::Literal(value) => literal(value),
        Expr::Ident(name) => {
            let of = known.iter().rev().find(|(known, _)| known == name);
            of.map_or(Ty::Dyn, |(_, ty)| ty.clone())
        }
        Expr::Select(select) => {
            let operand = visit(&select.operand, known)?;
            let field = member(&operand, &select.field)?;
            if select.test { Ty::Bool } else { field }
        }
        Expr::List(list) => {
            let mut of: Option<Ty<'a>> = None;
            for element in &list.elements {
                let ty = visit(element, known)?;
                of = Some(match of {
                    Some(before) if !before.same(&ty) => Ty::Dyn,
                    Some(before) => before,
                    None => ty,
                });
            }
            Ty::List(Box::new(of.unwrap_or(Ty::Dyn)))
        }
        Expr::Call(call) => visit_call(call, known)?,
        Expr::Comprehension(of) => comprehension(of, known)?,
        Expr::Map(_) => Ty::Map(Box::new(Ty::Dyn)),
        Expr::Struct(_) | Expr::Unspecified => Ty::Dyn,
    })
}

fn literal<'a>(value: &LiteralValue) -> Ty<'a> {
    match value {
        LiteralValue::Boolean(_) => Ty::Bool,
        LiteralValue::Bytes(_) => Ty::Bytes,
        LiteralValue::Double(_) => Ty::Double,
        LiteralValue::Int(_) => Ty::Int,
        LiteralValue::Null => Ty::Null,
        LiteralValue::String(_) => Ty::String,
        LiteralValue::UInt(_) => Ty::Uint,
    }
}

fn member<'a>(of: &Ty<'a>, name: &str) -> Result<Ty<'a>, String> {
    match of {
        Ty::Object(node) => {
            let field = node.properties.iter().find(|(known, _)| is_called(known, name));
            match field {
                Some((_, field)) => Ok(Ty::of(field)),
                // Every resource has these fields; rules use them only at the root.
                None if matches!(name, "apiVersion" | "kind" | "metadata") => Ok(Ty::Dyn),
                None => Err(format!("undefined field '{name}'")),
            }
        }
        Ty::Map(value) => Ok((**value).clone()),
        Ty::Dyn => Ok(Ty::Dyn),
        other => Err(format!("type '{}' does not support field selection", other.shown())),
    }
}

fn comprehension<'a>(of: &ComprehensionExpr, known: &mut Known<'a>) -> Result<Ty<'a>, String> {
    let item = match visit(&of.iter_range, known)? {
        Ty::List(item) => *item,
        Ty::Dyn => Ty::Dyn,
        Ty::Map(_) | Ty::Object(_) if of.iter_var2.is_none() => Ty::String,
        Ty::Map(_) | Ty::Object(_) => Ty::Dyn,
        other => {
            return Err(format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                other.shown()
            ));
        }
    };
    let before = known.len();
    let gathered = visit(&of.accu_init, known)?;
    // An accumulator that starts empty may hold any type later.
    let gathered = if matches!(gathered, Ty::List(_) | Ty::Map(_)) { Ty::Dyn } else { gathered };
    known.push((of.iter_var.clone(), if of.iter_var2.is_some() { Ty::Dyn } else { item }));
    if let Some(second) = &of.iter_var2 {
        known.push((second.clone(), Ty::Dyn));
    }
    known.push((of.accu_var.clone(), gathered));
    let result = visit(&of.loop_cond, known)
        .and_then(|_| visit(&of.loop_step, known))
        .and_then(|_| visit(&of.result, known));
    known.truncate(before);
    result
}

fn visit_call<'a>(call: &CallExpr, known: &mut Known<'a>) -> Result<Ty<'a>, String> {
    let mut types = Vec::new();
    for part in call.target.as_deref().into_iter().chain(&call.args) {
        types.push(visit(part, known)?);
    }
    let name = call.func_name.as_str();
    let refused = |types: &[Ty<'_>]| {
        let shown: Vec<String> = types.iter().map(Ty::shown).collect();
        let why = match call.target {
            Some(_) => format!("'{}.({})'", shown[0], shown[1..].join(", ")),
            None => format!("'({})'", shown.join(", ")),
        };
        Err(format!("found no matching overload for '{name}' applied to {why}"))
    };
    match (name, types.as_slice()) {
        (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) => {
            if a.may_be_bool() && b.may_be_bool() {
                Ok(Ty::Bool)
            } else {
                refused(&types)
            }
        }
        (operators::LOGICAL_NOT, [a]) => {
            if a.may_be_bool() {
                Ok(Ty::Bool)
            } else {
                refused(&types)
            }
        }
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) => {
            if a.same(b) {
                Ok(Ty::Bool)
            } else {
                refused(&types)
            }
        }
        (
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
            [a, b],
        ) => {
            if ordered(a, b) {
                Ok(Ty::Bool)
            } else {
                refused(&types)
            }
        }
        (operators::CONDITIONAL, [condition, a, b]) => {
            if !condition.may_be_bool() || !a.same(b) {
                return refused(&types);
            }
            Ok(if a.is_dyn() { b.clone() } else { a.clone() })
        }
        (operators::ADD, [a, b]) => sum(a, b).map_or_else(|| refused(&types), Ok),
        (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => {
            arithmetic(name, a, b).map_or_else(|| refused(&types), Ok)
        }
        (operators::IN, [_, Ty::Dyn | Ty::List(_) | Ty::Map(_) | Ty::Object(_)]) => Ok(Ty::Bool),
        (operators::IN, _) => refused(&types),
        (operators::INDEX, [Ty::List(item), _]) => Ok((**item).clone()),
        (operators::INDEX, [Ty::Map(value), _]) => Ok((**value).clone()),
        ("size", [Ty::Bool | Ty::Int | Ty::Uint | Ty::Double | Ty::Null]) => refused(&types),
        ("size", _) => Ok(Ty::Int),
        ("contains" | "startsWith" | "endsWith" | "matches", [a, b]) => {
            if a.may_be_string() && b.may_be_string() { Ok(Ty::Bool) } else { refused(&types) }
        }
        ("string", [_]) => Ok(Ty::String),
        ("int", [_]) => Ok(Ty::Int),
        ("double", [_]) => Ok(Ty::Double),
        ("bool", [_]) => Ok(Ty::Bool),
        _ => Ok(Ty::Dyn),
    }
}

/// Whether values of these types can be ordered. Numbers of different types can.
fn ordered(a: &Ty<'_>, b: &Ty<'_>) -> bool {
    let number = |ty: &Ty<'_>| matches!(ty, Ty::Dyn | Ty::Int | Ty::Uint | Ty::Double);
    let has_order = |ty: &Ty<'_>| !matches!(ty, Ty::List(_) | Ty::Map(_) | Ty::Object(_) | Ty::Null);
    (number(a) && number(b)) || (a.same(b) && has_order(a) && has_order(b))
}

fn sum<'a>(a: &Ty<'a>, b: &Ty<'a>) -> Option<Ty<'a>> {
    match (a, b) {
        (Ty::Dyn, _) | (_, Ty::Dyn) => Some(Ty::Dyn),
        (Ty::Timestamp, Ty::Duration) | (Ty::Duration, Ty::Timestamp) => Some(Ty::Timestamp),
        (Ty::Duration, Ty::Duration) => Some(Ty::Duration),
        (Ty::String, Ty::String) => Some(Ty::String),
        (Ty::Bytes, Ty::Bytes) => Some(Ty::Bytes),
        (Ty::List(x), Ty::List(y)) if x.same(y) => Some(a.clone()),
        _ => same_number(a, b),
    }
}

fn arithmetic<'a>(name: &str, a: &Ty<'a>, b: &Ty<'a>) -> Option<Ty<'a>> {
    match (a, b) {
        (Ty::Dyn, _) | (_, Ty::Dyn) => Some(Ty::Dyn),
        (Ty::Timestamp, Ty::Timestamp) if name == operators::SUBSTRACT => Some(Ty::Duration),
        (Ty::Timestamp, Ty::Duration) if name == operators::SUBSTRACT => Some(Ty::Timestamp),
        (Ty::Duration, Ty::Duration) if name == operators::SUBSTRACT => Some(Ty::Duration),
        (Ty::Double, Ty::Double) if name == operators::MODULO => None,
        _ => same_number(a, b),
    }
}

fn same_number<'a>(a: &Ty<'a>, b: &Ty<'a>) -> Option<Ty<'a>> {
    match (a, b) {
        (Ty::Int, Ty::Int) => Some(Ty::Int),
        (Ty::Uint, Ty::Uint) => Some(Ty::Uint),
        (Ty::Double, Ty::Double) => Some(Ty::Double),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Expression;
    use super::*;
    use crate::schema::StructuralSchema;

    fn reported(rule: &str) -> Result<String, String> {
        let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "f": {"type": "number"}, "s": {"type": "string"}, "b": {"type": "boolean"},
            "t": {"type": "string", "format": "date-time"}, "x": {"x-kubernetes-int-or-string": true},
            "l": {"type": "array", "items": {"type": "string"}}, "a-b": {"type": "string"},
            "m": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
        let schema = schema.expect("a schema");
        let expression =
            super::super::on_big_stack(|| Expression::compile(rule, &["self"])).expect("it parses");
        infer(&expression.tree, &[("self", Ty::of(&schema.root))]).map(|ty| ty.shown())
    }

    #[test]
    fn what_can_have_a_value_has_a_type() {
        for (rule, ty) in [
            ("self.n + 1", "int"),
            ("self.n <= 8 && self.f > 1", "bool"),
            ("has(self.s) ? self.s : 'x'", "string"),
            ("self.l.all(x, x.startsWith('a'))", "bool"),
            ("self.l.map(x, x + 'b')", "dyn"),
            ("self.m['a'] == 1 && self.m.a == 2", "bool"),
            ("self.x == 1 || self.x == '1'", "bool"),
            ("self.any.whatever.there == 1", "bool"),
            ("self.a__dash__b == 'x'", "bool"),
            ("self.t < timestamp('2020-01-01T00:00:00Z')", "bool"),
            ("self.t - self.t", "duration"),
            ("'a' in self.l && 'a' in self.m", "bool"),
            ("self.metadata.name == 'a'", "bool"),
            ("size(self.l) + self.l.size()", "int"),
        ] {
            assert_eq!(reported(rule).as_deref(), Ok(ty), "{rule}");
        }
    }

    #[test]
    fn what_can_have_none_is_refused_() {
        for (rule, why) in [
            ("self.none == 1", "undefined field 'none'"),
            ("self.n + 'x'", "found no matching overload for '_+_' applied to '(int, string)'"),
            ("self.n == 'x'", "found no matching overload for '_==_' applied to '(int, string)'"),
            ("!self.n", "found no matching overload for '!_' applied to '(int)'"),
            ("self.n && true", "found no matching overload for '_&&_' applied to '(int, bool)'"),
            ("self.l.all(x, x > 1)", "found no matching overload for '_>_' applied to '(string, int)'"),
            ("self.n.matches('a')", "found no matching overload for 'matches' applied to 'int.(string)'"),
            ("self.n.a", "type 'int' does not support field selection"),
        ] {
            assert_eq!(reported(rule), Err(why.to_owned()), "{rule}");
        }
    }
}
