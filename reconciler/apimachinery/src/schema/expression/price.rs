//! The cost of operations beyond loop turns: by the size of their operands, and of their results before these
//! are created. Operands on which the interpreter would panic are refused.
//!
//! Without this cost, `v + v` in a dozen variables, or a list that repeatedly contains a list twice, would
//! need unlimited memory or time.

use std::sync::{Arc, LazyLock};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, operators};
use kube_cel::cel::extractors::{Arguments, This};
use kube_cel::cel::objects::Key;
use kube_cel::cel::parser::{Expression as Tree, Parser};
use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value};

use super::ast;
use super::{left, patterns, spend};

/// The number of bytes read or created for one loop turn.
const BYTES: i64 = 256;
/// The size of a value in bytes in addition to its text.
const VALUE: i64 = 64;
/// The number of items created, or compared, for one turn.
const ITEMS: i64 = 4;
/// The longest duration that is added or subtracted, in days: ten thousand years, as in cel-go. The interpreter panics on a time that
/// is a longer one away.
const MAX_DAYS: i64 = 3_652_500;
/// The maximum number of decimal digits of a quantity before its point, and behind it. Between larger or finer ones the numbers of the
/// library overflow, and it compares them wrongly.
const MAX_DIGITS: usize = 24;
const MAX_DECIMALS: usize = 12;
/// The maximum number of decimal places.
const MAX_PRECISION: usize = 100;

/// The function that wraps operands that are read as a whole. Source code cannot call it: `@` does not parse.
const WEIGH: &str = "@weigh";
/// The function that wraps operands that are searched.
const AMONG: &str = "@among";

/// Operators that read all of their operands, or create a result as large.
const WHOLE: [&str; 8] = [
    operators::ADD,
    operators::SUBSTRACT,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
];

/// Functions with a cost that is independent of the size of their arguments.
const CONSTANT: [&str; 5] = ["dyn", "has", "hasValue", "size", "type"];

/// Returns the tree with a charge for every operation that reads or creates values; used for evaluation only.
pub(super) fn priced(tree: &IdedExpr) -> IdedExpr {
    let mut priced = tree.clone();
    price(&mut priced);
    priced
}

