//! Each control character, in each place of a request.

use super::*;

pub(super) fn requests() -> Vec<Request> {
    let controls = (0..0x20).chain([0x7F]).filter(|b| !b"\t\r\n".contains(b));
    let mut games = Vec::new();
    for byte in controls {
        let c = char::from(byte);
        games.extend(
            [
                line(&format!("G{c}T / HTTP/1.1")),
                line(&format!("GET /{c} HTTP/1.1")),
                line(&format!("GET / HTTP/1.1{c}")),
                field(&format!("X{c}: y")),
                field(&format!("X: y{c}")),
                field(&format!("{c}X: y")),
                chunks(&format!("3{c}\r\nabc\r\n0\r\n\r\n")),
                chunks(&format!("3;{c}\r\nabc\r\n0\r\n\r\n")),
                chunks(&format!("0\r\nX: {c}\r\n\r\n")),
            ]
            .map(|bytes| (Refuse(400), bytes)),
        );
    }
    games
}
