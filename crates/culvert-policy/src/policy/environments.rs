//! The variables and functions of expressions in each phase.

use std::sync::LazyLock;

use culvert_cel::{Env, Limits, Slot, Type};

use crate::policy::functions;
use crate::policy::phase::Phase;
use crate::policy::variables::{ALL, retry_slots};

static ENVIRONMENTS: LazyLock<[Env; 3]> = LazyLock::new(|| Phase::ALL.map(environment));

/// The variables and functions of a phase.
pub fn of(phase: Phase) -> &'static Env {
    let [connect, request, response] = &*ENVIRONMENTS;
    match phase {
        Phase::Connect => connect,
        Phase::Request => request,
        Phase::Response => response,
    }
}

/// The variables and functions of retry conditions: those of the phase and more.
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
