//! A small HTTP/1.1 server for tests: it responds from a script and records the requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The response to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Status, further header lines, body.
    Status(u16, Vec<String>, String),
    /// Close the connection without a response.
    Close,
    /// A response with that status whose body is truncated.
    Torn(u16),
    /// A response with that status whose body arrives a byte at a time and does not end.
    Drips(u16),
    /// No response.
    Hang,
}

impl Reply {
    /// A response with that status and no body.
    pub fn status(status: u16) -> Self {
        Self::Status(status, Vec::new(), String::new())
    }

    /// A response with that status and body.
    pub fn with(status: u16, body: impl Into<String>) -> Self {
        Self::Status(status, Vec::new(), body.into())
    }
}

/// A request that the server read.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The request line.
    pub line: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, undecoded.
    pub body: Vec<u8>,
}

impl RecordedRequest {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The gzip-compressed body as JSON.
    pub fn unpacked(&self) -> Value {
        serde_json::from_str(&self.unpacked_text()).unwrap()
    }

    /// The gzip-compressed body.
    pub fn unpacked_text(&self) -> String {
        assert_eq!(self.header("content-encoding"), Some("gzip"));
        let mut text = String::new();
        let mut packed = flate2::read::GzDecoder::new(&self.body[..]);
        std::io::Read::read_to_string(&mut packed, &mut text).unwrap();
        text
    }

    /// The lines of the gzip-compressed body, each as JSON.
    pub fn unpacked_lines(&self) -> Vec<Value> {
        let text = self.unpacked_text();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// The server. It stops when this is dropped.
#[derive(Debug)]
pub struct Fake {
    /// Its address.
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<RecordedRequest>>,
    script: Mutex<VecDeque<Reply>>,
    otherwise: Mutex<Option<Reply>>,
    accepts: AtomicUsize,
}

impl Fake {
    /// Listens on a free port, and responds with 200 after the end of the script.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let mut task = JoinSet::new();
        let own = shared.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                own.accepts.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, own.clone()));
            }
        });
        Self {
            addr,
            shared,
            _task: task,
        }
    }

    /// Its URL with this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Sets the responses to the next requests, in order.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.script.lock().unwrap().extend(replies);
    }

    /// Sets the response to requests after the script.
    pub fn otherwise(&self, reply: Reply) {
        *self.shared.otherwise.lock().unwrap() = Some(reply);
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<RecordedRequest> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Connections so far.
    pub fn accepts(&self) -> usize {
        self.shared.accepts.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    loop {
        let Some(seen) = read_request(&mut stream, &mut buffer).await else {
            return;
        };
        shared.seen.lock().unwrap().push(seen);
        let scripted = shared.script.lock().unwrap().pop_front();
        let otherwise = shared.otherwise.lock().unwrap().clone();
        let reply = scripted.or(otherwise).unwrap_or(Reply::status(200));
        let text = match reply {
            Reply::Close => return,
            Reply::Hang => std::future::pending().await,
            Reply::Torn(status) => {
                let torn = format!("HTTP/1.1 {status} X\r\ncontent-length: 100\r\n\r\nhalf");
                stream.write_all(torn.as_bytes()).await.ok();
                return;
            }
            Reply::Drips(status) => {
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 100000\r\n\r\n");
                stream.write_all(head.as_bytes()).await.ok();
                while stream.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                return;
            }
            Reply::Status(status, headers, body) => {
                let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
                format!(
                    "HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<RecordedRequest> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse().unwrap());
    while buffer.len() < head_end + 4 + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let rest = buffer.split_off(head_end + 4 + length);
    let body = buffer.split_off(head_end + 4);
    *buffer = rest;
    Some(RecordedRequest {
        line,
        headers,
        body,
    })
}
