//! Generated expressions give the same result here and in the `cel` crate.
//!
//! Both run without a type check, so type errors appear at run time. Both must fail, with any error, or both must
//! return the same value.

use std::sync::Arc;

use cel::Value as Theirs;
use culvert_cel::{Env, Key, Limits, Map, Resolver, Slot, Type, Value as Ours, ValueRef};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn generated_expressions_mean_the_same(text in expression()) {
        compare(&text)?;
    }
}

fn compare(text: &str) -> Result<(), TestCaseError> {
    let ours = ours(text);
    let theirs = theirs(text);
    let is_same = match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => is_same(ours, theirs),
        (Err(_), Err(_)) => true,
        _ => false,
    };
    prop_assert!(is_same, "{text}\n  ours: {ours:?}\ntheirs: {theirs:?}");
    Ok(())
}

fn ours(text: &str) -> Result<Ours, String> {
    let env = Env::dynamic(ROOMY)
        .with_slot("i", 0, Type::Dyn)
        .with_slot("s", 1, Type::Dyn)
        .with_slot("l", 2, Type::Dyn)
        .with_slot("m", 3, Type::Dyn);
    let program = env.compile(text).map_err(|error| error.to_string())?;
    program
        .eval(&Variables::new())
        .map_err(|error| error.to_string())
}

fn theirs(text: &str) -> Result<Theirs, String> {
    let program = cel::Program::compile(text).map_err(|error| error.to_string())?;
    let mut context = cel::Context::default();
    context.add_variable_from_value("i", 7_i64);
    context.add_variable_from_value("s", "héllo".to_owned());
    context.add_variable_from_value("l", vec![1_i64, 2, 3]);
    context.add_variable_from_value("m", std::collections::HashMap::from([("a", 1_i64)]));
    program.execute(&context).map_err(|error| error.to_string())
}

struct Variables {
    list: Vec<Ours>,
    map: Arc<Map>,
}

impl Variables {
    fn new() -> Self {
        let entry = |name: &str, value| (Key::String(name.into()), Ours::Int(value));
        let map = Map::new(vec![entry("a", 1)]).expect("the keys differ");
        Self {
            list: (1..=3).map(Ours::Int).collect(),
            map: Arc::new(map),
        }
    }
}

impl Resolver for Variables {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        Some(match slot {
            0 => ValueRef::Int(7),
            1 => ValueRef::String("héllo"),
            2 => ValueRef::List(&self.list),
            3 => ValueRef::Map(&self.map),
            _ => return None,
        })
    }
}

