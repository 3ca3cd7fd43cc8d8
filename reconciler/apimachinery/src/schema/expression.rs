//! Compiled CEL expressions with a bounded cost. Shared by schema rules and admission policies; knows no schema.
//!
//! The interpreter has no cost limit, so one is woven into every loop and into each operation that reads or
//! creates values of arbitrary size: each pays from a budget and fails once the budget is spent. Expressions
//! on which the interpreter would panic are refused at compile time, and deeply nested expressions are
//! evaluated on a stack of their own.

mod ast;
mod convert;
mod patterns;
mod price;
mod reads;
mod shared;
mod types;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};

use kube_cel::KubeCelExt;
use kube_cel::cel::extractors::This;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::parser::{Expression as Tree, Parser};
use kube_cel::cel::{self, Context, ExecutionError, FunctionContext};

pub(crate) use convert::{formatted, number};
pub use convert::{native, object};
pub use reads::Reads;
pub(crate) use reads::WHOLE;
pub use types::Ty;

/// The maximum source length of one expression in bytes.
const MAX_SOURCE: usize = 32 * 1024;
/// The maximum depth of a syntax tree.
const MAX_TREE_DEPTH: usize = 192;
/// Trees deeper than this are evaluated on [`BIG_STACK`].
const INLINE_DEPTH: usize = 48;
const BIG_STACK: usize = 64 << 20;
const TOO_DEEP: &str = "compilation failed: expression nests too deeply";
/// The maximum length of an interpreter error that is passed on: it may contain whole values.
const MAX_ERROR: usize = 256;

/// A compiled expression. Equal ones share their memory: the definitions of several kinds, and of several versions of a kind, have
/// the same rules.
#[derive(Clone, Debug)]
pub struct Expression(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    source: String,
    tree: Tree,
    /// The tree that is evaluated.
    priced: Tree,
    deep: bool,
    /// The free variables, and what is read of each.
    reads: BTreeMap<String, Reads>,
}

impl Expression {
    /// Compiles an expression that may use the variables `roots`.
    ///
    /// Assumptions: the caller is inside [`on_big_stack`], because the parser recurses.
    ///
    /// # Errors
    /// A sentence for users: a syntax error, an unknown name, or an exceeded limit.
    pub fn compile(source: &str, roots: &[&str]) -> Result<Self, String> {
        if let Some(compiled) = shared::find(source, roots) {
            return Ok(Self(compiled));
        }
        let compiled = Arc::new(Compiled::new(source, roots)?);
        shared::insert(source, roots, &compiled);
        Ok(Self(compiled))
    }

    /// Returns the type of the expression for variables of these types.
    ///
    /// # Errors
    /// The expression is ill-typed.
    pub fn type_of(&self, variables: &[(&str, Ty)]) -> Result<Ty, String> {
        types::infer(&self.0.tree, variables).map_err(refused)
    }

    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Whether the expression uses this variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.0.reads.contains_key(variable)
    }

    /// The part of a variable that the expression reads; none if it does not use it.
    pub fn reads(&self, variable: &str) -> Option<&Reads> {
        self.0.reads.get(variable)
    }

    /// Evaluates within the budget in force (see [`with_budget`]), of which every evaluation takes 1.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<cel::Value, Failure> {
        charge(1)?;
        let result = if self.0.deep {
            let left = BUDGET.get();
            let evaluated = try_on_big_stack(|| {
                BUDGET.set(left);
                (cel::Value::resolve(&self.0.priced, &scope.0), BUDGET.get())
            });
            // A machine without a thread to spare refuses the write that the expression is about, and the server goes on.
            let (result, left) = evaluated.map_err(|error| {
                Failure::Error(format!("the expression cannot be evaluated now: {error}"))
            })?;
            BUDGET.set(left);
            result
        } else {
            cel::Value::resolve(&self.0.priced, &scope.0)
        };
        if spent() {
            return Err(Failure::OutOfBudget);
        }
        result.map_err(|e| Failure::Error(describe(&e)))
    }
}

impl Compiled {
    fn new(source: &str, roots: &[&str]) -> Result<Self, String> {
        if source.trim().is_empty() {
            return Err("must not be empty".to_owned());
        }
        if source.len() > MAX_SOURCE {
            return Err(format!("must not be longer than {MAX_SOURCE} bytes"));
        }
        if ast::nests_too_deeply(source) {
            return Err(TOO_DEEP.to_owned());
        }
        let mut tree = Parser::new()
            .enable_optional_syntax(true)
            .parse(source)
            .map_err(|e| format!("compilation failed: {}", shorten(&e.to_string().replace("\n|", "\n |"))))?;
        let depth = ast::depth(&tree);
        if depth > MAX_TREE_DEPTH {
            return Err(TOO_DEEP.to_owned());
        }
        ast::rewrite(&mut tree);
        let free = ast::check(&tree, roots).map_err(refused)?;
        let priced = price::priced(&tree);
        let deep = ast::depth(&priced) > INLINE_DEPTH;
        let mut reads = reads::of(&priced);
        reads.retain(|name, _| free.contains(name));
        Ok(Self { source: source.trim().to_owned(), tree, priced, deep, reads })
    }
}

/// Why the evaluation of an expression failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    OutOfBudget,
    Error(String),
}

/// The variables of one evaluation.
pub struct Scope<'a>(Context<'a>);

