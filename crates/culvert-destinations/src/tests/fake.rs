//! What tests of targets share: targets with settings for this machine, resolvers, and batches.

pub(crate) mod rsyslog;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_base::batch::BatchClass;
use culvert_base::{BoxFuture, ManualClock, OsEntropy, SystemClock, Timestamp};
use culvert_target::batch::{Batch, OpenBatch};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::guard::Rules;
use culvert_target::net::{CONNECTION_LIFE, Net, Resolve};
use culvert_target::{
    DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};
pub(crate) use culvert_testing::http_server::{Fake, RecordedRequest, Reply};
pub(crate) use culvert_testing::{certificate, nats, tls_front, until};
use serde_json::Value;

/// A batch of these envelopes.
pub(crate) fn batch(class: BatchClass, envelopes: &[&str]) -> Batch {
    let mut open = OpenBatch::default();
    for envelope in envelopes {
        open.push(&"esb_1".into(), envelope.as_bytes());
    }
    Batch::read("ed_1".into(), class, open.finish().stored).unwrap()
}

/// An envelope in the form of the recorder.
pub(crate) fn envelope(id: u32, at: &str) -> String {
    format!(
        r#"{{"event_id":"ev_{id}","event_type":"test","event_timestamp":"{at}","account_id":"ac_1","principal":null,"object":{{}}}}"#
    )
}

/// Two events of the same second.
pub(crate) fn pair() -> [String; 2] {
    [1, 2].map(|id| envelope(id, "2027-01-15T08:00:00.000Z"))
}

/// A target of `ty` with a clock at 2027-01-15T08:00:00Z, allowed to reach this machine.
pub(crate) fn target(
    ty: &TargetType,
    config: &Value,
    change: impl FnOnce(&mut TargetSettings),
) -> Arc<dyn Target> {
    let mut settings = local_settings();
    change(&mut settings);
    let stored = (ty.check)(config, &settings, &OsEntropy).unwrap().stored;
    let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
    let context = TargetContext::new(settings, Arc::new(clock), Arc::new(OsEntropy));
    (ty.open)(&stored, &context, DESTINATION_IDS).unwrap()
}

/// Asserts that each of these changes to a valid configuration is refused with the code 5140, without the value in the
/// message. `null` removes a field.
pub(crate) fn assert_refused(ty: &TargetType, valid: &Value, changes: &[Value]) {
    let settings = local_settings();
    let check = |config: &Value| (ty.check)(config, &settings, &OsEntropy);
    check(valid).unwrap();
    for change in changes {
        let mut config = valid.clone();
        for (name, value) in change.as_object().unwrap() {
            config[name] = value.clone();
        }
        config
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        let refusal = check(&config).expect_err(&change.to_string());
        let code = refusal.code.map(culvert_base::Code::number);
        assert_eq!(code, Some(5140), "{change}: {}", refusal.message);
        assert!(!refusal.message.contains("s3cr3t"), "{}", refusal.message);
    }
}

/// The stored form of a configuration, and the form that the API shows.
pub(crate) fn stored_and_shown(ty: &TargetType, config: &Value) -> (Value, Value) {
    let stored = (ty.check)(config, &local_settings(), &OsEntropy)
        .unwrap()
        .stored;
    let shown = (ty.redact)(&stored);
    assert!(!shown.to_string().contains("s3cr3t"), "{shown}");
    (stored, shown)
}

/// The destination of tests.
pub(crate) const DESTINATION_IDS: DestinationIds<'static> = DestinationIds {
    destination: "ed_1",
    account: "ac_1",
};

/// Settings that allow this machine, over plain HTTP.
pub(crate) fn local_settings() -> TargetSettings {
    TargetSettings {
        rules: Rules {
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        public_base: "https://culvert.example".to_owned(),
        node: "node-1".to_owned(),
        ..TargetSettings::default()
    }
}

/// The failure of a whole batch.
pub(crate) fn failure(verdict: Verdict) -> Failure {
    match verdict {
        Verdict::Failed(failure) => failure,
        other => panic!("not failed: {other:?}"),
    }
}

/// The class of each outcome, `None` for accepted events.
pub(crate) fn classes(verdict: Verdict) -> Vec<Option<FailureClass>> {
    match verdict {
        Verdict::Partial(outcomes) => outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Outcome::Delivered => None,
                Outcome::NotTried => panic!("not tried"),
                Outcome::Failed(failure) => Some(failure.class),
            })
            .collect(),
        other => panic!("not partial: {other:?}"),
    }
}

/// A resolver for tests: every name in `.example` except `gone.example` is this machine.
#[derive(Debug)]
pub(crate) struct Named;

impl Resolve for Named {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        Box::pin(async move {
            match host.strip_suffix(".example") {
                Some("gone") | None => Err("the host name does not resolve".into()),
                Some(_) => Ok(vec![[127, 0, 0, 1].into()]),
            }
        })
    }
}

/// A resolver that counts. Every name is this machine.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Resolve for Counted {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(vec![[127, 0, 0, 1].into()]) })
    }
}

/// Sends batches to a host with a name, and asserts that each gets through and that the name is resolved again after
/// the life of a connection, and not before.
pub(crate) async fn assert_connections_have_a_life(ty: &TargetType, config: &Value) {
    let settings = local_settings();
    let stored = (ty.check)(config, &settings, &OsEntropy).unwrap().stored;
    let names = Arc::new(Counted::default());
    let clock = Arc::new(SystemClock);
    let net = Net::with_resolver(settings.net(), clock, Arc::new(OsEntropy), names.clone());
    let context = TargetContext::with_net(settings, net);
    let target = (ty.open)(&stored, &context, DESTINATION_IDS).unwrap();
    let mut last = 0;
    let mut send = async || {
        last += 1;
        let event = envelope(last, "2027-01-15T08:00:00.000Z");
        let sent = target.send(&batch(BatchClass::Traffic, &[&event])).await;
        assert_eq!(sent, Verdict::Delivered);
        names.0.load(Ordering::SeqCst)
    };
    let first = send().await;
    let second = send().await;
    assert_eq!(second, first, "the connection is used again");
    tokio::time::pause();
    tokio::time::advance(CONNECTION_LIFE).await;
    tokio::time::resume();
    let third = send().await;
    assert!(third > second, "the name was not resolved again");
    assert_eq!(send().await, third, "the new connection is used again");
}

impl Named {
    pub(crate) fn net(settings: &TargetSettings) -> Net {
        let clock = Arc::new(SystemClock);
        Net::with_resolver(settings.net(), clock, Arc::new(OsEntropy), Arc::new(Self))
    }

    pub(crate) fn context(settings: &TargetSettings) -> TargetContext {
        TargetContext::with_net(settings.clone(), Self::net(settings))
    }
}
