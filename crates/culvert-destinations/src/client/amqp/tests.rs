use std::time::Duration;

use tokio::net::TcpStream;

use super::codec::{self, Cut, Fields, Out};
use super::*;

const QUEUE_DECLARE: method::Id = (50, 10);
const QUEUE_DECLARE_OK: method::Id = (50, 11);
const QUEUE_BIND: method::Id = (50, 20);
const QUEUE_BIND_OK: method::Id = (50, 21);
const QUEUE_DELETE: method::Id = (50, 40);
const QUEUE_DELETE_OK: method::Id = (50, 41);
const BASIC_GET: method::Id = (60, 70);
const BASIC_GET_OK: method::Id = (60, 71);

/// A client that creates and reads queues at the suite's broker, whose address is in
/// `CULVERT_TEST_RABBITMQ_ADDR`, as the user `guest`.
pub(crate) struct Admin(Publisher);

/// A message as stored in a queue.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) routing_key: String,
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
}

/// The broker's address.
pub(crate) fn broker() -> String {
    std::env::var_os("CULVERT_TEST_RABBITMQ_ADDR")
        .and_then(|addr| addr.into_string().ok())
        .unwrap_or_else(|| "127.0.0.1:5672".to_owned())
}

impl Admin {
    /// `None`, reported as ignored, if there is no broker.
    pub(crate) async fn connect() -> Option<Self> {
        let Ok(stream) = TcpStream::connect(broker()).await else {
            culvert_testing::ignore("RabbitMQ does not answer; set CULVERT_TEST_RABBITMQ_ADDR");
            return None;
        };
        let login = Login {
            virtual_host: "/",
            user: "guest",
            password: "guest",
        };
        Some(Self(
            Publisher::open(Box::new(stream), login).await.unwrap(),
        ))
    }

    /// Creates a queue, bound to an exchange and routing key if `bound` is given.
    pub(crate) async fn make_queue(&mut self, name: &str, bound: Option<(&str, &str)>) {
        let mut out = Out::method(CHANNEL, QUEUE_DECLARE);
        out.u16(0).short(name).u8(0).table(|_| {});
        self.0.ask(out, QUEUE_DECLARE_OK).await.unwrap();
        if let Some((exchange, key)) = bound {
            let mut out = Out::method(CHANNEL, QUEUE_BIND);
            out.u16(0)
                .short(name)
                .short(exchange)
                .short(key)
                .u8(0)
                .table(|_| {});
            self.0.ask(out, QUEUE_BIND_OK).await.unwrap();
        }
    }

    pub(crate) async fn remove_queue(&mut self, name: &str) {
        let mut out = Out::method(CHANNEL, QUEUE_DELETE);
        out.u16(0).short(name).u8(0);
        self.0.ask(out, QUEUE_DELETE_OK).await.unwrap();
    }

    /// Reads and removes all messages of a queue.
    pub(crate) async fn drain(&mut self, queue: &str) -> Vec<Got> {
        let mut all = Vec::new();
        while let Some(got) = self.get(queue).await {
            all.push(got);
        }
        all
    }

    async fn get(&mut self, queue: &str) -> Option<Got> {
        const NO_ACK: u8 = 1;
        let mut out = Out::method(CHANNEL, BASIC_GET);
        out.u16(0).short(queue).u8(NO_ACK);
        self.0.send(out.frame()).await.unwrap();
        let frame = self.frame().await;
        let (id, fields) = method_of(&frame, &mut false).unwrap();
        if id != BASIC_GET_OK {
            return None;
        }
        let mut fields = Fields::new(fields);
        fields.u64().unwrap();
        fields.u8().unwrap();
        fields.short().unwrap();
        let routing_key = fields.short().unwrap().to_owned();
        let header = self.frame().await;
        let (id, length) = codec::message_id(&header.payload).unwrap();
        let mut body = Vec::new();
        while (body.len() as u64) < length {
            body.extend(self.frame().await.payload);
        }
        Some(Got {
            routing_key,
            id: id.to_owned(),
            body,
        })
    }

    async fn frame(&mut self) -> Frame {
        loop {
            let frame = read_frame(&mut self.0.reader).await.unwrap();
            if frame.kind != codec::HEARTBEAT {
                return frame;
            }
        }
    }
}

fn message<'a>(id: &'a str, body: &'a [u8]) -> Message<'a> {
    Message {
        exchange: "",
        routing_key: "q",
        id,
        kind: "test",
        at: 1_800_000_000,
        body,
    }
}

#[test]
fn a_frame_header_is_parsed_within_its_bounds() {
    let header = codec::content_header(1, &message("ev_1:esb_1", b"abc"));
    let payload = &header[7..header.len() - 1];
    assert_eq!(codec::message_id(payload), Ok(("ev_1:esb_1", 3)));
    for end in 0..payload.len() {
        // A truncated header is rejected, or its complete fields are returned.
        codec::message_id(&payload[..end]).ok();
    }
    assert_eq!(Fields::new(&[5, b'a']).short(), Err(Cut));
    assert_eq!(Fields::new(&[0xff, 0xff, 0xff, 0xff, 1]).long(), Err(Cut));
}

