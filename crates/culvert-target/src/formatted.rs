//! A target that gets events in another format: OCSF or ECS.
//!
//! The queue has events as they are, so a change of the format applies to those that wait, and dead letters are readable.

use std::sync::Arc;

use culvert_base::BoxFuture;
use culvert_base::batch::Gathering;
use culvert_events::EventFormat;

use crate::batch::{Batch, BatchLimits, FORMAT_GROWTH};
use crate::failure::{Failure, FailureClass};
use crate::target_type::{Gathers, Run, Target};
use crate::verdict::Verdict;

/// The target, which gets events in this format.
pub fn formatted(target: Arc<dyn Target>, format: EventFormat) -> Arc<dyn Target> {
    let format = match format {
        EventFormat::Json => return target,
        EventFormat::Ocsf | EventFormat::Ecs => Format(format),
    };
    let gathering = target.gathers().map(Gathers::gathering);
    let gathers = gathering.map(|gathering| FormattedGathers {
        target: Arc::clone(&target),
        format,
        gathering: Gathering {
            bytes_max: gathering.bytes_max / FORMAT_GROWTH as u64,
            ..gathering
        },
    });
    Arc::new(Formatted {
        target,
        format,
        gathers,
    })
}

/// A format that is not the events' own.
#[derive(Clone, Copy, Debug)]
struct Format(EventFormat);

impl Format {
    fn batch(self, batch: &Batch) -> Result<Batch, Failure> {
        batch.formatted(self.0).map_err(|_| {
            let text = "an event cannot be written in the format of the destination";
            Failure::new(FailureClass::Permanent, "format", text)
        })
    }
}

#[derive(Debug)]
struct Formatted {
    target: Arc<dyn Target>,
    format: Format,
    gathers: Option<FormattedGathers>,
}

/// The interface of a target that makes one object of many batches.
#[derive(Debug)]
struct FormattedGathers {
    target: Arc<dyn Target>,
    format: Format,
    gathering: Gathering,
}

impl Target for Formatted {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let sent = match self.format.batch(batch) {
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
        self.gathers.as_ref().map(|gathers| gathers as &dyn Gathers)
    }
}

impl Gathers for FormattedGathers {
    fn gathering(&self) -> Gathering {
        self.gathering
    }

    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let format = self.format;
            match self.target.gathers() {
                Some(gathers) => gathers.put(&FormattedRun { run, format }).await,
                None => {
                    let text = "the target does not write objects of many batches";
                    Err(Failure::new(FailureClass::Config, "format", text))
                }
            }
        })
    }
}

/// A run whose batches are formatted when they are read.
struct FormattedRun<'a> {
    run: &'a dyn Run,
    format: Format,
}

impl Run for FormattedRun<'_> {
    fn batches(&self) -> usize {
        self.run.batches()
    }

    fn batch(&self, index: usize) -> BoxFuture<'_, Result<Batch, Failure>> {
        Box::pin(async move { self.format.batch(&self.run.batch(index).await?) })
    }
}
