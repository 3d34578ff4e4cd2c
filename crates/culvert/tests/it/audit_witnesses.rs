//! Witnesses that say something else than the truth about the audit log: nothing that they say without a head of the log ends
//! it, and such a head does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use culvert_tlog::{
    Checkpoint, KeyType, SignedCheckpoint, SigningKey, TreeHash, continuation, continued,
    origin_digest,
};

use crate::audit_log::{execute, offline};
use crate::audit_proofs::{WitnessProcess, create_keys, once};
use crate::audit_restored::{checkpoint, events, readyz, settings_of, size_of};
use crate::harness::{binary, eventually, raw};
use crate::kill::Process;

const ORIGIN: &str = "log.test/audit/ac_1";

/// A response: its status and body.
type Answer = (u16, Vec<u8>);

/// A witness that says anything.
struct Liar {
    /// As the setting names it.
    setting: String,
    name: String,
}

impl Liar {
    /// `post` makes the response to a head, and `get` that to the question for the latest one.
    fn start(
        number: usize,
        post: impl Fn(&str) -> Answer + Send + 'static,
        get: impl Fn(&str) -> Answer + Send + 'static,
    ) -> Self {
        Self::start_for(ORIGIN, number, post, get)
    }

    /// It shows heads of one origin only.
    fn start_for(
        origin: &str,
        number: usize,
        post: impl Fn(&str) -> Answer + Send + 'static,
        get: impl Fn(&str) -> Answer + Send + 'static,
    ) -> Self {
        let path = format!("GET /{}/checkpoint ", origin_digest(origin));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let name = format!("liar.test/{number}");
        let key = SigningKey::new(&name, KeyType::Cosignature, [7; 32]).unwrap();
        std::thread::spawn(move || {
            // The last head that was posted.
            let mut last = String::new();
            for stream in listener.incoming() {
                let Some((line, body)) = stream.ok().as_mut().and_then(|it| {
                    let asked = request(it)?;
                    let (status, answer) = match &asked.0 {
                        line if line.starts_with("POST /add-checkpoint ") => post(&asked.1),
                        line if line.starts_with(&path) => get(&last),
                        _ => ABSENT(""),
                    };
                    let head = format!(
                        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        answer.len()
                    );
                    drop(it.write_all(&[head.as_bytes(), &answer].concat()));
                    Some(asked)
                }) else {
                    continue;
                };
                if line.starts_with("POST ") {
                    last = body.split_once("\n\n").unwrap().1.to_owned();
                } else {
                    let mut asked = (0..=8).map(|n| origin_digest(&continued(ORIGIN, n)));
                    let is_asked = |digest| line.starts_with(&format!("GET /{digest}/checkpoint "));
                    assert!(asked.any(is_asked), "{line}");
                }
            }
        });
        Self {
            setting: format!("{url} {}", key.verifier()),
            name,
        }
    }
}

/// The first line of a request, and its body.
fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap_or(0) {
                let line = head.lines().next()?.to_owned();
                return Some((line, body.to_owned()));
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}

/// The key of a log in a new data directory.
fn make_key(data: &Path) -> SigningKey {
    culvert::keys::make_data_dir(data).unwrap();
    let entropy = culvert_base::OsEntropy;
    culvert_installation::audit_key::make(&data.join("audit.key"), ORIGIN, &entropy).unwrap()
}

/// A head of no tree, signed by this key.
fn forged(origin: &str, size: u64, key: &SigningKey) -> SignedCheckpoint {
    let checkpoint = Checkpoint {
        origin: origin.to_owned(),
        size,
        root: TreeHash::leaf(b"no tree"),
        extensions: Vec::new(),
    };
    let line = key.sign(&checkpoint.to_string(), 0);
    SignedCheckpoint::new(checkpoint, vec![line]).unwrap()
}

fn start(data: &Path, witnesses: &[String]) -> Process {
    let witnesses = witnesses.join(",");
    Process::start_as(binary(), data, "", &["--audit-witnesses", &witnesses])
}

/// The state of a witness in the metrics.
async fn state_of(server: &Process, name: &str) -> String {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let metrics = raw(server.metrics, request).await.text;
    let is_of = |line: &&str| {
        line.starts_with("culvert_audit_witness{")
            && line.contains(&format!("witness=\"{name}\""))
            && line.ends_with(" 1")
    };
    let line = metrics.lines().find(is_of).unwrap_or_default();
    let state = line.split_once("state=\"").map(|(_, rest)| rest);
    let state = state.and_then(|rest| rest.split('"').next());
    state.unwrap_or_default().to_owned()
}

fn text(text: &str) -> Answer {
    (200, text.as_bytes().to_vec())
}

const ABSENT: fn(&str) -> Answer = |_| (404, b"not found\n".to_vec());
const LATER: fn(&str) -> Answer = |_| (409, b"99999999\n".to_vec());
const REFUSED: fn(&str) -> Answer = |_| (422, b"no\n".to_vec());

