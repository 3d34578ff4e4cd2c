//! `Expect: 100-continue`: the upstream decides whether the client sends its body.

use tokio::sync::mpsc;

use super::harness::*;

const POST: &str =
    "POST / HTTP/1.1\r\nHost: app.example\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";

/// What an origin does with a head that expects 100 (Continue).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Asks for the body.
    Asks,
    /// Reads it without a word, as old servers do.
    IsOld,
    /// Responds with 401 and reads no body.
    Refuses,
}

/// A rig with an origin, and the heads that the origin gets.
async fn rig(origin_is: Origin) -> (Rig, mpsc::Receiver<String>) {
    let (heads, heard) = mpsc::channel(100);
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, move |mut client| {
        let heads = heads.clone();
        async move {
            while let Some(head) = client.head().await {
                let expects = head.contains("expect: 100-continue\r\n");
                heads.send(head.clone()).await.unwrap();
                if origin_is == Origin::Refuses && expects {
                    client
                        .send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno")
                        .await;
                    // A body that came nevertheless would be read as a request.
                    continue;
                }
                if origin_is == Origin::Asks && expects {
                    client.send("HTTP/1.1 100 Continue\r\n\r\n").await;
                }
                let Some((body, _)) = client.body(&head).await else {
                    return;
                };
                let length = body.len();
                client
                    .send(format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{length}"
                    ))
                    .await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    (rig, heard)
}

#[tokio::test]
async fn an_upstream_that_asks_for_the_body_gets_it() {
    for origin_is in [Origin::Asks, Origin::IsOld] {
        let (rig, mut heard) = rig(origin_is).await;
        let mut client = rig.connect().await;
        for _ in 0..2 {
            client.send(POST).await;
            assert!(client.head().await.unwrap().starts_with("HTTP/1.1 100"));
            client.send("abc").await;
            let answer = client.answer("POST").await;
            assert_eq!((answer.text(), answer.header("connection")), ("3", None));
            assert!(heard.recv().await.unwrap().contains("expect: 100-continue"));
        }
        // The connection to the upstream is used again.
        assert_eq!(rig.edge.meters().upstream_connects.get(), 1);
    }
}

#[tokio::test]
async fn a_refusal_arrives_before_the_body_and_ends_both_connections() {
    let (rig, mut heard) = rig(Origin::Refuses).await;
    for n in 1..=3 {
        let mut client = rig.connect().await;
        client.send(POST).await;
        let answer = client.answer("POST").await;
        assert_eq!((answer.status, answer.text()), (401, "no"));
        assert_eq!(answer.header("connection"), Some("close"));
        // Whether the body follows is not known, so no other request does.
        client.send("abc").await;
        client.send(POST).await;
        assert_eq!(client.rest().await, b"");
        assert!(heard.recv().await.unwrap().contains("expect: 100-continue"));
        assert_eq!(rig.edge.meters().upstream_connects.get(), n);
    }
    assert!(heard.try_recv().is_err(), "a body was read as a request");
}

#[tokio::test]
async fn only_clients_that_wait_for_100_continue_get_it() {
    let (rig, mut heard) = rig(Origin::Asks).await;
    let old = POST.replace("HTTP/1.1", "HTTP/1.0") + "abc";
    let without = POST.replace("Expect: 100-continue\r\n", "") + "abc";
    let ahead = POST.to_owned() + "abc";
    for request in [old, without, ahead] {
        let mut client = rig.connect().await;
        client.send(&request).await;
        let head = client.head().await.unwrap();
        assert_eq!(head.get(8..12), Some(" 200"), "{request}: {head}");
        let closes = head.contains("connection: close\r\n");
        assert_eq!(closes, request.contains("HTTP/1.0"), "{request}: {head}");
        assert!(!heard.recv().await.unwrap().contains("expect"), "{request}");
    }
    for (request, status) in [
        (POST.replace("100-continue", "magic") + "abc", 417),
        (POST.replace("app.example", "missing.example") + "abc", 404),
    ] {
        assert_eq!(rig.ask(&request).await.status, status);
    }
    let unread = POST.replace("app.example", "missing.example");
    let answer = rig.ask(&unread).await;
    assert_eq!(
        (answer.status, answer.header("connection")),
        (404, Some("close"))
    );
    assert!(heard.try_recv().is_err());
}
