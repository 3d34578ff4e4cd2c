//! Upgrades that are incomplete or unknown.

use super::*;

pub(super) fn requests() -> Vec<Request> {
    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    const ASK: &str = "Connection: Upgrade\r\nUpgrade: websocket";
    let mut games = Vec::new();
    for lines in [
        ASK.to_owned(),
        format!("{ASK}\r\n{KEY}"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 8"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13, 8"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\n{KEY}\r\n{KEY}\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\nSec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\nSec-WebSocket-Key:\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\nUpgrade: h2c\r\n{KEY}\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\nTransfer-Encoding: chunked"),
    ] {
        games.push((Refuse(400), field(&lines)));
    }
    games.push((
        Refuse(400),
        body(
            &format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\nContent-Length: 3"),
            "abc",
        ),
    ));
    games.push((
        Refuse(400),
        body(&format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13"), ""),
    ));
    let sound = format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13");
    let early = format!("GET /smuggled HTTP/1.1\r\n{H}\r\n");
    games.push((Pass, [field(&sound), early.into_bytes()].concat()));
    for lines in [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        "Upgrade: websocket",
        "Upgrade: h2c",
        "Connection: Upgrade",
        "Connection: Upgrade\r\nUpgrade: TLS/1.0, websocket",
        "Connection: close\r\nUpgrade: websocket",
        "Connection: Upgrade\r\nUpgrade:",
        "Connection: Upgrade\r\nUpgrade: websocketx",
        "Connection: Upgrade\r\nUpgrade: SPDY/3.1",
        "Connection: Upgrade\r\nUpgrade: tcp\r\nUpgrade: h2c",
    ] {
        games.push((Pass, field(lines)));
    }
    for lines in [
        "Connection: Upgrade\r\nUpgrade: a b",
        "Connection: Upgrade\r\nUpgrade: tcp/",
        "Connection: Upgrade\r\nUpgrade: tcp, \"x\"",
        "Connection: Upgrade\r\nUpgrade: h2c-17\r\nHTTP2-Settings: AAMAAABk",
    ] {
        games.push((Pass, field(lines)));
    }
    let other = "Connection: Upgrade\r\nUpgrade: tcp";
    games.push((Pass, body(&format!("{other}\r\nContent-Length: 3"), "abc")));
    games.push((Pass, body(&format!("{other}\r\nContent-Length: 0"), "")));
    let early = format!("GET /smuggled HTTP/1.1\r\n{H}\r\n");
    games.push((Pass, [field(other), early.into_bytes()].concat()));
    games.push((
        Pass,
        format!("GET / HTTP/1.0\r\n{H}{sound}\r\n\r\n").into_bytes(),
    ));
    games
}
