//! What the screen shows, as lines of styled text for a given size.

use std::time::{Duration, Instant};

use culvert_tunnel::client::{Phase, Reading, Status};

use super::text::{clean, duration, fit, pad, width, wrap};

/// Columns of the labels.
const LABEL: usize = 13;
/// Below this width, the tables have fewer columns.
const WIDE: usize = 60;
/// Minimum number of lines for requests.
const REQUESTS_MIN: usize = 4;

/// The look of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
}

/// A text with one look.
pub(crate) type Span = (Style, String);
/// A line, no wider than the screen.
pub(crate) type Line = Vec<Span>;

/// The state to show. Texts in it may be hostile.
#[derive(Debug)]
pub(crate) struct View {
    /// The status of each session; the first has the endpoints.
    pub sessions: Vec<Status>,
    /// URL of the agent's page; empty without one.
    pub page_url: String,
    /// The meters of all endpoints together.
    pub connections: Reading,
    /// The newest requests, newest first. `None` if requests are not recorded.
    pub requests: Option<Vec<Request>>,
    /// The last problem, such as an unreachable service.
    pub problem: Option<String>,
    /// The time of the view.
    pub now: Instant,
}

/// A request in the list.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Local time, `HH:MM:SS.mmm`.
    pub at: String,
    pub method: String,
    pub path: String,
    /// The status that the client got, if known.
    pub status: Option<u16>,
    pub took: Duration,
}

/// The lines of a screen, at most `height` of at most `width` columns.
pub(crate) fn lines(view: &View, width: usize, height: usize) -> Vec<Line> {
    let mut lines = head(view, width);
    let first = view.sessions.first();
    let endpoints = first
        .map(|status| forwarding(status, width))
        .unwrap_or_default();
    let table = connections(&view.connections, width);
    let room = height
        .saturating_sub(lines.len() + table.len() + REQUESTS_MIN)
        .max(1);
    let hidden = endpoints.len().saturating_sub(room);
    if hidden > 0 {
        let shown = room.saturating_sub(1);
        let rest = endpoints.len() - shown;
        lines.extend(endpoints.into_iter().take(shown));
        lines.push(labelled(
            "",
            Style::Faint,
            &format!("… and {rest} more"),
            width,
        ));
    } else {
        lines.extend(endpoints);
    }
    lines.extend(table);
    if let Some(requests) = &view.requests {
        lines.push(Vec::new());
        lines.push(vec![(Style::Strong, fit("HTTP requests", width))]);
        let room = height.saturating_sub(lines.len());
        lines.extend(requests.iter().take(room).map(|it| request(it, width)));
        if requests.is_empty() {
            lines.push(vec![(Style::Faint, fit("No requests yet", width))]);
        }
    }
    lines.truncate(height);
    lines
}

fn head(view: &View, columns: usize) -> Vec<Line> {
    let title = "culvert";
    let is_stopping = view
        .sessions
        .iter()
        .any(|status| status.phase == Phase::Stopping);
    let hint = match is_stopping {
        true => "Ctrl+C again to stop now",
        false => "Ctrl+C to stop",
    };
    let gap = columns.saturating_sub(title.len() + hint.len());
    let mut lines = vec![
        match gap {
            0 => vec![(Style::Strong, fit(title, columns))],
            gap => vec![
                (Style::Strong, title.into()),
                (Style::Faint, format!("{}{hint}", " ".repeat(gap))),
            ],
        },
        Vec::new(),
    ];
    let mut row = |label: &str, style, value: &str| {
        if !value.is_empty() {
            lines.push(labelled(label, style, value, columns));
        }
    };
    for status in &view.sessions {
        let (style, value) = session(status, view.now);
        row("Session", style, &value);
        if let Some(trouble) = &status.trouble {
            row("", Style::Bad, &trouble.why);
        }
        row("Server", Style::Plain, &status.server);
    }
    let Some(status) = view.sessions.first() else {
        return lines;
    };
    row("Account", Style::Plain, &status.account);
    row("Version", Style::Plain, &version(status));
    row("Region", Style::Plain, &status.region);
    if let Some(latency) = status.latency {
        row("Latency", Style::Plain, &duration(latency));
    }
    row("Web page", Style::Plain, &view.page_url);
    let notices = status
        .notices
        .iter()
        .map(|it| ("Notice", Style::Warning, it));
    let problem = view.problem.iter().map(|it| ("Problem", Style::Bad, it));
    for (label, style, text) in notices.chain(problem) {
        let wrapped = wrap(&clean(text), columns.saturating_sub(LABEL), 3);
        for (nth, line) in wrapped.iter().enumerate() {
            let label = if nth == 0 { label } else { "" };
            lines.push(labelled(label, style, line, columns));
        }
    }
    lines
}

fn session(status: &Status, now: Instant) -> (Style, String) {
    let since = status.trouble.as_ref().map(|trouble| {
        let lasts = now.saturating_duration_since(trouble.since);
        duration(Duration::from_secs(lasts.as_secs()))
    });
    match (status.phase, since) {
        (Phase::Online, _) => (Style::Good, "online".into()),
        (Phase::Stopping, _) => (Style::Warning, "stopping".into()),
        (Phase::Connecting | Phase::Waiting, Some(since)) => {
            (Style::Bad, format!("reconnecting for {since}"))
        }
        (Phase::Connecting | Phase::Waiting, None) => (Style::Warning, "connecting".into()),
    }
}

