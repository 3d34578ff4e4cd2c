//! Runs the conformance tests of cel-spec (`tests/simple`), which `scripts/fetch-cel-spec` downloads.
//!
//! Only the groups of the standard language count. Skipped are cases that need protobuf messages, and cases that only
//! check the deduced type of declarations without syntax here (functions, abstract types, optionals). Cases marked as
//! unchecked run without a type check; all others are type-checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use culvert_cel::{
    Duration, Env, Key, Limits, Map, Resolver, Slot, Timestamp, Type, Value, ValueRef,
};
use serde_json::Value as Json;

#[test]
fn the_language_conforms() {
    let path = data();
    let Ok(text) = std::fs::read_to_string(&path) else {
        culvert_testing::ignore("no conformance data; scripts/fetch-cel-spec brings it");
        return;
    };
    let data: Json = serde_json::from_str(&text).expect("the data is JSON");
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    let mut failures = String::new();
    for suite in items(&data, "suites") {
        let group = suite["name"].as_str().unwrap_or_default().to_owned();
        if !STANDARD_GROUPS.contains(&group.as_str()) {
            continue;
        }
        let count = counts.entry(group.clone()).or_default();
        let mut cases = Vec::new();
        collect(suite, &mut cases);
        for case in cases {
            if needs_what_we_lack(case) {
                count.left_out += 1;
                continue;
            }
            count.run += 1;
            match run(case) {
                Ok(()) => count.passed += 1,
                Err(why) => {
                    failures += &format!("{group}: {} -- {why}\n", case["expr"]);
                }
            }
        }
    }
    let run: usize = counts.values().map(|count| count.run).sum();
    let passed: usize = counts.values().map(|count| count.passed).sum();
    let mut table = String::new();
    for (group, count) in &counts {
        table += &format!(
            "{group:16} {:4} of {:4} passed, {:3} left out\n",
            count.passed, count.run, count.left_out
        );
    }
    report(&format!(
        "{table}{failures}{passed} of {run} standard cases pass"
    ));
    assert!(
        run >= 1_000,
        "only {run} cases were found in {}",
        path.display()
    );
    assert!(
        passed * 1_000 >= run * PASSED_PER_MILLE_MIN,
        "{passed} of {run} pass:\n{failures}"
    );
}

#[derive(Default)]
struct Count {
    run: usize,
    passed: usize,
    left_out: usize,
}

/// Prints to the output of the test runner.
#[allow(
    clippy::print_stdout,
    reason = "a skipped or counted suite says so aloud"
)]
fn report(text: &str) {
    println!("{text}");
}

fn data() -> PathBuf {
    let named = option_env!("CULVERT_CEL_SPEC").map(PathBuf::from);
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    named.unwrap_or_else(|| root.join("target/cel-spec/conformance-0.6.1.json"))
}

fn items<'j>(json: &'j Json, name: &str) -> &'j [Json] {
    json[name].as_array().map_or(&[], Vec::as_slice)
}

fn collect<'j>(suite: &'j Json, into: &mut Vec<&'j Json>) {
    into.extend(items(suite, "tests").iter().map(|test| &test["original"]));
    items(suite, "suites")
        .iter()
        .for_each(|suite| collect(suite, into));
}

fn needs_what_we_lack(case: &Json) -> bool {
    let text = case.to_string();
    let is_of_messages = text
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
        .any(|word| {
            word.contains("TestAllTypes")
                || (word.contains("google.protobuf.")
                    && !word.ends_with("google.protobuf.Timestamp")
                    && !word.ends_with("google.protobuf.Duration"))
        });
    let declares_function = items(case, "typeEnv")
        .iter()
        .any(|declared| !declared["function"].is_null());
    is_of_messages || declares_function || text.contains("optional.")
}

fn run(case: &Json) -> Result<(), String> {
    let text = case["expr"].as_str().ok_or("no expression")?;
    let is_checked = case["disableCheck"] != Json::Bool(true);
    let mut env = if is_checked {
        Env::new(LIMITS)
    } else {
        Env::dynamic(LIMITS)
    };
    env = env.with_zones(zone);
    let mut variables = Variables(Vec::new());
    let mut declared: BTreeMap<String, Type> = BTreeMap::new();
    for variable in items(case, "typeEnv") {
        let name = variable["name"].as_str().ok_or("no name")?;
        declared.insert(name.to_owned(), type_of(&variable["ident"]["type"])?);
    }
    let bindings = case["bindings"].as_object();
    for (name, bound) in bindings.into_iter().flatten() {
        declared.entry(name.clone()).or_insert(Type::Dyn);
        variables.0.push((name.clone(), value_of(&bound["value"])?));
    }
    for (name, of) in declared {
        let slot = variables.0.iter().position(|(bound, _)| *bound == name);
        let slot = slot
            .map_or(Ok(Slot::MAX), Slot::try_from)
            .map_err(|e| e.to_string())?;
        env = env.with_slot(&name, slot, of);
    }

    let compiled = env.compile(text);
    let expected = match (&case["value"], &case["typedResult"]) {
        (Json::Null, Json::Null) if !case["evalError"].is_null() => {
            return match compiled.map(|program| program.eval(&variables)) {
                Err(_) | Ok(Err(_)) => Ok(()),
                Ok(Ok(value)) => Err(format!("no error but {value:?}")),
            };
        }
        (Json::Null, Json::Null) => Value::Bool(true),
        (Json::Null, typed) => {
            let program = compiled.as_ref().map_err(ToString::to_string)?;
            let wanted = type_of(&typed["deducedType"])?;
            if *program.result_type() != wanted {
                return Err(format!(
                    "type {} instead of {wanted}",
                    program.result_type()
                ));
            }
            if case["checkOnly"] == Json::Bool(true) {
                return Ok(());
            }
            value_of(&typed["result"])?
        }
        (value, _) => value_of(value)?,
    };
    let program = compiled.map_err(|e| e.to_string())?;
    let value = program.eval(&variables).map_err(|e| e.to_string())?;
    if is_same(&value, &expected) {
        Ok(())
    } else {
        Err(format!("{value:?} instead of {expected:?}"))
    }
}

