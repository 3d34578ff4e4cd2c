//! A connection to an SMTP server: TLS, authentication, and the class of each failure.
//!
//! `lettre` gives and reads commands. STARTTLS is not its own: it keeps bytes that came before TLS began, so a stranger on
//! the way could put responses before those of the server (RFC 3207, 6). Here, the connection below is taken back from the
//! library when the server is ready, what it has read is dropped, and the library begins again over TLS.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use lettre::Address;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Starttls};
use lettre::transport::smtp::extension::ClientId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use culvert_base::Secret;
use culvert_target::failure::{Failure, FailureClass, scrub};
use culvert_target::net::{Net, blame};

use crate::client::tls_client::Peer;

/// How long the end of a connection may take. The server has accepted the mails before.
const CLOSE_FOR: Duration = Duration::from_secs(1);
/// Maximum bytes that are read of a connection. The library reads a line until its end.
const READ_BYTES_MAX: usize = 256 << 10;
/// The greeting that a server does not repeat after STARTTLS, and the library reads first.
const GREETING: &[u8] = b"220 ready\r\n";

/// How connections are made.
pub(super) struct Connector {
    pub(super) peer: Peer,
    pub(super) is_starttls: bool,
    pub(super) hello: ClientId,
    pub(super) credentials: Option<Credentials>,
    /// Texts that error texts must not have.
    pub(super) secrets: Vec<Secret>,
    pub(super) net: Net,
}

/// A mail and its envelope.
#[derive(Clone, Copy)]
pub(super) struct Sending<'a> {
    pub(super) from: &'a Address,
    pub(super) to: &'a [Address],
    pub(super) mail: &'a [u8],
    /// When it must be accepted.
    pub(super) until: Instant,
    /// Set when the server may have it.
    pub(super) is_begun: &'a AtomicBool,
}

/// Time limit of a connection with TLS and authentication.
const CONNECTED_WITHIN: Duration = Duration::from_secs(12);

/// What a failed command was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The greeting, and STARTTLS.
    Greeting,
    Authentication,
    /// The sender and the recipients, which are settings.
    Envelope,
    /// The mail.
    Content,
}

impl Connector {
    /// Sends a mail over a connection, or a new one. Also returns the connection, if it can be used again.
    pub(super) async fn send(
        &self,
        kept: Option<AsyncSmtpConnection>,
        mail: Sending<'_>,
    ) -> (Option<AsyncSmtpConnection>, Result<(), Failure>) {
        let is_begun = mail.is_begun;
        let sending = async {
            let mut connection = match kept {
                Some(connection) => connection,
                None => match timeout(CONNECTED_WITHIN, self.connect()).await {
                    Ok(connected) => connected?,
                    Err(_) => {
                        let text = "the server did not respond in time";
                        return Err(Failure::new(FailureClass::Retryable, "timeout", text));
                    }
                },
            };
            let sent = self.transfer(&mut connection, mail).await;
            Ok((connection, sent))
        };
        match timeout_at(mail.until, sending).await {
            Ok(Ok((connection, sent))) => {
                let can_be_used = !connection.has_broken();
                (can_be_used.then_some(connection), sent)
            }
            Ok(Err(failure)) => (None, Err(failure)),
            Err(_) => {
                // The server may have the mail.
                let class = match is_begun.load(Ordering::Relaxed) {
                    true => FailureClass::Unknown,
                    false => FailureClass::Retryable,
                };
                let text = "the server did not accept the mail in time";
                (None, Err(Failure::new(class, "timeout", text)))
            }
        }
    }