/// Whatever they say, the log is signed and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn witnesses_that_lie_end_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    let key = make_key(&data);
    let stranger = SigningKey::new(ORIGIN, KeyType::Note, [9; 32]).unwrap();
    let of_stranger = forged(ORIGIN, 99_999_999, &stranger).to_string();
    let of_other = forged(&format!("{ORIGIN}+7"), 99_999_999, &key).to_string();
    assert_eq!(continuation(&format!("{ORIGIN}+7")).0, ORIGIN);
    let changed = forged(ORIGIN, 5, &key).to_string();
    let changed = changed.replacen("\n5\n", "\n99999999\n", 1);
    // With the ID of the log's key and the signature of another.
    let mut line = stranger.sign(forged(ORIGIN, 5, &key).note().text(), 0);
    line.key_id = key.sign("x\n", 0).key_id;
    let renamed = forged(ORIGIN, 5, &key).with(&[line]).unwrap().to_string();
    let long = [b"\xff".repeat(1 << 20), b"\n\n".to_vec()].concat();
    let liars = [
        Liar::start(0, LATER, ABSENT),
        Liar::start(1, REFUSED, ABSENT),
        Liar::start(2, LATER, move |_| text(&of_stranger)),
        Liar::start(3, LATER, move |_| text(&of_other)),
        Liar::start(4, LATER, move |_| text(&changed)),
        Liar::start(5, REFUSED, move |_| text(&renamed)),
        // It has the head that it refuses.
        Liar::start(6, REFUSED, text),
        Liar::start(7, |_| (409, b"0\n".to_vec()), ABSENT),
        Liar::start(8, LATER, move |_| (200, long.clone())),
        Liar::start(9, LATER, |_| (500, Vec::new())),
    ];
    let odd = [
        Liar::start(10, |_| (409, b"18446744073709551616\n".to_vec()), ABSENT),
        Liar::start(11, |_| (409, Vec::new()), ABSENT),
        Liar::start(12, |_| text("\u{2014} liar.test/12 AAAA\n"), ABSENT),
    ];
    let all = liars.iter().chain(&odd);
    let witnesses: Vec<String> = all.map(|liar| liar.setting.clone()).collect();
    let server = start(&data, &witnesses);
    once(&settings, &["audit", "checkpoint"]).await;
    for (liars, expected) in [(&liars[..], "unproven"), (&odd, "away")] {
        for liar in liars {
            eventually("the lie is noticed", async || {
                state_of(&server, &liar.name).await == expected
            })
            .await;
        }
    }
    let first = size_of(&checkpoint(&settings));
    create_keys(&server, &data, 2).await;
    eventually("the log is signed", async || {
        size_of(&checkpoint(&settings)) > first
    })
    .await;
    let ready = readyz(&server).await;
    assert!(
        ready.contains("refuses the log and proves nothing"),
        "{ready}"
    );
    assert!(!ready.contains("acknowledge-restore"), "{ready}");
    assert_eq!(events(&settings, "restored.v0").len(), 0);
    assert_eq!(server.terminate(), 0);
}

/// A head that the log signed and does not continue is the proof, also if a liar shows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_the_log_signed_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    for (number, size) in [(0, 1), (1, 99_999_999)] {
        let data = folder.path().join(number.to_string());
        let settings = settings_of(&data);
        let shown = forged(ORIGIN, size, &make_key(&data)).to_string();
        let post = if size == 1 { REFUSED } else { LATER };
        let witness = Liar::start(number, post, move |_| text(&shown));
        let server = start(&data, std::slice::from_ref(&witness.setting));
        eventually("the other history is noticed", async || {
            readyz(&server).await.contains("acknowledge-restore")
        })
        .await;
        assert_eq!(state_of(&server, &witness.name).await, "refuses");
        assert_eq!(server.terminate(), 0);
        let restored = events(&settings, "restored.v0");
        assert_eq!(restored.len(), 1, "{restored:?}");
        assert_eq!(restored[0]["object"]["known_by"], "witness");
        assert_eq!(restored[0]["object"]["ended_origin"], ORIGIN);
        // It showed the head before the first one was signed.
        assert_eq!(offline(&settings, &["audit", "checkpoint"]).0, 1);
    }
}

