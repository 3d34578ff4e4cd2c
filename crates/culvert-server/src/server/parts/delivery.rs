//! Delivery: the recorder, the dispatcher and its workers.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_delivery::Delivery;

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};

pub(super) struct Part {
    delivery: Arc<Delivery>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        Self {
            delivery: foundation.delivery.clone(),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Delivery
    }

    fn depends_on(&self) -> &'static [Name] {
        &[]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let run = |stop| self.delivery.clone().run(stop);
            start.tasks.start("delivery", run);
            Ok(())
        })
    }
}
