use serde_json::json;

use super::*;

fn compile(source: &str) -> Result<Expression, String> {
    on_big_stack(|| Expression::compile(source, &[]))
}

fn value(source: &str) -> Result<cel::Value, Failure> {
    let expression = compile(source).expect("compiles");
    with_budget(10_000, || expression.evaluate(&Scope::default()))
}

fn refusal(source: &str) -> String {
    compile(source).expect_err("does not compile")
}

#[test]
fn types_are_compared_by_name() {
    for source in [
        "type('x') == string",
        "type(1) == int",
        "type([]) == list",
        "type(dyn({})) == map",
        "bool('true')",
        "string(true) == 'true'",
    ] {
        assert_eq!(value(source), Ok(cel::Value::Bool(true)), "{source}");
    }
}

#[test]
fn names_bound_by_cel_bind_are_known_in_its_body_only() {
    assert_eq!(value("cel.bind(x, 20, x + x + 2)"), Ok(cel::Value::Int(42)));
    assert!(refusal("cel.bind(x, 1, x) + x").contains("undeclared reference to 'x'"));
}

#[test]
fn functions_of_the_interpreter_are_known_and_others_are_refused() {
    for source in ["'a'.lowerAscii()", "math.abs(-1)", "ip('10.0.0.1').family()", "optional.of(1).hasValue()"]
    {
        assert!(compile(source).is_ok(), "{source}");
    }
    for source in ["'a'.frobnicate()", "math.frobnicate(1)", "frobnicate()"] {
        assert!(refusal(source).contains("undeclared reference to 'frobnicate'"), "{source}");
    }
}

#[test]
fn hostile_sources_are_refused() {
    let nested = format!("{}1{}", "(".repeat(20_000), ")".repeat(10_000));
    assert!(!refusal(&nested).is_empty());
    assert!(!refusal(&"!".repeat(30_000)).is_empty());
    assert!(!refusal(&"[".repeat(10_000)).is_empty());
    assert!(!refusal(&vec!["1"; 5_000].join("+")).is_empty());
    assert!(refusal(&"x".repeat(MAX_SOURCE + 1)).contains("longer than"));
    assert!(!refusal(&format!("{}true", "true ? false : ".repeat(500))).is_empty());
    assert!(!refusal("a.b.c{d: 1}").is_empty());
    assert!(!refusal("\u{0}").is_empty());
}

#[test]
fn the_deepest_expression_accepted_is_evaluated_without_overflow() {
    let source = vec!["1"; MAX_TREE_DEPTH - 1].join("+");
    assert_eq!(value(&source), Ok(cel::Value::Int(MAX_TREE_DEPTH as i64 - 1)));
    let source = vec!["1"; INLINE_DEPTH].join("+");
    assert_eq!(value(&source), Ok(cel::Value::Int(INLINE_DEPTH as i64)));
}

#[test]
fn budgets_are_shared_and_restored() {
    let expression = compile("lists.range(100).all(x, x >= 0)").expect("compiles");
    let scope = Scope::default();
    let results = with_budget(150, || [expression.evaluate(&scope), expression.evaluate(&scope)]);
    assert_eq!(results[0], Ok(cel::Value::Bool(true)));
    assert_eq!(results[1], Err(Failure::OutOfBudget));
    assert_eq!(with_budget(150, || expression.evaluate(&scope)), Ok(cel::Value::Bool(true)));
}

#[test]
fn errors_that_logic_would_absorb_still_count_against_the_budget() {
    assert_eq!(value("lists.range(20000).all(x, x >= 0) || true"), Err(Failure::OutOfBudget));
}

#[test]
fn a_list_that_grows_in_a_loop_costs_what_copying_it_costs() {
    let expression = compile("size(lists.range(3000).map(x, x)) == 3000").expect("compiles");
    assert_eq!(with_budget(5_000, || expression.evaluate(&Scope::default())), Err(Failure::OutOfBudget));
}

