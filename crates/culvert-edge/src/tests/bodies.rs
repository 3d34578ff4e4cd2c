//! Bodies that policies compress and change, and what events say of them (contract: traffic policy 8.4
//! and 8.10, events 7.2).

use std::io::Read;
use std::sync::Arc;

use culvert_policy::Scheme;
use serde_json::json;
use tokio::sync::Notify;

use super::harness::*;
use super::policies::{governed, last_event, publish};
use super::streams::{connect, frames, nothing};
use crate::Snapshot;

const COMPRESS: &str = "on_http_response: [{actions: [{type: compress-response, config: {algorithms: [br, gzip, deflate]}}]}]";

fn ask(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: app.example\r\n{fields}\r\n")
}

/// What a coded body stands for.
fn plain(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut plain),
        "deflate" => flate2::read::ZlibDecoder::new(body).read_to_end(&mut plain),
        _ => brotli::Decompressor::new(body, 4096).read_to_end(&mut plain),
    }
    .unwrap();
    plain
}

/// An origin whose responses have these fields and 40 KB of text.
async fn origin_with(rig: &mut Rig, status: &'static str, fields: &'static str) -> String {
    let origin = origin(&mut rig.tasks, move |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let body = "some words ".repeat(4_000);
            let answer = format!(
                "HTTP/1.1 {status}\r\n{fields}content-length: {}\r\n\r\n",
                body.len()
            );
            let has_body = !head.starts_with("HEAD") && !status.starts_with(['2', '3'])
                || status.starts_with("20") && !status.starts_with("204");
            client.send(answer).await;
            if has_body && !head.starts_with("HEAD") {
                client.send(body).await;
            }
        }
    })
    .await;
    format!("http://{origin}")
}

#[tokio::test]
async fn a_response_is_compressed_with_the_coding_that_the_client_prefers() {
    let mut rig = Rig::start().await;
    let origin = origin_with(
        &mut rig,
        "200 OK",
        "etag: \"v\"\r\naccept-ranges: bytes\r\n",
    )
    .await;
    publish(&rig, &origin, COMPRESS).await;
    for (n, (accept, coding)) in [
        ("gzip, deflate, br", "br"),
        ("gzip, deflate, br;q=0.9", "gzip"),
        ("deflate", "deflate"),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = rig
            .ask(&ask(&format!("Accept-Encoding: {accept}\r\n")))
            .await;
        assert_eq!(answer.header("content-encoding"), Some(coding));
        assert_eq!(answer.header("vary"), Some("Accept-Encoding"));
        assert_eq!(answer.header("etag"), Some("W/\"v\""));
        assert_eq!(answer.header("content-length"), None);
        assert_eq!(answer.header("accept-ranges"), None);
        assert_eq!(
            plain(coding, &answer.body),
            "some words ".repeat(4_000).as_bytes()
        );
        let reported = last_event(&rig, 2 * n + 1).await;
        let length = reported["http"]["response"]["body_length"]
            .as_i64()
            .unwrap();
        assert_eq!(length, i64::try_from(answer.body.len()).unwrap());
        assert_eq!(
            reported["compression"],
            json!({"algorithm": coding, "bytes_saved": 44_000 - length})
        );
        rig.recorder.events(2 * n + 2).await;
    }
}

