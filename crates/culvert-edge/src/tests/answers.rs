//! Responses that the edge makes itself: chosen by `accept`, with code and ID.

use serde_json::{Value, json};

use super::harness::*;

#[tokio::test]
async fn browsers_get_html_errors_and_programs_json() {
    let rig = Rig::start().await;
    for (accept, media, begins) in [
        ("", "text/plain; charset=utf-8", "ERR_NGROK_3200: "),
        (
            "Accept: */*\r\n",
            "text/plain; charset=utf-8",
            "ERR_NGROK_3200: ",
        ),
        (
            "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n",
            "text/html; charset=utf-8",
            "<!doctype html>",
        ),
        ("Accept: application/json\r\n", "application/json", "{"),
        (
            "Accept: text/html;q=0.1, application/json\r\n",
            "application/json",
            "{",
        ),
    ] {
        let ask = format!("GET / HTTP/1.1\r\nHost: no.example\r\n{accept}\r\n");
        let answer = rig.ask(&ask).await;
        assert_eq!(answer.status, 404, "{accept}");
        assert_eq!(answer.header("content-type"), Some(media), "{accept}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3200"));
        let id = answer.header("culvert-request-id").unwrap();
        let text = answer.text();
        assert!(text.starts_with(begins), "{accept}: {text}");
        assert!(
            text.contains("ERR_NGROK_3200") && text.contains(id),
            "{text}"
        );
        if begins == "{" {
            let reported: Value = serde_json::from_str(text).unwrap();
            assert_eq!(
                reported,
                json!({
                    "error_code": "ERR_NGROK_3200", "status_code": 404,
                    "msg": "No endpoint is online at this host.", "details": {"request_id": id},
                })
            );
        }
    }
    // A rejected head gets a response too, which does not depend on its fields.
    let answer = rig
        .ask("GET / HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\nx y: z\r\n\r\n")
        .await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3601"));
    assert!(
        answer.text().starts_with("ERR_NGROK_3601: "),
        "{}",
        answer.text()
    );
}
