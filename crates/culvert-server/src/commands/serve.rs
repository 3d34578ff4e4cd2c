//! `culvert serve`: runs the server, by default with all roles.

use std::io::IsTerminal;

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_edge::Inherited;
use listenfd::ListenFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{CommandType, Failure};
use crate::reload::Reload;
use crate::server::{Server, Standby};
use crate::telemetry;
use culvert_command::{StopSignals, say};
use culvert_installation::{file_digest, settings_of, with_settings};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "serve",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    with_settings(command.about("Run the server"))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let settings = settings_of(&matches)?;
        telemetry::start(&settings.log)?;
        // Installs signal handlers first, so that a signal during the start also stops the server in order.
        let mut signals = StopSignals::new().map_err(anyhow::Error::from)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(anyhow::Error::from)?;
        let terminal = Terminal::of_start();
        let inherited = handed_over()?;
        let standby = Standby::default();
        // Boxed because the futures are large.
        let start = Box::pin(Server::start_beside(settings, inherited.clone(), &standby));
        let received = (&mut signals, &mut hangup, terminal);
        let started = started(start, &standby, &matches, received);
        let started = Box::pin(started).await?;
        let Some((server, is_reload_due)) = started else {
            // What serves from a copy of the configuration drains.
            return Box::pin(signals.or_stop_at_once(standby.stop())).await;
        };
        if let Some(token) = server.first_token()
            && std::io::stdout().is_terminal()
        {
            tell(format_args!(
                "first API key (shown once): {}",
                token.reveal()
            ));
        }
        for address in server.unused(&inherited) {
            tracing::warn!(%address, "the supervisor passed a socket that no listener uses");
        }
        tell(server.ready_line());
        if let Some(console) = server.console_url()
            && std::io::stdout().is_terminal()
        {
            let once = match server.console_url_signs_in() {
                true => " (this link signs in once, within an hour)",
                false => "",
            };
            tell(format_args!("console: {console}{once}"));
        }
        notify_supervisor();

        let mut reload = server.reload();
        if is_reload_due {
            hang_up(&matches, &mut reload);
        }
        let cancel = CancellationToken::new();
        let served = server.run(cancel.clone());
        tokio::pin!(served);
        loop {
            tokio::select! {
                outcome = &mut served => return Ok(outcome?),
                () = signals.next() => break,
                _ = hangup.recv() => match terminal.is_gone() {
                    true => break,
                    false => hang_up(&matches, &mut reload),
                },
            }
        }
        tracing::info!("stopping: finishing requests in flight; a second signal stops immediately");
        cancel.cancel();
        Ok(signals.or_stop_at_once(&mut served).await??)
    })
}

/// Prints a line. A server goes on without a reader.
fn tell(line: impl std::fmt::Display) {
    if let Err(error) = say(line) {
        tracing::debug!(%error, "a line was not printed");
    }
}

/// The terminal that the server was started from, if any.
#[derive(Clone, Copy)]
struct Terminal {
    was_there: bool,
}

impl Terminal {
    fn of_start() -> Self {
        Self {
            was_there: std::io::stdin().is_terminal(),
        }
    }

    /// Whether it was closed. Its SIGHUP then means the end, and no reload.
    fn is_gone(self) -> bool {
        self.was_there && !std::io::stdin().is_terminal()
    }
}

/// Waits for the start. While the database is away, what serves from a copy of the configuration is ready and can be
/// reloaded. Returns the server, and whether it has to be reloaded because it started with earlier settings; `None` after a
/// signal to stop.
async fn started(
    mut start: BoxFuture<'_, anyhow::Result<Server>>,
    standby: &Standby,
    matches: &ArgMatches,
    (signals, hangup, terminal): (&mut StopSignals, &mut Signal, Terminal),
) -> Result<Option<(Server, bool)>, Failure> {
    let (mut is_ready, mut is_reload_due) = (false, false);
    loop {
        tokio::select! {
            server = &mut start => return Ok(Some((server?, is_reload_due))),
            () = signals.next() => return Ok(None),
            addresses = standby.serves(), if !is_ready => {
                is_ready = true;
                tell(format_args!("culvert serves from its copy {addresses}"));
                notify_supervisor();
            }
            _ = hangup.recv() => {
                if terminal.is_gone() {
                    return Ok(None);
                }
                is_reload_due = true;
                match settings_of(matches) {
                    Ok(settings) => {
                        if let Some(applied) = standby.reload(settings).await {
                            log_reload(applied.map_err(Failure::from));
                        }
                    }
                    Err(failure) => log_reload(Err(failure)),
                }
            }
        }
    }
}

/// Applies changed settings. Invalid settings change nothing.
fn hang_up(matches: &ArgMatches, reload: &mut Reload) {
    reload.from_file(file_digest(matches));
    log_reload(settings_of(matches).and_then(|settings| Ok(reload.apply(settings)?)));
}

/// Logs the result of a reload: the changed keys that need a restart.
fn log_reload(applied: Result<Vec<String>, Failure>) {
    match applied {
        Ok(waiting) if waiting.is_empty() => tracing::info!("settings reloaded"),
        Ok(waiting) => tracing::warn!(
            keys = waiting.join(", "),
            "settings reloaded; these changes take effect at the next start"
        ),
        Err(Failure::Configuration(invalid)) => {
            tracing::error!(%invalid, "invalid settings; keeping the current ones");
        }
        Err(failure) => tracing::error!(?failure, "cannot read the settings"),
    }
}

/// Listening sockets from a supervisor (systemd's `LISTEN_FDS` protocol).
fn handed_over() -> Result<Inherited, Failure> {
    let mut handed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for number in 0..handed.len() {
        match handed.take_tcp_listener(number) {
            Ok(socket) => sockets.extend(socket),
            Err(error) => {
                let text = format!("the supervisor passed an unusable socket {number}: {error}");
                return Err(Failure::Failed(text));
            }
        }
    }
    Ok(Inherited::new(sockets))
}

/// Notifies the supervisor that the server accepts connections, if it asked for that (systemd's notify protocol: a
/// datagram to the socket `NOTIFY_SOCKET`).
fn notify_supervisor() {
    let Some(path) = culvert_command::environment().remove("NOTIFY_SOCKET") else {
        return;
    };
    let sent = std::os::unix::net::UnixDatagram::unbound().and_then(|socket| {
        match path.strip_prefix('@') {
            Some(name) => {
                use std::os::linux::net::SocketAddrExt;
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                socket.send_to_addr(b"READY=1\n", &address)
            }
            None => socket.send_to(b"READY=1\n", path),
        }
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot notify the supervisor of readiness");
    }
}
