//! The status screen of an agent in a terminal.
//!
//! It reads the state of the sessions and of the recorded requests a few times per second, and draws when something
//! has changed. It takes no input: signals stop and suspend the agent as they do without a screen.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_tunnel::client::{Exchange, Exchanges, RateMeter, Reading, Status};
use jiff::tz::TimeZone;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::sessions::Sessions;
use view::{Line, Request, View};

pub(crate) mod terminal;
mod text;
mod view;

/// How often the state is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a problem is shown.
const PROBLEM_SHOWN_FOR: Duration = Duration::from_secs(30);
/// Time limit for a terminal to accept what restores it. A stopped terminal accepts nothing.
const RESTORE_TIME: Duration = Duration::from_secs(1);

/// The last problem that the agent reported.
#[derive(Debug, Default)]
pub(crate) struct Problem(Mutex<Option<(Instant, String)>>);

impl Problem {
    /// Replaces the problem.
    pub(crate) fn set(&self, text: String) {
        *lock(&self.0) = Some((Instant::now(), text));
    }

    fn recent(&self, now: Instant) -> Option<String> {
        let problem = lock(&self.0);
        let (at, text) = problem.as_ref()?;
        (now.saturating_duration_since(*at) < PROBLEM_SHOWN_FOR).then(|| text.clone())
    }
}

/// The sources of the screen.
#[derive(Debug)]
pub(crate) struct Screen {
    pub sessions: Arc<Sessions>,
    pub exchanges: Option<Arc<Exchanges>>,
    pub problem: Arc<Problem>,
    /// URL of the agent's page; empty without one.
    pub page_url: String,
}

impl Screen {
    /// Shows the screen until the future is dropped. [`restore`] then restores the terminal.
    pub(crate) async fn show(self) -> anyhow::Result<()> {
        terminal::restore_on_panic();
        terminal::enter()?;
        let has_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut resized = signal(SignalKind::window_change())?;
        let mut suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let zone = local_zone();
        let mut drawn: Option<((u16, u16), Vec<Line>)> = None;
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                _ = resized.recv() => {}
                _ = suspended.recv() => {
                    terminal::leave();
                    drawn = None;
                    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
                    // This thread may run on before the stop takes effect. The shell continues the agent in the
                    // foreground or in the background.
                    continued.recv().await;
                }
            }
            if !terminal::is_in_foreground() {
                continue;
            }
            terminal::enter()?;
            let size @ (columns, rows) = terminal::size();
            let view = self.view(&zone, rows.into());
            let lines = view::lines(&view, columns.into(), rows.into());
            let frame = terminal::frame(&lines, has_color)?;
            let now = Some((size, lines));
            if drawn != now {
                drawn = now;
                // A terminal that is stopped blocks its writer.
                tokio::task::spawn_blocking(move || terminal::draw(&frame)).await??;
            }
        }
    }

    fn view(&self, zone: &TimeZone, rows: usize) -> View {
        let now = Instant::now();
        let sessions: Vec<Status> = self.sessions.statuses();
        let endpoints = sessions
            .first()
            .map(|it| &it.endpoints[..])
            .unwrap_or_default();
        let meters: Vec<&RateMeter> = endpoints.iter().map(|it| &*it.meters.connections).collect();
        let requests = self.exchanges.as_ref().map(|all| {
            let newest = all.newest(rows, |_| true);
            newest.iter().map(|it| request(it, zone)).collect()
        });
        View {
            connections: Reading::of(&meters),
            sessions,
            page_url: self.page_url.clone(),
            requests,
            problem: self.problem.recent(now),
            now,
        }
    }
}

fn request(it: &Exchange, zone: &TimeZone) -> Request {
    let at = jiff::Timestamp::from_millisecond(it.started_at.unix_millis())
        .unwrap_or_default()
        .to_zoned(zone.clone());
    Request {
        at: at.strftime("%H:%M:%S%.3f").to_string(),
        method: it.method.clone(),
        path: it.path.clone(),
        status: it.shown_status(),
        took: it.took,
    }
}

/// Restores the terminal, if the screen is shown.
pub(crate) async fn restore() {
    let restoring = tokio::task::spawn_blocking(terminal::leave);
    tokio::time::timeout(RESTORE_TIME, restoring).await.ok();
}

/// The local time zone: `TZ`, or that of the machine, or UTC.
#[allow(
    clippy::disallowed_methods,
    reason = "a variable that every program reads, not a setting of culvert"
)]
fn local_zone() -> TimeZone {
    let zone = match std::env::var("TZ") {
        Ok(name) if !name.is_empty() => {
            let name = name.trim_start_matches(':');
            TimeZone::get(name).or_else(|_| TimeZone::posix(name)).ok()
        }
        _ => std::fs::read("/etc/localtime")
            .ok()
            .and_then(|data| TimeZone::tzif("Local", &data).ok()),
    };
    zone.unwrap_or(TimeZone::UTC)
}
