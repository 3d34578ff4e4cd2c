//! Live tails.

use std::time::Duration;

use culvert_testing::until;

use super::bench::{Bench, record};

use crate::{TAIL_LINES_MAX, TailSpec, Tailed};

#[tokio::test]
async fn a_tail_gets_matching_traffic_and_audit_events_of_its_account() {
    let bench = Bench::new().await;
    let spec = |account: &str, kinds: &[&str], filter: &str, fields: &[&str]| TailSpec {
        owner: "usr_1".to_owned(),
        account: account.to_owned(),
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        filter: filter.to_owned(),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
    };
    let running = bench.run();
    let mut all = bench.delivery.tail(spec("ac_1", &[], "", &[])).unwrap();
    let mut shaped = bench
        .delivery
        .tail(spec(
            "ac_1",
            &[],
            "ev.conn.server_port == 443",
            &["http.request.method"],
        ))
        .unwrap();
    let mut other = bench.delivery.tail(spec("ac_2", &[], "", &[])).unwrap();
    bench.delivery.recorder().offer(record(&bench, 80));
    bench.delivery.recorder().offer(record(&bench, 443));
    let Tailed::Event(first) = all.next().await else {
        panic!("lost")
    };
    assert!(first.contains(r#""server_port":80"#), "{first}");
    all.next().await;
    let Tailed::Event(line) = shaped.next().await else {
        panic!("lost")
    };
    assert!(
        line.ends_with(r#""object":{"http":{"request":{"method":"get"}}}}"#),
        "{line}"
    );
    bench.tell(7).await;
    let Tailed::Event(line) = all.next().await else {
        panic!("lost")
    };
    assert!(line.contains("ev_audit7"), "{line}");
    let nothing = tokio::time::timeout(Duration::from_millis(20), other.next()).await;
    assert!(nothing.is_err());

    for (wrong, code) in [
        (spec("ac_1", &[], "", &["nope"]), 5403),
        (spec("ac_1", &[], "ev.conn.nope == 1", &[]), 5405),
        (
            spec("ac_1", &["api_key_created.v0"], "", &["conn.client_ip"]),
            5401,
        ),
        (spec("ac_1", &["api_key_created.v0"], "true", &[]), 5402),
        (spec("ac_1", &[""], "", &[]), 238),
    ] {
        let refusal = bench.delivery.tail(wrong).unwrap_err();
        assert_eq!(refusal.code.unwrap().number(), code);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_slow_tail_gets_a_count_of_missed_events() {
    let bench = Bench::new().await;
    let spec = TailSpec {
        account: "ac_1".into(),
        fields: vec!["conn.server_port".into()],
        ..TailSpec::default()
    };
    let mut tail = bench.delivery.tail(spec).unwrap();
    let n = i32::try_from(TAIL_LINES_MAX).unwrap() + 40;
    for port in 0..n {
        bench.delivery.recorder().offer(record(&bench, port));
    }
    let running = bench.run();
    until("the loss", || bench.meters().tail_lost.get() == 40).await;
    for port in 0..TAIL_LINES_MAX {
        let Tailed::Event(line) = tail.next().await else {
            panic!("lost early")
        };
        assert!(
            line.contains(&format!(r#""server_port":{port}}}"#)),
            "{line}"
        );
    }
    assert_eq!(tail.next().await, Tailed::Lost(40));
    bench.delivery.recorder().offer(record(&bench, 1));
    assert!(matches!(tail.next().await, Tailed::Event(_)));
    running.stop().await;
}

#[tokio::test]
async fn open_tails_are_limited() {
    let bench = Bench::with(|settings| settings.tails_max = 8).await;
    let open = |owner: &str| {
        bench.delivery.tail(TailSpec {
            account: "ac_1".into(),
            owner: owner.into(),
            ..TailSpec::default()
        })
    };
    let (first, _second) = (open("usr_1").unwrap(), open("usr_1").unwrap());
    let refused = open("usr_1").unwrap_err();
    assert!(refused.message.contains("of one owner"), "{refused}");
    // One owner cannot open all tails.
    let others = ["usr_2", "usr_3", "bot_4"].map(|owner| [open(owner), open(owner)]);
    assert!(others.iter().flatten().all(Result::is_ok));
    assert!(open("bot_5").is_err());
    drop(first);
    open("bot_5").unwrap();
}
