//! The entry point of the fuzzer and of the seeded test: runs arbitrary bytes through the whole crate.

use crate::env::Env;
use crate::limits::Limits;
use crate::resolver::{Resolver, Slot};
use crate::types::Type;
use crate::value::ValueRef;

/// Compiles `bytes` with and without type checks, and runs the programs that compile.
///
/// # Panics
/// If a guarantee of the crate is broken: an evaluation exceeds its limits, or an expression of static type bool
/// returns another type.
pub fn compile_and_run_any(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for env in [Env::new(Limits::FILTER), Env::dynamic(Limits::POLICY)] {
        let env = env
            .with_slot("ev.conn.client_ip", 0, Type::String)
            .with_slot("ev.conn.server_port", 1, Type::Int)
            .with_unusable("ev.http.request.method");
        let Ok(program) = env.compile(text) else {
            continue;
        };
        let (result, cost) = program.eval_metered(&Sample);
        assert!(cost <= env.limits.cost_max, "{text:?} cost {cost}");
        if let (Type::Bool, Ok(value)) = (program.result_type(), &result) {
            assert!(
                matches!(value.borrow(), ValueRef::Bool(_)),
                "{text:?} is not a bool"
            );
        }
    }
}

struct Sample;

impl Resolver for Sample {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        match slot {
            0 => Some(ValueRef::String("203.0.113.7")),
            1 => Some(ValueRef::Int(443)),
            _ => None,
        }
    }
}