#[tokio::test]
async fn responses_that_must_not_be_compressed_pass_unchanged() {
    let mut rig = Rig::start().await;
    let gzip = "Accept-Encoding: gzip\r\n";
    let mut count = 0;
    // Whether others may get a coding.
    let varies = Some("Accept-Encoding");
    for (status, fields, ask_fields, vary) in [
        ("200 OK", "", "", varies),
        (
            "200 OK",
            "",
            "Accept-Encoding: identity, gzip;q=0.5\r\n",
            varies,
        ),
        ("200 OK", "content-encoding: zstd\r\n", gzip, None),
        (
            "200 OK",
            "cache-control: public, No-Transform\r\n",
            gzip,
            None,
        ),
        (
            "200 OK",
            "content-type: text/event-stream; x=y\r\n",
            gzip,
            None,
        ),
        (
            "206 Partial Content",
            "content-range: bytes 0-43999/99999\r\n",
            gzip,
            varies,
        ),
        ("304 Not Modified", "", gzip, varies),
        ("304 Not Modified", "content-encoding: br\r\n", gzip, None),
        ("200 OK", "content-type: application/grpc\r\n", gzip, None),
    ] {
        let origin = origin_with(&mut rig, status, fields).await;
        publish(&rig, &origin, COMPRESS).await;
        let mut client = rig.connect().await;
        client.send(ask(ask_fields)).await;
        let answer = client.answer("GET").await;
        let what = format!("{status} {fields} {ask_fields}");
        let expected = fields.strip_prefix("content-encoding: ").map(str::trim);
        assert_eq!(answer.header("content-encoding"), expected, "{what}");
        assert_eq!(answer.header("vary"), vary, "{what}");
        if !status.starts_with('3') {
            assert_eq!(answer.body.len(), 44_000, "{what}");
        }
        drop(client);
        count += 2;
        let reported = last_event(&rig, count).await;
        let nothing = json!({"algorithm": "none", "bytes_saved": 0});
        assert_eq!(reported["compression"], nothing, "{what}");
    }
}

#[tokio::test]
async fn compressed_bytes_are_flushed_when_the_upstream_pauses() {
    let mut rig = Rig::start().await;
    let go_on = Arc::new(Notify::new());
    let waits = Arc::clone(&go_on);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let go_on = Arc::clone(&waits);
        async move {
            client.request().await;
            let head = "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
            client.send(head).await;
            go_on.notified().await;
            client.send("6\r\nsecond\r\n0\r\nx-sum: 1\r\n\r\n").await;
            client.rest().await;
        }
    })
    .await;
    publish(&rig, &format!("http://{origin}"), COMPRESS).await;
    let mut client = rig.connect().await;
    client
        .send(ask("Accept-Encoding: deflate\r\nTE: trailers\r\n"))
        .await;
    let head = client.head().await.unwrap();
    assert!(head.contains("content-encoding: deflate"), "{head}");
    // The first words can be read before the second are sent.
    let mut decoder = flate2::Decompress::new(true);
    let mut out = Vec::with_capacity(64);
    while out != b"first" {
        while find(&client.read, b"\r\n").is_none() {
            assert!(client.more().await);
        }
        let at = find(&client.read, b"\r\n").unwrap();
        let size = std::str::from_utf8(&client.read[..at]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let chunk = client.take(at + 2 + size + 2).await.unwrap();
        decoder
            .decompress_vec(
                &chunk[at + 2..][..size],
                &mut out,
                flate2::FlushDecompress::None,
            )
            .unwrap();
    }
    go_on.notify_one();
    let (rest, trailers) = client.body("transfer-encoding: chunked").await.unwrap();
    decoder
        .decompress_vec(&rest, &mut out, flate2::FlushDecompress::Finish)
        .unwrap();
    assert_eq!(out, b"firstsecond");
    assert_eq!(trailers, "x-sum: 1\n");
    let reported = last_event(&rig, 1).await;
    assert_eq!(reported["compression"]["algorithm"], "deflate");
    let (length, saved) = (
        &reported["http"]["response"]["body_length"],
        &reported["compression"]["bytes_saved"],
    );
    assert_eq!(length.as_i64().unwrap() + saved.as_i64().unwrap(), 11);
}

