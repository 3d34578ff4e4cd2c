use culvert_base::Code;

use super::*;
use crate::{
    Capture, HTTP_REQUEST_COMPLETE, Int32, Slot as Handle, TCP_CONNECTION_CLOSED, Text, Time,
};

const CLIENT_IP: Handle<Text> = HTTP_REQUEST_COMPLETE.slot("conn.client_ip");
const SERVER_NAME: Handle<Text> = HTTP_REQUEST_COMPLETE.slot("conn.server_name");
const SERVER_PORT: Handle<Int32> = HTTP_REQUEST_COMPLETE.slot("conn.server_port");
const START: Handle<Time> = HTTP_REQUEST_COMPLETE.slot("conn.start_ts");

fn record() -> Record {
    let kind = &HTTP_REQUEST_COMPLETE;
    let mut record = Record::new(kind, Capture::all(kind), "ac_x".into());
    record.set(CLIENT_IP, "192.0.2.7");
    record.set(SERVER_NAME, "ngrok-docs-examples.ngrok.dev");
    record.set(SERVER_PORT, 443);
    record
}

#[track_caller]
fn accepts(source: &str, expected: bool) {
    let filter = Filter::compile(&HTTP_REQUEST_COMPLETE, source).unwrap();
    assert_eq!(filter.matches(&record()), Ok(expected), "{source}");
    Filter::compile(&TCP_CONNECTION_CLOSED, source).unwrap();
}

#[track_caller]
fn refuses(source: &str, code: u16, says: &str) {
    for kind in kinds::ALL {
        let refusal = Filter::compile(kind, source).unwrap_err();
        assert_eq!(
            refusal.code.map(Code::number),
            Some(code),
            "{source}: {refusal}"
        );
        assert!(refusal.message.contains(says), "{source}: {refusal}");
    }
}