/// A broker that sends this script regardless of what it receives.
async fn against(script: Vec<u8>) -> Broken {
    let (near, mut far) = tokio::io::duplex(64 << 10);
    far.write_all(&script).await.unwrap();
    far.shutdown().await.unwrap();
    let login = Login {
        virtual_host: "/",
        user: "u",
        password: "p",
    };
    let opening = Publisher::open(Box::new(near), login);
    let opened = tokio::time::timeout(culvert_testing::PATIENCE, opening).await;
    match opened.unwrap() {
        Ok(_) => panic!("let in"),
        Err(broken) => broken,
    }
}

#[tokio::test]
async fn unexpected_frames_end_the_connection() {
    let start = |mechanisms: &str| {
        let mut out = Out::method(0, method::CONNECTION_START);
        out.u8(0)
            .u8(9)
            .table(|_| {})
            .long(mechanisms.as_bytes())
            .long(b"en_US");
        out.frame()
    };
    let mut close = Out::method(0, method::CONNECTION_CLOSE);
    close.u16(403).short("ACCESS_REFUSED").u16(0).u16(0);
    let close = close.frame();
    let mut long = vec![codec::METHOD, 0, 0];
    long.extend(u32::MAX.to_be_bytes());
    for (script, says) in [
        (vec![], Broken::Socket),
        (
            b"AMQP\0\0\x09\x01".to_vec(),
            Broken::Nonsense("the broker has an unsupported version"),
        ),
        (
            long,
            Broken::Nonsense("a frame exceeds the negotiated size"),
        ),
        (
            codec::frame(codec::METHOD, 0, &[0]),
            Broken::Nonsense("a frame is truncated"),
        ),
        (
            codec::frame(codec::BODY, 1, b"x"),
            Broken::Nonsense("a method frame was expected"),
        ),
        (
            start("EXTERNAL"),
            Broken::Reported(
                403,
                "the broker does not support user name and password".to_owned(),
            ),
        ),
        (
            [start("PLAIN AMQPLAIN"), close].concat(),
            Broken::Reported(403, "ACCESS_REFUSED".to_owned()),
        ),
    ] {
        assert_eq!(against(script.clone()).await, says, "{script:?}");
    }
}

/// A publisher after its handshake, and the broker's end of the connection.
fn open_publisher() -> (Publisher, tokio::io::DuplexStream) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let near: Box<dyn Duplex> = Box::new(near);
    let (reader, writer) = tokio::io::split(near);
    let publisher = Publisher {
        reader: BufReader::new(reader),
        writer,
        last: 0,
        payload_max: 1024,
        is_blocked: false,
    };
    (publisher, far)
}

fn confirm(id: method::Id, number: u64, bits: u8) -> Vec<u8> {
    let mut out = Out::method(CHANNEL, id);
    out.u32(0).u32(u32::try_from(number).unwrap()).u8(bits);
    out.frame()
}

#[tokio::test]
async fn confirms_match_by_delivery_tag_and_returns_by_message_id() {
    let (mut publisher, mut far) = open_publisher();
    let ids = ["a", "b", "c", "d"];
    let messages: Vec<_> = ids.iter().map(|id| message(id, b"{}")).collect();
    let mut returned = Out::method(CHANNEL, method::BASIC_RETURN);
    returned.u16(312).short("NO_ROUTE").short("").short("q");
    let script = [
        returned.frame(),
        codec::content_header(CHANNEL, &messages[1]),
        codec::frame(codec::BODY, CHANNEL, b"{}"),
        codec::frame(codec::HEARTBEAT, 0, &[]),
        confirm(method::BASIC_NACK, 3, 0),
        confirm(method::BASIC_ACK, 2, 1),
        confirm(method::BASIC_ACK, 4, 0),
    ];
    far.write_all(&script.concat()).await.unwrap();
    let deadline = Duration::from_secs(60);
    let (outcomes, broken) = publisher.publish(&messages, deadline).await;
    assert_eq!(broken, None);
    let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(
        outcomes,
        [
            Confirmed::Taken,
            Confirmed::Returned(312, "NO_ROUTE".to_owned()),
            Confirmed::Refused,
            Confirmed::Taken,
        ]
    );

    // Delivery tags continue in the next window. A confirm for an unpublished tag ends the
    // connection.
    far.write_all(&confirm(method::BASIC_ACK, 6, 0))
        .await
        .unwrap();
    far.write_all(&confirm(method::BASIC_ACK, 9, 0))
        .await
        .unwrap();
    let (outcomes, broken) = publisher.publish(&messages[..2], deadline).await;
    assert_eq!(outcomes, [None, Some(Confirmed::Taken)]);
    assert_eq!(
        broken,
        Some(Broken::Nonsense("a confirm does not match a message"))
    );
}