/// What a cache keeps of HEAD and 304 fits what it keeps of GET.
#[tokio::test]
async fn head_and_not_modified_have_the_fields_of_get() {
    let mut rig = Rig::start().await;
    for accept in ["", "Accept-Encoding: gzip\r\n"] {
        let mut seen = Vec::new();
        for (status, method) in [
            ("200 OK", "GET"),
            ("200 OK", "HEAD"),
            ("304 Not Modified", "GET"),
        ] {
            let origin = origin_with(&mut rig, status, "etag: \"v\"\r\n").await;
            publish(&rig, &origin, COMPRESS).await;
            let mut client = rig.connect().await;
            client.send(ask(accept).replacen("GET", method, 1)).await;
            let answer = client.answer(method).await;
            let field = |name| answer.header(name).map(str::to_owned);
            seen.push((field("etag"), field("vary"), field("content-encoding")));
        }
        let [get, head, unchanged] = &seen[..] else {
            unreachable!()
        };
        assert_eq!(get, head, "{accept}");
        // A 304 has no body, and so no coding.
        assert_eq!((&get.0, &get.1), (&unchanged.0, &unchanged.1), "{accept}");
        let tag = if accept.is_empty() {
            "\"v\""
        } else {
            "W/\"v\""
        };
        assert_eq!(get.0.as_deref(), Some(tag));
        assert_eq!(get.1.as_deref(), Some("Accept-Encoding"));
    }
}

#[tokio::test]
async fn responses_of_the_edge_are_compressed() {
    let rig = Rig::start().await;
    publish(
        &rig,
        "",
        "
on_http_request: [{actions: [{type: custom-response, config: {body: '${\"long \" + \"text text text text text text text text text text\"}'}}]}]
on_http_response:
- actions:
  - {type: compress-response}
  - {type: add-headers, config: {headers: {x-coding: '${actions.culvert.compress.negotiated_algorithm}', x-was: '${actions.ngrok.compress.already_compressed}'}}}
",
    )
    .await;
    let answer = rig.ask(&ask("Accept-Encoding: br, gzip\r\n")).await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert_eq!(answer.header("x-coding"), Some("gzip"));
    assert_eq!(answer.header("x-was"), Some("false"));
    assert!(plain("gzip", &answer.body).starts_with(b"long text"));
}

/// An origin that returns the head and the body of each request, in gzip if the client accepts it.
async fn mirror(rig: &mut Rig) -> String {
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, body)) = client.request().await {
            let text = [head.as_bytes(), &body].concat();
            let takes = head.contains("accept-encoding: gzip");
            let (text, coding) = if takes {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut encoder, &text).unwrap();
                (encoder.finish().unwrap(), "content-encoding: gzip\r\n")
            } else {
                (text, "")
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\n{coding}content-length: {}\r\n\r\n",
                text.len()
            );
            client.send([head.as_bytes(), &text].concat()).await;
        }
    })
    .await;
    format!("http://{origin}")
}

#[tokio::test]
async fn matches_in_bodies_are_replaced() {
    let mut rig = Rig::start().await;
    let origin = mirror(&mut rig).await;
    publish(
        &rig,
        &origin,
        "
on_http_request:
- actions:
  - type: request-body-find-replace
    config:
      replacements:
      - {from: 'secret-(\\d+)', to: 'public-$1-${req.method}'}
      - {from: '${\"xy\" + \"z\"}', to: ''}
on_http_response:
- actions:
  - {type: compress-response}
  - {type: response-body-find-replace, config: {replacements: [{from: '(?i)host: app', to: 'host: you'}]}}
",
    )
    .await;
    let body = "a secret-12 xyz secret-3";
    let post = |fields: &str, body: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: app.example\r\n{fields}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let answer = rig.ask(&post("Content-Digest: x\r\n", body)).await;
    let text = answer.text();
    assert!(
        text.ends_with("\r\n\r\na public-12-POST  public-3-POST"),
        "{text}"
    );
    let lower = text.to_ascii_lowercase();
    assert!(lower.contains("\r\ncontent-length: 31\r\n"), "{text}");
    assert!(!lower.contains("content-digest"), "{text}");
    assert!(text.contains("host: you.example"), "{text}");
    let reported = last_event(&rig, 1).await;
    assert_eq!(reported["http"]["request"]["body_length"], 24);

    // Text in a compressed body is replaced as well, and the body is compressed again for the client.
    let answer = rig.ask(&post("Accept-Encoding: gzip\r\n", body)).await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    let text = String::from_utf8(plain("gzip", &answer.body)).unwrap();
    assert!(
        text.contains("host: you.example") && text.ends_with("public-3-POST"),
        "{text}"
    );

    // Chunks of an unknown length, and bodies that are too long.
    let chunked = "POST / HTTP/1.1\r\nHost: app.example\r\ntransfer-encoding: chunked\r\n\r\n9\r\nsecret-77\r\n0\r\n\r\n";
    let answer = rig.ask(chunked).await;
    assert!(
        answer.text().ends_with("\r\n\r\npublic-77-POST"),
        "{}",
        answer.text()
    );
    let long = "x".repeat((1 << 20) + 1);
    assert_eq!(rig.ask(&post("", &long)).await.status, 413);
    // No coding prevents a replacement.
    for coding in ["zstd", "x-own", "gzip", "br, gzip"] {
        let coded = post(&format!("Content-Encoding: {coding}\r\n"), body);
        let answer = rig.ask(&coded).await;
        assert_eq!(answer.status, 400, "{coding}: {}", answer.text());
    }
    // Nothing to replace, nothing to hold: no body.
    assert_eq!(rig.ask(&ask("")).await.status, 200);
}