/// The agent's version, and the server's if it is newer.
fn version(status: &Status) -> String {
    let own = env!("CARGO_PKG_VERSION");
    let numbers = |text: &str| -> Vec<u64> {
        let core = text.split(['-', '+']).next().unwrap_or_default();
        core.split('.')
            .map_while(|part| part.parse().ok())
            .collect()
    };
    match numbers(&status.server_version) > numbers(own) {
        true => format!(
            "{own}, the server has {}: update this agent",
            status.server_version
        ),
        false => own.into(),
    }
}

fn labelled(label: &str, style: Style, value: &str, columns: usize) -> Line {
    let value = fit(&clean(value), columns.saturating_sub(LABEL));
    vec![
        (Style::Faint, pad(label, LABEL.min(columns))),
        (style, value),
    ]
}

/// The endpoints. On a narrow screen, each takes two lines.
fn forwarding(status: &Status, columns: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let shown = status.endpoints.iter().filter(|it| !it.is_gone);
    for (nth, endpoint) in shown.enumerate() {
        let label = if nth == 0 { "Forwarding" } else { "" };
        let url = match &endpoint.url[..] {
            "" => "not established yet",
            url => url,
        };
        let (url, upstream) = (clean(url), clean(&endpoint.upstream));
        let room = columns.saturating_sub(LABEL);
        if width(&url) + width(&upstream) + 3 <= room {
            let mut line = labelled(label, Style::Strong, &url, columns);
            line.push((Style::Plain, format!(" → {upstream}")));
            lines.push(line);
        } else {
            lines.push(labelled(label, Style::Strong, &url, columns));
            lines.push(labelled(
                "",
                Style::Plain,
                &format!("→ {upstream}"),
                columns,
            ));
        }
    }
    lines
}

fn connections(reading: &Reading, columns: usize) -> Vec<Line> {
    let [rate1, rate5, _] = reading.rates;
    let [p50, p90, ..] = reading.percentiles;
    let all = [
        ("total", reading.count.to_string()),
        ("open", reading.open.to_string()),
        ("1m/s", format!("{rate1:.2}")),
        ("5m/s", format!("{rate5:.2}")),
        ("p50", duration(p50)),
        ("p90", duration(p90)),
    ];
    let is_narrow = columns < WIDE;
    let kept: Vec<_> = all
        .into_iter()
        .filter(|(name, _)| !is_narrow || !name.ends_with("/s"))
        .collect();
    let cell = if is_narrow { 7 } else { 10 };
    let row = |texts: Vec<&str>| texts.iter().map(|it| pad(it, cell)).collect::<String>();
    let names = row(kept.iter().map(|(name, _)| *name).collect());
    let values = row(kept.iter().map(|(_, value)| &value[..]).collect());
    vec![
        Vec::new(),
        vec![
            (Style::Strong, pad("Connections", LABEL.min(columns))),
            (
                Style::Faint,
                fit(names.trim_end(), columns.saturating_sub(LABEL)),
            ),
        ],
        vec![
            (Style::Plain, " ".repeat(LABEL.min(columns))),
            (
                Style::Plain,
                fit(values.trim_end(), columns.saturating_sub(LABEL)),
            ),
        ],
    ]
}

fn request(it: &Request, columns: usize) -> Line {
    let is_narrow = columns < WIDE;
    let at = if is_narrow {
        it.at.get(..8).unwrap_or(&it.at)
    } else {
        &it.at
    };
    let (style, status) = match it.status {
        None => (Style::Warning, "canceled".into()),
        Some(status) => {
            let style = match status {
                500.. => Style::Bad,
                400.. => Style::Warning,
                _ => Style::Good,
            };
            let reason = http::StatusCode::from_u16(status)
                .ok()
                .and_then(|status| status.canonical_reason());
            match reason {
                Some(reason) if !is_narrow => (style, format!("{status} {reason}")),
                _ => (style, status.to_string()),
            }
        }
    };
    let status_columns = if is_narrow { 8 } else { 24 };
    let took = duration(it.took);
    let method = clean(&it.method);
    let method_columns = if is_narrow { 4 } else { 7 };
    let fixed = width(at) + 1 + method_columns + 1 + 1 + status_columns + 1 + 8;
    let path = columns.saturating_sub(fixed);
    let mut line = vec![
        (Style::Faint, format!("{at} ")),
        (Style::Strong, format!("{} ", pad(&method, method_columns))),
    ];
    if path >= 4 {
        line.push((Style::Plain, format!("{} ", pad(&clean(&it.path), path))));
        line.push((style, pad(&status, status_columns)));
        line.push((Style::Faint, format!(" {took:>8}")));
    } else {
        // Too narrow for every column.
        let status = it
            .status
            .map_or_else(|| "–".into(), |status| status.to_string());
        let used = width(at) + 1 + method_columns + 1 + 4;
        let path = columns.saturating_sub(used);
        line.push((Style::Plain, format!("{} ", pad(&clean(&it.path), path))));
        line.push((style, status));
    }
    cut(line, columns)
}

/// Cuts a line to the width of the screen.
fn cut(line: Line, columns: usize) -> Line {
    let mut left = columns;
    line.into_iter()
        .map(|(style, text)| {
            let text = fit(&text, left);
            left -= width(&text);
            (style, text)
        })
        .collect()
}

#[cfg(test)]
mod tests;