#[test]
fn what_looks_at_or_makes_much_costs_as_much() {
    for source in [
        "lists.range(1000000000).size() > 0",
        "'x'.replace('', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy').replace('y', 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz')\
         .replace('z', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('a', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb')\
         .size() > 0",
        "lists.range(1000).map(x, 'x').join('yyyyyyyyyyyyyyyyyyyyyyyyyyyy').replace('y', 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz')\
         .replace('z', 'aaaaaaaaaaaaaaaaaaaaaaa').size() > 0",
        "lists.range(100).all(x, 'a'.matches('a{' + string(x) + '}') || true)",
    ] {
        assert_eq!(value(source), Err(Failure::OutOfBudget), "{source}");
    }
    let doubled = |seed: &str, double: &dyn Fn(usize) -> String, last: &str| {
        let bound: String = (1..40).map(|at| format!("cel.bind(v{at}, {}, ", double(at - 1))).collect();
        format!("cel.bind(v0, {seed}, {bound}{last}{})", ")".repeat(39))
    };
    let added = |at| format!("v{at} + v{at}");
    let nested = |at| format!("[v{at}, v{at}]");
    let mapped = |at| format!("{{'a': v{at}, 'b': v{at}}}");
    for source in [
        doubled("'x'", &added, "v39 != ''"),
        doubled("b'x'", &added, "size(v39) > 0"),
        doubled("[1]", &added, "v39 != []"),
        doubled("[1]", &nested, "v39 == v39"),
        doubled("[1]", &mapped, "v39 == v39"),
    ] {
        assert!(value(&source).is_err(), "{source}");
    }
}

#[test]
fn what_is_guarded_does_what_the_library_does() {
    for (source, wanted) in [
        ("'aXbX'.replace('X', 'yy')", "'ayybyy'"),
        ("'aXbX'.replace('X', 'y', 1)", "'aybX'"),
        ("'ab'.replace('', '-')", "'-a-b-'"),
        ("['a', 'b'].join()", "'ab'"),
        ("['a', 'b'].join(', ')", "'a, b'"),
        ("'%s is %d, %.2f'.format(['a', 1, 2.5])", "'a is 1, 2.50'"),
        ("'ab12'.matches('^[a-z]+[0-9]+$')", "true"),
        ("'ab12'.find('[0-9]')", "'1'"),
        ("'ab12'.findAll('[0-9]')", "['1', '2']"),
        ("'ab12'.findAll('[a-z]', 1)", "['a']"),
        ("lists.range(3)", "[0, 1, 2]"),
        ("2 in [1, 2] && 'a' in {'a': [1]}", "true"),
        ("{'a': [1, 2]} == {'a': [1, 2]}", "true"),
    ] {
        assert_eq!(value(source), value(wanted), "{source}");
    }
    let Err(Failure::Error(error)) = value("'%.99999f'.format([1.5])") else { panic!("it is refused") };
    assert!(error.contains("precision"), "{error}");
    let Err(Failure::Error(error)) = value("'a'.matches('(')") else { panic!("it is refused") };
    assert!(error.contains("not a valid regex"), "{error}");
}

/// A panic ends the process.
#[test]
fn times_out_of_range_and_texts_of_any_letters_are_errors_and_no_panic() {
    let longer: String = (1..12).map(|at| format!("cel.bind(d{at}, d{0} + d{0}, ", at - 1)).collect();
    for operator in ["+", "-"] {
        let of_long = format!(
            "cel.bind(d0, duration('9e9h'), {longer}timestamp('2026-01-01T00:00:00Z') {operator} d11{}",
            ")".repeat(12)
        );
        assert!(matches!(value(&of_long), Err(Failure::Error(_))), "{operator}");
    }
    let half = "timestamp('2026-01-01T01:00:00Z') - duration('30m') == timestamp('2026-01-01T00:00:00Z') + duration('30m')";
    for source in [
        half,
        "5 - 3 == 2",
        "format.datetime().validate('2026-01-01T12:34:5\u{e9}Z').hasValue()",
        "!format.datetime().validate('2026-01-01T12:34:56Z').hasValue()",
        "format.dns1123Label().validate('b\u{fc}ro').hasValue()",
        "!format.dns1123Label().validate('office').hasValue()",
    ] {
        assert_eq!(value(source), Ok(cel::Value::Bool(true)), "{source}");
    }
}

#[test]
fn quantities_that_the_library_compares_wrongly_are_none() {
    for source in [
        "isQuantity('8191Pi') && isQuantity('9223372036854775807') && isQuantity('1.5Gi') && isQuantity('-100n')",
        "isQuantity('1e3') && isQuantity('1E-3') && isQuantity('7E') && !isQuantity('x') && !isQuantity('1é')",
        "!isQuantity('1e40') && !isQuantity('1e-40') && !isQuantity('1e99999999999') && !isQuantity('9999999999Ei')",
        "quantity('1Gi').compareTo(quantity('1G')) > 0 && quantity('500m').isLessThan(quantity('1'))",
        "quantity('1e23').isGreaterThan(quantity('1n'))",
    ] {
        assert_eq!(value(source), Ok(cel::Value::Bool(true)), "{source}");
    }
    assert!(matches!(value("quantity('1e40').isLessThan(quantity('1Gi'))"), Err(Failure::Error(_))));
}

