//! Processing of a syntax tree before evaluation: it is measured and checked, and its loops are made to pay.

use std::collections::BTreeSet;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators,
};
use kube_cel::cel::common::types::CelBool;
use kube_cel::cel::{ExecutionError, Value};

/// The function that every loop calls in each turn. Source code cannot call it: `@` does not parse.
pub(super) const PAY: &str = "@pay";

/// Names of types that are usable as values.
pub(super) const TYPE_NAMES: [&str; 9] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];

/// The maximum nesting of brackets, and the maximum number of conditionals, passed to the parser: beyond it
/// the parser takes seconds or panics.
const MAX_NESTING: usize = 64;

/// Checks the nesting in the source text. Strings are skipped, so that brackets in a pattern do not count.
pub(super) fn nests_too_deeply(source: &str) -> bool {
    let (mut open, mut conditionals) = (0_usize, 0_usize);
    let mut quote = None;
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                chars.next();
            }
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open = open.saturating_sub(1),
            (None, '?') => conditionals += 1,
            (None, _) => {}
        }
        if open > MAX_NESTING || conditionals > MAX_NESTING {
            return true;
        }
    }
    false
}

pub(super) fn depth(tree: &IdedExpr) -> usize {
    1 + children(&tree.expr).into_iter().map(depth).max().unwrap_or(0)
}

pub(super) fn children(expr: &Expr) -> Vec<&IdedExpr> {
    match expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(c) => {
            vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|e| entry(&e.expr)).collect(),
        Expr::Struct(of) => of.entries.iter().flat_map(|e| entry(&e.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(of) => vec![&of.key, &of.value],
        EntryExpr::StructField(of) => vec![&of.value],
    }
}

/// Expands `cel.bind` and makes every loop pay for each turn.
pub(super) fn rewrite(tree: &mut IdedExpr) {
    if let Expr::Call(call) = &mut tree.expr
        && let Some(bound) = bind(call)
    {
        tree.expr = bound;
    }
    match &mut tree.expr {
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|t| rewrite(t));
            call.args.iter_mut().for_each(rewrite);
        }
        Expr::Comprehension(c) => {
            for part in
                [&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
            {
                rewrite(part);
            }
            charge_loop(c);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(rewrite),
        Expr::Map(map) => map.entries.iter_mut().for_each(|e| rewrite_entry(&mut e.expr)),
        Expr::Struct(of) => of.entries.iter_mut().for_each(|e| rewrite_entry(&mut e.expr)),
        Expr::Select(select) => rewrite(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn rewrite_entry(entry: &mut EntryExpr) {
    match entry {
        EntryExpr::MapEntry(of) => {
            rewrite(&mut of.key);
            rewrite(&mut of.value);
        }
        EntryExpr::StructField(of) => rewrite(&mut of.value),
    }
}

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

pub(super) fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn charge_loop(c: &mut ComprehensionExpr) {
    let gathers = matches!(c.accu_init.expr, Expr::List(_) | Expr::Map(_));
    let held = if gathers {
        call("size", vec![node(Expr::Ident(c.accu_var.clone()))])
    } else {
        node(Expr::Literal(LiteralValue::Int(0.into())))
    };
    let condition = std::mem::take(&mut c.loop_cond);
    c.loop_cond = call(operators::LOGICAL_AND, vec![call(PAY, vec![held]), condition]);
}

/// Expands `cel.bind(name, value, body)` to a loop over an empty list with the name as its accumulator, as in
/// cel-go.
fn bind(of: &mut CallExpr) -> Option<Expr> {
    let is_cel =
        matches!(of.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "cel");
    if !is_cel || of.func_name != "bind" || of.args.len() != 3 {
        return None;
    }
    let Expr::Ident(name) = &of.args[0].expr else { return None };
    let name = name.clone();
    let body = of.args.pop()?;
    let value = of.args.pop()?;
    Some(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: node(Expr::List(ListExpr { elements: Vec::new(), optional_indices: Vec::new() })),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.clone(),
        accu_init: value,
        loop_cond: node(Expr::Literal(LiteralValue::Boolean(CelBool::from(false)))),
        loop_step: node(Expr::Ident(name)),
        result: body,
    })))
}

/// Returns the free variables of an expression; all of them and its functions must be known.
pub(super) fn check(tree: &IdedExpr, roots: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut checker = Checker { roots, bound: Vec::new(), free: BTreeSet::new() };
    checker.visit(tree)?;
    Ok(checker.free)
}

/// Whether the interpreter has a function of this name. It has no list of them; a call without arguments fails
/// differently if the function is missing.
fn is_function(name: &str) -> bool {
    let called = Value::resolve(&call(name, Vec::new()), &super::BASE);
    !matches!(called, Err(ExecutionError::UndeclaredReference(_)))
}

/// Whether the target of a call is the first part of the function's name, as in `math.abs(x)`.
pub(super) fn is_namespace(target: &IdedExpr, function: &str) -> bool {
    matches!(&target.expr, Expr::Ident(space) if is_function(&format!("{space}.{function}")))
}

fn undeclared(name: &str) -> String {
    format!("undeclared reference to '{name}'")
}

struct Checker<'a> {
    roots: &'a [&'a str],
    bound: Vec<String>,
    free: BTreeSet<String>,
}

impl Checker<'_> {
    fn visit(&mut self, tree: &IdedExpr) -> Result<(), String> {
        match &tree.expr {
            Expr::Unspecified => Err("syntax error".to_owned()),
            Expr::Struct(of) => Err(undeclared(&of.type_name)),
            Expr::Ident(name) => self.variable(name),
            Expr::Call(of) => self.call(of),
            Expr::Comprehension(c) => self.comprehension(c),
            other => children(other).into_iter().try_for_each(|of| self.visit(of)),
        }
    }

    fn variable(&mut self, name: &str) -> Result<(), String> {
        let plain = name.strip_prefix('.').unwrap_or(name);
        if self.bound.iter().any(|b| b == plain) || TYPE_NAMES.contains(&plain) {
            return Ok(());
        }
        if !self.roots.contains(&plain) {
            return Err(undeclared(name));
        }
        self.free.insert(plain.to_owned());
        Ok(())
    }

    fn call(&mut self, of: &CallExpr) -> Result<(), String> {
        if of.target.as_deref().is_some_and(|target| is_namespace(target, &of.func_name)) {
            return of.args.iter().try_for_each(|arg| self.visit(arg));
        }
        let operator = of.func_name.starts_with(['_', '!', '-', '@']);
        // Refused when the schema is written, not at each write of an object.
        if !operator && !is_function(&of.func_name) {
            return Err(undeclared(&of.func_name));
        }
        of.target.as_deref().into_iter().chain(&of.args).try_for_each(|arg| self.visit(arg))
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Result<(), String> {
        self.visit(&c.iter_range)?;
        self.visit(&c.accu_init)?;
        self.bound.push(c.iter_var.clone());
        self.bound.push(c.accu_var.clone());
        let inside = self
            .visit(&c.loop_cond)
            .and_then(|()| self.visit(&c.loop_step))
            .and_then(|()| self.visit(&c.result));
        self.bound.truncate(self.bound.len() - 2);
        inside
    }
}
