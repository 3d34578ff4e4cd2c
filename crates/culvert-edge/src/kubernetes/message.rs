//! The messages that turn a connection of a Kubernetes operator into one to an endpoint: protocol buffers, each after
//! its length in two bytes, the lower one first.

use std::io;

use culvert_policy::problem::Problem;
use culvert_policy::scheme::Scheme;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The request of an operator. Its annotations of the pod are not read.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConnRequest {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(int64, tag = "2")]
    pub(crate) port: i64,
    #[prost(message, optional, tag = "3")]
    pub(crate) pod: Option<PodIdentity>,
}

/// The pod whose connection it is, for the log.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodIdentity {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
}

/// The response: an endpoint, or an error.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConnResponse {
    #[prost(string, tag = "1")]
    pub(crate) endpoint_id: String,
    #[prost(string, tag = "2")]
    pub(crate) proto: String,
    #[prost(string, tag = "3")]
    pub(crate) error_code: String,
    #[prost(string, tag = "4")]
    pub(crate) error_message: String,
}

impl ConnRequest {
    /// Reads a message, and no byte after it.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let length = from.read_u16_le().await?;
        let mut bytes = vec![0; length.into()];
        from.read_exact(&mut bytes).await?;
        Ok(Self::decode(&*bytes)?)
    }
}

impl ConnResponse {
    pub(crate) fn accepted(endpoint_id: &str, scheme: Scheme) -> Self {
        Self {
            endpoint_id: endpoint_id.to_owned(),
            proto: scheme.name().to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn refused(problem: Problem, why: &str) -> Self {
        Self {
            error_code: problem.code(),
            error_message: why.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let message = self.encode_to_vec();
        let length = u16::try_from(message.len()).map_err(io::Error::other)?;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(message);
        to.write_all(&bytes).await?;
        to.flush().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A request as the official operator sends it, with fields that are not read.
    const RECORDED: &[u8] = b"_\x00\x0a\x08shop.web\x10\x90?\
        \x1aP\x0a$6c0b6d8e-0f57-4b1e-8a53-4c7b7d0f9a11\
        \x12\x07front-7\x1a\x03web\
        \"\x1a\x0a\x12k8s.ngrok.com/team\x12\x04shop";

    #[tokio::test]
    async fn a_recorded_operator_request_is_parsed() {
        let request = ConnRequest::read(&mut &*RECORDED).await.unwrap();
        assert_eq!((request.host.as_str(), request.port), ("shop.web", 8080));
        let pod = request.pod.unwrap();
        assert_eq!((&*pod.name, &*pod.namespace), ("front-7", "web"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            drop(runtime.block_on(ConnRequest::read(&mut &*bytes)));
        }
    }
}