fn price(tree: &mut IdedExpr) {
    match &mut tree.expr {
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|target| price(target));
            call.args.iter_mut().for_each(price);
            charge_call(call);
        }
        Expr::Comprehension(c) => {
            for part in
                [&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
            {
                price(part);
            }
        }
        Expr::List(list) => {
            for element in &mut list.elements {
                price(element);
                charge(WEIGH, element);
            }
        }
        Expr::Map(map) => map.entries.iter_mut().for_each(|entry| price_entry(&mut entry.expr)),
        Expr::Struct(of) => of.entries.iter_mut().for_each(|entry| price_entry(&mut entry.expr)),
        Expr::Select(select) => price(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn price_entry(entry: &mut EntryExpr) {
    let parts = match entry {
        EntryExpr::MapEntry(of) => vec![&mut of.key, &mut of.value],
        EntryExpr::StructField(of) => vec![&mut of.value],
    };
    for part in parts {
        price(part);
        charge(WEIGH, part);
    }
}

fn charge_call(of: &mut CallExpr) {
    let name = of.func_name.as_str();
    if WHOLE.contains(&name) {
        of.args.iter_mut().for_each(|arg| charge(WEIGH, arg));
    } else if name == operators::IN {
        of.args.iter_mut().skip(1).for_each(|arg| charge(AMONG, arg));
    } else if !name.starts_with(['_', '!', '-', '@']) && !CONSTANT.contains(&name) {
        if let Some(target) = of.target.as_deref_mut().filter(|target| !ast::is_namespace(target, name)) {
            charge(WEIGH, target);
        }
        of.args.iter_mut().for_each(|arg| charge(WEIGH, arg));
    }
}

/// Wraps a value so that it pays for its size. Not needed for a literal, which is no larger than the source,
/// nor for the accumulator of a loop, which is paid for by turns.
fn charge(function: &str, value: &mut IdedExpr) {
    let gathered = matches!(&value.expr, Expr::Ident(name) if name.starts_with('@'));
    if !gathered && !matches!(value.expr, Expr::Literal(_)) {
        let inner = std::mem::take(value);
        *value = ast::call(function, vec![inner]);
    }
}

/// Registers the functions that pay, replacing those that do not.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(WEIGH, weigh);
    context.add_function(AMONG, among);
    context.add_function("lists.range", range);
    context.add_function("replace", replace);
    context.add_function("join", join);
    context.add_function("format", format);
    context.add_function("validate", validate);
    context.add_function("quantity", quantity);
    context.add_function("isQuantity", parses_as_quantity);
    context.add_function("matches", matches);
    context.add_function("find", find);
    context.add_function("findAll", find_all);
}

/// Pays for reading all of a value, and returns it.
fn weigh(value: Value) -> ResolveResult {
    if matches!(&value, Value::Duration(of) if of.num_days().abs() > MAX_DAYS) {
        return Err(ExecutionError::function_error("duration", "duration out of range"));
    }
    let most = left().saturating_mul(BYTES);
    let found = weight(&value, most);
    spend(if found > most { left() + 1 } else { found / BYTES })?;
    Ok(value)
}

/// Pays for a comparison with each item of a list, and returns it. A map finds a key in constant time.
fn among(value: Value) -> ResolveResult {
    if let Value::List(items) = &value {
        spend(length(items.len()) / ITEMS / 16)?;
    }
    Ok(value)
}

/// Returns the size in bytes of a value as a tree. Stops at the first sum above `most`, because shared parts
/// count each time.
fn weight(value: &Value, most: i64) -> i64 {
    let sum = |sum: i64, of: &Value| if sum > most { sum } else { sum + weight(of, most - sum) };
    VALUE
        + match value {
            Value::String(text) => length(text.len()),
            Value::Bytes(bytes) => length(bytes.len()),
            Value::List(items) => items.iter().fold(0, sum),
            Value::Map(map) => {
                let keys = map.map.keys().map(|key| match key {
                    Key::String(text) => VALUE + length(text.len()),
                    _ => VALUE,
                });
                map.map.values().fold(keys.sum(), sum)
            }
            _ => 0,
        }
}

fn length(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Pays for a text before it is created.
fn makes(bytes: usize) -> Result<(), ExecutionError> {
    spend(length(bytes) / BYTES)
}

fn range(count: i64) -> ResolveResult {
    if count < 0 {
        return Err(ExecutionError::function_error("lists.range", "range argument must be non-negative"));
    }
    spend(count / ITEMS)?;
    Ok(Value::List(Arc::new((0..count).map(Value::Int).collect())))
}

fn replace(This(text): This<Arc<String>>, Arguments(arguments): Arguments) -> ResolveResult {
    let (Some(Value::String(from)), Some(Value::String(to))) = (arguments.first(), arguments.get(1)) else {
        return Err(ExecutionError::function_error("replace", "expected string argument"));
    };
    let times = match arguments.get(2) {
        Some(Value::Int(times)) => usize::try_from(*times).unwrap_or(0),
        _ => usize::MAX,
    };
    let found = text.matches(from.as_str()).take(times).count();
    makes(text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(Value::String(Arc::new(text.replacen(from.as_str(), to, times))))
}

fn join(This(items): This<Arc<Vec<Value>>>, Arguments(arguments): Arguments) -> ResolveResult {
    let separator = match arguments.first() {
        Some(Value::String(separator)) => separator.as_str(),
        _ => "",
    };
    let texts = items.iter().map(|item| match item {
        Value::String(text) => Ok(text.as_str()),
        _ => Err(ExecutionError::NoSuchOverload),
    });
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let bytes = texts.iter().fold(0, |sum: usize, text| sum.saturating_add(text.len() + separator.len()));
    makes(bytes)?;
    Ok(Value::String(Arc::new(texts.join(separator))))
}

/// The library's functions, for those that are only guarded here.
static LIBRARY: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default();
    context.register_all();
    context
});
static FORMAT: LazyLock<Tree> =
    LazyLock::new(|| Parser::new().parse("text.format(list)").expect("it is correct"));

/// Checks the precision before formatting: the arguments are paid for already, but digits can make a large
/// result from a small argument.
fn format(This(text): This<Arc<String>>, list: Value) -> ResolveResult {
    let precise = |piece: &str| {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        piece[..digits].parse::<usize>().map_or(digits > 0, |precision| precision > MAX_PRECISION)
    };
    if text.split("%.").skip(1).any(precise) {
        let message = format!("precision must not be above {MAX_PRECISION}");
        return Err(ExecutionError::function_error("format", message));
    }
    let mut scope = LIBRARY.new_inner_scope();
    scope.add_variable_from_value("text", Value::String(text));
    scope.add_variable_from_value("list", list);
    Value::resolve(&FORMAT, &scope)
}

static VALIDATE: LazyLock<Tree> =
    LazyLock::new(|| Parser::new().parse("form.validate(text)").expect("it is correct"));

/// Checks a text against a named format, such as `format.datetime()`. All of them are of ASCII letters, and the library panics on some
/// others: a character that no format but that of URIs has stands for them.
fn validate(This(form): This<Value>, text: Arc<String>) -> ResolveResult {
    let text = match text.is_ascii() {
        true => text,
        false => Arc::new(text.chars().map(|letter| if letter.is_ascii() { letter } else { '?' }).collect()),
    };
    let mut scope = LIBRARY.new_inner_scope();
    scope.add_variable_from_value("form", form);
    scope.add_variable_from_value("text", Value::String(text));
    Value::resolve(&VALIDATE, &scope)
}

static QUANTITY: LazyLock<Tree> =
    LazyLock::new(|| Parser::new().parse("quantity(text)").expect("it is correct"));

fn quantity(text: Arc<String>) -> ResolveResult {
    if !is_comparable(&text) {
        return Err(ExecutionError::function_error("quantity", "it is too large or too precise"));
    }
    let mut scope = LIBRARY.new_inner_scope();
    scope.add_variable_from_value("text", Value::String(text));
    Value::resolve(&QUANTITY, &scope)
}

fn parses_as_quantity(text: Arc<String>) -> ResolveResult {
    Ok(Value::Bool(quantity(text).is_ok()))
}

/// Whether a quantity is within the bounds. For a text that is none the result is arbitrary.
fn is_comparable(text: &str) -> bool {
    let text = text.trim().trim_start_matches(['+', '-']);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let (whole, decimals) = (whole.trim_start_matches('0').len(), decimals.trim_end_matches('0').len());
    // By how many digits the suffix moves the point to the left, and to the right.
    let (left, right) = match suffix {
        "n" => (9, 0),
        "u" => (6, 0),
        "m" => (3, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        // The numbers of digits of the factors.
        "Ki" => (0, 4),
        "Mi" => (0, 7),
        "Gi" => (0, 10),
        "Ti" => (0, 13),
        "Pi" => (0, 16),
        "Ei" => (0, 19),
        other => match other.strip_prefix(['e', 'E']).and_then(|power| power.parse::<i16>().ok()) {
            Some(power) if power < 0 => (usize::from(power.unsigned_abs()), 0),
            Some(power) => (0, usize::from(power.unsigned_abs())),
            None => return !other.starts_with(['e', 'E']),
        },
    };
    whole + right <= MAX_DIGITS && decimals + left <= MAX_DECIMALS
}

fn matches(This(text): This<Arc<String>>, source: Arc<String>) -> Result<bool, ExecutionError> {
    patterns::with(&source, |pattern| pattern.is_match(&text))
}

fn find(This(text): This<Arc<String>>, source: Arc<String>) -> ResolveResult {
    let found =
        patterns::with(&source, |pattern| pattern.find(&text).map(|found| found.as_str().to_owned()))?;
    Ok(Value::String(Arc::new(found.unwrap_or_default())))
}

fn find_all(This(text): This<Arc<String>>, Arguments(arguments): Arguments) -> ResolveResult {
    let Some(Value::String(source)) = arguments.first() else {
        return Err(ExecutionError::function_error("findAll", "expected string pattern"));
    };
    let times = match arguments.get(1) {
        Some(Value::Int(times)) => usize::try_from(*times).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    patterns::with(source, |pattern| {
        let mut found = Vec::new();
        for one in pattern.find_iter(&text).take(times) {
            if found.len().is_multiple_of(16) {
                spend(16 / ITEMS)?;
            }
            found.push(Value::String(Arc::new(one.as_str().to_owned())));
        }
        Ok(Value::List(Arc::new(found)))
    })?
}
