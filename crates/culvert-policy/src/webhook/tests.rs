use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::webhook::signature::moment;

/// Requests and what must come of them, made by `webhooks.py` beside the file.
const VECTORS: &str = include_str!("../../tests/data/webhooks.json");

#[derive(Deserialize)]
struct Vectors {
    now: i64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    provider: String,
    case: String,
    expect: Expected,
    secret: String,
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
    now: Option<i64>,
    certificate: Option<String>,
    #[serde(default, deserialize_with = "given")]
    answer: Option<Option<ChallengeCase>>,
}

#[derive(Deserialize)]
struct ChallengeCase {
    status: u16,
    body: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Ok,
    Missing,
    Stale,
    Mismatch,
    Refused,
}

/// Tells `null` from nothing.
fn given<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<ChallengeCase>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn vectors() -> Vectors {
    serde_json::from_str(VECTORS).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap()
}

impl Case {
    fn headers(&self) -> HeaderMap {
        let fields = self.headers.iter().map(|(name, value)| {
            let name = HeaderName::try_from(name.as_str()).unwrap();
            (name, HeaderValue::try_from(value.as_str()).unwrap())
        });
        fields.collect()
    }

    fn is_met_by(&self, verdict: Result<(), Unverified>) -> bool {
        match self.expect {
            Expected::Ok => verdict.is_ok(),
            Expected::Missing => matches!(verdict, Err(Unverified::Missing(_))),
            Expected::Stale => verdict == Err(Unverified::Stale),
            Expected::Mismatch => verdict == Err(Unverified::Mismatch),
            Expected::Refused => verdict.is_err(),
        }
    }
}

#[test]
fn recorded_requests_of_every_provider_are_verified() {
    let vectors = vectors();
    for case in &vectors.cases {
        let name = format!("{}: {}", case.provider, case.case);
        let provider = find(&case.provider).unwrap_or_else(|| panic!("{name}: no such provider"));
        let now = Timestamp::from_unix_seconds(case.now.unwrap_or(vectors.now));
        let (method, headers, body) = (
            case.method.parse().unwrap(),
            case.headers(),
            base64(&case.body),
        );
        let request = Request {
            method: &method,
            url: &case.url,
            headers: &headers,
            body: &body,
        };
        let verdict = match &case.certificate {
            Some(pem) => sns::Message::read(&body, now)
                .and_then(|message| message.verify(pem.as_bytes(), now)),
            None => verify(provider, &case.secret, &request, now),
        };
        assert!(case.is_met_by(verdict), "{name}: {verdict:?}");
        assert_eq!(provider.check_secret(&case.secret), Ok(()), "{name}");

        let answered = answer(provider, &case.secret, &request, verdict);
        if let Some(expected) = &case.answer {
            let answered = answered.map(|answer| (answer.status().as_u16(), answer.into_body()));
            let expected = expected
                .as_ref()
                .map(|answer| (answer.status, base64(&answer.body).into()));
            assert_eq!(answered, expected, "{name}");
        } else {
            assert!(answered.is_none(), "{name}: {answered:?}");
        }
    }
}

#[test]
fn each_provider_has_the_required_test_cases() {
    let mut cases: BTreeMap<String, BTreeSet<Expected>> = BTreeMap::new();
    for case in vectors().cases {
        cases.entry(case.provider).or_default().insert(case.expect);
    }
    for provider in all() {
        let name = provider.name();
        let cases = cases.remove(name).unwrap_or_default();
        let mut needed = vec![Expected::Ok, Expected::Mismatch, Expected::Missing];
        if provider.rows.iter().any(|row| row.stamp.is_some()) {
            needed.push(Expected::Stale);
        }
        for needed in needed {
            assert!(cases.contains(&needed), "{name} has no case {needed:?}");
        }
    }
    assert!(cases.is_empty(), "cases of no provider: {cases:?}");
}

#[test]
fn the_provider_table_is_sorted() {
    let names: Vec<_> = all().map(Provider::name).collect();
    assert!(names.is_sorted() && names.len() == names.iter().collect::<BTreeSet<_>>().len());
    assert!(
        provider::UNCONFIRMED
            .iter()
            .all(|name| names.contains(name))
    );
    assert!(find("nobody").is_none());
}

