//! Managed certificates, with a scripted authority.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_base::BoxFuture;
use culvert_tls::acme::{
    Blame, Challenge, ChallengeKind, Failure, Order, OrderState, RenewalWindow,
};
use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;

const DIRECTORY: &str = "https://ca.example/dir";
const URL: &str = "https://ca.example/order/1";

/// An authority within this process.
#[derive(Debug)]
struct Paper {
    /// Whether orders make progress.
    goes_on: watch::Sender<bool>,
    /// How often an order was read.
    looks: watch::Sender<usize>,
    /// Whether it refuses orders, like an authority that cannot reach the name.
    refuses: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_ready: bool,
    chain: Option<String>,
}

impl Paper {
    fn new(goes_on: bool) -> Arc<Self> {
        Arc::new(Self {
            goes_on: watch::Sender::new(goes_on),
            looks: watch::Sender::new(0),
            refuses: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    fn order(&self) -> Order {
        let state = self.state.lock().unwrap();
        let state = match (&state.chain, state.is_ready) {
            (Some(_), _) => OrderState::Valid,
            (None, true) => OrderState::Ready,
            (None, false) => OrderState::Pending(vec![Challenge {
                kind: ChallengeKind::Http01,
                host: HostName::parse("a.example").unwrap(),
                token: "token".into(),
                answer: "token.thumbprint".into(),
            }]),
        };
        Order {
            url: URL.into(),
            state,
            retry_after: None,
        }
    }
}

impl Issuer for Paper {
    fn directory(&self) -> &str {
        DIRECTORY
    }

    fn writes_records(&self) -> bool {
        false
    }

    fn external_account(&self) -> Option<&str> {
        None
    }

    fn new_account(&self) -> BoxFuture<'_, Result<Secret, Failure>> {
        Box::pin(async { Ok(Secret::new("a key".into())) })
    }

    fn renewal_window<'a>(
        &'a self,
        _: &'a Secret,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<RenewalWindow>, Failure>> {
        Box::pin(async { Ok(None) })
    }

    fn order<'a>(
        &'a self,
        key: &'a Secret,
        _: &'a [HostName],
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Order, Failure>> {
        assert_eq!(key.reveal(), "a key");
        *self.state.lock().unwrap() = State::default();
        Box::pin(async {
            if self.refuses.load(Ordering::Relaxed) {
                return Err(Failure {
                    blame: Blame::Name,
                    why: "no such name".into(),
                    retry_after: None,
                });
            }
            Ok(self.order())
        })
    }

    fn order_state<'a>(
        &'a self,
        _: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<Order, Failure>> {
        assert_eq!(url, URL);
        Box::pin(async {
            self.looks.send_modify(|looks| *looks += 1);
            let mut goes_on = self.goes_on.subscribe();
            goes_on.wait_for(|goes_on| *goes_on).await.unwrap();
            Ok(self.order())
        })
    }

    fn ready<'a>(
        &'a self,
        _: &'a Secret,
        _: &'a str,
        kind: ChallengeKind,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        assert_eq!(kind, ChallengeKind::Http01);
        self.state.lock().unwrap().is_ready = true;
        Box::pin(async { Ok(()) })
    }

    fn finalize<'a>(
        &'a self,
        _: &'a Secret,
        _: &'a str,
        csr_der: &'a [u8],
    ) -> BoxFuture<'a, Result<(), Failure>> {
        let mut request = CertificateSigningRequestParams::from_der(&csr_der.into()).unwrap();
        let key = KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::new(CertificateParams::default(), key);
        request.params.not_after = rcgen::date_time_ymd(2100, 1, 1);
        let chain = request.signed_by(&issuer).unwrap().pem();
        self.state.lock().unwrap().chain = Some(chain);
        Box::pin(async { Ok(()) })
    }

    fn certificate<'a>(
        &'a self,
        _: &'a Secret,
        _: &'a str,
    ) -> BoxFuture<'a, Result<String, Failure>> {
        let chain = self.state.lock().unwrap().chain.clone().unwrap();
        Box::pin(async { Ok(chain) })
    }

    fn record<'a>(
        &'a self,
        _: Record,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        unreachable!("no wildcard is asked for")
    }
}

