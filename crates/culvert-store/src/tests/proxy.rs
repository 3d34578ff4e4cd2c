//! A proxy in front of PostgreSQL that leads to another server, or loses the answer to a commit.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What happens to the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// It does not reach the server.
    Commit,
    /// The server's answer does not arrive.
    Answer,
}

/// The server behind a proxy.
#[derive(Clone, Debug)]
pub(super) enum Server {
    Socket(PathBuf),
    Address(String),
}

/// What to cut, and the statement at which.
type Wanted = (Cut, &'static [u8]);

/// When new connections wait.
struct Away {
    after_cut: AtomicBool,
    now: watch::Sender<bool>,
}

pub(super) struct Proxy {
    pub(super) port: u16,
    server: Arc<Mutex<Server>>,
    cut: Arc<Mutex<Option<Wanted>>>,
    /// Whether new connections wait after the cut, and now.
    away: Arc<Away>,
    /// Ends all connections when it changes.
    epoch: watch::Sender<u32>,
    _task: JoinSet<()>,
}

impl Proxy {
    pub(super) async fn to(server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::new(Mutex::new(server));
        let cut = Arc::new(Mutex::new(None));
        let away = Arc::new(Away {
            after_cut: AtomicBool::new(false),
            now: watch::Sender::new(false),
        });
        let epoch = watch::Sender::new(0);
        let mut task = JoinSet::new();
        let (to, how, ends) = (server.clone(), cut.clone(), epoch.clone());
        let gone = away.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let (to, how) = (to.lock().unwrap().clone(), how.clone());
                let gone = gone.clone();
                let mut ended = ends.subscribe();
                connections.spawn(async move {
                    let relay = async {
                        let mut away = gone.now.subscribe();
                        drop(away.wait_for(|is_away| !is_away).await);
                        match to {
                            Server::Socket(path) => {
                                let far = UnixStream::connect(path).await.ok()?;
                                relay(near, far, &how, &gone).await
                            }
                            Server::Address(address) => {
                                let far = TcpStream::connect(address).await.ok()?;
                                relay(near, far, &how, &gone).await
                            }
                        }
                    };
                    tokio::select! {
                        _ = relay => {}
                        _ = ended.changed() => {}
                    }
                });
            }
        });
        Self {
            port,
            server,
            cut,
            away,
            epoch,
            _task: task,
        }
    }

    /// Leads to another server from now on, and ends all connections.
    pub(super) fn switch(&self, socket: &Path) {
        *self.server.lock().unwrap() = Server::Socket(socket.to_owned());
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Cuts the next connection on which a client executes a statement with this text for the first time.
    pub(super) fn cut(&self, cut: Cut, statement: &'static [u8]) {
        *self.cut.lock().unwrap() = Some((cut, statement));
        // Each connection prepares its statements once.
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// After the next cut, new connections wait until [`Self::come_back`].
    pub(super) fn leave_after_cut(&self) {
        self.away.after_cut.store(true, Ordering::SeqCst);
    }

    pub(super) fn come_back(&self) {
        self.away.after_cut.store(false, Ordering::SeqCst);
        self.away.now.send_replace(false);
    }

    /// Whether a connection was cut.
    pub(super) fn has_cut(&self) -> bool {
        self.cut.lock().unwrap().is_none()
    }
}

async fn relay<S: AsyncRead + AsyncWrite + Unpin>(
    mut near: TcpStream,
    mut far: S,
    cut: &Mutex<Option<Wanted>>,
    gone: &Away,
) -> Option<()> {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    // A prepared statement is executed by the message after the one that has its text.
    let mut is_prepared = false;
    loop {
        tokio::select! {
            n = near.read(&mut asked) => {
                let sent = &asked[..n.ok().filter(|n| *n > 0)?];
                let wanted = *cut.lock().unwrap();
                if let Some((how, statement)) = wanted {
                    let kind = kind_of_message(sent, statement);
                    let has_text = kind == Some(b'P');
                    let is_executed = is_prepared || kind == Some(b'Q');
                    is_prepared |= has_text;
                    if is_executed {
                        gone.now.send_replace(gone.after_cut.load(Ordering::SeqCst));
                        *cut.lock().unwrap() = None;
                        if how == Cut::Answer {
                            far.write_all(sent).await.ok()?;
                            // Some of the response is enough: the statement has run.
                            let n = far.read(&mut answered).await.ok()?;
                            assert!(n > 0, "the server responds");
                        }
                        return None;
                    }
                }
                far.write_all(sent).await.ok()?;
            }
            n = far.read(&mut answered) => {
                let received = &answered[..n.ok().filter(|n| *n > 0)?];
                near.write_all(received).await.ok()?;
            }
        }
    }
}

/// The kind of the message that contains a text.
fn kind_of_message(mut sent: &[u8], text: &[u8]) -> Option<u8> {
    loop {
        let (kind, rest) = sent.split_first()?;
        let length = u32::from_be_bytes(*rest.first_chunk()?);
        let (message, next) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        if message.windows(text.len()).any(|some| some == text) {
            return Some(*kind);
        }
        sent = next;
    }
}
