//! The export of spans of traced requests.

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_destinations::spans::{SpanExporter, SpanReceiver};

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};

pub(super) struct Part {
    exporter: Option<SpanExporter>,
}

impl Part {
    /// `None` if this process traces no requests.
    pub(super) fn new(foundation: &Foundation) -> Result<Option<Self>> {
        let settings = &foundation.opened.settings;
        let tracer = foundation.edge.as_ref().and_then(|edge| edge.tracer());
        let (Some(tracer), Some(endpoint)) = (tracer, settings.tracing.receiver()?) else {
            return Ok(None);
        };
        let receiver = SpanReceiver {
            endpoint,
            headers: settings.tracing.headers()?,
            node: settings.node(),
            version: env!("CARGO_PKG_VERSION"),
        };
        let exporter = SpanExporter::new(tracer.clone(), receiver, foundation.delivery.net());
        Ok(Some(Self {
            exporter: Some(exporter),
        }))
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Tracing
    }

    /// The edge stops before it, so that the spans of the last requests are sent.
    fn depends_on(&self) -> &'static [Name] {
        &[Name::Delivery]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if let Some(exporter) = self.exporter.take() {
                let run = |stop: tokio_util::sync::CancellationToken| {
                    exporter.run(async move { stop.cancelled().await })
                };
                start.tasks.start("tracing", run);
            }
            Ok(())
        })
    }
}
