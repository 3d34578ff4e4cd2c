use serde_json::json;

use super::*;

fn event(kind: &str, object: Json) -> String {
    json!({
        "event_id": "ev_1", "event_type": kind, "event_timestamp": "2027-01-15T08:00:00.5Z",
        "account_id": "ac_1", "principal": {"id": "usr_1", "subject": "a@example.com"}, "object": object,
    })
    .to_string()
}

fn body(source: &str, envelope: &str) -> Result<TemplateBody, TemplateFault> {
    let template = BodyTemplate::compile(source).unwrap();
    template.body(envelope.as_bytes(), br#"{"class_uid":6003}"#)
}

fn json_of(source: &str, envelope: &str) -> Json {
    match body(source, envelope) {
        Ok(TemplateBody::Json(body)) => serde_json::from_slice(&body).unwrap(),
        other => panic!("no JSON: {other:?}"),
    }
}

fn traffic() -> String {
    let object = json!({
        "conn": {"client_ip": "203.0.113.9"},
        "http": {"response": {"status_code": 503}, "request": {"method": "GET"}},
    });
    event("http_request_complete.v0", object)
}

#[test]
fn maps_lists_and_texts_become_bodies() {
    let vault = event(
        "vault_created.v0",
        json!({"id": "vault_1", "name": "a \"b\"\n", "n": [1, 2.5, null]}),
    );
    let source = r#"{"text": event.object.name + "!", "at": event.event_timestamp, "n": event.object.n,
        "by": event.principal.subject, 3: size(event.object.n), "class": formatted.class_uid}"#;
    let expected = json!({
        "text": "a \"b\"\n!", "at": "2027-01-15T08:00:00.5Z", "n": [1, 2.5, null],
        "by": "a@example.com", "3": 3, "class": 6003,
    });
    assert_eq!(json_of(source, &vault), expected);
    assert_eq!(
        json_of("[event.event_type]", &vault),
        json!(["vault_created.v0"])
    );
    // A part of the event, and the whole event.
    assert_eq!(json_of("formatted", &vault), json!({"class_uid": 6003}));
    assert_eq!(json_of("event.object", &vault)["id"], "vault_1");
    assert_eq!(
        body("event.event_id + '\\n'", &vault),
        Ok(TemplateBody::Text("ev_1\n".to_owned()))
    );
    let source = "{'is_bad': event.object.http.response.status_code >= 500, 'ip': event.object.conn.client_ip}";
    assert_eq!(
        json_of(source, &traffic()),
        json!({"is_bad": true, "ip": "203.0.113.9"})
    );
    let source = "{'x': has(event.object.nope) ? 'yes' : 'no'}";
    assert_eq!(json_of(source, &vault), json!({"x": "no"}));
}

#[test]
fn mistakes_are_found_with_their_position_when_a_template_is_compiled() {
    for (source, expected) in [
        ("{'a': ", "1:7"),
        ("{'a': event.nope}", "1:13"),
        ("{\n 'a': other}", "2:7"),
        ("event.object.conn.client_ip + 1", "1:"),
        ("size(event.event_id)", "must be a map"),
        ("true", "must be a map"),
        ("{'a': nope(1)}", "1:"),
        // Nested too deeply to have a bounded cost.
        ("[1].map(a, [1].map(b, [1].map(c, [1].map(d, d))))", "1:"),
    ] {
        let error = BodyTemplate::compile(source).unwrap_err().to_string();
        assert!(error.contains(expected), "{source}: {error}");
    }
    assert!(BodyTemplate::compile(&format!("'{}'", "x".repeat(9000))).is_err());
}

#[test]
fn an_event_without_a_result_is_an_error_and_never_a_part_of_a_body() {
    let vault = event("vault_created.v0", json!({"id": "vault_1", "number": 7}));
    for source in [
        "{'a': event.object.nope}",
        "{'a': event.object.id, 'b': event.object.conn.client_ip}",
        "{'a': 1 / (event.object.number - 7)}",
    ] {
        let fault = body(source, &vault).unwrap_err();
        assert!(
            matches!(fault, TemplateFault::Evaluation(_)),
            "{source}: {fault}"
        );
    }
    assert_eq!(
        body("event.object.number", &vault),
        Err(TemplateFault::Kind)
    );
    assert!(body("event.object.nothing ? 'a' : 'b'", &vault).is_err());
    for source in ["{'a': b'x'}", "{'a': 1.0 / 0.0}", "{'a': int}"] {
        assert_eq!(
            body(source, &vault),
            Err(TemplateFault::Unwritable),
            "{source}"
        );
    }
}

#[test]
fn results_and_events_are_bounded() {
    // A field of another type than the catalogue has is missing, and not misread.
    let odd = event("vault_created.v0", json!({"conn": {"client_ip": 5}}));
    assert!(body("{'a': event.object.conn.client_ip}", &odd).is_err());
    // Twice a text of 200 KiB whose quotes take two bytes each.
    let long = event("vault_created.v0", json!({"a": "\"".repeat(200 << 10)}));
    assert_eq!(
        body("[event.object.a, event.object.a]", &long),
        Err(TemplateFault::TooLong)
    );
    assert!(body("[event.object.a]", &long).is_ok());
    let fault = body("{'a': event.object.a + event.object.a}", &long).unwrap_err();
    assert!(
        matches!(fault, TemplateFault::Evaluation(error) if error.is_limit()),
        "{fault}"
    );
    // The length of a list is known when the event is.
    let many = event("vault_created.v0", json!({"a": vec![1; 1000]}));
    let fault = body("event.object.a.map(x, event.object.a.map(y, x + y))", &many).unwrap_err();
    assert!(
        matches!(fault, TemplateFault::Evaluation(error) if error.is_limit()),
        "{fault}"
    );
    let mut deep = json!(1);
    for _ in 0..DEPTH_MAX {
        deep = json!([deep]);
    }
    let deep = event("vault_created.v0", json!({"a": deep}));
    assert_eq!(body("event.object", &deep), Err(TemplateFault::Event));
}
