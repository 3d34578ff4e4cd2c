//! What expressions of each phase may name: the variables and the functions.

use std::sync::LazyLock;

use culvert_cel::{Env, Limits, Slot, Type};

use crate::policy::functions;
use crate::policy::phase::Phase;
use crate::policy::variables::{ALL, retry_slots};

static ENVIRONMENTS: LazyLock<[Env; 3]> = LazyLock::new(|| Phase::ALL.map(environment));

/// What expressions of a phase may name.
pub fn of(phase: Phase) -> &'static Env {
    let [connect, request, response] = &*ENVIRONMENTS;
    match phase {
        Phase::Connect => connect,
        Phase::Request => request,
        Phase::Response => response,
    }
}

/// What a condition for trying again may name beside what its phase has.
pub(crate) fn of_retries(phase: Phase) -> &'static Env {
    static ENVIRONMENTS: LazyLock<[Env; 3]> = LazyLock::new(|| {
        Phase::ALL.map(|phase| {
            let [attempts, last] = retry_slots();
            environment(phase)
                .with_slot("attempts", attempts, Type::Int)
                .with_slot("last_attempt", last, Type::Dyn)
        })
    });
    let [connect, request, response] = &*ENVIRONMENTS;
    match phase {
        Phase::Connect => connect,
        Phase::Request => request,
        Phase::Response => response,
    }
}

fn environment(phase: Phase) -> Env {
    let mut env = Env::new(Limits::POLICY).with_zones(culvert_base::time::zone_offset);
    for (slot, variable) in ALL.iter().enumerate() {
        let slot = Slot::try_from(slot).expect("the table is short");
        env = if variable.since <= phase {
            env.with_slot(&variable.path, slot, variable.of.clone())
        } else {
            env.with_unusable(&variable.path)
        };
    }
    for function in functions::ALL.iter() {
        if function.since <= phase {
            env = env.with_extension(function.extension);
        }
    }
    env
}