#[test]
fn conditions_that_the_contract_accepts() {
    accepts(
        r#"ev.conn.server_name.matches("ngrok-docs-examples\\.ngrok\\.dev")"#,
        true,
    );
    accepts(
        r#"ev.conn.server_name.matches("ngrok-docs-examples\\.ngrok\\.dev") && ev.conn.server_port == 80"#,
        false,
    );
    accepts(
        r#"ev.conn.client_ip != "192.0.2.8" && ev.conn.server_name == "ngrok-docs-examples.ngrok.dev""#,
        true,
    );
    accepts("ev.conn.server_port in [80, 443]", true);
    accepts("true", true);
    accepts(r#"ev.conn.client_ip.startsWith("10.")"#, false);
    accepts("true // note", true);
    accepts("has(ev.conn.server_ip)", true);
    accepts(r#"ev["conn"]["server_port"] == 443"#, true);
}

#[test]
fn semantics_that_the_contract_asks_for() {
    for (source, expected) in [
        (r#"ev.conn.server_name.matches("docs")"#, true),
        (r#"ev.conn.server_name.matches("^docs")"#, false),
        (r#"ev.conn.server_name.matches("NGROK")"#, false),
        (r#"ev.conn.server_name.matches("(?i)NGROK")"#, true),
        (r#"matches(ev.conn.server_name, "dev$")"#, true),
        ("1/(ev.conn.server_port - 443) == 1 || true", true),
        ("true || 1/(ev.conn.server_port - 443) == 1", true),
        ("1/(ev.conn.server_port - 443) == 1 && false", false),
        ("[0,1].exists(x, 1/x == 1)", true),
        ("ev.conn.server_port == 443u", true),
        ("ev.conn.server_port == 443.0", true),
        ("ev.conn.server_port > 80.5", true),
        (r#""é".size() == 1"#, true),
        ("type(ev.conn.server_port) == int", true),
    ] {
        accepts(source, expected);
    }
}

#[test]
fn errors_that_are_not_absorbed_are_faults() {
    for source in [
        "1/(ev.conn.server_port - 443) == 1 || false",
        "1/(ev.conn.server_port - 443) == 1 && true",
        "!(1/(ev.conn.server_port - 443) == 1)",
    ] {
        let filter = Filter::compile(&HTTP_REQUEST_COMPLETE, source).unwrap();
        let fault = filter.matches(&record()).unwrap_err();
        assert!(fault.to_string().contains("division by zero"), "{fault}");
    }
}

#[test]
fn what_the_contract_refuses() {
    let usable = "usable: conn.client_ip, conn.server_ip, conn.server_name, conn.server_port, culvert.reason";
    refuses("", 5404, "1:1");
    refuses(" ", 5404, "1:2");
    refuses(r#"ev.http.request.method == "get""#, 5406, usable);
    refuses(
        r#"ev.http.request.method == "get""#,
        5406,
        r#""http.request.method""#,
    );
    refuses("ev.conn.nope == 1", 5405, r#""conn.nope""#);
    refuses(r#"principal.id == "x""#, 5404, "principal");
    refuses(r#"event_timestamp == "x""#, 5404, "event_timestamp");
    refuses("object == 1", 5404, "object");
    refuses("ev.conn.server_port", 5404, "bool");
    refuses(r#""a""#, 5404, "bool");
    refuses("1 + 1", 5404, "bool");
    refuses("ev.conn.server_name.foo()", 5404, "foo");
    refuses(r#"ev.conn.server_name.matches("(")"#, 5404, "1:");
    refuses(r#"ev.conn.server_name.matches("(?=a)")"#, 5404, "1:");
    refuses(
        r#"ev.conn.start_ts > timestamp("2024-01-01T00:00:00Z")"#,
        5406,
        r#""conn.start_ts""#,
    );
    refuses(r#""conn" in ev"#, 5404, "ev");
    refuses(&"true || ".repeat(600)[..4097], 5404, "");
}

#[test]
fn objects_are_no_values_and_paths_are_literal() {
    for source in [
        r#""x" in ev.conn"#,
        "ev.conn.exists(x, true)",
        "size(ev) == 1",
        "ev == null",
        r#"ev["co" + "nn"].server_port == 1"#,
    ] {
        refuses(source, 5404, "");
    }
    refuses("has(ev.nope)", 5405, "nope");
    refuses("has(ev.conn.nope)", 5405, "conn.nope");
    refuses("has(ev.http)", 5406, usable().as_str());
    refuses("has(ev.http.request)", 5406, "http.request");
    refuses("has(ev.conn.start_ts)", 5406, "conn.start_ts");
}

#[test]
fn types_and_dialect_are_checked() {
    for source in [
        r#"ev.conn.server_port == "443""#,
        r#"ev.conn.server_port > "80""#,
        "ev.conn.server_port + 1.0 > 1.0",
        r#"ev.conn.server_name.matches("\.dev")"#,
        r#"ev.conn.server_name.lowerAscii() == "a""#,
        "ev.?conn.server_port == 1",
        "ev.conn.server_port == 443 and true",
        "ev.conn.server_port = 443",
        "ev.conn.server_port && true",
        "!ev.conn.server_name",
        "$.conn.server_port == 443",
    ] {
        refuses(source, 5404, "filter, 1:");
    }
}

#[test]
fn positions_are_line_and_column() {
    refuses("true &&\n  ev.conn.nope == 1", 5405, "2:");
    refuses("true &&\n  )", 5404, "2:3");
}

#[test]
fn only_fields_that_are_read_are_captured() {
    let filter = Filter::compile(&HTTP_REQUEST_COMPLETE, "ev.conn.server_port == 443").unwrap();
    assert!(filter.capture().has(SERVER_PORT));
    assert!(!filter.capture().has(CLIENT_IP) && !filter.capture().has(START));
    let constant = Filter::compile(&HTTP_REQUEST_COMPLETE, "true").unwrap();
    assert!(constant.capture().is_none());
}

#[test]
fn fields_that_nothing_set_are_empty() {
    let kind = &HTTP_REQUEST_COMPLETE;
    let record = Record::new(kind, Capture::all(kind), "ac_x".into());
    let filter = Filter::compile(
        kind,
        r#"ev.conn.server_name == "" && ev.conn.server_port == 0"#,
    )
    .unwrap();
    assert_eq!(filter.matches(&record), Ok(true));
}

#[test]
fn every_filterable_field_can_be_used_with_every_kind() {
    for kind in kinds::ALL {
        for field in kind.fields {
            let source = format!("has(ev.{0}) && ev.{0} == ev.{0}", field.path);
            assert_eq!(
                Filter::compile(kind, &source).is_ok(),
                field.filterable,
                "{}",
                field.path
            );
        }
    }
}