#[tokio::test]
async fn a_response_too_long_to_search_is_refused() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            let body = "x".repeat((1 << 20) + 1);
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                ))
                .await;
        }
    })
    .await;
    let policy = "on_http_response: [{actions: [{type: response-body-find-replace, config: {replacements: [{from: x, to: y}]}}]}]";
    let endpoint = governed(Scheme::Http, &format!("http://{origin}"), policy);
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    let answer = rig.ask(&ask("")).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3614"));
}

/// A client that leaves while a policy reads its body: no response is sent, and the event has no
/// status.
#[tokio::test]
async fn a_body_aborted_while_a_policy_reads_it_gets_no_response() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    let (names, key, root) = certificate(&["app.example"]);
    for action in [
        "type: verify-webhook, config: {provider: github, secret: s3cret}",
        "type: request-body-find-replace, config: {replacements: [{from: a, to: b}]}",
    ] {
        let policy = format!(
            "on_http_request: [{{expressions: [req.method == 'POST'], actions: [{{{action}}}]}}]"
        );
        let governed = |scheme| governed(scheme, &format!("http://{origin}"), &policy);
        let snapshot = Snapshot::builder()
            .endpoint(governed(Scheme::Http))
            .endpoint(governed(Scheme::Https))
            .certificate(names.clone(), Arc::clone(&key));
        rig.edge.publish(snapshot.build()).await;

        // HTTP/2, by a reset.
        let mut sender = connect(&mut rig, &root).await;
        let before = rig.recorder.count();
        let (send, body) = frames();
        let request = http::Request::post("https://app.example/").body(body);
        let answer = sender.send_request(request.unwrap());
        send.send(hyper::body::Frame::data("abc".into()))
            .await
            .unwrap();
        tokio::select! {
            _ = answer => panic!("nobody answers"),
            () = async {
                // What was sent has arrived when a later request is answered.
                let request = http::Request::get("https://app.example/").body(nothing());
                sender.clone().send_request(request.unwrap()).await.unwrap();
            } => {}
        }
        let reported = posted(&rig, before, 2).await;
        assert_eq!(reported["response"]["status_code"], json!(null), "{action}");
        assert_eq!(reported["request"]["body_length"], 3, "{action}");

        // HTTP/1, by its end.
        let before = rig.recorder.count();
        let mut client = rig.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 9\r\n\r\nabc")
            .await;
        drop(client);
        let reported = posted(&rig, before, 1).await;
        assert_eq!(reported["response"]["status_code"], json!(null), "{action}");
    }
}

/// The event of the POST, among this number of new ones.
async fn posted(rig: &Rig, before: usize, count: usize) -> serde_json::Value {
    let events = rig.recorder.events(before + count).await;
    let http = of(&events[before..], HTTP);
    let mut http = http.iter().map(|event| &event["object"]["http"]);
    let posted = http.find(|http| http["request"]["method"] == "post");
    posted.expect("the event of the POST").clone()
}
