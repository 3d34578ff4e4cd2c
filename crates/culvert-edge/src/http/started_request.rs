//! A request that has begun, on one of two paths.

use std::sync::Arc;

use culvert_http::http1::RawRequest;
use http::{Version, request};

use crate::connection::downstream::Downstream;
use crate::http::pipeline;
use crate::http::plain::{self, ClientResponse, NotPlain, PlainExchange};
use crate::http::request_body::Upload;
use crate::http::response::Abandoned;

/// A request that has begun.
#[allow(
    clippy::large_enum_variant,
    reason = "the common one is large, and is not allocated"
)]
pub(crate) enum StartedRequest {
    /// On the path of plain requests.
    Plain(PlainExchange),
    /// In the pipeline.
    General(Box<request::Parts>),
}

impl StartedRequest {
    /// Begins a request whose head is text. If it is not plain, returns the head; the request then takes the pipeline with
    /// a map of its fields. `read_maps` is called if the next requests of the connection probably take it too.
    pub(crate) fn plain(
        down: &Arc<Downstream>,
        raw: Box<RawRequest>,
        version: Version,
        read_maps: impl FnOnce(),
    ) -> Result<Self, Box<RawRequest>> {
        match plain::begin(down, raw, version) {
            Ok(exchange) => Ok(Self::Plain(exchange)),
            Err(NotPlain {
                raw,
                is_likely_again,
            }) => {
                if is_likely_again {
                    read_maps();
                }
                Err(raw)
            }
        }
    }

    /// The head, if the request takes the pipeline.
    pub(crate) fn parts(&self) -> Option<&request::Parts> {
        match self {
            Self::Plain(_) => None,
            Self::General(head) => Some(head),
        }
    }

    /// Serves the request.
    pub(crate) async fn serve(
        self,
        down: &Arc<Downstream>,
        body: Upload,
    ) -> Result<ClientResponse, Abandoned> {
        match self {
            Self::Plain(exchange) => exchange.serve(body).await,
            Self::General(head) => {
                // Boxed, so that a plain request is small.
                let served = Box::pin(pipeline::serve(Arc::clone(down), head, body));
                served.await.map(ClientResponse::from)
            }
        }
    }
}