struct Variables(Vec<(String, Value)>);

impl Resolver for Variables {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        self.0
            .get(usize::from(slot))
            .map(|(_, value)| value.borrow())
    }
}

/// Whether two values have equal type and content. A NaN equals a NaN.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        // The JSON reader may be off by one unit in the last place of a double.
        (Value::Double(a), Value::Double(b)) => {
            a == b || (a.is_nan() && b.is_nan()) || a.to_bits().abs_diff(b.to_bits()) == 1
        }
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(&**b).all(|(a, b)| is_same(a, b))
        }
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && a.entries()
                    .iter()
                    .zip(b.entries())
                    .all(|((key_a, a), (key_b, b))| {
                        is_same(&key_a.to_value(), &key_b.to_value()) && is_same(a, b)
                    })
        }
        _ => format!("{a:?}") == format!("{b:?}"),
    }
}

fn type_of(json: &Json) -> Result<Type, String> {
    let Some((kind, of)) = json.as_object().and_then(|object| object.iter().next()) else {
        return Err(format!("no type: {json}"));
    };
    Ok(match (kind.as_str(), of.as_str().unwrap_or_default()) {
        ("primitive", "BOOL") => Type::Bool,
        ("primitive", "INT64") => Type::Int,
        ("primitive", "UINT64") => Type::Uint,
        ("primitive", "DOUBLE") => Type::Double,
        ("primitive", "STRING") => Type::String,
        ("primitive", "BYTES") => Type::Bytes,
        ("messageType", "google.protobuf.Timestamp") => Type::Timestamp,
        ("messageType", "google.protobuf.Duration") => Type::Duration,
        ("null", _) => Type::Null,
        ("dyn", _) => Type::Dyn,
        ("listType", _) => Type::List(Box::new(type_of(&of["elemType"])?)),
        ("mapType", _) => Type::Map(
            Box::new(type_of(&of["keyType"])?),
            Box::new(type_of(&of["valueType"])?),
        ),
        _ => return Err(format!("unknown type: {json}")),
    })
}

fn value_of(json: &Json) -> Result<Value, String> {
    let Some((kind, of)) = json.as_object().and_then(|object| object.iter().next()) else {
        return Err(format!("no value: {json}"));
    };
    let bad = || format!("bad value: {json}");
    let text = of.as_str().unwrap_or_default();
    Ok(match kind.as_str() {
        "nullValue" => Value::Null,
        "boolValue" => Value::Bool(of.as_bool().ok_or_else(bad)?),
        "int64Value" => Value::Int(text.parse().map_err(|_| bad())?),
        "uint64Value" => Value::Uint(text.parse().map_err(|_| bad())?),
        "doubleValue" => Value::Double(match text {
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            "NaN" => f64::NAN,
            _ => of.as_f64().ok_or_else(bad)?,
        }),
        "stringValue" => Value::from(text),
        "bytesValue" => Value::Bytes(base64(text).into()),
        "typeValue" => {
            let program = Env::new(LIMITS).compile(text).map_err(|e| e.to_string())?;
            program
                .eval(&Variables(Vec::new()))
                .map_err(|e| e.to_string())?
        }
        "listValue" => {
            let items: Result<Vec<Value>, String> =
                items(of, "values").iter().map(value_of).collect();
            Value::List(items?.into())
        }
        "mapValue" => {
            let mut entries = Vec::new();
            for entry in items(of, "entries") {
                let key = Key::from_value(&value_of(&entry["key"])?).ok_or_else(bad)?;
                entries.push((key, value_of(&entry["value"])?));
            }
            Value::Map(Arc::new(Map::new(entries).map_err(|e| e.to_string())?))
        }
        "objectValue" => {
            let text = of["value"].as_str().ok_or_else(bad)?;
            if of["@type"] == "type.googleapis.com/google.protobuf.Duration" {
                Value::Duration(Duration::parse(text).ok_or_else(bad)?)
            } else {
                Value::Timestamp(Timestamp::parse(text).ok_or_else(bad)?)
            }
        }
        _ => return Err(bad()),
    })
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut n_bits) = (0_u32, 0);
    for c in text.bytes() {
        let Some(digit) = DIGITS.iter().position(|known| *known == c) else {
            break;
        };
        bits = bits << 6 | digit as u32;
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits & 0xff) as u8);
        }
    }
    bytes
}

/// Offsets of the zones in the data, for February 2009.
fn zone(name: &str, _: i64) -> Option<i32> {
    Some(match name {
        "Australia/Sydney" => 11 * 3_600,
        "US/Central" => -6 * 3_600,
        "America/St_Johns" => -(3 * 3_600 + 1_800),
        "Asia/Kathmandu" => 5 * 3_600 + 2_700,
        _ => return None,
    })
}

/// The conformance data needs deeper nesting than filters allow.
const LIMITS: Limits = Limits::POLICY;
const PASSED_PER_MILLE_MIN: usize = 990;
const STANDARD_GROUPS: [&str; 15] = [
    "basic",
    "comparisons",
    "conversions",
    "fields",
    "fp_math",
    "integer_math",
    "lists",
    "logic",
    "macros",
    "namespace",
    "parse",
    "plumbing",
    "string",
    "timestamps",
    "type_deductions",
];
