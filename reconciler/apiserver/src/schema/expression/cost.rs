//! What a rule can cost at most, in the units of cel-go: known before it is ever evaluated, from the limits its schema declares.
//!
//! What cannot be known costs one unit here, so that no rule is refused that kube-apiserver takes.

use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::escape;
use crate::schema::node::{Additional, Node, Type};

/// Bytes of the largest request.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;
const LIST: u64 = 10;
const MAP: u64 = 30;

/// What an expression costs and how large its value is, at most.
#[derive(Clone, Copy, Default)]
struct Estimate<'a> {
    cost: u64,
    /// Letters of a text, items of a list, members of a map.
    size: Option<u64>,
    node: Option<&'a Node>,
}

/// The most that evaluating `tree` once can cost, with `self` and `oldSelf` being values of `node`.
pub(super) fn most(tree: &IdedExpr, node: &Node) -> u64 {
    let of = Estimate { cost: 1, size: size(node), node: Some(node) };
    visit(tree, &mut vec![("self".to_owned(), of), ("oldSelf".to_owned(), of)]).cost
}

/// How often a value can be in one request at most, if nothing around it says.
pub(crate) fn most_often(node: &Node) -> u64 {
    MAX_REQUEST / (least(node) + 1)
}

/// Items or members that a list or map can have; 1 for anything else. `None`: no limit is declared.
pub(crate) fn elements(node: &Node) -> Option<u64> {
    match (node.ty, &node.additional) {
        (Some(Type::Array), _) => node.checks.max_items,
        (Some(Type::Object), Additional::Schema(_) | Additional::Any) => node.checks.max_properties,
        _ => Some(1),
    }
}

/// Bytes a value has in JSON at least.
fn least(node: &Node) -> u64 {
    match node.ty {
        _ if node.int_or_string => 1,
        Some(Type::String) => match node.checks.format.as_deref() {
            Some("date") => 12,
            Some("date-time") => 21,
            _ => 2,
        },
        Some(Type::Boolean) => 4,
        Some(Type::Integer | Type::Number) | None => 1,
        Some(Type::Array) => 2,
        Some(Type::Object) => {
            let needed = |(name, of): (&String, &Node)| {
                let counts = of.default.is_none() && node.checks.required.contains(name);
                if counts { name.len() as u64 + least(of) + 4 } else { 0 }
            };
            2 + node.properties.iter().map(needed).sum::<u64>()
        }
    }
}

/// The largest value a schema allows.
fn size(node: &Node) -> Option<u64> {
    let checks = &node.checks;
    match (node.ty, &node.additional) {
        (Some(Type::String), _) => {
            Some(match (checks.format.as_deref(), checks.max_length, &checks.allowed) {
                (Some("date"), ..) => 12,
                (Some("date-time" | "duration"), ..) => 32,
                (Some("byte"), Some(max), _) => max,
                // A letter may have four bytes.
                (_, Some(max), _) => max.saturating_mul(4),
                (_, None, Some(allowed)) if !allowed.is_empty() => {
                    allowed.iter().filter_map(|one| one.as_str()).map(str::len).max().unwrap_or(0) as u64
                }
                _ => MAX_REQUEST - 2,
            })
        }
        (Some(Type::Array), _) => {
            let of = node.items.as_deref().map_or(1, least);
            Some(checks.max_items.unwrap_or((MAX_REQUEST - 2) / (of + 1)))
        }
        (Some(Type::Object), Additional::Schema(of)) => {
            Some(checks.max_properties.unwrap_or((MAX_REQUEST - 2) / (least(of) + 6)))
        }
        _ => None,
    }
}

fn of_node(cost: u64, node: Option<&Node>) -> Estimate<'_> {
    Estimate { cost, size: node.and_then(size), node }
}

/// Reading a text once.
fn reading(size: u64) -> u64 {
    size.div_ceil(10)
}

type Known<'a> = Vec<(String, Estimate<'a>)>;

fn visit<'a>(tree: &IdedExpr, known: &mut Known<'a>) -> Estimate<'a> {
    match &tree.expr {
        Expr::Literal(value) => Estimate { size: literal_size(value), ..Estimate::default() },
        Expr::Ident(name) => {
            let of = known.iter().rev().find(|(known, _)| known == name);
            of.map_or(Estimate { cost: 1, ..Estimate::default() }, |(_, of)| Estimate { cost: 1, ..*of })
        }
        Expr::Select(select) => {
            let operand = visit(&select.operand, known);
            let field = operand.node.and_then(|node| field(node, &select.field)).filter(|_| !select.test);
            of_node(operand.cost.saturating_add(1), field)
        }
        Expr::List(list) => {
            let cost = list.elements.iter().map(|one| visit(one, known).cost).fold(LIST, u64::saturating_add);
            Estimate { cost, size: Some(list.elements.len() as u64), node: None }
        }
        Expr::Map(map) => {
            let mut cost = MAP;
            for one in &map.entries {
                if let EntryExpr::MapEntry(of) = &one.expr {
                    let both = visit(&of.key, known).cost.saturating_add(visit(&of.value, known).cost);
                    cost = cost.saturating_add(both);
                }
            }
            Estimate { cost, size: Some(map.entries.len() as u64), node: None }
        }
        Expr::Comprehension(of) => {
            let range = visit(&of.iter_range, known);
            let start = visit(&of.accu_init, known);
            let item = range.node.map(|node| (node.items.as_deref(), node.additional_schema()));
            let item = item.and_then(|(item, value)| item.or(value.filter(|_| of.iter_var2.is_some())));
            let before = known.len();
            known.push((of.iter_var.clone(), of_node(1, item)));
            known.extend(of.iter_var2.clone().map(|second| (second, of_node(1, item))));
            known.push((of.accu_var.clone(), Estimate { cost: 1, ..Estimate::default() }));
            let turn = visit(&of.loop_cond, known).cost.saturating_add(visit(&of.loop_step, known).cost);
            let result = visit(&of.result, known);
            known.truncate(before);
            let turns = range.size.unwrap_or(1).saturating_mul(turn);
            let cost = [start.cost, turns, result.cost].into_iter().fold(range.cost, u64::saturating_add);
            Estimate { cost, size: range.size, node: None }
        }
        Expr::Call(call) => visit_call(call, known),
        Expr::Struct(_) | Expr::Unspecified => Estimate::default(),
    }
}