/// A rig that obtains certificates from `paper`.
async fn rig(paper: &Arc<Paper>) -> (Rig, JoinSet<()>) {
    let certificates = Certificates {
        issuer: Some(paper.clone()),
        own_names: Vec::new(),
        node: "here".into(),
        challenges: vec![ChallengeKind::Http01],
        spread: Duration::ZERO,
        retry_after: Duration::from_secs(60),
    };
    let rig = Rig::with(Some(certificates), AGENTS).await;
    let mut tasks = JoinSet::new();
    let control = rig.control.clone();
    tasks.spawn(control.run(CancellationToken::new()));
    let certificates = Arc::clone(&rig.control.certificates);
    tasks.spawn(certificates.manage_certificates(CancellationToken::new()));
    (rig, tasks)
}

fn path(object: &Value) -> String {
    let uri = object["uri"].as_str().unwrap();
    uri.strip_prefix(BASE).unwrap().to_owned()
}

#[tokio::test]
pub(super) async fn an_issued_certificate_is_reported_once_and_kept_while_managed() {
    let paper = Paper::new(true);
    let (rig, _tasks) = rig(&paper).await;
    let (_, start) = rig.events_after(0).await;
    let body = json!({"domain": "a.example", "certificate_management_policy": {"private_key_type": "ecdsa"}});
    let made = rig.post("/reserved_domains", body).await.body();
    let one = path(&made);
    eventually("a certificate", async || {
        !rig.get(&one).await.body()["certificate"].is_null()
    })
    .await;
    let domain = rig.get(&one).await.body();
    let certificate = rig.get(&path(&domain["certificate"])).await.body();
    assert_eq!(certificate["private_key_type"], "ecdsa");
    assert_eq!(certificate["issued_at"], "2027-01-15T08:00:00Z");
    let (reported, _) = rig.events_after(start).await;
    let kinds: Vec<&Value> = reported.iter().map(|event| &event["event_type"]).collect();
    let expected = [
        "domain_created.v0",
        "certificate_ordered.v0",
        "tls_certificate_created.v0",
        "domain_updated.v0",
    ];
    assert_eq!(kinds, expected);
    for (event, object) in reported[2..].iter().zip([&certificate, &domain]) {
        let mut object = object.clone();
        object.as_object_mut().unwrap().remove("resolves_to");
        assert_eq!(event["object"], object);
        assert_eq!(event["principal"], Value::Null);
        assert_eq!(event["account_id"], *rig.admin.account);
    }
    // The order is removed, and its challenge is no longer served.
    assert!(rig.store.all("acme_order").await.unwrap().is_empty());
    let mut snapshots = rig.edge.0.subscribe();
    let shows_none = |snapshot: &Option<culvert_edge_config::Snapshot>| {
        let snapshot = snapshot.as_ref();
        snapshot.is_some_and(|snapshot| snapshot.challenges().is_empty())
    };
    snapshots.wait_for(shows_none).await.unwrap();

    let issued = path(&certificate);
    assert_eq!(rig.delete(&issued).await.code(), Some(1966));
    let attached = format!("{one}/certificate");
    assert_eq!(rig.delete(&attached).await.code(), Some(436));
    // Repeating the current values changes nothing.
    for body in [
        json!({"certificate_id": certificate["id"]}),
        json!({"certificate_id": ""}),
        json!({"certificate_id": certificate["id"], "certificate_management_policy": {"private_key_type": "ecdsa"}}),
        json!({"certificate_management_policy": {"private_key_type": "ecdsa"}}),
    ] {
        assert_eq!(rig.patch(&one, body.clone()).await.body(), domain, "{body}");
    }
    let managed = format!("{one}/certificate_management_policy");
    assert_eq!(rig.delete(&managed).await, Answered::NoContent);
    assert_eq!(rig.get(&one).await.body()["certificate"], Value::Null);
    assert_eq!(rig.delete(&issued).await, Answered::NoContent);
}