    /// Says goodbye.
    pub(super) async fn close(&self, mut connection: AsyncSmtpConnection) {
        timeout(CLOSE_FOR, connection.quit()).await.ok();
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, Failure> {
        let stream = self.net.dial(&self.peer.host, self.peer.port).await?;
        let mut connection = match (self.peer.is_tls, self.is_starttls) {
            (false, _) => self.greet(Box::new(Lent::new(stream))).await?,
            (true, false) => {
                self.greet(Box::new(self.secured(stream, &[]).await?))
                    .await?
            }
            (true, true) => self.upgrade(stream).await?,
        };
        if let Some(credentials) = &self.credentials {
            let mechanisms = [Mechanism::Plain, Mechanism::Login];
            let authenticated = connection.auth(&mechanisms, credentials).await;
            authenticated.map_err(|error| self.failure(Stage::Authentication, &error))?;
        }
        Ok(connection)
    }

    async fn greet(
        &self,
        stream: Box<dyn AsyncTokioStream>,
    ) -> Result<AsyncSmtpConnection, Failure> {
        let greeting = AsyncSmtpConnection::connect_with_transport(stream, &self.hello);
        let greeted = greeting.await;
        greeted.map_err(|error| self.failure(Stage::Greeting, &error))
    }

    /// TLS after the command STARTTLS, without which nothing is sent.
    async fn upgrade(&self, stream: TcpStream) -> Result<AsyncSmtpConnection, Failure> {
        let lent = Lent::new(stream);
        let mut plain = self.greet(Box::new(lent.clone())).await?;
        if !plain.can_starttls() {
            let text = "the server does not offer STARTTLS";
            return Err(Failure::new(FailureClass::Config, "starttls", text));
        }
        let accepted = plain.command(Starttls).await;
        accepted.map_err(|error| self.failure(Stage::Greeting, &error))?;
        drop(plain);
        let Some(stream) = lent.take() else {
            let text = "the connection ended before TLS";
            return Err(Failure::new(FailureClass::Retryable, "connection", text));
        };
        let secured = self.secured(stream, GREETING).await?;
        self.greet(Box::new(secured)).await
    }

    async fn secured(&self, stream: TcpStream, first: &'static [u8]) -> Result<Secured, Failure> {
        let Some(name) = self.peer.server_name() else {
            let text = "the host is not a valid name for a certificate";
            return Err(Failure::new(FailureClass::Config, "tls", text));
        };
        let address = stream.peer_addr().map_err(|error| blame(&error, true))?;
        let connector = TlsConnector::from(self.net.tls_without_alpn().await?);
        let stream = connector.connect(name, stream).await;
        let stream = stream.map_err(|error| blame(&error, true))?;
        Ok(Secured {
            first,
            stream,
            address,
            left: READ_BYTES_MAX,
        })
    }

    async fn transfer(
        &self,
        connection: &mut AsyncSmtpConnection,
        mail: Sending<'_>,
    ) -> Result<(), Failure> {
        let envelope = |error: Error| self.failure(Stage::Envelope, &error);
        let from = Mail::new(Some(mail.from.clone()), Vec::new());
        let accepted = connection.command(from).await;
        let mut refused = accepted.map(drop).map_err(envelope);
        for to in mail.to {
            if refused.is_ok() {
                let accepted = connection.command(Rcpt::new(to.clone(), Vec::new())).await;
                refused = accepted.map(drop).map_err(envelope);
            }
        }
        if refused.is_ok() {
            let accepted = connection.command(Data).await;
            refused = accepted
                .map(drop)
                .map_err(|error| self.failure(Stage::Content, &error));
        }
        if let Err(failure) = refused {
            // Some recipients may have been accepted. The farewell must not hide the refusal.
            timeout(CLOSE_FOR, connection.abort()).await.ok();
            return Err(failure);
        }
        mail.is_begun.store(true, Ordering::Relaxed);
        let accepted = connection.message(mail.mail).await;
        accepted.map(drop).map_err(|error| {
            match (error.status(), self.failure(Stage::Content, &error)) {
                // No response: the server may have the mail.
                (None, failure) if failure.class == FailureClass::Retryable => Failure {
                    class: FailureClass::Unknown,
                    ..failure
                },
                (_, failure) => failure,
            }
        })
    }

    /// The failure of a command (RFC 5321, 4.2; RFC 4954, 6 for authentication).
    fn failure(&self, stage: Stage, error: &Error) -> Failure {
        let Some(code) = error.status() else {
            return self.failure_without_code(stage, error);
        };
        let code = code.to_string();
        let class = match (stage, &*code) {
            _ if error.is_transient() => FailureClass::Retryable,
            // Authentication is required, or these credentials do not suffice.
            (Stage::Authentication, _) | (_, "530" | "534" | "535" | "538") => FailureClass::Auth,
            (Stage::Greeting | Stage::Envelope, _) => FailureClass::Config,
            (Stage::Content, "552") => FailureClass::Split,
            (Stage::Content, _) => FailureClass::Permanent,
        };
        Failure::new(class, code, self.shown(error))
    }

    fn failure_without_code(&self, stage: Stage, error: &Error) -> Failure {
        if error.is_client() {
            let (class, code) = match stage {
                Stage::Authentication => (FailureClass::Config, "authentication"),
                _ => (FailureClass::Permanent, "mail"),
            };
            return Failure::new(class, code, self.shown(error));
        }
        match std::error::Error::source(error) {
            Some(cause) if cause.is::<io::Error>() => blame(cause, true),
            _ => {
                let text = "the response is not one of an SMTP server, or the connection ended";
                Failure::new(FailureClass::Retryable, "answer", text)
            }
        }
    }

    /// What the server or the library says, for display.
    fn shown(&self, error: &Error) -> String {
        let said = std::error::Error::source(error).map(ToString::to_string);
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        match scrub(&said.unwrap_or_default(), &secrets) {
            text if text.is_empty() => "the server gives no reason".to_owned(),
            text => text,
        }
    }
}

/// A connection that the library uses until it is taken back.
#[derive(Clone, Debug)]
struct Lent {
    stream: Arc<Mutex<Option<TcpStream>>>,
    /// Bytes that may still be read.
    left: usize,
}

impl Lent {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(Mutex::new(Some(stream))),
            left: READ_BYTES_MAX,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<TcpStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<TcpStream> {
        self.lock().take()
    }

    fn with<T>(
        &self,
        on: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.lock() {
            Some(stream) => on(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

/// Counts bytes that were read.
fn counted(left: &mut usize, n_read: usize, read: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
    match left.checked_sub(n_read) {
        Some(fewer) => {
            *left = fewer;
            read
        }
        None => {
            let text = "the responses of the server are too long";
            Poll::Ready(Err(io::Error::other(text)))
        }
    }
}

impl AsyncRead for Lent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.with(|stream| stream.poll_read(cx, buffer));
        counted(&mut self.left, buffer.filled().len() - before, read)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_shutdown(cx))
    }
}

impl AsyncTokioStream for Lent {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        let lent = self.lock();
        let stream = lent.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        stream.peer_addr()
    }
}

/// A connection with TLS, which first reads some bytes that the server did not send.
struct Secured {
    first: &'static [u8],
    stream: TlsStream<TcpStream>,
    address: SocketAddr,
    /// Bytes that may still be read.
    left: usize,
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secured").finish_non_exhaustive()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            let before = buffer.filled().len();
            let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
            return counted(&mut self.left, buffer.filled().len() - before, read);
        }
        let (now, later) = self
            .first
            .split_at(self.first.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.first = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncTokioStream for Secured {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