/// A scope without variables.
impl Default for Scope<'_> {
    fn default() -> Self {
        Scope(Context::Child { parent: &BASE, variables: Default::default(), resolver: None })
    }
}

impl Scope<'_> {
    /// Returns a scope that sees these variables and adds its own.
    pub fn inner(&self) -> Scope<'_> {
        Scope(self.0.new_inner_scope())
    }

    /// Sets a variable. Assumptions: the value was made here, by a conversion or an evaluation, so that the
    /// interpreter can hold it.
    pub fn set(&mut self, name: &str, value: cel::Value) {
        // A value that the interpreter cannot hold (a bare function) is omitted.
        if !matches!(value, cel::Value::Function(..)) {
            self.0.add_variable_from_value(name, value);
        }
    }
}

/// Returns `optional.of(value)` or `optional.none()`.
pub(crate) fn optional(value: Option<cel::Value>) -> cel::Value {
    cel::Value::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

thread_local! {
    static BUDGET: Cell<i64> = const { Cell::new(0) };
}

fn spent() -> bool {
    BUDGET.get() < 0
}

/// Takes from the budget in force what is not part of an expression.
pub(crate) fn charge(turns: usize) -> Result<(), Failure> {
    spend(i64::try_from(turns).unwrap_or(i64::MAX)).map_err(|_| Failure::OutOfBudget)
}

/// Runs `f` with a budget of `turns` loop turns; all evaluations inside share it.
pub fn with_budget<T>(turns: i64, f: impl FnOnce() -> T) -> T {
    let before = BUDGET.replace(turns);
    let result = f();
    BUDGET.set(before);
    result
}

/// Pays for one turn of a loop; `held` is the size of the loop's accumulator, which the interpreter copies in
/// every turn.
fn pay(held: i64) -> Result<bool, ExecutionError> {
    spend(1 + held / 16).map(|()| true)
}

/// Returns the rest of the budget.
pub(crate) fn left() -> i64 {
    BUDGET.get().max(0)
}

fn spend(turns: i64) -> Result<(), ExecutionError> {
    let left = BUDGET.get().saturating_sub(turns);
    BUDGET.set(left);
    if left < 0 { Err(ExecutionError::function_error("loop", "out of budget")) } else { Ok(()) }
}

static BASE: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default();
    context.register_all();
    context.add_function(ast::PAY, pay);
    price::register(&mut context);
    context.add_function("dyn", unchanged);
    context.add_function("type", type_name);
    context.add_function("bool", to_bool);
    context.add_function("string", to_text);
    for name in ast::TYPE_NAMES {
        context.add_variable_from_value(name, cel::Value::String(Arc::new(name.to_owned())));
    }
    context
});

fn unchanged(value: cel::Value) -> Result<cel::Value, ExecutionError> {
    Ok(value)
}

/// Returns the name of a value's type. Types are compared by name: `type(self) == string`.
fn type_name(value: cel::Value) -> Arc<String> {
    let name = match value {
        cel::Value::List(_) => "list",
        cel::Value::Map(_) => "map",
        cel::Value::Int(_) => "int",
        cel::Value::UInt(_) => "uint",
        cel::Value::Float(_) => "double",
        cel::Value::String(_) => "string",
        cel::Value::Bytes(_) => "bytes",
        cel::Value::Bool(_) => "bool",
        cel::Value::Null => "null_type",
        _ => "dyn",
    };
    Arc::new(name.to_owned())
}

fn to_bool(value: cel::Value) -> Result<bool, ExecutionError> {
    match value {
        cel::Value::Bool(b) => Ok(b),
        cel::Value::String(s) if matches!(s.as_str(), "true" | "True" | "TRUE" | "t" | "1") => Ok(true),
        cel::Value::String(s) if matches!(s.as_str(), "false" | "False" | "FALSE" | "f" | "0") => Ok(false),
        _ => Err(ExecutionError::function_error("bool", "type conversion error")),
    }
}

/// Converts a value to a string, including booleans, which the interpreter does not support.
fn to_text(
    context: &FunctionContext<'_, '_>,
    This(value): This<cel::Value>,
) -> Result<cel::Value, ExecutionError> {
    match value {
        cel::Value::Bool(flag) => Ok(cel::Value::String(Arc::new(flag.to_string()))),
        other => cel::functions::string(context, This(other)),
    }
}

/// Describes an interpreter error in cel-go's words where there is an equivalent.
fn describe(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {}", shorten(key)),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. } => "no such overload".to_owned(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::FunctionError { message, .. } => shorten(message),
        other => shorten(&other.to_string()),
    }
}

fn refused(why: String) -> String {
    format!("compilation failed: {why}")
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_ERROR).collect()
}

/// Runs `f` on a thread with a stack large enough for the deepest accepted expression.
pub fn on_big_stack<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    try_on_big_stack(f).expect("a thread can be started: without one the server could not serve either")
}

/// Like [`on_big_stack`], for requests that are served without a thread of their own.
///
/// # Errors
/// No thread can be started.
pub(super) fn try_on_big_stack<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_stack(BIG_STACK, f)
}

/// Runs `f` on a thread with a stack of this size.
///
/// # Errors
/// No thread can be started.
fn on_stack<T: Send>(size: usize, f: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("cel".to_owned()).stack_size(size);
        match builder.spawn_scoped(scope, f)?.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

impl std::fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
