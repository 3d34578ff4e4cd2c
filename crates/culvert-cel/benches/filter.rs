//! Measures a filter against a hand-written closure and the `cel` crate, in one run.
//!
//! Prints nanoseconds per evaluation and the ratio to the closure (1.0): the best of several interleaved rounds.
//! Targets: a ratio of at most 20 for plain comparisons, and at most 1.2 for a `matches`. Run with `cargo bench -p
//! culvert-cel --bench filter`.

#![allow(
    clippy::print_stdout,
    reason = "a benchmark's figures go to its caller"
)]

use std::hint::black_box;
use std::time::Instant;

use culvert_cel::{Env, Limits, Resolver, Slot, Type, ValueRef};
use regex::Regex;

fn main() {
    let connections = connections();
    comparisons(&connections);
    searches(&connections);
}

fn comparisons(connections: &[Connection]) {
    let text = r#"ev.conn.client_ip != "203.0.113.9" && ev.conn.server_name == "api.example.com""#;
    let closure = |connection: &Connection| {
        connection.client_ip != "203.0.113.9" && connection.server_name == "api.example.com"
    };
    compare(text, connections, closure);
}

/// A host name as an unanchored pattern, and a pattern whose search ends immediately.
fn searches(connections: &[Connection]) {
    for (written, pattern) in [
        (r"www\\.example\\.org", r"www\.example\.org"),
        (
            r"^(api|www)\\.example\\.(com|org)$",
            r"^(api|www)\.example\.(com|org)$",
        ),
    ] {
        let text =
            format!(r#"ev.conn.server_name.matches("{written}") && ev.conn.server_port == 80"#);
        let regex = Regex::new(pattern).expect("the pattern is valid");
        let closure = |connection: &Connection| {
            regex.is_match(&connection.server_name) && connection.server_port == 80
        };
        compare(&text, connections, closure);
    }
}

fn compare(text: &str, connections: &[Connection], closure: impl Fn(&Connection) -> bool) {
    let env = Env::new(Limits::FILTER)
        .with_slot("ev.conn.client_ip", 0, Type::String)
        .with_slot("ev.conn.server_ip", 1, Type::String)
        .with_slot("ev.conn.server_name", 2, Type::String)
        .with_slot("ev.conn.server_port", 3, Type::Int);
    let predicate = env.compile_predicate(text).expect("the filter is valid");
    let other = cel::Program::compile(text).expect("the filter is valid");
    let contexts: Vec<cel::Context<'_, '_>> = connections.iter().map(Connection::context).collect();

    for (connection, context) in connections.iter().zip(&contexts) {
        let expected = Ok(closure(connection));
        assert_eq!(predicate.test(connection), expected, "{text}");
        let theirs = other.execute(context).map_err(|error| error.to_string());
        assert_eq!(theirs, Ok(cel::Value::Bool(expected == Ok(true))), "{text}");
    }

    let mut best = [f64::MAX; 3];
    for _ in 0..ROUNDS {
        let ours = || {
            connections
                .iter()
                .filter(|c| predicate.test(*c) == Ok(true))
                .count()
        };
        let theirs = || {
            let is_true = |context| matches!(other.execute(context), Ok(cel::Value::Bool(true)));
            contexts.iter().filter(|context| is_true(*context)).count()
        };
        let by_hand = || {
            connections
                .iter()
                .filter(|connection| closure(connection))
                .count()
        };
        let round = [time(20_000, by_hand), time(20_000, ours), time(50, theirs)];
        for (best, once) in best.iter_mut().zip(round) {
            *best = best.min(once);
        }
    }
    println!("{text}");
    for (name, nanos) in ["closure", "culvert-cel", "cel"].iter().zip(best) {
        let each = nanos / connections.len() as f64;
        println!("  {name:12} {each:10.1} ns  {:8.2}", nanos / best[0]);
    }
}

/// Nanoseconds per call.
fn time(times: u32, call: impl Fn() -> usize) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        black_box(call());
    }
    start.elapsed().as_nanos() as f64 / f64::from(times)
}

struct Connection {
    client_ip: String,
    server_ip: String,
    server_name: String,
    server_port: i64,
}

impl Resolver for Connection {
    #[inline]
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        Some(match slot {
            0 => ValueRef::String(&self.client_ip),
            1 => ValueRef::String(&self.server_ip),
            2 => ValueRef::String(&self.server_name),
            3 => ValueRef::Int(self.server_port),
            _ => return None,
        })
    }
}

impl Connection {
    fn context(&self) -> cel::Context<'static, 'static> {
        let connection = std::collections::HashMap::from([
            ("client_ip", cel::Value::from(self.client_ip.clone())),
            ("server_ip", cel::Value::from(self.server_ip.clone())),
            ("server_name", cel::Value::from(self.server_name.clone())),
            ("server_port", cel::Value::from(self.server_port)),
        ]);
        let event = std::collections::HashMap::from([("conn", connection)]);
        let mut context = cel::Context::default();
        context.add_variable_from_value("ev", event);
        context
    }
}

/// Connections of which some match the filters and some do not.
fn connections() -> Vec<Connection> {
    let names = [
        "api.example.com",
        "www.example.org",
        "shop.example.net",
        "a.b.c.example.com",
    ];
    (0..16)
        .map(|n| Connection {
            client_ip: format!("203.0.113.{n}"),
            server_ip: "192.0.2.1".to_owned(),
            server_name: names[n % names.len()].to_owned(),
            server_port: if n % 3 == 0 { 80 } else { 443 },
        })
        .collect()
}

const ROUNDS: usize = 7;
