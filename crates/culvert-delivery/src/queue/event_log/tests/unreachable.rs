//! Behaviour of the stream alone: its server becomes unreachable, returns, loses data, or rejects
//! requests.

use culvert_store::{BatchClass, NewBatch};
use culvert_testing::certificate;

use super::*;

/// Leases and acknowledges batches until this many have come.
async fn drain(place: &Place, count: usize) -> Vec<String> {
    let mut drained = Vec::new();
    let began = std::time::Instant::now();
    while drained.len() < count {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "only {drained:?} came"
        );
        place.clock.advance(LOOK);
        place.log.backlog().await.unwrap();
        drained.extend(place.drain(0).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drained.sort_unstable();
    drained
}

async fn usable(log: &dyn EventLog, wanted: bool) {
    let began = std::time::Instant::now();
    while log.usable().await.is_ok() != wanted {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "usable never became {wanted}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the log reports this reason why it cannot be used.
async fn says(log: &dyn EventLog, wanted: &str) {
    let began = std::time::Instant::now();
    loop {
        let why = log.usable().await.unwrap_err().chain();
        if why.contains(wanted) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Acknowledges a batch whose lease may have passed to another node, which is not an error.
async fn ack_late(place: &Place, held: &Lease) {
    let acknowledged = place.log.ack(held).await;
    assert!(acknowledged.is_ok() || is_lost(acknowledged));
}

#[tokio::test]
async fn a_repeated_append_changes_nothing() {
    let Some(place) = Place::stream().await else {
        return;
    };
    for _ in 0..2 {
        place.append(vec![traffic("a"), traffic("b")]).await;
    }
    // Earlier than any time at which a worker may have read its clock.
    let due = place.log.next_due("ed_1").await.unwrap();
    assert!(due.unwrap() < place.clock.now());
    assert_eq!(place.drain(2).await, ["a", "b"]);
    // An append is also recognised as repeated after the batch was delivered.
    place.append(vec![traffic("a")]).await;
    assert_eq!(place.drain(0).await, Vec::<String>::new());
}

#[tokio::test]
async fn acknowledged_events_survive_the_server_and_new_ones_go_to_the_database() {
    let Some(mut place) = Place::stream().await else {
        return;
    };
    for n in 0..20 {
        place.append(vec![traffic(&format!("before-{n:02}"))]).await;
    }
    let held = place.lease().await.unwrap();
    assert_eq!(text(&held), "before-00");
    place.server.as_mut().unwrap().kill();
    usable(&*place.log, false).await;
    place.append(vec![traffic("while")]).await;
    assert_eq!(place.meters.log_fallbacks.get(), 2);
    let sending = place.log.append_leased(traffic("sent"), "node-1", LEASE);
    let sending = sending.await.unwrap();
    place.log.ack(&sending).await.unwrap();
    // Batches in the database are still delivered. A delivered batch is not sent again, even if its
    // lease had ended.
    assert_eq!(place.drain(1).await, ["while"]);
    ack_late(&place, &held).await;
    place.append(vec![traffic("later")]).await;

    place.server.as_mut().unwrap().restart().await;
    usable(&*place.log, true).await;
    place.append(vec![traffic("after")]).await;
    let mut wanted: Vec<String> = (1..20).map(|n| format!("before-{n:02}")).collect();
    wanted.extend(["after", "later"].map(str::to_owned));
    wanted.sort_unstable();
    assert_eq!(drain(&place, wanted.len()).await, wanted);
    assert_eq!(place.log.backlog().await.unwrap(), []);
}

#[tokio::test]
async fn a_log_started_without_its_server_connects_later() {
    let Some(mut place) = Place::stream().await else {
        return;
    };
    place.append(vec![traffic("a")]).await;
    place.server.as_mut().unwrap().kill();
    place.log = place.beside().await;
    assert!(place.log.usable().await.is_err());
    place.append(vec![traffic("b")]).await;
    assert_eq!(place.drain(1).await, ["b"]);
    place.server.as_mut().unwrap().restart().await;
    usable(&*place.log, true).await;
    assert_eq!(drain(&place, 1).await, ["a"]);
}

#[tokio::test]
async fn the_stream_is_created_again_on_an_empty_server() {
    let Some(mut place) = Place::stream().await else {
        return;
    };
    place.append(vec![traffic("a")]).await;
    let held = place.lease().await.unwrap();
    let server = place.server.as_mut().unwrap();
    server.kill();
    server.wipe();
    server.restart().await;
    usable(&*place.log, true).await;
    place.append(vec![traffic("b")]).await;
    ack_late(&place, &held).await;
    assert_eq!(drain(&place, 1).await, ["b"]);
}

#[tokio::test]
async fn a_lease_is_renewed_and_ends_with_its_node() {
    let Some(place) = Place::stream().await else {
        return;
    };
    place.append(vec![traffic("a")]).await;
    let held = place.lease().await.unwrap();
    let cancel = CancellationToken::new();
    let other = place.beside().await;
    let look = async {
        // Twice the acknowledgement deadline.
        let began = std::time::Instant::now();
        while began.elapsed() < 2 * STREAM_LEASE {
            other.backlog().await.unwrap();
            let now = place.clock.now();
            assert_eq!(
                lease_elsewhere(&*other, now).await,
                None,
                "it is with another node"
            );
        }
        cancel.cancel();
    };
    tokio::join!(place.log.keep(cancel.clone(), &|_, _| {}), look);
    place
        .log
        .retry(&held, place.clock.now(), "503")
        .await
        .unwrap();
    place.log.close().await;
    let mut taken = None;
    let began = std::time::Instant::now();
    while taken.is_none() && began.elapsed() < Duration::from_secs(30) {
        other.backlog().await.unwrap();
        taken = lease_elsewhere(&*other, place.clock.now()).await;
    }
    assert_eq!(text(&taken.unwrap()), "a");
}

#[tokio::test]
async fn a_restarted_node_holds_its_leases_immediately() {
    let Some(place) = Place::stream().await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let life = async || {
        let settings = JetStreamSettings {
            held: Some(folder.path().join("held")),
            // No lease ends during the test.
            lease: Duration::from_secs(3600),
            ..settings(&place.server.as_ref().unwrap().url())
        };
        stream_with(settings, &place.queue, &place.clock, &place.meters).await
    };
    let first = life().await;
    first
        .append(vec![traffic("a"), traffic("b")])
        .await
        .unwrap();
    let held = lease(&*first, place.clock.now()).await;
    assert_eq!(text(&held.unwrap()), "a");
    let sending = first.append_leased(traffic("c"), "node-1", LEASE);
    sending.await.unwrap();

    // The first node stops without returning its messages, so other nodes must wait.
    let other = place.beside().await;
    other.backlog().await.unwrap();
    assert_eq!(lease_elsewhere(&*other, place.clock.now()).await, None);
    let second = life().await;
    second.backlog().await.unwrap();
    for (name, attempt) in [("a", 2), ("b", 1), ("c", 2)] {
        let again = lease(&*second, place.clock.now()).await.unwrap();
        assert_eq!((text(&again).as_str(), again.attempt), (name, attempt));
        second.ack(&again).await.unwrap();
    }
    assert_eq!(second.backlog().await.unwrap(), []);
}

#[tokio::test]
async fn a_batch_larger_than_a_message_is_split() {
    let Some(place) = Place::stream().await else {
        return;
    };
    let large = batch("ed_1", BatchClass::Traffic, "large", 800 << 10);
    place.append(vec![large.clone()]).await;
    let mut events = 0;
    let mut batches = 0;
    while let Some(lease) = place.lease().await {
        events += lease.count;
        batches += 1;
        place.log.ack(&lease).await.unwrap();
    }
    assert_eq!((events, batches), (2, 2));
    assert_eq!(place.meters.log_fallbacks.get(), 0);
    // An event that is too large for a message goes to the database.
    let mut open = OpenBatch::default();
    let envelope = format!(r#"{{"event_id":"one","object":"{}"}}"#, noise(2 << 20));
    open.push(&"esb_1".into(), envelope.as_bytes());
    let one = NewBatch {
        count: 1,
        body: open.finish(),
        ..large
    };
    place.append(vec![one]).await;
    assert_eq!(place.drain(1).await, ["one"]);
}

#[tokio::test]
async fn refused_credentials_fall_back_to_the_database() {
    let Some(place) = Place::stream().await else {
        return;
    };
    let port = place.server.as_ref().unwrap().port;
    let url = format!("nats://culvert:wrong@127.0.0.1:{port}");
    let log = stream(&url, &place.queue, &place.clock, &place.meters).await;
    assert!(log.usable().await.is_err());
    log.append(vec![traffic("a")]).await.unwrap();
    let leased = lease(&*log, place.clock.now()).await;
    assert_eq!(text(&leased.unwrap()), "a");
}

#[tokio::test]
async fn servers_are_verified_before_authentication() {
    let folder = tempfile::tempdir().unwrap();
    certificate(&folder, "localhost");
    let at = |name: &str| folder.path().join(name);
    let (cert, key) = (at("cert.pem"), at("key.pem"));
    let tls = [
        "--tls",
        "--tlscert",
        cert.to_str().unwrap(),
        "--tlskey",
        key.to_str().unwrap(),
    ];
    let Some(server) = NatsServer::start(&tls).await else {
        return;
    };
    let trusting = TargetSettings {
        extra_ca_file: Some(cert.clone()),
        ..local_settings()
    };
    let (user, password, port) = (NatsServer::USER, NatsServer::PASSWORD, server.port);
    for (url, trust, trouble) in [
        (
            format!("tls://{user}:{password}@localhost:{port}"),
            &trusting,
            None,
        ),
        // The server requires TLS although the URL does not.
        (
            format!("nats://{user}:{password}@localhost:{port}"),
            &trusting,
            None,
        ),
        (
            format!("tls://{user}:{password}@127.0.0.1:{port}"),
            &trusting,
            Some("certificate not valid for name"),
        ),
        (
            format!("tls://{user}:{password}@localhost:{port}"),
            &local_settings(),
            Some("invalid peer certificate"),
        ),
        (
            format!("tls://{user}:wrong@localhost:{port}"),
            &trusting,
            Some("authorization violation"),
        ),
    ] {
        let (_folder, clock, queue) = database().await;
        let meters = Arc::<Meters>::default();
        let log: Arc<dyn EventLog> =
            stream_over(settings(&url), trust.clone(), &queue, &clock, &meters).await;
        assert_eq!(log.usable().await.is_ok(), trouble.is_none(), "{url}");
        if let Some(trouble) = trouble {
            says(&*log, trouble).await;
        }
        // All cases use one stream, which would treat equal batches as repeated. So each appends
        // another batch.
        log.append(vec![traffic(&url)]).await.unwrap();
        let leased = lease(&*log, clock.now()).await.unwrap();
        assert_eq!(text(&leased), url);
        log.ack(&leased).await.unwrap();
        assert_eq!(meters.log_fallbacks.get() == 0, trouble.is_none(), "{url}");
    }
}

#[tokio::test]
async fn a_token_authenticates() {
    let Some(server) = NatsServer::start_with(&["--auth", "t0ken"]).await else {
        return;
    };
    let (_folder, clock, queue) = database().await;
    for (login, is_let_in) in [("t0ken@", true), ("wr0ng@", false), ("", false)] {
        let url = format!("nats://{login}127.0.0.1:{}", server.port);
        let log = stream(&url, &queue, &clock, &Arc::default()).await;
        assert_eq!(log.usable().await.is_ok(), is_let_in, "{url}");
        if !is_let_in {
            says(&*log, "authorization violation").await;
        }
    }
}

#[tokio::test]
async fn a_cluster_continues_without_one_server() {
    let Some(mut servers) = NatsServer::start_cluster().await else {
        return;
    };
    let ports = servers.each_ref().map(|server| server.port);
    let (user, password, [one, two, three]) = (NatsServer::USER, NatsServer::PASSWORD, ports);
    let url = format!("nats://{user}:{password}@127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{three}");
    let settings = JetStreamSettings {
        replicas: 3,
        ..settings(&url)
    };
    let (folder, clock, queue) = database().await;
    let meters = Arc::<Meters>::default();
    let log = stream_with(settings, &queue, &clock, &meters).await;
    // A stream cannot be created until the servers have formed a cluster.
    usable(&*log, true).await;
    let place = Place {
        log,
        clock,
        queue,
        meters,
        lease: STREAM_LEASE,
        server: None,
        _folder: folder,
    };
    place.append(vec![traffic("a")]).await;
    assert_eq!(place.meters.log_fallbacks.get(), 0);
    for (n, server) in servers.iter_mut().enumerate() {
        server.kill();
        let name = format!("b{n}");
        // While the stream has no leader, the batch goes to the database.
        place.append(vec![traffic(&name)]).await;
        let mut came = drain(&place, 1).await;
        while !came.contains(&name) {
            came.extend(drain(&place, 1).await);
        }
        server.restart().await;
        usable(&*place.log, true).await;
    }
}

#[tokio::test]
async fn a_foreign_stream_of_the_same_name_is_unchanged() {
    let Some(server) = NatsServer::start(&[]).await else {
        return;
    };
    let options = async_nats::ConnectOptions::with_user_and_password(
        NatsServer::USER.into(),
        NatsServer::PASSWORD.into(),
    );
    let client = options.connect(format!("nats://127.0.0.1:{}", server.port));
    let context = async_nats::jetstream::new(client.await.unwrap());
    let foreign = async_nats::jetstream::stream::Config {
        name: "culvert_test".to_owned(),
        subjects: vec!["foreign.>".to_owned()],
        ..Default::default()
    };
    context.create_stream(foreign).await.unwrap();
    let (_folder, clock, queue) = database().await;
    let log = stream(&server.url(), &queue, &clock, &Arc::default()).await;
    let why = log.usable().await.unwrap_err().chain();
    assert!(why.contains("events.log_stream"), "{why}");
    log.append(vec![traffic("a")]).await.unwrap();
    let leased = lease(&*log, clock.now()).await;
    assert_eq!(text(&leased.unwrap()), "a");
}
