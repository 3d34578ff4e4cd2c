//! Tests of the language as filters use it, clause by clause of the contract, and of hostile inputs.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use crate::{
    Env, Error, ErrorKind, EvalErrorKind, Limits, Resolver, Slot, Type, Value, ValueRef,
    compile_and_run_any,
};

/// The four fields of a filter, and some unusable ones.
fn filter() -> Env {
    Env::new(Limits::FILTER)
        .with_slot("ev.conn.client_ip", 0, Type::String)
        .with_slot("ev.conn.server_ip", 1, Type::String)
        .with_slot("ev.conn.server_name", 2, Type::String)
        .with_slot("ev.conn.server_port", 3, Type::Int)
        .with_unusable("ev.conn.start_ts")
        .with_unusable("ev.http.request.method")
}

struct Connection;

impl Resolver for Connection {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        match slot {
            0 => Some(ValueRef::String("203.0.113.7")),
            1 => Some(ValueRef::String("192.0.2.1")),
            2 => Some(ValueRef::String("docs-examples.example.dev")),
            3 => Some(ValueRef::Int(443)),
            _ => None,
        }
    }
}

#[track_caller]
fn is(expected: bool, text: &str) {
    let predicate = filter()
        .compile_predicate(text)
        .unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(predicate.test(&Connection), Ok(expected), "{text}");
}

/// Asserts that an evaluation fails.
#[track_caller]
fn fails(kind: EvalErrorKind, text: &str) {
    let predicate = filter()
        .compile_predicate(text)
        .unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(
        predicate.test(&Connection).unwrap_err().kind,
        kind,
        "{text}"
    );
}

fn error(text: &str) -> Error {
    filter().compile_predicate(text).map(drop).expect_err(text)
}

#[track_caller]
fn refused(kind: ErrorKind, text: &str) {
    let error = error(text);
    assert_eq!(error.kind, kind, "{text}: {error}");
}

#[track_caller]
fn says(message: &str, text: &str) {
    assert_eq!(error(text).to_string(), message, "{text}");
}

fn unknown_field(path: &str) -> ErrorKind {
    ErrorKind::UnknownField {
        path: path.to_owned(),
    }
}

fn unusable(path: &str) -> ErrorKind {
    ErrorKind::UnusableField {
        path: path.to_owned(),
    }
}

fn object(path: &str) -> ErrorKind {
    ErrorKind::ObjectAsValue {
        path: path.to_owned(),
    }
}

fn unknown_function(name: &str) -> ErrorKind {
    ErrorKind::UnknownFunction {
        name: name.to_owned(),
    }
}