#[test]
fn invalid_secrets_are_refused() {
    for (provider, secret, is_taken) in [
        ("github", "", false),
        ("github", "x", true),
        ("svix", "whsec_", false),
        ("svix", "whsec_not base64!", false),
        ("svix", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true),
        ("microsoft_teams", "???", false),
        ("brex", "???", true),
        ("box", ",", false),
        ("sendgrid", "MFkw", false),
        ("sns", "", true),
    ] {
        let taken = find(provider).unwrap().check_secret(secret);
        assert_eq!(taken.is_ok(), is_taken, "{provider} {secret:?}: {taken:?}");
    }
}

#[test]
fn an_empty_secret_verifies_nothing() {
    let headers: HeaderMap = [(
        HeaderName::from_static("x-gitlab-token"),
        HeaderValue::from_static(""),
    )]
    .into_iter()
    .collect();
    let request = Request {
        method: &Method::POST,
        url: "https://h.test/",
        headers: &headers,
        body: b"",
    };
    let verdict = verify(find("gitlab").unwrap(), "", &request, Timestamp::default());
    assert_eq!(verdict, Err(Unverified::Secret));
}

#[test]
fn timestamps_of_providers_are_parsed() {
    let at = Timestamp::from_unix_seconds(1_767_225_600);
    for text in [
        "1767225600",
        " 1767225600 ",
        "1767225600000",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.000000",
        "2026-01-01T01:00:00+01:00",
        "2025-12-31T16:00:00-08:00",
    ] {
        assert_eq!(moment(text), Some(at), "{text}");
    }
    for text in [
        "",
        "-1",
        "1e9",
        "99999999999999999",
        "now",
        "Z",
        "2026-01-01",
    ] {
        assert_eq!(moment(text), None, "{text}");
    }
}

/// Fields that some provider reads, with values that are nearly right.
fn fields() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let names: BTreeSet<String> = vectors()
        .cases
        .iter()
        .flat_map(|case| case.headers.iter().map(|(name, _)| name.to_lowercase()))
        .collect();
    let names: Vec<String> = names.into_iter().collect();
    let value = prop_oneof![
        "[ -~]{0,40}",
        "(v[0-9]|t|s|sign|sha1|sha256)=[0-9a-f]{0,70}([,;& ](t|v1|env)=[0-9%é]{0,12}){0,3}",
        "v1,[A-Za-z0-9+/=]{0,60}( v1,[A-Za-z0-9+/=]{0,60}){0,4}",
        "[0-9]{0,20}",
    ];
    let field = (proptest::sample::select(names), value).prop_map(|(name, value)| {
        let value = HeaderValue::from_bytes(value.as_bytes());
        (
            HeaderName::try_from(name).unwrap(),
            value.unwrap_or(HeaderValue::from_static("")),
        )
    });
    proptest::collection::vec(field, 0..6)
}

proptest! {
    #[test]
    fn any_request_is_verified_or_refused(
        fields in fields(),
        url in "(https://)?[a-z.:]{0,12}[/?&=%a-zé0-9.:]{0,40}",
        secret in "(whsec_)?[ -~é]{0,30}",
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60),
            "\\{(\"(signature|Signature|events|event|payload|webhookTimestamp|Type)\":(\"[a-z]{0,4}\"|[0-9]{1,20}|\\[\\]|\\{\\}|null),?){0,4}\\}?"
                .prop_map(String::into_bytes),
        ],
        now in any::<i64>(),
    ) {
        let headers: HeaderMap = fields.into_iter().collect();
        let now = Timestamp::from_unix_nanos(now);
        for provider in all() {
            let request = Request { method: &Method::POST, url: &url, headers: &headers, body: &body };
            let verdict = verify(provider, &secret, &request, now);
            let _answer = answer(provider, &secret, &request, verdict);
            let _taken = provider.check_secret(&secret);
        }
        let _message = sns::Message::read(&body, now);
    }
}
