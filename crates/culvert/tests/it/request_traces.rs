//! Traces of requests, from the settings to a receiver of OpenTelemetry.

use std::io::Read;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

use crate::harness::{Backend, Harness, Received, Receiver, eventually, raw};

/// The spans of a request to a receiver.
fn spans(received: &Received) -> Vec<Span> {
    assert_eq!(received.path, "/v1/traces");
    assert_eq!(received.headers["content-type"], "application/x-protobuf");
    assert_eq!(received.headers["x-api-key"], "s3cr3t");
    let mut body = Vec::new();
    let mut packed = flate2::read::GzDecoder::new(&received.body[..]);
    packed.read_to_end(&mut body).unwrap();
    let message = ExportTraceServiceRequest::decode(&body[..]).unwrap();
    let scopes = message.resource_spans.into_iter();
    let scopes = scopes.flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

fn text(span: &Span, key: &str) -> String {
    let pair = span.attributes.iter().find(|pair| pair.key == key);
    match pair.and_then(|pair| pair.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_traced_from_the_edge_to_a_receiver() {
    let (receiver, origin) = (Receiver::start().await, Receiver::start().await);
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.tracing.otlp_endpoint = format!("http://{}", receiver.address);
        settings.tracing.headers = "x-api-key=s3cr3t".to_owned();
        settings.tracing.sample = "req.url.path == '/traced'".to_owned();
    })
    .await;
    let endpoint = culvert.endpoint("app", origin.address).await;
    assert_eq!(
        culvert.get("app.culvert.localhost", "/other").await.status,
        200
    );
    assert_eq!(
        culvert.get("app.culvert.localhost", "/traced").await.status,
        200
    );
    eventually("spans arrive", async || !receiver.received().is_empty()).await;
    let spans = spans(&receiver.received()[0]);
    let of_kind = |kind: SpanKind| spans.iter().find(|span| span.kind() == kind).unwrap();
    let (server, attempt) = (of_kind(SpanKind::Server), of_kind(SpanKind::Client));
    assert_eq!(text(server, "url.path"), "/traced");
    assert_eq!(
        text(server, "culvert.endpoint.id"),
        endpoint["id"].as_str().unwrap()
    );
    assert_eq!(attempt.parent_span_id, server.span_id);
    let hex = |id: &[u8]| {
        id.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let (trace, id) = (hex(&server.trace_id), hex(&attempt.span_id));
    let got = origin.received();
    let got = got
        .iter()
        .find(|request| request.path == "/traced")
        .unwrap();
    assert_eq!(got.headers["traceparent"], format!("00-{trace}-{id}-01"));
    // Only that one was recorded, and what was sent is counted.
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    eventually("it is counted", async || {
        let text = raw(culvert.metrics, request).await.text;
        text.contains("culvert_edge_traces_recorded_total 1\n")
            && text.contains(&format!(
                "culvert_edge_spans_exported_total {}\n",
                spans.len()
            ))
    })
    .await;
    culvert.stop().await;
}
