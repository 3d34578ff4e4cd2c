//! A target that gets events in another format: OCSF or ECS.
//!
//! The queue has events as they are, so a change of the format applies to those that wait, and dead letters are readable.

use std::sync::Arc;

use culvert_base::BoxFuture;
use culvert_base::batch::Gathering;
use culvert_events::EventFormat;

use crate::batch::{Batch, BatchLimits, FORMAT_GROWTH};
use crate::failure::{Failure, FailureClass};
use crate::target::target_type::{Gathers, Run, Target};
use crate::target::verdict::Verdict;

/// The target, which gets events in this format.
pub fn formatted(target: Arc<dyn Target>, format: EventFormat) -> Arc<dyn Target> {
    match format {
        EventFormat::Json => target,
        EventFormat::Ocsf | EventFormat::Ecs => Arc::new(Formatted { target, format }),
    }
}

#[derive(Debug)]
struct Formatted {
    target: Arc<dyn Target>,
    format: EventFormat,
}

impl Formatted {
    fn batch(&self, batch: &Batch) -> Result<Batch, Failure> {
        batch.formatted(self.format).map_err(|_| {
            let text = "an event cannot be written in the format of the destination";
            Failure::new(FailureClass::Permanent, "format", text)
        })
    }
}

impl Target for Formatted {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let sent = match self.batch(batch) {
                Ok(sent) => sent,
                Err(failure) => return Verdict::Failed(failure),
            };
            if sent.len() > 1 && sent.lines().len() > self.target.limits().bytes_max {
                let text = "the batch exceeds the limit of the target in this format";
                return Verdict::Failed(Failure::new(FailureClass::Split, "format", text));
            }
            self.target.send(&sent).await
        })
    }

    fn limits(&self) -> BatchLimits {
        let limits = self.target.limits();
        BatchLimits {
            bytes_max: limits.bytes_max / FORMAT_GROWTH,
            ..limits
        }
    }

    fn gathers(&self) -> Option<&dyn Gathers> {
        self.target.gathers().map(|_| self as &dyn Gathers)
    }
}

impl Gathers for Formatted {
    fn gathering(&self) -> Gathering {
        let gathers = self.target.gathers();
        let gathers = gathers.expect("gathers() returns this for a target that gathers");
        let gathering = gathers.gathering();
        Gathering {
            bytes_max: gathering.bytes_max / FORMAT_GROWTH as u64,
            ..gathering
        }
    }

    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            match self.target.gathers() {
                Some(gathers) => gathers.put(&FormattedRun { run, to: self }).await,
                None => Ok(()),
            }
        })
    }
}

/// A run whose batches are formatted when they are read.
struct FormattedRun<'a> {
    run: &'a dyn Run,
    to: &'a Formatted,
}

impl Run for FormattedRun<'_> {
    fn batches(&self) -> usize {
        self.run.batches()
    }

    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>> {
        Box::pin(async move { self.to.batch(&self.run.batch(index).await?) })
    }
}