/// The result does not depend on the parts that are left out.
#[test]
fn an_expression_finds_in_what_it_reads_what_it_finds_in_the_whole() {
    let object = json!({
        "metadata": {"name": "a", "labels": {"x.y/z": "1", "app": "web"}, "managedFields": [{"f:spec": {"f:n": {}}}]},
        "spec": {"n": 3, "none": null, "list": [{"name": "a", "v": 1}, {"name": "b"}], "text": "t", "empty": {}},
        "status": {"binding": {"host": "h", "epoch": 1}, "list": []},
    });
    let sources = [
        "object.metadata.name == 'a'",
        "object.metadata.labels['x.y/z'] == '1'",
        "'app' in object.metadata.labels",
        "has(object.status) && has(object.status.binding) && object.status.binding == {'host': 'h', 'epoch': 1}",
        "has(object.status.binding.host) && !has(object.status.binding.none)",
        "has(object.spec.none)",
        "has(object.spec.list)",
        "has(object.spec.empty)",
        "has(object.spec.n.deeper)",
        "object.spec.list.all(i, has(i.v) ? i.v == 1 : i.name == 'b')",
        "object.spec.list.exists(object, object.name == 'b')",
        "object.spec.list[0].v == 1",
        "object.?spec.?none.hasValue()",
        "object.?spec.?nothing.orValue('x') == 'x'",
        "object.spec == oldObject.spec",
        "object == oldObject",
        "(has(object.spec.text) ? object.spec.text : '') + object.metadata.name == 'ta'",
        "[object.spec.n, oldObject.spec.n].sum() == 6",
        "cel.bind(s, object.spec, s.n == 3 && size(s.list) == 2)",
        "size(object) == 3",
        "object.nothing.at.all == 1",
        "object.metadata.name.deeper == 1",
        "has(object.spec) ? size(object.spec) == 5 : false",
        ".object.spec.n > 2",
    ];
    for source in sources {
        let expression =
            on_big_stack(|| Expression::compile(source, &["object", "oldObject"])).expect("it compiles");
        let evaluate = |part: fn(&Expression, &str) -> Option<Reads>| {
            let mut scope = Scope::default();
            for name in ["object", "oldObject"] {
                if let Some(reads) = part(&expression, name) {
                    scope.set(name, native(&object, &reads));
                }
            }
            with_budget(10_000, || expression.evaluate(&scope)).map(|value| format!("{value:?}"))
        };
        let whole = evaluate(|expression, name| expression.uses(name).then(|| WHOLE.clone()));
        let part = evaluate(|expression, name| expression.reads(name).cloned());
        assert_eq!(part, whole, "{source}");
    }
}

#[test]
fn an_expression_reads_the_members_that_it_names() {
    let object = json!({"metadata": {"name": "a", "managedFields": [1]}, "spec": {"a": [1], "b": [2]}});
    for (source, part) in [
        ("object.metadata.name == 'a'", json!({"metadata": {"name": "a"}})),
        ("has(object.spec.a)", json!({"spec": {"a": []}})),
        ("has(object.spec) && object.spec.b.all(x, x > 1)", json!({"spec": {"b": [2]}})),
        ("object.spec == {}", json!({"spec": {"a": [1], "b": [2]}})),
    ] {
        let expression = on_big_stack(|| Expression::compile(source, &["object"])).expect("it compiles");
        let read = native(&object, expression.reads("object").expect("it is used"));
        assert_eq!(read, native(&part, &WHOLE), "{source}");
    }
}

#[test]
fn equal_expressions_share_their_memory_as_long_as_one_is_in_use() {
    let source = "size('of this test only') == 22";
    let of = |roots: &[&str]| on_big_stack(|| Expression::compile(source, roots)).expect("it compiles");
    let (first, second, other) = (of(&["self"]), of(&["self"]), of(&["self", "oldSelf"]));
    assert!(Arc::ptr_eq(&first.0, &second.0) && !Arc::ptr_eq(&first.0, &other.0), "by source and variables");
    drop((first, second));
    assert!(shared::find(source, &["self"]).is_none(), "no longer in use");
    assert!(shared::find(source, &["self", "oldSelf"]).is_some());
}

#[test]
fn a_stack_for_which_there_is_no_memory_is_an_error() {
    assert!(on_stack(1 << 50, || 1).is_err());
    assert_eq!(on_stack(BIG_STACK, || 1).ok(), Some(1));
}