#[test]
fn the_vectors_to_accept() {
    is(
        true,
        r#"ev.conn.server_name.matches("docs-examples\\.example\\.dev")"#,
    );
    is(
        false,
        r#"ev.conn.server_name.matches("docs-examples\\.example\\.dev") && ev.conn.server_port == 80"#,
    );
    is(
        true,
        r#"ev.conn.client_ip != "10.0.0.1" && ev.conn.server_name == "docs-examples.example.dev""#,
    );
    is(true, "ev.conn.server_port in [80, 443]");
    is(true, "true");
    is(false, r#"ev.conn.client_ip.startsWith("10.")"#);
    is(true, "true // note");
}

#[test]
fn the_vectors_to_refuse() {
    refused(ErrorKind::Syntax, " ");
    refused(
        unusable("ev.http.request.method"),
        r#"ev.http.request.method == "get""#,
    );
    refused(unknown_field("ev.conn.nope"), "ev.conn.nope == 1");
    let principal = ErrorKind::UnknownIdentifier {
        name: "principal".to_owned(),
    };
    refused(principal, r#"principal.id == "x""#);
    refused(ErrorKind::NotBool, "ev.conn.server_port");
    refused(ErrorKind::NotBool, r#""a""#);
    refused(ErrorKind::NotBool, "1 + 1");
    refused(unknown_function("foo"), "ev.conn.server_name.foo()");
    refused(ErrorKind::Pattern, r#"ev.conn.server_name.matches("(")"#);
    refused(
        unusable("ev.conn.start_ts"),
        r#"ev.conn.start_ts > timestamp("2024-01-01T00:00:00Z")"#,
    );
    refused(object("ev"), r#""conn" in ev"#);
    refused(
        ErrorKind::TooLarge,
        &format!("{:4097}", "true || ".repeat(511) + "true"),
    );
}

#[test]
fn objects_are_not_values() {
    refused(object("ev.conn"), r#""x" in ev.conn"#);
    refused(object("ev.conn"), "ev.conn.exists(x, true)");
    refused(object("ev"), "size(ev) == 1");
    refused(object("ev"), "ev == null");
    refused(object("ev.conn"), "has(ev.conn)");
    refused(unusable("ev.http"), "ev.http == null");
    refused(unusable("ev.http.request"), "has(ev.http.request)");
}

#[test]
fn fields_by_index_and_by_presence() {
    is(true, r#"ev["conn"]["server_port"] == 443"#);
    is(true, r#"ev.conn["server_name"].endsWith(".dev")"#);
    is(true, "has(ev.conn.server_port)");
    is(true, r#"has(ev.conn["server_port"])"#);
    refused(unknown_field("ev.conn.nope"), "has(ev.conn.nope)");
    refused(
        unusable("ev.http.request.method"),
        "has(ev.http.request.method)",
    );
    refused(
        unusable("ev.http.request.method"),
        r#"ev["http"]["request"].method == """#,
    );
    // The error names the unusable field, whatever is below it.
    refused(
        unusable("ev.http.request.method"),
        "ev.http.request.method.nope == 1",
    );
    refused(
        unknown_field("ev.conn.server_port.x"),
        "ev.conn.server_port.x == 1",
    );
    let computed = |path: &str| ErrorKind::ComputedField {
        path: path.to_owned(),
    };
    refused(computed("ev"), "ev[ev.conn.server_name] == 1");
    refused(computed("ev.conn"), "ev.conn[0] == 1");
    refused(ErrorKind::Syntax, "has(ev)");
    refused(ErrorKind::Syntax, "has(1 + 1)");
}

#[test]
fn matching() {
    is(true, r#"ev.conn.server_name.matches("docs")"#);
    is(false, r#"ev.conn.server_name.matches("^examples")"#);
    is(false, r#"ev.conn.server_name.matches("DOCS")"#);
    is(true, r#"ev.conn.server_name.matches("(?i)DOCS")"#);
    is(true, r#"matches(ev.conn.server_name, "dev$")"#);
    is(true, r#"("x" + ev.conn.server_name).matches("^xdocs")"#);
    refused(
        ErrorKind::Pattern,
        r#"ev.conn.server_name.matches("(?=a)")"#,
    );
    refused(
        ErrorKind::Pattern,
        r#"ev.conn.server_name.matches("(a)\\1")"#,
    );
    refused(ErrorKind::Type, "ev.conn.server_name.matches(1)");
    // A computed pattern is checked at run time.
    is(true, r#"ev.conn.server_name.matches("^" + "docs")"#);
    fails(
        EvalErrorKind::Pattern,
        r#"ev.conn.server_name.matches("(" + "")"#,
    );
}

#[test]
fn errors_are_absorbed_from_both_sides() {
    is(true, "1 / 0 == 1 || true");
    is(true, "true || 1 / 0 == 1");
    is(false, "1 / 0 == 1 && false");
    is(false, "false && 1 / 0 == 1");
    is(true, "[0, 1].exists(x, 1 / x == 1)");
    is(false, "[0, 1].all(x, 1 / x == 2)");
    fails(EvalErrorKind::DivideByZero, "1 / 0 == 1 || false");
    fails(EvalErrorKind::DivideByZero, "1 / 0 == 1 && true");
    fails(EvalErrorKind::DivideByZero, "!(1 / 0 == 1)");
    fails(EvalErrorKind::DivideByZero, "[0, 1].exists(x, 1 / x == 2)");
    fails(
        EvalErrorKind::DivideByZero,
        "[0, 1].exists_one(x, 1 / x == 1)",
    );
}

#[test]
fn numbers_compare_across_kinds_and_nothing_else_does() {
    is(true, "ev.conn.server_port == 443u");
    is(true, "ev.conn.server_port == 443.0");
    is(true, "ev.conn.server_port > 80.5");
    is(true, "80.5 < ev.conn.server_port");
    is(true, "ev.conn.server_port in [80u, 443u]");
    is(
        true,
        "443 <= ev.conn.server_port && 443 >= ev.conn.server_port",
    );
    refused(ErrorKind::Type, r#"ev.conn.server_port == "443""#);
    refused(ErrorKind::Type, r#"ev.conn.server_port != "443""#);
    refused(ErrorKind::Type, r#"ev.conn.server_port > "80""#);
    refused(ErrorKind::Type, r#"ev.conn.server_port in ["443"]"#);
    refused(ErrorKind::Type, "ev.conn.server_port + 1.0 == 444.0");
    refused(ErrorKind::Type, "ev.conn.server_name == null");
    refused(ErrorKind::Type, "ev.conn.server_name && true");
    refused(ErrorKind::Type, "!ev.conn.server_port");
    refused(ErrorKind::Type, "ev.conn.server_name ? true : false");
    refused(ErrorKind::Type, r#"true ? 1 : "a""#);
    refused(ErrorKind::Type, "-ev.conn.server_name == 1");
    // Through dyn, types may differ: the values are then unequal, without an error.
    is(false, r#"dyn(ev.conn.server_port) == "443""#);
    is(true, r#"dyn(ev.conn.server_port) != "443""#);
    fails(
        EvalErrorKind::NoSuchOverload,
        r#"dyn(ev.conn.server_port) > "80""#,
    );
    fails(
        EvalErrorKind::NoSuchOverload,
        "dyn(ev.conn.server_port) + 1.0 == 444.0",
    );
    fails(EvalErrorKind::NoSuchOverload, "dyn(ev.conn.server_port)");
}

#[test]
fn functions_of_the_standard_library_and_no_others() {
    is(
        true,
        r#""é".size() == 1 && size("é") == 1 && size(b"é") == 2"#,
    );
    is(true, "type(ev.conn.server_port) == int");
    is(
        true,
        "type(ev.conn.server_port) != string && type(int) == type",
    );
    is(true, r#"ev.conn.client_ip.contains("113")"#);
    is(true, r#"int("4" + "43") == ev.conn.server_port"#);
    is(
        true,
        r#"timestamp("2024-02-29T12:00:00Z").getDayOfYear() == 59"#,
    );
    refused(
        unknown_function("lowerAscii"),
        r#"ev.conn.server_name.lowerAscii() == """#,
    );
    refused(
        unknown_function("split"),
        r#"ev.conn.server_name.split(".") == []"#,
    );
    refused(
        unknown_function("starts_with"),
        r#"ev.conn.server_name.starts_with("x")"#,
    );
    says(
        "1:21: unknown function `starts_with`; a function `startsWith` exists",
        r#"ev.conn.server_name.starts_with("x")"#,
    );
    says(
        "1:1: unknown function `startsWith`; it is called as x.startsWith(...)",
        "startsWith(1)",
    );
    says(
        "1:5: unknown function `int`; it is called as int(x)",
        r#""1".int() == 1"#,
    );
    refused(ErrorKind::Type, "size(1) == 1");
    refused(ErrorKind::Type, "size() == 1");
    refused(
        ErrorKind::Type,
        r#"ev.conn.server_name.startsWith("a", "b")"#,
    );
}

#[test]
fn what_is_not_the_language() {
    refused(ErrorKind::Syntax, r#"ev.conn.server_name == "\.dev""#);
    refused(ErrorKind::Syntax, "ev.?conn.server_port == 443");
    refused(ErrorKind::Syntax, "ev.conn.server_port == 443 and true");
    refused(ErrorKind::Syntax, "ev.conn.server_port = 443");
    refused(ErrorKind::Syntax, "[x * 2 for x in [1]] == [2]");
    refused(ErrorKind::Syntax, "Message{field: 1} == 1");
    refused(ErrorKind::Syntax, "$.conn.server_port == 443");
    refused(ErrorKind::Syntax, "");
    refused(ErrorKind::Syntax, "true true");
    refused(ErrorKind::Syntax, "true ? false ? false : true : false");
    refused(ErrorKind::Syntax, "[1].map(x.y, true)");
    refused(ErrorKind::Syntax, "(true");
    refused(ErrorKind::Syntax, "'a");
    refused(ErrorKind::Syntax, "'a\n'");
    refused(ErrorKind::Syntax, "while == 1");
    refused(ErrorKind::Syntax, "0xg == 1");
    refused(ErrorKind::Syntax, "9223372036854775808 == 1");
    refused(ErrorKind::Syntax, "18446744073709551616u == 1");
    refused(ErrorKind::Syntax, "size([1],) == 1");
    is(true, "[1,] == [1] && {1: 2,} == {1: 2}");
    is(true, "-9223372036854775808 < 0x7f && .5 < 1e3");
}

#[test]
fn errors_say_where() {
    says(
        "1:24: `==` is not defined for int and string",
        r#"(ev.conn.server_port   == "443")"#,
    );
    says("2:9: unknown field `ev.conn.nope`", "true &&\nev.conn.nope");
    says("1:8: undeclared name `x`", "'é' == x");
    says(
        "1:6: unexpected a number: expected an operator or the end",
        "true 5",
    );
    says(
        "2:1: unexpected end of the expression: expected an expression",
        "true && // note\n",
    );
    says(
        "1:29: the bracket `(` is not closed at character 2 of the pattern",
        r#"ev.conn.server_name.matches("a(")"#,
    );
    says(
        "1:1: the expression must be a bool, it is a list(int)",
        "[1]",
    );
}

#[test]
fn the_limits_of_a_filter() {
    let ports = |n| format!("ev.conn.server_port in [{}]", vec!["1"; n].join(","));
    is(false, &ports(490));
    refused(ErrorKind::TooLarge, &ports(500));

    // A chain is one level; each bracket and each selection is one level.
    is(true, &vec!["true"; 200].join(" && "));
    is(true, &format!("{}true{}", "(".repeat(31), ")".repeat(31)));
    refused(
        ErrorKind::TooLarge,
        &format!("{}true{}", "(".repeat(32), ")".repeat(32)),
    );
    is(true, &format!("{} == 30", vec!["1"; 30].join(" + ")));
    refused(
        ErrorKind::TooLarge,
        &format!("{} == 33", vec!["1"; 33].join(" + ")),
    );

    is(true, "[1].all(x, [1].all(y, x == y))");
    refused(
        ErrorKind::TooLarge,
        "[1].all(x, [1].all(y, [1].all(z, true)))",
    );
    is(true, "[1].map(x, x).map(y, y).map(z, z) == [1]");

    // Two nested comprehensions over 150 items would need 22,500 iterations.
    let list = format!("[{}]", vec!["1"; 150].join(","));
    refused(
        ErrorKind::TooLarge,
        &format!("{list}.all(x, {list}.all(y, x == y))"),
    );
}

#[test]
fn slots_are_those_that_are_read() {
    let predicate = filter()
        .compile_predicate(
            r#"ev.conn.server_port == 1 || has(ev.conn.client_ip) || ev.conn.server_port == 2"#,
        )
        .unwrap();
    assert_eq!(predicate.slots(), [0, 3]);
    assert_eq!(filter().compile_predicate("true").unwrap().slots(), []);
}

#[test]
fn what_the_resolver_does_not_have() {
    struct Nothing;
    impl Resolver for Nothing {
        fn value(&self, _: Slot) -> Option<ValueRef<'_>> {
            None
        }
    }
    let test = |text| filter().compile_predicate(text).unwrap().test(&Nothing);
    let no_value = |text| test(text).map_err(|error| error.kind);
    assert_eq!(
        no_value("ev.conn.server_port == 1"),
        Err(EvalErrorKind::NoValue)
    );
    assert_eq!(
        no_value("ev.conn.server_port + 1 == 1"),
        Err(EvalErrorKind::NoValue)
    );
    assert_eq!(no_value("ev.conn.server_port == 1 || true"), Ok(true));
    assert_eq!(no_value("has(ev.conn.server_port)"), Ok(false));
    let error = test("true && ev.conn.client_ip == \"\"").unwrap_err();
    assert_eq!(error.to_string(), "1:17: the variable has no value");
}

/// A variable may be a text and an object too, and a map may be indexed by name.
#[test]
fn composite_variables_and_maps() {
    struct Variables;
    impl Resolver for Variables {
        fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
            Some(ValueRef::String(if slot == 0 {
                "203.0.113.7"
            } else {
                "NL"
            }))
        }
    }
    let env = Env::new(Limits::POLICY)
        .with_slot("conn.client_ip", 0, Type::String)
        .with_slot("conn.client_ip.geo.country", 1, Type::String);
    let test = |text| env.compile_predicate(text).map(|it| it.test(&Variables));
    let text = r#"conn.client_ip == "203.0.113.7" && conn.client_ip.geo.country == "NL""#;
    assert_eq!(test(text), Ok(Ok(true)));
    let geo = test("conn.client_ip.geo == 1").unwrap_err();
    assert_eq!(geo.kind, object("conn.client_ip.geo"));

    let program = env
        .compile(r#"{"a": {"b": 1}}.a["b"] + {1: 2}[1u]"#)
        .unwrap();
    assert!(matches!(program.eval(&Variables), Ok(Value::Int(3))));
    let has = env
        .compile_predicate(r#"has({"a": 1}.a) && !has({"a": 1}["b"])"#)
        .unwrap();
    assert_eq!(has.test(&Variables), Ok(true));
}

/// Inputs that overload other engines.
#[test]
fn hostile_inputs_are_refused_or_cheap() {
    let wide = Env::new(Limits {
        source_bytes_max: 60_000,
        ..Limits::POLICY
    });
    let texts = [
        "(".repeat(50_000),
        "[".repeat(50_000),
        "{".repeat(50_000),
        "!".repeat(50_000) + "true",
        "-".repeat(50_000) + "1",
        "!!(".repeat(10_000),
        "a".to_owned() + &"[0]".repeat(15_000),
        "a".to_owned() + &".a".repeat(20_000),
        "1".to_owned() + &"+1".repeat(20_000),
        "true?".repeat(10_000),
        "true?true:".repeat(5_000) + "true",
        "[1].map(x,".repeat(5_000),
        "a(".repeat(20_000),
        "has(".repeat(10_000),
        "//".repeat(20_000),
        format!("{}1{}", "[".repeat(60), "]".repeat(60)) + &"[0]".repeat(60),
        "\"".repeat(50_001),
        "{1:".repeat(10_000),
        format!("[{}]", vec!["'x'"; 10_000].join(",")),
        "has([".repeat(30) + "1" + &"][0].a)".repeat(30),
    ];
    for text in texts {
        let started = Instant::now();
        for env in [&wide, &filter(), &Env::dynamic(wide.limits)] {
            if let Ok(program) = env.compile(&text) {
                drop(program.eval(&Connection));
            }
        }
        let head: String = text.chars().take(40).collect();
        assert!(
            started.elapsed().as_secs() < 5,
            "{head} took {:?}",
            started.elapsed()
        );
    }
}

#[test]
fn a_budget_ends_an_evaluation_whatever_is_around() {
    /// Values that are larger than the static estimate assumes.
    struct Long(Arc<[Value]>, String);
    impl Resolver for Long {
        fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
            Some(if slot == 0 {
                ValueRef::List(&self.0)
            } else {
                ValueRef::String(&self.1)
            })
        }
    }
    let env = Env::new(Limits::FILTER)
        .with_slot("list", 0, Type::List(Box::new(Type::Int)))
        .with_slot("text", 1, Type::String);
    let variables = Long(vec![Value::Int(1); 1_000].into(), "x".repeat(64 << 10));
    let run = |text: &str| {
        let predicate = env.compile_predicate(text).unwrap();
        predicate.test(&variables).map_err(|error| error.kind)
    };
    assert_eq!(run("list.all(x, x == 1)"), Ok(true));
    let rounds = "list.all(x, list.all(y, x == y))";
    assert_eq!(run(rounds), Err(EvalErrorKind::CostExceeded));
    assert_eq!(
        run(&format!("{rounds} || true")),
        Err(EvalErrorKind::CostExceeded)
    );
    let inside = "list.exists(x, 1 / 0 == 1 || list.all(y, x == y && 1 / 0 == 1))";
    assert_eq!(run(inside), Err(EvalErrorKind::CostExceeded));
    assert_eq!(
        run("(text + text).size() > 0 || true"),
        Err(EvalErrorKind::MemoryExceeded)
    );
    let copies = "list.map(x, text + \"\").size() == 1000";
    assert_eq!(run(copies), Err(EvalErrorKind::CostExceeded));
    let program = Env {
        limits: Limits::POLICY,
        ..env.clone()
    }
    .compile(copies)
    .unwrap();
    let copied = program
        .eval(&variables)
        .map(drop)
        .map_err(|error| error.kind);
    assert_eq!(copied, Err(EvalErrorKind::MemoryExceeded));
    assert_eq!(
        run("(list + list).size() == 2000"),
        Err(EvalErrorKind::MemoryExceeded)
    );
    let searches = ["text.matches(\"y\")"; 12].join(" || ");
    assert_eq!(run(&searches), Err(EvalErrorKind::CostExceeded));
    assert_eq!(run("list == list && [list] == [list]"), Ok(true));
}

/// Each limit of evaluation, inside of everything that may absorb an error or ignore a value: it always ends the
/// evaluation.
#[test]
fn no_expression_absorbs_a_limit() {
    struct Given(Arc<[Value]>, String);
    impl Resolver for Given {
        fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
            Some(match slot {
                0 => ValueRef::List(&self.0),
                _ => ValueRef::String(&self.1),
            })
        }
    }
    let env = Env::new(Limits::POLICY)
        .with_slot("list", 0, Type::List(Box::new(Type::Int)))
        .with_slot("text", 1, Type::String);
    let given = Given(vec![Value::Int(1); 1_000].into(), "x".repeat(40_000));
    let limits = [
        (
            "list.all(x, list.all(y, x == y))",
            EvalErrorKind::CostExceeded,
        ),
        ("(text + text).size() > 0", EvalErrorKind::MemoryExceeded),
        ("(list + list).size() > 0", EvalErrorKind::MemoryExceeded),
        (
            "list.map(x, text + 'a').size() > 0",
            EvalErrorKind::MemoryExceeded,
        ),
        (
            "'a'.matches('a{100' + '1}')",
            EvalErrorKind::PatternTooLarge,
        ),
        (
            "'a'.matches('(((a{99}){' + '99}))')",
            EvalErrorKind::PatternTooLarge,
        ),
    ];
    for (limit, kind) in limits {
        assert!(kind.is_limit());
        for around in [
            "@",
            "!(@)",
            "(@) || 1 == 1",
            "(@) && 1 == 2",
            "1 / 0 == 1 || (@) || 1 == 1",
            "1 / 0 == 1 && (@) && 1 == 2",
            "!((@) && 1 == 2)",
            "(@) ? true : true",
            "1 == 1 ? (@) || 1 == 1 : true",
            "[1, 2].exists(i, (@) || i == 2)",
            "[1, 2].exists(i, i == 2 || (@))",
            "[1, 2].all(i, (@) && i == 2)",
            "[1, 2].exists_one(i, (@) || i == 2)",
            "[1].map(i, @).size() == 1",
            "[1].filter(i, @).size() < 2",
            "[@].size() == 1",
            "{'a': @}.size() == 1",
            "has({'a': @}.a)",
            "'a' in {'a': @}",
            "(@) in [true, false]",
            "[@] == [true] || 1 == 1",
            "type(@) == bool || 1 == 1",
            "dyn(@) == 1 || 1 == 1",
        ] {
            let text = around.replace('@', limit);
            let predicate = env.compile_predicate(&text).unwrap();
            let error = predicate.test(&given).unwrap_err();
            assert_eq!(error.kind, kind, "{text}");
        }
    }
}

#[test]
fn doubling_a_text_ends_at_the_limit() {
    let text = format!("[{}].size()", "'aaaaaaaaaaaaaaaa'") + "";
    assert!(filter().compile(&text).is_ok());
    let doubled = (0..20).fold("'aaaaaaaaaaaaaaaa'".to_owned(), |text, _| {
        format!("[{text}].map(x, x + x)[0]")
    });
    let program = Env::new(Limits::POLICY).compile(&doubled);
    let kind = program.map(|program| program.eval(&Connection).map(drop).map_err(|e| e.kind));
    assert!(
        matches!(&kind, Ok(Err(EvalErrorKind::MemoryExceeded)))
            || matches!(
                &kind,
                Err(Error {
                    kind: ErrorKind::TooLarge,
                    ..
                })
            ),
        "{kind:?}"
    );
}

/// A short form of fuzzing: a fixed set of texts and their mutations.
#[test]
fn seeds_and_their_neighbours_keep_the_promises() {
    for seed in SEEDS {
        compile_and_run_any(seed.as_bytes());
        for at in 0..seed.len() {
            let mut bytes = seed.as_bytes().to_vec();
            bytes.remove(at);
            compile_and_run_any(&bytes);
            for other in [b'(', b')', b'"', b'[', b'-', b'!', b'.', 0xff, b'0'] {
                let mut bytes = seed.as_bytes().to_vec();
                bytes[at] = other;
                compile_and_run_any(&bytes);
            }
        }
    }
}

const SEEDS: [&str; 10] = [
    r#"ev.conn.client_ip != "203.0.113.9" && ev.conn.server_port == 443"#,
    r#"ev.conn.client_ip.matches("^(a|b){2,3}[[:alpha:]]\\d$") || has(ev["conn"].server_port)"#,
    "[1, 2u, 3.0].map(x, x > 1, {x: [x]}).exists_one(y, size(y) == 1) ? 1 : -2",
    r#"r'\d' + "\u00e9\n" + '''a"b''' in {"a": b"\xff", true: null} // note"#,
    "timestamp('2009-02-13T23:31:30.5+02:00') - duration('1h30m') > timestamp(0)",
    "string(1.5e300) + string(duration('-1.5s')) == string(timestamp(-1))",
    "ev.http.request.method == `a`",
    "int('9') % 0 + [1][-1] == {1: 2}[3] && type(1) == int",
    "'a'.matches('(' + 'b)*') || b'a' < b'b' || dyn(1) in dyn([1])",
    "[[1], [2]].filter(x, x.all(y, y < 2)) + [[3]] == []",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_break_a_promise(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        compile_and_run_any(&bytes);
    }

    #[test]
    fn no_text_breaks_a_promise(text in r"\PC{0,60}") {
        compile_and_run_any(text.as_bytes());
    }

    #[test]
    fn no_row_of_tokens_breaks_a_promise(
        tokens in proptest::collection::vec(proptest::sample::select(TOKENS.to_vec()), 0..40),
    ) {
        compile_and_run_any(tokens.join(" ").as_bytes());
        compile_and_run_any(tokens.concat().as_bytes());
    }
}

const TOKENS: [&str; 54] = [
    "ev",
    "conn",
    "client_ip",
    "server_port",
    "x",
    "true",
    "false",
    "null",
    "1",
    "2u",
    "1.5",
    "0",
    "-1",
    "'a'",
    "b'a'",
    "r'\\'",
    "\"\"",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    ":",
    "?",
    "!",
    "-",
    "+",
    "*",
    "/",
    "%",
    "<",
    ">=",
    "==",
    "!=",
    "&&",
    "||",
    "in",
    "has(",
    ".all(x,",
    ".map(x,",
    ".exists(x,",
    ".filter(x,",
    ".matches('a*')",
    ".size()",
    "size(",
    "int(",
    "string(",
    "timestamp(",
    "duration(",
    "dyn(",
    "//",
];

/// The language itself, for runs without the conformance data.
#[test]
fn the_language() {
    let env = Env::new(Limits::POLICY);
    for text in LANGUAGE {
        let predicate = env
            .compile_predicate(text)
            .unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(predicate.test(&Connection), Ok(true), "{text}");
    }
}

const LANGUAGE: [&str; 54] = [
    // Literals.
    r#""\u00e9\x41\101\U0001F431\n\"\'\\\?\`" == 'éAA🐱' + '''
"''' + "'\\?`""#,
    r#"r'\d' == "\\d" && R"\\" == "\\\\" && '''a'b''' == "a'b""#,
    r"b'\xff\377é' == b'\377' + b'\xff\303\251' && size(br'\x') == 2",
    "0x1F == 31 && -0x1f == -31 && 0xFu == 15u && 1e3 == 1000.0 && .5 == 0.5",
    "-9223372036854775808 < 9223372036854775807 && 18446744073709551615u > 0u",
    "[1, 'a', null,] == [1, 'a', null] && {'a': 1, 2: b'x',} == {2: b'x', 'a': 1}",
    "{'a-b': 1}.`a-b` == 1 && has({'a/b': 1}.`a/b`) && {'as': 1}.as == 1",
    // Operators.
    "1 + 2 * 3 - 4 / 2 == 5 && -7 % 3 == -1 && -7 / 2 == -3 && (1 + 2) * 3 == 9",
    "10 - 2 - 3 == 5 && 2 < 3 == true && !false && !!true && --1 == 1 && -(-1) == 1",
    "false ? false : true ? (false ? false : true) : false",
    "true || false && false",
    "'a' + 'b' == 'ab' && b'a' + b'b' == b'ab' && [1] + [2] == [1, 2]",
    "0.0 / 0.0 != 0.0 / 0.0 && 1.0 / 0.0 > 1e308 && !(0.0 / 0.0 < 1.0)",
    "1 == 1.0 && 1u == 1 && dyn(1) != '1' && null == null && 2.5 > 2 && 3u <= 3.0",
    "9223372036854775807 < 18446744073709551615u && -1 < 0u",
    "'a' < 'b' && b'a' < b'ab' && false < true && 'Z' < 'a' && 'é' > 'z'",
    "[[1], {'a': 2}] == [[1.0], {'a': 2u}] && [1] != [2] && {1: 2} != {2: 2}",
    "2 in [1, 2.0] && !('c' in ['a']) && 'a' in {'a': 1} && 1u in {1: 1} && 1.0 in {1u: 1}",
    "[1, 2][1] == 2 && {'a': {'b': 3}}.a.b == 3 && {true: 1}[true] == 1 && [1][dyn(0u)] == 1",
    "has({'a': null}.a) && !has({'a': 1}.b) && has({'a': 1}['a'])",
    // Macros.
    "[1, 2].all(x, x > 0) && [].all(x, false) && ![1, 2].all(x, x > 1)",
    "[1, 2].exists(x, x == 2) && ![].exists(x, true)",
    "[1, 2].exists_one(x, x > 1) && ![2, 2].exists_one(x, x > 1)",
    "[1, 2, 3].filter(x, x % 2 == 1) == [1, 3]",
    "[1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x * 2) == [4]",
    "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b'] && {'a': 1}.all(k, k == 'a')",
    "[1, 2].map(x, [3, 4].map(y, x * y)) == [[3, 4], [6, 8]]",
    "[1].map(x, [2].map(x, x)[0] + x) == [3]",
    "[3, 1, 2].sortBy(x, x) == [1, 2, 3] && ['b', 'aa', 'c'].sortBy(x, size(x)) == ['b', 'c', 'aa']",
    "[{'n': 2}, {'n': 1}].sortBy(x, x.n)[0].n == 1 && [].sortBy(x, x) == []",
    // Conversions.
    "int('-5') == -5 && int(3u) == 3 && int(-1.9) == -1 && int(timestamp(7)) == 7",
    "uint('5') == 5u && uint(5.9) == 5u && uint(5) == 5u && double('1.5') == 1.5 && double(2) == 2.0",
    "string(1) == '1' && string(1u) == '1' && string(-0.5) == '-0.5' && string(true) == 'true'",
    "string(1e21) == '1e21' && string(1e20) == '100000000000000000000' && string(1e-5) == '1e-5'",
    r"string(b'\xc3\xa9') == 'é' && bytes('é') == b'\xc3\xa9' && string('a') == 'a'",
    "bool('true') && bool('1') && !bool('f') && bool(true)",
    "type(1) == int && type(1u) == uint && type('') == string && type([]) == list && type({}) == map",
    "type(null) == null_type && type(1.0) == double && type(b'') == bytes && type(type(1)) == type",
    "type(timestamp(0)) == google.protobuf.Timestamp && type(duration('0')) != type(1)",
    // Text.
    "size('héllo') == 5 && 'héllo'.size() == 5 && size(b'é') == 2 && [1, 2].size() == 2 && size({}) == 0",
    "'abc'.startsWith('ab') && 'abc'.endsWith('bc') && 'abc'.contains('b') && !'abc'.contains('d')",
    "'abc'.matches('b.') && matches('abc', '^a') && !'abc'.matches('^b')",
    // Time.
    "string(timestamp('2009-02-13T23:31:30.50+02:00')) == '2009-02-13T21:31:30.5Z'",
    "timestamp('2024-02-29T00:00:00Z') + duration('24h') == timestamp('2024-03-01T00:00:00Z')",
    "timestamp('2024-03-01T00:00:00Z') - timestamp('2024-02-29T23:59:59Z') == duration('1s')",
    "string(duration('1h1m1.5s')) == '3661.5s' && string(duration('-1ms')) == '-0.001s'",
    "duration('1h') > duration('59m') && duration('1us') - duration('1ns') == duration('999ns')",
    "timestamp('1900-01-01T00:00:00Z').getDayOfWeek() == 1 && timestamp(0).getDayOfWeek() == 4",
    "timestamp('2023-12-31T23:59:59.987Z').getDayOfYear() == 364 && timestamp(0).getMonth() == 0",
    "timestamp('2023-12-31T23:59:59.987Z').getMilliseconds() == 987 && timestamp(0).getDate() == 1",
    "timestamp('2023-12-31T23:30:00Z').getFullYear('+01:00') == 2024 && timestamp(0).getHours('-01:30') == 22",
    "timestamp(0).getDayOfMonth('UTC') == 0 && timestamp(0).getMinutes('01:15') == 15",
    "duration('3730s').getHours() == 1 && duration('3730s').getMinutes() == 62",
    "duration('1.234s').getSeconds() == 1 && duration('1.234s').getMilliseconds() == 234",
];

/// Evaluations that the language defines as errors.
#[test]
fn failures_of_the_language() {
    use EvalErrorKind::{
        DivideByZero, IndexOutOfRange, InvalidArgument, NoSuchKey, NoSuchOverload, OutOfRange,
        Overflow, RepeatedKey,
    };
    for (kind, text) in [
        (Overflow, "9223372036854775807 + 1"),
        (Overflow, "-9223372036854775808 - 1"),
        (Overflow, "-(-9223372036854775808)"),
        (Overflow, "-9223372036854775808 / -1"),
        (Overflow, "0u - 1u"),
        (DivideByZero, "1 % 0"),
        (DivideByZero, "1u / 0u"),
        (IndexOutOfRange, "[1][1]"),
        (IndexOutOfRange, "[1][-1]"),
        (InvalidArgument, "[1][dyn('a')]"),
        (NoSuchKey, "{'a': 1}.b"),
        (NoSuchKey, "{1: 1}[1.5]"),
        (RepeatedKey, "{1: 1, 1u: 2}"),
        (RepeatedKey, "{'a': 1, 'a': 2 + 1}"),
        (OutOfRange, "int(1e99)"),
        (OutOfRange, "int(18446744073709551615u)"),
        (OutOfRange, "uint(-1)"),
        (OutOfRange, "uint(-0.5)"),
        (
            OutOfRange,
            "timestamp('9999-12-31T23:59:59Z') + duration('1s')",
        ),
        (
            OutOfRange,
            "timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z')",
        ),
        (OutOfRange, "timestamp(99999999999999)"),
        (InvalidArgument, "int('1x')"),
        (InvalidArgument, "bool('TrUe')"),
        (InvalidArgument, r"string(b'\xff')"),
        (InvalidArgument, "timestamp('2023-02-29T00:00:00Z')"),
        (InvalidArgument, "timestamp('2023-02-28T24:00:00Z')"),
        (InvalidArgument, "timestamp('10000-01-01T00:00:00Z')"),
        (InvalidArgument, "timestamp('2023-02-28')"),
        (InvalidArgument, "duration('1')"),
        (InvalidArgument, "duration('320000000000s')"),
        (InvalidArgument, "timestamp(0).getHours('Nowhere/City')"),
        (NoSuchOverload, "dyn(1) + 'a'"),
        (NoSuchOverload, "dyn(1).all(x, true)"),
        (NoSuchOverload, "dyn(1).a"),
        (NoSuchOverload, "b'' in dyn({})"),
        (NoSuchOverload, "dyn(duration('1s')).getDate()"),
    ] {
        let program = Env::new(Limits::POLICY).compile(text);
        let program = program.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(
            program.eval(&Connection).map(drop).map_err(|e| e.kind),
            Err(kind),
            "{text}"
        );
    }
}

#[test]
fn zones_are_asked_for_by_name() {
    let env = Env::new(Limits::POLICY).with_zones(|name, seconds| {
        (name == "Europe/Amsterdam").then_some(if seconds < 1_711_846_800 {
            3_600
        } else {
            7_200
        })
    });
    let text = "timestamp('2024-03-31T00:30:00Z').getHours('Europe/Amsterdam') == 1 \
                && timestamp('2024-03-31T01:30:00Z').getHours('Europe/Amsterdam') == 3";
    assert_eq!(
        env.compile_predicate(text).unwrap().test(&Connection),
        Ok(true)
    );
}