#[tokio::test]
async fn removal_of_management_during_an_order_leaves_nothing_behind() {
    for deletes_domain in [false, true] {
        let paper = Paper::new(false);
        let (rig, _tasks) = rig(&paper).await;
        let body = json!({"domain": "a.example"});
        let one = path(&rig.post("/reserved_domains", body).await.body());
        let mut looks = paper.looks.subscribe();
        looks.wait_for(|looks| *looks > 0).await.unwrap();
        let ended = match deletes_domain {
            true => rig.delete(&one).await,
            false => {
                rig.delete(&format!("{one}/certificate_management_policy"))
                    .await
            }
        };
        assert_eq!(ended, Answered::NoContent);
        paper.goes_on.send_replace(true);
        eventually("the order is gone", async || {
            // The lease of the attempt may have to expire first.
            rig.clock.advance(Duration::from_secs(60));
            rig.store.all("acme_order").await.unwrap().is_empty()
        })
        .await;
        let list = rig.get("/tls_certificates").await.body();
        assert_eq!(list["tls_certificates"], json!([]));
    }
}

#[tokio::test]
async fn the_edge_presents_the_certificate_of_an_agent_ingress() {
    let paper = Paper::new(true);
    let (rig, _tasks) = rig(&paper).await;
    let (_, start) = rig.events_after(0).await;
    let body = json!({"domain": "a.example", "certificate_management_policy": {}});
    let none = rig.post("/agent_ingresses", body).await.body();
    assert_eq!(
        none["certificate_management_policy"],
        Value::Null,
        "not given"
    );
    let one = path(&none);
    let policy = json!({"certificate_management_policy": {"private_key_type": "ecdsa"}});
    rig.patch(&one, policy).await.body();
    eventually("a certificate", async || {
        let status = &rig.get(&one).await.body()["certificate_management_status"];
        !status["renews_at"].is_null() && status["provisioning_job"].is_null()
    })
    .await;
    // Those of the caller come before the certificate, and the server's own after it.
    let (reported, _) = rig.events_after(start).await;
    let kinds: Vec<&Value> = reported.iter().map(|event| &event["event_type"]).collect();
    let expected = [
        "agent_ingress_created.v0",
        "agent_ingress_updated.v0",
        "certificate_ordered.v0",
        "tls_certificate_created.v0",
        "agent_ingress_updated.v0",
    ];
    assert_eq!(kinds, expected);
    assert!(!reported[1]["principal"].is_null() && reported[4]["principal"].is_null());
    assert!(rig.store.all("acme_order").await.unwrap().is_empty());
    let mut snapshots = rig.edge.0.subscribe();
    let presents_it = |snapshot: &Option<culvert_edge_config::Snapshot>| {
        let name = HostName::parse("a.example").unwrap();
        let snapshot = snapshot.as_ref();
        snapshot.is_some_and(|snapshot| snapshot.certified().any(|one| *one == name))
    };
    snapshots.wait_for(presents_it).await.unwrap();
    let issued = format!(
        "/tls_certificates/{}",
        reported[3]["object"]["id"].as_str().unwrap()
    );
    assert_eq!(rig.delete(&issued).await.code(), Some(1966));
    assert_eq!(rig.delete(&one).await, Answered::NoContent);
    assert_eq!(rig.delete(&issued).await, Answered::NoContent);
}

/// Seconds since 1970 of a time that the API shows.
fn seconds(time: &Value) -> i64 {
    let time = Timestamp::parse(time.as_str().unwrap()).unwrap();
    time.unix_seconds()
}

