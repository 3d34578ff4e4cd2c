//! The variables and functions of expressions in each phase.

use std::sync::LazyLock;

use culvert_base::text::similar::nearest;
use culvert_cel::{Env, Error, ErrorKind, Limits, Slot, Type};

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

/// The error of an expression with its position, and what was probably meant.
pub(crate) fn explain(error: &Error, phase: Phase) -> String {
    let name = match &error.kind {
        ErrorKind::UnknownIdentifier { name } => name,
        ErrorKind::UnknownField { path } => path,
        ErrorKind::UnknownFunction { name } => {
            let functions = functions::ALL.iter().filter(|one| one.since <= phase);
            let names = functions.map(|one| one.extension.name);
            return with_hint(error, nearest(name, names));
        }
        ErrorKind::UnusableField { path } => {
            // Some variables exist in later phases only.
            let later = ALL.iter().find(|variable| *variable.path == *path);
            let later = later.filter(|variable| variable.since > phase);
            return match later {
                Some(variable) => format!("{error}; it exists from `{}` on", variable.since.name()),
                None => error.to_string(),
            };
        }
        _ => return error.to_string(),
    };
    let variables = ALL.iter().filter(|variable| variable.since <= phase);
    let paths = variables.map(|variable| &*variable.path);
    let paths = paths.filter(|path| !path.starts_with('('));
    let wanted = name.matches('.').count();
    // The beginning of a path is a name too: `req` and `req.url`.
    let cut = |path: &'static str| match path.match_indices('.').nth(wanted) {
        Some((at, _)) => path.get(..at).unwrap_or(path),
        None => path,
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    let near = nearest(name, paths.clone().map(cut));
    // A name without its object: `path` is `req.url.path`.
    let ends = || {
        paths
            .clone()
            .find(|path| path.rsplit('.').next() == Some(last))
    };
    with_hint(error, near.or_else(ends))
}

fn with_hint(error: &Error, meant: Option<&str>) -> String {
    match meant {
        Some(meant) if !error.message.contains("did you mean") => {
            format!("{error}; did you mean `{meant}`?")
        }
        _ => error.to_string(),
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