fn literal_size(value: &LiteralValue) -> Option<u64> {
    match value {
        LiteralValue::String(text) => Some(text.inner().chars().count() as u64),
        _ => None,
    }
}

fn field<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    let declared = node.properties.iter().find(|(known, _)| escape(known) == name);
    declared.map(|(_, of)| of).or_else(|| node.additional_schema())
}

fn visit_call<'a>(call: &CallExpr, known: &mut Known<'a>) -> Estimate<'a> {
    let parts: Vec<Estimate<'a>> =
        call.target.as_deref().into_iter().chain(&call.args).map(|part| visit(part, known)).collect();
    let paid = parts.iter().map(|part| part.cost).fold(0, u64::saturating_add);
    let is_text =
        |part: &Estimate<'_>| part.node.map_or(part.size.is_some(), |node| node.ty == Some(Type::String));
    let (own, size, node) = match (call.func_name.as_str(), parts.as_slice()) {
        (super::ast::PAY, _) => return Estimate::default(),
        (operators::LOGICAL_AND | operators::LOGICAL_OR, _) => (0, None, None),
        (operators::CONDITIONAL, [condition, a, b]) => {
            let dearer = if a.cost > b.cost { a } else { b };
            return Estimate { cost: condition.cost.saturating_add(dearer.cost), ..*dearer };
        }
        (operators::ADD, [a, b]) => match (a.size, b.size) {
            (Some(x), Some(y)) => (reading(x.saturating_add(y)), Some(x.saturating_add(y)), None),
            _ => (1, None, None),
        },
        (
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS,
            [a, b],
        ) => match (a.size, b.size) {
            (Some(x), Some(y)) if is_text(a) && is_text(b) => (reading(x.min(y)).max(1), None, None),
            _ => (1, None, None),
        },
        (operators::IN, [_, list]) => match list.node {
            Some(node) if node.ty == Some(Type::Object) => (1, None, None),
            _ => (list.size.unwrap_or(1), None, None),
        },
        (operators::INDEX, [list, _]) => {
            let of = list.node.and_then(|node| node.items.as_deref().or_else(|| node.additional_schema()));
            (1, of.and_then(size), of)
        }
        ("contains", [text, part]) => {
            let each = |of: &Estimate<'_>| of.size.map_or(1, reading);
            (each(text).saturating_mul(each(part)).max(1), None, None)
        }
        ("startsWith" | "endsWith", [_, part]) => (part.size.map_or(1, reading), None, None),
        ("matches", [text, pattern]) => {
            let letters = text.size.map_or(1, |size| reading(size.saturating_add(1)));
            (letters.saturating_mul(pattern.size.map_or(1, |size| size.div_ceil(4).max(1))), None, None)
        }
        ("string" | "lowerAscii" | "upperAscii" | "trim", [text]) => {
            (text.size.map_or(1, reading).max(1), text.size, None)
        }
        _ => (1, None, None),
    };
    Estimate { cost: paid.saturating_add(own), size, node }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Expression, on_big_stack};
    use super::*;
    use crate::schema::StructuralSchema;

    fn most_of(schema: Value, rule: &str) -> u64 {
        let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {"x": schema}}))
            .expect("a schema");
        on_big_stack(|| Expression::compile(rule, &["self"]))
            .expect("it parses")
            .most(&schema.root.properties["x"])
    }

    #[test]
    fn cost_grows_with_what_the_schema_allows() {
        let text = |max: u64| json!({"type": "string", "maxLength": max});
        assert_eq!(most_of(text(10), "self == 'abc'"), 2);
        assert_eq!(most_of(json!({"type": "integer"}), "self > 1 && self < 9"), 4);
        assert_eq!(most_of(text(1000), "self.contains(self)"), 400 * 400 + 2);
        assert!(most_of(json!({"type": "string"}), "self.contains(self)") > 9_000_000_000);
        let list =
            |max: u64| json!({"type": "array", "maxItems": max, "items": {"type": "string", "maxLength": 5}});
        let (ten, hundred) =
            (most_of(list(10), "self.all(x, x != 'a')"), most_of(list(100), "self.all(x, x != 'a')"));
        assert!(hundred > 9 * ten && hundred < 11 * ten, "{ten} {hundred}");
        let nested = "self.all(x, self.all(y, x == y))";
        assert!(most_of(list(100), nested) > 50 * most_of(list(10), nested));
        let open = json!({"type": "array", "items": {"type": "string"}});
        assert!(most_of(open, nested) > 10_000_000_000);
    }

    #[test]
    fn values_without_limits_around_them_are_as_many_as_fit_into_a_request() {
        assert_eq!(most_often(&Node { ty: Some(Type::String), ..Node::default() }), 1_048_576);
    }
}
