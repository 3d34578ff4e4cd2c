//! A target whose stored settings do not open, such as one at a port that the operator has denied since.

use std::sync::Arc;

use culvert_base::BoxFuture;

use crate::batch::{Batch, BatchLimits};
use crate::failure::{Failure, FailureClass};
use crate::target_type::{Target, TargetType};
use crate::verdict::Verdict;

/// A target that sends nothing and says why in each attempt. So the health of the destination shows it, alerts tell of it,
/// and its events wait and expire as those of any other destination that does not work. `ty` is its type, if that is known.
pub fn unopened(why: &str, ty: Option<&TargetType>) -> Arc<dyn Target> {
    // Batches that every type accepts.
    const SMALLEST: BatchLimits = BatchLimits {
        events_max: 1,
        bytes_max: usize::MAX,
    };
    Arc::new(Unopened {
        failure: Failure::new(FailureClass::Config, "settings", why),
        limits: ty.map_or(SMALLEST, |ty| ty.limits),
    })
}

#[derive(Debug)]
struct Unopened {
    failure: Failure,
    limits: BatchLimits,
}

impl Target for Unopened {
    fn send<'a>(&'a self, _: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async { Verdict::Failed(self.failure.clone()) })
    }

    fn limits(&self) -> BatchLimits {
        self.limits
    }
}