/// An administrator acknowledged two ends of the log, of which neither database nor files know anything any more. The witness
/// has a head of the last continuation only.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_a_witness_knows_to_have_gone_on_is_not_signed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    let key = make_key(&data);
    assert_eq!(start(&data, &[]).terminate(), 0);
    let signed = checkpoint(&settings);
    let later = format!("{ORIGIN}+2");
    let shown = forged(&later, 5, &key).to_string();
    let witness = Liar::start_for(&later, 0, ABSENT, move |_| text(&shown));
    let server = start(&data, std::slice::from_ref(&witness.setting));
    eventually("the later continuation is noticed", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(state_of(&server, &witness.name).await, "refuses");
    assert_eq!(server.terminate(), 0);
    assert_eq!(checkpoint(&settings), signed);
    let restored = events(&settings, "restored.v0");
    assert_eq!(restored.len(), 1, "{restored:?}");
    assert_eq!(restored[0]["object"]["ended_origin"], later);
    // Also without the witness.
    let server = start(&data, &[]);
    eventually("the end is remembered", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(server.terminate(), 0);
    assert_eq!(checkpoint(&settings), signed);
    let (code, out, error) = offline(&settings, &["admin", "acknowledge-restore"]);
    assert_eq!(code, 0, "{error}");
    let next = format!("it goes on as `{ORIGIN}+3`");
    assert!(out.contains(&next), "{out}");
}

/// The stored leaves are those of the head that the witness shows, and a hash above them is of other ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_the_whole_tree_does_not_extend_is_a_proof() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    make_key(&data);
    let head = || std::fs::read_to_string(data.join("audit.head")).unwrap();
    assert_eq!(start(&data, &[]).terminate(), 0);
    let early = head();
    let server = start(&data, &[]);
    create_keys(&server, &data, 3).await;
    assert_eq!(server.terminate(), 0);
    let later = head();
    let server = start(&data, &[]);
    create_keys(&server, &data, 260).await;
    assert_eq!(server.terminate(), 0);
    let size = size_of(&early);
    assert!(size < size_of(&later) && size_of(&later) < 256 && size_of(&head()) > 256);
    std::fs::write(data.join("audit.head"), &early).unwrap();
    execute(
        &settings,
        &format!(
            "UPDATE audit_tile SET hashes = zeroblob(32) WHERE level = 1 AND n = 0; \
             UPDATE audit_tree SET checkpoint = '{early}', signed = {size}, cosigned = ''"
        ),
    )
    .await;
    let witness = Liar::start(0, LATER, move |_| text(&later));
    let server = start(&data, std::slice::from_ref(&witness.setting));
    eventually("the other tree is noticed", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(state_of(&server, &witness.name).await, "refuses");
    assert_eq!(server.terminate(), 0);
    let restored = events(&settings, "restored.v0");
    assert_eq!(restored.len(), 1, "{restored:?}");
    assert_eq!(restored[0]["object"]["known_by"], "witness");
}

/// What an earlier rotation left is not taken for the key of another log.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_takes_no_key_of_another_log() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    make_key(&data);
    assert_eq!(start(&data, &[]).terminate(), 0);
    let next = data.join("audit.key.next");
    let entropy = culvert_base::OsEntropy;
    culvert_installation::audit_key::make(&next, "other.test", &entropy).unwrap();
    let (code, _, error) = offline(&settings, &["admin", "rotate-audit-key"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("the key of another log"), "{error}");
    std::fs::remove_file(&next).unwrap();
    let (code, _, error) = offline(&settings, &["admin", "rotate-audit-key"]);
    assert_eq!(code, 0, "{error}");
}

/// A database without a signed head, with a key that signed others: the witness is asked before the first head.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_is_not_signed_before_the_witnesses_are_asked() {
    let folder = tempfile::tempdir().unwrap();
    let witness = WitnessProcess::start(folder.path());
    let (data, empty) = (folder.path().join("data"), folder.path().join("empty"));
    witness.add_log(&data);
    let flag = format!("{} {}", witness.url, witness.key);
    let server = start(&data, std::slice::from_ref(&flag));
    eventually("the witness signs", async || {
        let (code, out, _) = offline(&settings_of(&data), &["audit", "checkpoint"]);
        code == 0 && out.contains("\u{2014} witness.test/1 ")
    })
    .await;
    assert_eq!(server.terminate(), 0);

    culvert::keys::make_data_dir(&empty).unwrap();
    std::fs::copy(data.join("audit.key"), empty.join("audit.key")).unwrap();
    let settings = settings_of(&empty);
    for _ in 0..2 {
        let server = start(&empty, std::slice::from_ref(&flag));
        create_keys(&server, &empty, 2).await;
        eventually("the other history is noticed", async || {
            readyz(&server).await.contains("acknowledge-restore")
        })
        .await;
        assert_eq!(server.terminate(), 0);
        assert_eq!(offline(&settings, &["audit", "checkpoint"]).0, 1);
        assert!(!empty.join("audit.head").exists());
        assert_eq!(events(&settings, "restored.v0").len(), 1);
    }
    let (code, out, error) = offline(&settings, &["admin", "acknowledge-restore"]);
    assert_eq!(code, 0, "{error}");
    assert!(
        out.contains(&format!("it goes on as `{ORIGIN}+1`")),
        "{out}"
    );
}

/// The head of the witness is signed by the key before the last rotation.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_of_the_key_before_the_rotation_is_a_proof() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let settings = settings_of(&data);
    let old = make_key(&data);
    assert_eq!(start(&data, &[]).terminate(), 0);
    let (code, _, error) = offline(&settings, &["admin", "rotate-audit-key"]);
    assert_eq!(code, 0, "{error}");
    let shown = forged(ORIGIN, 99_999_999, &old).to_string();
    let witness = Liar::start(0, LATER, move |_| text(&shown));
    let server = start(&data, std::slice::from_ref(&witness.setting));
    eventually("the other history is noticed", async || {
        readyz(&server).await.contains("acknowledge-restore")
    })
    .await;
    assert_eq!(server.terminate(), 0);
}
