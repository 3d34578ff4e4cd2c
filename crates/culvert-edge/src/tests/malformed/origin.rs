//! An origin that keeps what it receives.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

/// A socket whose reader leaves a copy of all it reads.
pub(super) struct Tap {
    pub(super) stream: TcpStream,
    pub(super) heard: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.heard
            .lock()
            .unwrap()
            .extend_from_slice(&buf.filled()[before..]);
        result
    }
}

culvert_io::delegate_io!(AsyncWrite for Tap { Self { stream, .. } => stream });

/// What an origin got of one request of the corpus.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Every byte, of every connection.
    pub(super) raw: Arc<Mutex<Vec<u8>>>,
    /// Requests that came whole.
    pub(super) whole: Mutex<Vec<(String, Vec<u8>)>>,
}

impl Heard {
    pub(super) fn forget(&self) {
        self.raw.lock().unwrap().clear();
        self.whole.lock().unwrap().clear();
    }

    /// The difference between a request that had to pass and its received form.
    pub(super) fn wrong(&self, sent: &[u8]) -> Option<String> {
        let whole = self.whole.lock().unwrap();
        let [(head, _)] = whole.as_slice() else {
            return Some(format!("{} requests were heard", whole.len()));
        };
        let sent = String::from_utf8_lossy(sent);
        let asked = sent.trim_start_matches("\r\n").split("\r\n").next()?;
        let mut lines = head.split("\r\n");
        let (asked, got) = (asked.rsplit_once(' ')?.0, lines.next()?);
        // An absolute target becomes a local one, and some paths their normal form; any other passes as it is.
        let (method, target) = asked.split_once(' ')?;
        let normal = match target {
            "//x/../y?z=%00&a=b+c;d|e{f}[]^`" => "/y?z=%00&a=b+c;d|e{f}[]^%60",
            "/\"{}|^[]~!$&'()*+,;=:@-._" => "/%22%7B%7D%7C%5E%5B%5D~!$&'()*+,;=:@-._",
            "//other.example/" => "/other.example/",
            "/a//b" => "/a/b",
            "/<x>?\"`" => "/%3Cx%3E?%22%60",
            "/é?é" => "/%C3%A9?%C3%A9",
            "/../../x" => "/x",
            "/a\\b" => "/a/b",
            "/http://x/" => "/http:/x/",
            "/%0d%0a" => "/%0D%0A",
            "/%2e%2e/%2F%5c" => "/%2F%5C",
            "/%2e%2e/a%2Fb" => "/a%2Fb",
            target => target,
        };
        let is_absolute = target.to_ascii_lowercase().starts_with("http://");
        if !is_absolute && got != format!("{method} {normal} HTTP/1.1") {
            return Some(format!("{asked:?} became {got:?}"));
        }
        let forbidden = [
            "/smuggled",
            "other.example",
            "1.1.1.1",
            "https",
            "upgrade",
            "http2-settings",
        ];
        let claims =
            sent.contains("orwarded") || sent.contains("pgrade") || sent.contains("\r\n0\r\n");
        let raw = String::from_utf8_lossy(&self.raw.lock().unwrap()).to_ascii_lowercase();
        if let Some(word) = forbidden.iter().find(|word| claims && raw.contains(**word)) {
            let is_asked = asked.to_ascii_lowercase().contains(*word);
            // A sound handshake is passed on as one.
            let is_handshake = *word == "upgrade"
                && (raw.contains("sec-websocket-key")
                    || sent.contains("Connection: Upgrade\r\n")
                        && !raw.contains("h2c")
                        && !raw.contains("tls"));
            if !is_asked && !is_handshake {
                return Some(format!("{word:?} was heard: {raw:?}"));
            }
        }
        let [hosts, lengths, encodings] =
            ["\r\nhost:", "\r\ncontent-length:", "\r\ntransfer-encoding:"]
                .map(|name| head.to_ascii_lowercase().matches(name).count());
        (hosts != 1 || lengths + encodings > 1).then(|| format!("it is ambiguous: {head:?}"))
    }
}
