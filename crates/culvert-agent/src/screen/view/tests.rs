use culvert_tunnel::client::{EndpointStatus, SessionTrouble};

use super::*;

fn view() -> View {
    let endpoint = |url: &str, upstream: &str| EndpointStatus {
        url: url.into(),
        upstream: upstream.into(),
        ..EndpointStatus::default()
    };
    let status = Status {
        phase: Phase::Online,
        server: "tunnel.example.com:8441".into(),
        account: "Example".into(),
        region: "eu".into(),
        server_version: "0.0.1".into(),
        latency: Some(Duration::from_millis(21)),
        endpoints: vec![
            endpoint("https://app.example.com", "http://localhost:8080"),
            endpoint("tcp://tcp.example.com:20001", "tcp://localhost:5432"),
        ],
        ..Status::default()
    };
    let request = |status, path: &str| Request {
        at: "12:01:02.345".into(),
        method: "GET".into(),
        path: path.into(),
        status,
        took: Duration::from_millis(3),
    };
    View {
        sessions: vec![status],
        page_url: "http://127.0.0.1:4040".into(),
        connections: Reading {
            count: 12,
            open: 1,
            rates: [0.5, 0.25, 0.1],
            percentiles: [Duration::from_millis(5); 4],
        },
        requests: Some(vec![
            request(Some(200), "/a"),
            request(Some(502), "/b\u{1b}[31m"),
            request(None, "/c"),
        ]),
        problem: None,
        now: Instant::now(),
    }
}

fn shown(view: &View, columns: usize, rows: usize) -> Vec<String> {
    let lines = lines(view, columns, rows);
    let text = |line: &Line| line.iter().map(|(_, text)| &text[..]).collect::<String>();
    lines
        .iter()
        .map(|line| text(line).trim_end().to_owned())
        .collect()
}

#[test]
fn a_wide_screen_shows_everything() {
    let shown = shown(&view(), 80, 24);
    let expected = [
        "culvert                                                           Ctrl+C to stop",
        "",
        "Session      online",
        "Server       tunnel.example.com:8441",
        "Account      Example",
        &format!("Version      {}", env!("CARGO_PKG_VERSION")),
        "Region       eu",
        "Latency      21 ms",
        "Web page     http://127.0.0.1:4040",
        "Forwarding   https://app.example.com → http://localhost:8080",
        "             tcp://tcp.example.com:20001 → tcp://localhost:5432",
        "",
        "Connections  total     open      1m/s      5m/s      p50       p90",
        "             12        1         0.50      0.25      5.0 ms    5.0 ms",
        "",
        "HTTP requests",
        "12:01:02.345 GET     /a                        200 OK                     3.0 ms",
        "12:01:02.345 GET     /b\u{fffd}[31m                   502 Bad Gateway            3.0 ms",
        "12:01:02.345 GET     /c                        canceled                   3.0 ms",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn no_line_exceeds_any_width() {
    let mut view = view();
    view.problem = Some("the service is unreachable: connection refused ".repeat(9));
    view.sessions[0].trouble = Some(SessionTrouble {
        since: view.now,
        why: "x".repeat(200),
    });
    view.sessions[0].phase = Phase::Waiting;
    for columns in 0..120 {
        for rows in [0, 1, 10, 24] {
            let lines = lines(&view, columns, rows);
            assert!(lines.len() <= rows, "{columns}×{rows}");
            for line in lines {
                let used: usize = line.iter().map(|(_, text)| width(text)).sum();
                assert!(used <= columns, "{columns}: {line:?}");
            }
        }
    }
    let narrow = shown(&view, 40, 24);
    assert!(
        narrow.contains(&"Session      reconnecting for 0 ms".to_owned()),
        "{narrow:#?}"
    );
    let request = narrow.iter().find(|line| line.contains(" /a ")).unwrap();
    assert!(
        request.starts_with("12:01:02 GET  /a") && request.contains("200"),
        "{request}"
    );
}

#[test]
fn many_endpoints_leave_room_for_requests() {
    let mut view = view();
    let one = view.sessions[0].endpoints[0].clone();
    view.sessions[0].endpoints = vec![one; 50];
    let shown = shown(&view, 80, 24);
    assert!(shown.iter().any(|line| line.contains("more")), "{shown:#?}");
    assert!(
        shown.iter().any(|line| line.contains("GET     /a")),
        "{shown:#?}"
    );
}

#[test]
fn an_available_update_is_shown() {
    let mut view = view();
    view.sessions[0].server_version = "99.1.0".into();
    view.sessions[0].notices = vec!["Planned maintenance\u{7} tonight.".into()];
    let shown = shown(&view, 80, 24);
    let has = |text: &str| shown.iter().any(|line| line.contains(text));
    assert!(
        has("the server has 99.1.0: update this agent"),
        "{shown:#?}"
    );
    assert!(
        has("Notice       Planned maintenance\u{fffd} tonight."),
        "{shown:#?}"
    );
}