#[tokio::test]
async fn a_failed_order_is_retried_on_request() {
    let retry = "certificate_management_policy/retry";
    for collection in ["reserved_domains", "agent_ingresses"] {
        for change in [
            None,
            Some(json!({})),
            Some(json!({"description": "mended"})),
            Some(json!({"certificate_management_policy": {"private_key_type": "ecdsa"}})),
        ] {
            // The empty update of a domain is refused.
            if collection == "reserved_domains" && change == Some(json!({})) {
                continue;
            }
            let what = format!("{collection} {change:?}");
            let paper = Paper::new(true);
            paper.refuses.store(true, Ordering::Relaxed);
            let (rig, _tasks) = rig(&paper).await;
            let body = json!({"domain": "a.example", "certificate_management_policy": {"private_key_type": "ecdsa"}});
            let one = path(&rig.post(&format!("/{collection}"), body).await.body());
            let job = async || {
                let object = rig.get(&one).await.body();
                object["certificate_management_status"]["provisioning_job"].clone()
            };
            let ask = async || match &change {
                None => rig.post(&format!("{one}/{retry}"), Value::Null).await,
                Some(change) => rig.patch(&one, change.clone()).await,
            };
            let failed = async || job().await["error_code"] == "DNS_ERROR";
            let now = || rig.clock.now().unix_seconds();
            // Three failures, each followed by the wait of a first failure.
            for _ in 0..3 {
                eventually("a failure", failed).await;
                let wait = seconds(&job().await["retries_at"]) - now();
                assert!((300..=330).contains(&wait), "{what}: {wait}");
                // A retry soon after a failure waits for the minimum time.
                let (_, start) = rig.events_after(0).await;
                let asked = ask().await.body();
                let status = &asked["certificate_management_status"]["provisioning_job"];
                assert_eq!(status["error_code"], Value::Null, "{what}");
                assert_eq!(seconds(&status["retries_at"]), now() + 10, "{what}");
                // The audit log shows it as an update of the domain by the caller.
                let (reported, _) = rig.events_after(start).await;
                if collection == "reserved_domains" {
                    assert_eq!(reported.len(), 1 + usize::from(change.is_none()), "{what}");
                    if let Some(second) = reported.get(1) {
                        assert_eq!(second["event_type"], "certificate_retried.v0");
                    }
                    assert_eq!(reported[0]["event_type"], "domain_updated.v0");
                    assert!(!reported[0]["principal"].is_null());
                }
                rig.clock.advance(Duration::from_secs(10));
                // Wakes the reconciler: the attempt is due by the clock of the test.
                ask().await.body();
            }
            eventually("a failure", failed).await;
            paper.refuses.store(false, Ordering::Relaxed);
            rig.clock.advance(Duration::from_secs(10));
            ask().await.body();
            eventually("a certificate", async || {
                let status = &rig.get(&one).await.body()["certificate_management_status"];
                !status["renews_at"].is_null()
            })
            .await;
            // A retry without a failed attempt changes nothing.
            let before = rig.get(&one).await.body();
            let after = rig.post(&format!("{one}/{retry}"), Value::Null).await;
            assert_eq!(after.body(), before, "{what}");
        }
    }
}

#[tokio::test]
pub(super) async fn retries_without_a_failed_order_are_refused() {
    let (rig, _tasks) = rig(&Paper::new(true)).await;
    let body = json!({"domain": "x.culvert.localhost"});
    let one = path(&rig.post("/reserved_domains", body).await.body());
    let retry = "certificate_management_policy/retry";
    let refused = rig.post(&format!("{one}/{retry}"), Value::Null).await;
    assert_eq!(refused.code(), Some(437));
    let absent = format!("/reserved_domains/rd_00000000000000000000000000/{retry}");
    assert_eq!(rig.post(&absent, Value::Null).await.code(), None);
}