fn is_same(ours: &Ours, theirs: &Theirs) -> bool {
    match (ours, theirs) {
        (Ours::Null, Theirs::Null) => true,
        (Ours::Bool(a), Theirs::Bool(b)) => a == b,
        (Ours::Int(a), Theirs::Int(b)) => a == b,
        (Ours::Uint(a), Theirs::UInt(b)) => a == b,
        (Ours::Double(a), Theirs::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
        (Ours::String(a), Theirs::String(b)) => **a == ***b,
        (Ours::Bytes(a), Theirs::Bytes(b)) => **a == ***b,
        (Ours::List(a), Theirs::List(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| is_same(a, b))
        }
        (Ours::Map(a), Theirs::Map(b)) => {
            a.len() == b.map.len()
                && a.entries().iter().all(|(key, value)| {
                    let key: cel::objects::Key = match key {
                        Key::Bool(key) => (*key).into(),
                        Key::Int(key) => (*key).into(),
                        Key::Uint(key) => (*key).into(),
                        Key::String(key) => key.to_string().into(),
                    };
                    b.map.get(&key).is_some_and(|theirs| is_same(value, theirs))
                })
        }
        _ => false,
    }
}

fn expression() -> impl Strategy<Value = String> {
    prop_oneof![6 => bools(4), 2 => ints(4), 1 => texts(4), 1 => lists(4)]
}

/// Usually an int. Sometimes another type, so that errors are generated too.
fn ints(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        4 => (-3_i64..12).prop_map(|number| number.to_string()),
        4 => one_of(&["i", "m.a", "m['b']", "l[0]", "x", "9223372036854775807", "m.nope", "l[9]"]),
        1 => one_of(&["1u", "2.5", "null", "'a'", "true", "b'a'"]),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let d = depth - 1;
    prop_oneof![
        2 => leaf,
        4 => (ints(d), one_of(&["+", "-", "*", "/", "%"]), ints(d)).prop_map(infix),
        1 => ints(d).prop_map(|a| format!("-({a})")),
        1 => (bools(d), ints(d), ints(d)).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
        1 => texts(d).prop_map(|a| format!("size({a})")),
        1 => lists(d).prop_map(|a| format!("({a}).size()")),
        1 => (lists(d), ints(0)).prop_map(|(a, b)| format!("({a})[{b}]")),
        1 => (one_of(&["int", "uint", "double", "dyn"]), ints(d)).prop_map(call),
    ]
    .boxed()
}

fn bools(depth: u32) -> BoxedStrategy<String> {
    let leaf = one_of(&[
        "true",
        "false",
        "1 / 0 == 1",
        "i == 7",
        "s == 'héllo'",
        "7",
        "has(m.a)",
    ]);
    if depth == 0 {
        return leaf.boxed();
    }
    let d = depth - 1;
    let comparison = one_of(&["==", "!=", "<", "<=", ">", ">="]);
    prop_oneof![
        1 => leaf,
        3 => (bools(d), one_of(&["&&", "||"]), bools(d)).prop_map(infix),
        1 => bools(d).prop_map(|a| format!("!({a})")),
        3 => (ints(d), comparison.clone(), ints(d)).prop_map(infix),
        2 => (texts(d), comparison, texts(d)).prop_map(infix),
        1 => (lists(d), one_of(&["==", "!="]), lists(d)).prop_map(infix),
        2 => (ints(d), Just("in".to_owned()), lists(d)).prop_map(infix),
        1 => (texts(d), Just("in".to_owned()), Just("m".to_owned())).prop_map(infix),
        1 => texts(d).prop_map(|a| format!("has({{{a}: 1}}.a)")),
        2 => (texts(d), one_of(&["startsWith", "endsWith", "contains", "matches"]), texts(d))
            .prop_map(|(a, name, b)| format!("({a}).{name}({b})")),
        3 => (ranges(d), one_of(&["all", "exists", "exists_one"]), bools(d).prop_map(on_x))
            .prop_map(|(a, name, b)| format!("({a}).{name}(x, {b})")),
    ]
    .boxed()
}

fn texts(depth: u32) -> BoxedStrategy<String> {
    let leaf = one_of(&[
        "s", "'a'", "'b'", "'héllo'", "''", "'h.l+o'", "'12'", "m", "'('",
    ]);
    if depth == 0 {
        return leaf.boxed();
    }
    let d = depth - 1;
    prop_oneof![
        3 => leaf,
        2 => (texts(d), Just("+".to_owned()), texts(d)).prop_map(infix),
        1 => ints(d).prop_map(|a| format!("string({a})")),
        1 => (bools(d), texts(d), texts(d)).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
    ]
    .boxed()
}

fn lists(depth: u32) -> BoxedStrategy<String> {
    let leaf = one_of(&["l", "[]", "[1, 2]", "[0, 1]", "[3u, 4.0]", "i"]);
    if depth == 0 {
        return leaf.boxed();
    }
    let d = depth - 1;
    prop_oneof![
        2 => leaf,
        2 => (ints(d), ints(d)).prop_map(|(a, b)| format!("[{a}, {b}]")),
        1 => (lists(d), Just("+".to_owned()), lists(d)).prop_map(infix),
        2 => (ranges(d), ints(d).prop_map(on_x)).prop_map(|(a, b)| format!("({a}).map(x, {b})")),
        2 => (ranges(d), bools(d).prop_map(on_x)).prop_map(|(a, b)| format!("({a}).filter(x, {b})")),
    ]
    .boxed()
}

/// The range of a comprehension. Maps have one entry, because the other engine iterates over them in any order.
fn ranges(depth: u32) -> BoxedStrategy<String> {
    prop_oneof![4 => lists(depth), 1 => one_of(&["m", "{2u: 'b'}", "s"])].boxed()
}

fn one_of(texts: &'static [&'static str]) -> BoxedStrategy<String> {
    prop::sample::select(texts).prop_map(str::to_owned).boxed()
}

fn infix((a, operator, b): (String, String, String)) -> String {
    format!("({a} {operator} {b})")
}

fn call((name, argument): (String, String)) -> String {
    format!("{name}({argument})")
}

/// Replaces the outer variable by the comprehension's variable.
fn on_x(body: String) -> String {
    body.replace("i ==", "x ==")
        .replace("(i ", "(x ")
        .replace(" i)", " x)")
}

/// Large limits, because the other engine has none.
const ROOMY: Limits = Limits {
    cost_max: 1 << 40,
    comprehension_nesting_max: 16,
    ..Limits::POLICY
};
