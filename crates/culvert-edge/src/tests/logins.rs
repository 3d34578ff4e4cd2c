//! Log-ins on live traffic, against an OpenID provider that says what a test wants it to say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{ManualClock, Timestamp};
use culvert_login::ACTIONS;
use culvert_login::{
    JournalEntry, LoginKeys, LoginSettings, Logins, Noted, ProviderSettings, Revocations, Revoked,
    Sighting,
};
use culvert_policy::Scheme;
use culvert_policy::{LoginService, Resources, Source};
use serde_json::{Value, json};
use sha2::Digest;
use tokio::sync::mpsc;
use url::Url;

use super::harness::*;
use super::tokens::Issuer;
use crate::{Endpoint, Settings, Snapshot};

const NOW: i64 = 1_767_225_600;

/// What the provider says, and what it was asked.
struct Told {
    /// The nonce of the log-in that is under way.
    nonce: String,
    /// What is different in the next ID tokens.
    claims: Value,
    /// The answer to the question who somebody is.
    person: (u16, Value),
    /// The answer to a code or a refresh token in the place of the ordinary one.
    refusal: Option<(u16, Value)>,
    /// The head and the body of what it was asked, but for its keys and itself.
    asked: Vec<(String, String)>,
    is_down: bool,
}

/// An OpenID provider.
struct Idp {
    url: String,
    signer: Issuer,
    told: Mutex<Told>,
}

impl Idp {
    async fn start(rig: &mut Rig) -> Arc<Self> {
        let (sender, mut receiver) = mpsc::channel::<Arc<Self>>(1);
        let cell: Arc<tokio::sync::OnceCell<Arc<Self>>> = Arc::default();
        let served = Arc::clone(&cell);
        let address = origin(&mut rig.tasks, move |mut client| {
            let served = Arc::clone(&served);
            async move {
                while let Some((head, body)) = client.request().await {
                    let idp = served.get().unwrap();
                    if idp.told.lock().unwrap().is_down {
                        return;
                    }
                    let (status, told) = idp.answer(&head, &String::from_utf8(body).unwrap());
                    let text = told.to_string();
                    let length = text.len();
                    let answer = format!(
                        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{text}"
                    );
                    client.send(answer).await;
                }
            }
        })
        .await;
        let idp = Arc::new(Self {
            url: format!("http://{address}"),
            signer: Issuer::ec("k1"),
            told: Mutex::new(Told {
                nonce: String::new(),
                claims: json!({}),
                person: (
                    200,
                    json!({"sub": "u7", "name": "Ann", "email": "ann@x.example"}),
                ),
                refusal: None,
                asked: Vec::new(),
                is_down: false,
            }),
        });
        sender.send(Arc::clone(&idp)).await.unwrap();
        cell.set(receiver.recv().await.unwrap()).ok().unwrap();
        idp
    }

    fn answer(&self, head: &str, body: &str) -> (u16, Value) {
        let url = &self.url;
        let path = head.split(' ').nth(1).unwrap();
        let mut told = self.told.lock().unwrap();
        match path {
            "/.well-known/openid-configuration" => (
                200,
                json!({
                    "issuer": url,
                    "authorization_endpoint": format!("{url}/authorize?hint=x"),
                    "token_endpoint": format!("{url}/token"),
                    "userinfo_endpoint": format!("{url}/me"),
                    "jwks_uri": format!("{url}/keys"),
                }),
            ),
            "/keys" => (200, json!({"keys": [self.signer.jwk()]})),
            _ => {
                told.asked.push((head.to_owned(), body.to_owned()));
                match path {
                    "/token" => match &told.refusal {
                        Some(refusal) => refusal.clone(),
                        None => (200, self.tokens(&told)),
                    },
                    "/me/emails" => (
                        200,
                        json!([
                            {"email": "old@x.example", "primary": false, "verified": true},
                            {"email": "ann@x.example", "primary": true, "verified": true},
                        ]),
                    ),
                    _ => told.person.clone(),
                }
            }
        }
    }

    fn tokens(&self, told: &Told) -> Value {
        let n = told.asked.len();
        let mut claims = json!({
            "iss": self.url, "aud": "app", "sub": "u7", "exp": NOW + 1_000_000, "iat": NOW,
            "nonce": told.nonce,
        });
        for (name, value) in told.claims.as_object().unwrap() {
            claims[name] = value.clone();
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            }
        }
        json!({
            "access_token": format!("at{n}"), "refresh_token": format!("rt{n}"),
            "token_type": "bearer", "expires_in": 3600, "id_token": self.signer.sign(&claims),
        })
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().unwrap());
    }

    /// What it was asked since the last look.
    fn asked(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.told.lock().unwrap().asked)
    }
}

/// A browser at one host.
#[derive(Clone, Default)]
pub(super) struct Browser {
    jar: BTreeMap<String, String>,
}

impl Browser {
    async fn ask(&mut self, rig: &Rig, method: &str, target: &str, fields: &str) -> Answer {
        let pairs: Vec<String> = self
            .jar
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let cookie = match pairs.is_empty() {
            true => String::new(),
            false => format!("cookie: {}\r\n", pairs.join("; ")),
        };
        let mut client = rig.connect().await;
        client
            .send(format!(
                "{method} {target} HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n{cookie}{fields}\r\n"
            ))
            .await;
        let answer = client.answer(method).await;
        for (name, value) in &answer.headers {
            if name == "set-cookie" {
                let (pair, attributes) = value.split_once(';').unwrap();
                let (name, value) = pair.split_once('=').unwrap();
                assert!(
                    attributes.ends_with("; Secure; HttpOnly; SameSite=Lax"),
                    "{attributes}"
                );
                if attributes.contains("Max-Age=0;") {
                    self.jar.remove(name);
                } else {
                    self.jar.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        answer
    }

    pub(super) async fn get(&mut self, rig: &Rig, target: &str) -> Answer {
        self.ask(rig, "GET", target, "").await
    }

    /// Is sent to the provider, who sends it back to the answer's target.
    async fn begin(&mut self, rig: &Rig, idp: &Idp, target: &str) -> String {
        let answer = self.get(rig, target).await;
        assert_eq!(answer.status, 302, "{}", answer.text());
        let sent = sent_to(&answer);
        let nonce = sent.get("nonce").cloned().unwrap_or_default();
        idp.tell(|told| told.nonce = nonce);
        let state = &sent["state"];
        format!("/culvert/oauth2/callback?code=c1&state={state}")
    }

    async fn log_in(&mut self, rig: &Rig, idp: &Idp) -> Answer {
        let back = self.begin(rig, idp, "/").await;
        self.get(rig, &back).await
    }
}

/// The parameters of the authorization URL.
fn sent_to(answer: &Answer) -> BTreeMap<String, String> {
    let url = Url::parse(answer.header("location").unwrap()).unwrap();
    url.query_pairs().into_owned().collect()
}

/// An edge with an endpoint behind a log-in, and what the log-ins tell.
pub(super) struct Scene {
    pub(super) rig: Rig,
    idp: Arc<Idp>,
    logins: Arc<Logins>,
    clock: Arc<ManualClock>,
    /// Sessions that were noted.
    seen: Arc<Mutex<Vec<Sighting>>>,
}

const CONFIG: &str = "issuer_url: URL, client_id: app, client_secret: a+b";

impl Scene {
    pub(super) async fn start(more: &str) -> Self {
        Self::with(
            LoginSettings::default(),
            "openid-connect",
            &format!("{CONFIG}{more}"),
        )
        .await
    }

    async fn with(settings: LoginSettings, action: &str, config: &str) -> Self {
        Self::noting(settings, action, config, Noted::Stored("au_1".to_owned())).await
    }

    async fn noting(
        mut login_settings: LoginSettings,
        action: &str,
        config: &str,
        noted: Noted,
    ) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(NOW)));
        let mut rig = Rig::at(settings(), Arc::clone(&clock) as _).await;
        let idp = Idp::start(&mut rig).await;
        login_settings.allows_loopback = true;
        for provider in login_settings.providers.values_mut() {
            provider.authorize_url = Url::parse(&format!("{}/authorize", idp.url)).ok();
            provider.token_url = Url::parse(&format!("{}/token", idp.url)).ok();
            provider.userinfo_url = Url::parse(&format!("{}/me", idp.url)).ok();
        }
        let (logins, mut entries) = Logins::new(LoginKeys::new([[7; 32]]), login_settings);
        let seen: Arc<Mutex<Vec<Sighting>>> = Arc::default();
        let seen_here = Arc::clone(&seen);
        rig.tasks.spawn(async move {
            while let Some(entry) = entries.recv().await {
                if let JournalEntry::SignedIn(sighting, answer) = entry {
                    seen_here.lock().unwrap().push(*sighting);
                    drop(answer.send(noted.clone()));
                }
            }
        });
        let scene = Self {
            rig,
            idp,
            logins,
            clock,
            seen,
        };
        scene.publish(action, config).await;
        scene
    }

    async fn publish(&self, action: &str, config: &str) {
        let origin = {
            // Answers with the head it got.
            let mut tasks = tokio::task::JoinSet::new();
            let address = origin(&mut tasks, |mut client| async move {
                while let Some((head, _)) = client.request().await {
                    let length = head.len();
                    client
                        .send(format!(
                            "HTTP/1.1 200 x\r\ncontent-length: {length}\r\n\r\n{head}"
                        ))
                        .await;
                }
            })
            .await;
            tasks.detach_all();
            address
        };
        let result = if action == "oauth" { "oauth" } else { "oidc" };
        let policy = format!(
            "on_http_request:\n- actions:\n  - type: {action}\n    config: {{{}}}\n  - type: add-headers\n    config: {{headers: {{x-who: '${{actions.ngrok.{result}.identity.email}} ${{actions.ngrok.{result}.identity.id}} ${{actions.ngrok.{result}.access_token}} ${{actions.ngrok.{result}.userinfo_refreshed}}'}}}}\non_http_response:\n- actions:\n  - type: add-headers\n    config: {{headers: {{x-gone: '${{actions.ngrok.{result}.session_timed_out}} ${{actions.ngrok.{result}.session_max_duration_reached}} ${{actions.ngrok.{result}.error.code}}'}}}}\n",
            config.replace("URL", &self.idp.url)
        );
        let resources = Resources {
            logins: Some(LoginService::new(Arc::clone(&self.logins))),
            ..Resources::default()
        };
        let source = Source::read(&policy, ACTIONS).unwrap();
        let compiled = source.compile(Scheme::Http, true, &resources);
        let endpoint = Endpoint {
            policy: Some(Arc::new(compiled.unwrap())),
            ..endpoint(
                Scheme::Http,
                "app.example",
                80,
                &format!("http://{origin}"),
                "",
            )
        };
        let snapshot = Snapshot::builder()
            .endpoint(endpoint)
            .logins(Arc::clone(&self.logins));
        self.rig.edge.publish(snapshot.build()).await;
    }

    pub(super) async fn logged_in(&self) -> Browser {
        let mut browser = Browser::default();
        let answer = browser.log_in(&self.rig, &self.idp).await;
        assert_eq!(answer.status, 302, "{}", answer.text());
        browser
    }

    /// What the last event says of the log-in.
    async fn told(&self, count: usize) -> Value {
        let events = self.rig.recorder.events(count).await;
        of(&events, HTTP).last().unwrap()["object"]["oauth"].clone()
    }
}

fn problem(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("ngrok-error-code"))
}

#[tokio::test]
async fn a_user_logs_in_and_events_tell_who() {
    let scene = Scene::start("").await;
    let mut browser = Browser::default();
    let answer = browser.get(&scene.rig, "/a/b?c=d").await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let sent = sent_to(&answer);
    assert!(
        answer
            .header("location")
            .unwrap()
            .starts_with(&format!("{}/authorize?hint=x&", scene.idp.url))
    );
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", "app"),
        ("scope", "openid profile email"),
        ("redirect_uri", "http://app.example/culvert/oauth2/callback"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(sent[name], value);
    }
    assert!(!sent.contains_key("prompt"));
    let nobody =
        json!({"app_client_id": "app", "decision": "block", "user": {"id": null, "name": null}});
    assert_eq!(scene.told(2).await, nobody);

    scene.idp.tell(|told| told.nonce = sent["nonce"].clone());
    let back = format!(
        "/culvert/oauth2/callback?code=c%201&state={}",
        sent["state"]
    );
    let answer = browser.get(&scene.rig, &back).await;
    assert_eq!(answer.status, 302, "{}", answer.text());
    assert_eq!(
        answer.header("location"),
        Some("http://app.example/a/b?c=d")
    );
    let ann = |decision: &str| json!({"app_client_id": "app", "decision": decision, "user": {"id": "u7", "name": "Ann"}});
    assert_eq!(scene.told(4).await, ann("block"));
    let asked = scene.idp.asked();
    let (head, form) = &asked[0];
    // `app:a+b`, each encoded.
    assert!(
        head.contains("authorization: Basic YXBwOmElMkJi\r\n"),
        "{head}"
    );
    let form: BTreeMap<String, String> = url::form_urlencoded::parse(form.as_bytes())
        .into_owned()
        .collect();
    assert_eq!(form["grant_type"], "authorization_code");
    assert_eq!(form["code"], "c 1");
    assert_eq!(form["redirect_uri"], sent["redirect_uri"]);
    let challenge = URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(&form["code_verifier"]));
    assert_eq!(challenge, sent["code_challenge"]);
    assert!(!form.contains_key("client_secret"));
    assert!(asked[1].0.contains("authorization: Bearer at1\r\n"));

    browser.jar.insert("mine".to_owned(), "1".to_owned());
    let answer = browser.get(&scene.rig, "/").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let received = answer.text();
    assert!(
        received.contains("x-who: ann@x.example au_1 at1 false\r\n"),
        "{received}"
    );
    // The upstream could come back as this user otherwise.
    assert!(
        received.contains("cookie: mine=1\r\n") && !received.contains("culvert."),
        "{received}"
    );
    assert_eq!(scene.told(6).await, ann("allow"));
    let seen = scene.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].person.provider_user_id, "u7");
    assert_eq!(seen[0].public_url, "http://app.example");
    assert_eq!(seen[0].ip_address, "127.0.0.1");
    assert!(seen[0].session.starts_with("as_") && seen[0].session.len() == 30);
    assert_eq!(scene.rig.edge.meters().policy.logins.get(), 1);

    // Another tab that began before comes back, too.
    let mut tabs = Browser::default();
    let first = tabs.begin(&scene.rig, &scene.idp, "/1").await;
    let nonce = scene.idp.told.lock().unwrap().nonce.clone();
    tabs.begin(&scene.rig, &scene.idp, "/2").await;
    scene.idp.tell(|told| told.nonce = nonce);
    let answer = tabs.get(&scene.rig, &first).await;
    assert_eq!(answer.header("location"), Some("http://app.example/1"));
}

#[tokio::test]
async fn what_comes_back_is_checked() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let mut browser = Browser::default();
    let back = browser.begin(rig, idp, "/").await;
    let state = back.split("state=").nth(1).unwrap();
    let mut tampered = state.to_owned();
    let last = tampered.pop().unwrap();
    tampered.push(if last == 'A' { 'B' } else { 'A' });
    let nonce_cookie = browser.jar["culvert.nonce"].clone();
    let long = "x".repeat(5000);
    for (why, query, code) in [
        ("no state", "code=c1".to_owned(), "3120"),
        (
            "two states",
            format!("code=c1&state={state}&state={state}"),
            "3120",
        ),
        ("tampered", format!("code=c1&state={tampered}"), "3108"),
        (
            "a cookie for a state",
            format!("code=c1&state={nonce_cookie}"),
            "3108",
        ),
        ("a long one", format!("code=c1&state={long}"), "3108"),
    ] {
        let answer = browser
            .get(rig, &format!("/culvert/oauth2/callback?{query}"))
            .await;
        let code = format!("ERR_NGROK_{code}");
        assert_eq!(problem(&answer), (400, Some(code.as_str())), "{why}");
        assert_eq!(
            answer.header("x-gone"),
            Some(format!("false false {code}").as_str())
        );
    }
    // Another browser has not begun this log-in; nor has one with a cookie of its own.
    let answer = Browser::default().get(rig, &back).await;
    assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3107")));
    let mut other = Browser::default();
    other.begin(rig, idp, "/").await;
    assert_eq!(
        problem(&other.get(rig, &back).await),
        (400, Some("ERR_NGROK_3107"))
    );
    assert!(idp.asked().is_empty());

    // Once is often enough, but who is in goes on.
    idp.tell(|told| told.nonce = String::new());
    let back = browser.begin(rig, idp, "/x").await;
    let before = browser.clone();
    assert_eq!(browser.get(rig, &back).await.status, 302);
    assert_eq!(idp.asked().len(), 2);
    let answer = before.clone().get(rig, &back).await;
    assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")));
    let answer = browser.get(rig, &back).await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (302, Some("http://app.example/x"))
    );
    assert!(idp.asked().is_empty());

    for (query, status, code) in [
        ("error=access_denied", 403, "3125"),
        ("error=temporarily_unavailable", 502, "5536"),
        ("iss=http%3A%2F%2Fevil.example&code=c1", 400, "3108"),
        ("code=", 400, "3108"),
    ] {
        let mut browser = Browser::default();
        let back = browser.begin(rig, idp, "/").await.replace("code=c1", query);
        let answer = browser.get(rig, &back).await;
        let code = format!("ERR_NGROK_{code}");
        assert_eq!(problem(&answer), (status, Some(code.as_str())), "{query}");
    }
    let mut late = Browser::default();
    let back = late.begin(rig, idp, "/").await;
    scene.clock.advance(Duration::from_secs(901));
    assert_eq!(
        problem(&late.get(rig, &back).await),
        (400, Some("ERR_NGROK_3108"))
    );
    assert!(idp.asked().is_empty());
}

#[tokio::test]
async fn id_tokens_are_checked() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    for (claims, status) in [
        (json!({}), 302),
        (json!({"aud": ["app", "other"], "azp": "app"}), 302),
        (json!({"exp": NOW - 30}), 302),
        (json!({"nonce": "another"}), 403),
        (json!({"nonce": null}), 403),
        (json!({"iss": "http://evil.example"}), 403),
        (json!({"iss": null}), 403),
        (json!({"aud": "other"}), 403),
        (json!({"aud": ["app", "other"]}), 403),
        (json!({"azp": "other"}), 403),
        (json!({"exp": NOW - 61}), 403),
        (json!({"exp": null}), 403),
        (json!({"nbf": NOW + 100}), 403),
        (json!({"sub": "u8"}), 403),
        (json!({"sub": null}), 403),
    ] {
        idp.tell(|told| told.claims = claims.clone());
        let answer = Browser::default().log_in(rig, idp).await;
        assert_eq!(answer.status, status, "{claims}");
    }
    // Signed by somebody else, or by nobody.
    let stranger = Issuer::ec("k1");
    for forge in ["stranger", "none", "nothing"] {
        let mut browser = Browser::default();
        let back = browser.begin(rig, idp, "/").await;
        let nonce = idp.told.lock().unwrap().nonce.clone();
        let claims =
            json!({"iss": idp.url, "aud": "app", "sub": "u7", "exp": NOW + 600, "nonce": nonce});
        let token = match forge {
            "stranger" => stranger.sign(&claims),
            "none" => format!(
                "{}.{}.",
                URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
                URL_SAFE_NO_PAD.encode(claims.to_string())
            ),
            _ => String::new(),
        };
        idp.tell(|told| {
            told.refusal = Some((200, json!({"access_token": "at", "id_token": token})));
        });
        let answer = browser.get(rig, &back).await;
        assert_eq!(problem(&answer), (403, Some("ERR_NGROK_3303")), "{forge}");
    }
    for (status, told, expected) in [
        (400, json!({"error": "invalid_grant"}), (403, "3125")),
        (401, json!({"error": "invalid_client"}), (403, "3125")),
        (500, json!({"error": "oops"}), (502, "5536")),
        (200, json!({"token_type": "bearer"}), (502, "5536")),
    ] {
        idp.tell(|state| state.refusal = Some((status, told.clone())));
        let answer = Browser::default().log_in(rig, idp).await;
        let code = format!("ERR_NGROK_{}", expected.1);
        assert_eq!(
            problem(&answer),
            (expected.0, Some(code.as_str())),
            "{told}"
        );
    }
}

#[tokio::test]
async fn nobody_is_sent_elsewhere() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    for (target, path) in [
        ("/culvert/login", "/"),
        ("/culvert/login?redirect_path=/a%3Fb", "/a?b"),
        ("//evil.example/x", "/evil.example/x"),
        ("/\\evil.example", "/evil.example"),
    ] {
        let mut browser = Browser::default();
        let back = browser.begin(rig, idp, target).await;
        let answer = browser.get(rig, &back).await;
        let location = format!("http://app.example{path}");
        assert_eq!(
            answer.header("location"),
            Some(location.as_str()),
            "{target}"
        );
    }
    for path in [
        "//evil.example",
        "https://evil.example",
        "/%5Cevil.example",
        "evil",
        "/%0d%0aSet-Cookie:%20a=b",
    ] {
        for own in ["login", "logout"] {
            let target = format!("/culvert/{own}?redirect_path={path}");
            let answer = Browser::default().get(rig, &target).await;
            assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3106")), "{target}");
        }
    }
    // Asked for, the log-in is one, whatever session the provider has.
    let answer = Browser::default().get(rig, "/culvert/login").await;
    assert_eq!(sent_to(&answer)["prompt"], "login");
    // Of another action, it is a path like others.
    let answer = Browser::default()
        .get(rig, "/culvert/login?auth_id=other")
        .await;
    assert!(!sent_to(&answer).contains_key("prompt"));
}

#[tokio::test]
async fn sessions_end() {
    let scene = Scene::start(", max_session_duration: 1h, idle_session_duration: 10m").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let seconds = Duration::from_secs;
    let mut browser = scene.logged_in().await;
    // Used, it goes on, and the browser gets a newer one.
    for _ in 0..5 {
        scene.clock.advance(seconds(500));
        let before = browser.jar["culvert.session"].clone();
        assert_eq!(browser.get(rig, "/").await.status, 200);
        assert_ne!(browser.jar["culvert.session"], before);
    }
    let mut idle = browser.clone();
    // Unused for ten minutes it ends, and after an hour in any case.
    scene.clock.advance(seconds(601));
    let answer = idle.get(rig, "/").await;
    assert_eq!(
        (answer.status, answer.header("x-gone")),
        (302, Some("true false "))
    );
    let mut old = scene.logged_in().await;
    for _ in 0..7 {
        scene.clock.advance(seconds(500));
        assert_eq!(old.get(rig, "/").await.status, 200);
    }
    scene.clock.advance(seconds(101));
    let answer = old.get(rig, "/").await;
    assert_eq!(
        (answer.status, answer.header("x-gone")),
        (302, Some("false true "))
    );
    assert!(!old.jar.contains_key("culvert.session"));

    // Logged out, a copy of the cookie is of no use either.
    let mut browser = scene.logged_in().await;
    let mut copy = browser.clone();
    let answer = browser
        .ask(rig, "GET", "/culvert/logout", "accept: text/html\r\n")
        .await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("<h1>Logged out</h1>"));
    assert!(!browser.jar.contains_key("culvert.session"));
    assert_eq!(copy.get(rig, "/").await.status, 302);
    let answer = scene
        .logged_in()
        .await
        .get(rig, "/culvert/logout?redirect_path=/bye")
        .await;
    assert_eq!(answer.header("location"), Some("http://app.example/bye"));

    // Ended by others: one session, then all of a user until now.
    let (mut one, mut two) = (scene.logged_in().await, scene.logged_in().await);
    let sighting = {
        let seen = scene.seen.lock().unwrap();
        seen[seen.len() - 2].clone()
    };
    let revoke = |revoked: Revoked| {
        scene
            .logins
            .revoke(Revocations::from([(sighting.user(), revoked)]));
    };
    revoke(Revoked {
        before: None,
        sessions: vec![sighting.session.clone()],
    });
    assert_eq!(one.get(rig, "/").await.status, 302);
    assert_eq!(two.get(rig, "/").await.status, 200);
    revoke(Revoked {
        before: Some(sighting.started_at),
        sessions: Vec::new(),
    });
    assert_eq!(two.get(rig, "/").await.status, 302);
    // In the same moment a new one begins behind that.
    assert_eq!(scene.logged_in().await.get(rig, "/").await.status, 200);

    // What was tampered with, or is another's, is nothing.
    let browser = scene.logged_in().await;
    let sealed = browser.jar["culvert.session"].clone();
    for wrong in [
        sealed.replacen("1.", "2.", 1),
        format!("{}!", &sealed[..sealed.len() - 1]),
        format!("1.A{}", &sealed[3..]).replacen(
            "1.A",
            if &sealed[2..3] == "A" { "1.B" } else { "1.A" },
            1,
        ),
        format!("1.{}", browser.jar["culvert.nonce"]),
        "1.".to_owned(),
    ] {
        let mut browser = Browser::default();
        browser
            .jar
            .insert("culvert.session".to_owned(), wrong.clone());
        assert!(
            wrong == sealed || browser.get(rig, "/").await.status == 302,
            "{wrong}"
        );
    }
    // Another application or another name of the log-in takes no session of before.
    let renamed = CONFIG.replace("client_id: app", "client_id: app2");
    scene.publish("openid-connect", &renamed).await;
    assert_eq!(browser.clone().get(rig, "/").await.status, 302);
    let named = format!("{CONFIG}, auth_id: b");
    scene.publish("openid-connect", &named).await;
    let mut moved = browser.clone();
    moved.jar.insert("culvert.b.session".to_owned(), sealed);
    assert_eq!(moved.get(rig, "/").await.status, 302);
    drop(idp.asked());
}

#[tokio::test]
async fn users_are_asked_about_again() {
    let scene = Scene::start(", userinfo_refresh_interval: 5m").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let seconds = Duration::from_secs;
    let mut browser = scene.logged_in().await;
    drop(idp.asked());
    scene.clock.advance(seconds(200));
    assert_eq!(browser.get(rig, "/").await.status, 200);
    assert!(idp.asked().is_empty());
    scene.clock.advance(seconds(100));
    idp.tell(|told| told.person.1["email"] = "new@x.example".into());
    let answer = browser.get(rig, "/").await;
    assert!(
        answer
            .text()
            .contains("x-who: new@x.example au_1 at1 true\r\n"),
        "{}",
        answer.text()
    );
    assert_eq!(idp.asked().len(), 1);

    // An access token that has expired is renewed first, once for all who come with the session.
    scene.clock.advance(seconds(3600));
    let copies = [browser.clone(), browser.clone(), browser.clone()];
    let [mut a, mut b, mut c] = copies;
    let answers = tokio::join!(a.get(rig, "/"), b.get(rig, "/"), c.get(rig, "/"));
    for answer in [&answers.0, &answers.1, &answers.2] {
        assert!(
            answer.text().contains("x-who: new@x.example au_1 at"),
            "{}",
            answer.text()
        );
    }
    let asked = idp.asked();
    assert_eq!(asked.len(), 2);
    assert!(
        asked[0]
            .1
            .contains("grant_type=refresh_token&refresh_token=rt1")
    );

    // A provider that is away does not end sessions, and is left alone for a minute.
    scene.clock.advance(seconds(300));
    idp.tell(|told| told.is_down = true);
    let answer = a.get(rig, "/").await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(" false\r\n"));
    idp.tell(|told| told.is_down = false);
    assert_eq!(a.get(rig, "/").await.status, 200);
    assert!(idp.asked().is_empty());
    scene.clock.advance(seconds(60));
    assert!(a.get(rig, "/").await.text().contains(" true\r\n"));
    drop(idp.asked());

    // One that does not know the user any more ends them everywhere here.
    let mut copy = a.clone();
    scene.clock.advance(seconds(300));
    idp.tell(|told| told.person = (401, json!({"error": "invalid_token"})));
    assert_eq!(a.get(rig, "/").await.status, 302);
    assert_eq!(copy.get(rig, "/").await.status, 302);
    assert_eq!(idp.asked().len(), 1);
    idp.tell(|told| told.person = (200, json!({"sub": "u8"})));
    assert_eq!(b.get(rig, "/").await.status, 302);
}

#[tokio::test]
async fn what_is_no_page_is_refused() {
    let scene = Scene::start(", allow_cors_preflight: true").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let ask = "Origin: https://b.example\r\nAccess-Control-Request-Method: POST\r\n";
    let answer = Browser::default().ask(rig, "OPTIONS", "/", ask).await;
    assert_eq!(answer.status, 200);
    let told =
        json!({"app_client_id": "app", "decision": "allow", "user": {"id": null, "name": null}});
    assert_eq!(scene.told(2).await, told);
    for (method, fields) in [
        ("OPTIONS", "Origin: https://b.example\r\n"),
        ("POST", "content-length: 0\r\n"),
        ("HEAD", ""),
        ("POST", ask),
    ] {
        let answer = Browser::default().ask(rig, method, "/", fields).await;
        assert_eq!(problem(&answer), (401, Some("ERR_NGROK_3100")), "{method}");
        assert!(
            answer
                .header("www-authenticate")
                .unwrap()
                .starts_with("Cookie ")
        );
    }
    let mut browser = scene.logged_in().await;
    let answer = browser.ask(rig, "POST", "/", "content-length: 0\r\n").await;
    assert_eq!(answer.status, 200);
    let scene = Scene::start("").await;
    let answer = Browser::default()
        .ask(&scene.rig, "OPTIONS", "/", ask)
        .await;
    assert_eq!(answer.status, 401);
    drop(idp.asked());
}

#[tokio::test]
async fn without_a_provider_nobody_comes_in_and_who_is_in_stays() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let mut inside = scene.logged_in().await;
    let mut under_way = Browser::default();
    let back = under_way.begin(rig, idp, "/").await;
    idp.tell(|told| told.is_down = true);
    assert_eq!(inside.get(rig, "/").await.status, 200);
    assert_eq!(
        problem(&under_way.get(rig, &back).await),
        (502, Some("ERR_NGROK_5536"))
    );
    // A provider that was never seen.
    scene
        .publish(
            "openid-connect",
            &CONFIG.replace("URL", "http://127.0.0.1:1"),
        )
        .await;
    let answer = Browser::default().get(rig, "/").await;
    assert_eq!(problem(&answer), (502, Some("ERR_NGROK_5536")));
    let decision = scene.told(rig.recorder.count()).await;
    assert_eq!(decision["decision"], "block");

    // Where upstreams may not be at private addresses, providers may not either.
    let guarded = Settings {
        allow_private_upstreams: false,
        ..settings()
    };
    idp.tell(|told| told.is_down = false);
    drop(idp.asked());
    rig.edge.reload(&guarded).unwrap();
    scene.publish("openid-connect", CONFIG).await;
    let mut browser = Browser::default();
    // What it said before is still known; it is asked nothing.
    let back = browser.begin(rig, idp, "/").await;
    let answer = browser.get(rig, &back).await;
    assert_eq!(problem(&answer), (502, Some("ERR_NGROK_5536")));
    assert!(idp.asked().is_empty());
}

#[tokio::test]
async fn a_session_begins_without_a_journal_and_not_where_there_is_no_room() {
    let settings = LoginSettings::default;
    let full = Scene::noting(settings(), "openid-connect", CONFIG, Noted::Full).await;
    let answer = Browser::default().log_in(&full.rig, &full.idp).await;
    assert_eq!(problem(&answer), (503, Some("ERR_NGROK_3127")));
    // A renewal that finds the session ended ends it here.
    let ended = Scene::start(", idle_session_timeout: 1h").await;
    let mut browser = ended.logged_in().await;
    let sighting = ended.seen.lock().unwrap()[0].clone();
    ended.clock.advance(Duration::from_secs(60));
    assert_eq!(browser.get(&ended.rig, "/").await.status, 200);
    soon("the renewal is noted", async {
        while ended.seen.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(ended.seen.lock().unwrap()[1].session, sighting.session);
    // Whoever renews it again and again is noted once in a while.
    assert_eq!(browser.get(&ended.rig, "/").await.status, 200);
    assert_eq!(ended.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn providers_of_the_table() {
    let providers = |app: Option<(&str, &str)>| LoginSettings {
        providers: BTreeMap::from(["github", "google"].map(|name| {
            let app = app
                .map(|(id, secret)| (id.to_owned(), culvert_base::Secret::new(secret.to_owned())));
            (
                name.to_owned(),
                ProviderSettings {
                    app,
                    ..ProviderSettings::default()
                },
            )
        })),
        ..LoginSettings::default()
    };
    let own = "provider: github, client_id: me, client_secret: hush, scopes: [repo], authz_url_params: {login: ann}";
    let scene = Scene::with(providers(None), "oauth", own).await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    idp.tell(|told| told.person.1 = json!({"id": 7, "login": "ann", "name": null, "email": null}));
    let mut browser = Browser::default();
    let sent = sent_to(&browser.get(rig, "/").await);
    assert_eq!(sent["scope"], "read:org read:user user:email repo");
    assert_eq!(sent["login"], "ann");
    assert!(!sent.contains_key("nonce") && sent.contains_key("code_challenge"));
    let answer = browser.log_in(rig, idp).await;
    assert_eq!(answer.status, 302, "{}", answer.text());
    let asked = idp.asked();
    assert!(
        asked[0].1.contains("&client_id=me&client_secret=hush"),
        "{}",
        asked[0].1
    );
    assert!(asked[0].0.contains("accept: application/json\r\n"));
    assert!(asked[2].0.starts_with("GET /me/emails "));
    let answer = browser.get(rig, "/").await;
    assert!(
        answer.text().contains("x-who: ann@x.example au_1 "),
        "{}",
        answer.text()
    );
    let told = scene.told(rig.recorder.count()).await;
    assert_eq!(
        told,
        json!({"app_client_id": "me", "decision": "allow", "user": {"id": "7", "name": "ann"}})
    );

    // The operator's application, and what a provider may leave out.
    let scene = Scene::with(
        providers(Some(("ours", "hush"))),
        "oauth",
        "provider: google",
    )
    .await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let sent = sent_to(&Browser::default().get(rig, "/").await);
    assert_eq!(
        (sent["client_id"].as_str(), sent["access_type"].as_str()),
        ("ours", "offline")
    );
    for (person, code) in [
        (json!({"name": "Ann", "email": "a@x.example"}), "3110"),
        (json!({"sub": "7", "name": "Ann"}), "3109"),
        (
            json!({"sub": "7", "email": "a@x.example", "email_verified": false}),
            "3109",
        ),
    ] {
        idp.tell(|told| told.person.1 = person.clone());
        let answer = Browser::default().log_in(rig, idp).await;
        let code = format!("ERR_NGROK_{code}");
        assert_eq!(problem(&answer), (403, Some(code.as_str())), "{person}");
    }
}

#[tokio::test]
async fn one_callback_address_for_all_endpoints() {
    let settings = LoginSettings {
        callback_base: Url::parse("http://login.example/base/").ok(),
        ..LoginSettings::default()
    };
    let scene = Scene::with(settings, "openid-connect", CONFIG).await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let mut browser = Browser::default();
    let back = browser.begin(rig, idp, "/x").await;
    let (_, query) = back.split_once('?').unwrap();
    let ask = async |host: &str, target: &str| {
        rig.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await
    };
    let answer = ask("login.example", &format!("/base/oauth2/callback?{query}")).await;
    assert_eq!(answer.status, 302);
    let location = answer.header("location").unwrap().to_owned();
    assert_eq!(location, format!("http://app.example{back}"));
    assert_eq!(
        ask("login.example", "/base/oauth2/callback?state=x")
            .await
            .status,
        400
    );
    assert_eq!(
        ask("login.example", "/base/oauth2/callback").await.status,
        400
    );
    assert_eq!(ask("login.example", "/oauth2/callback").await.status, 404);
    assert_eq!(
        ask("other.example", "/base/oauth2/callback").await.status,
        404
    );
    let answer = browser.get(rig, &back).await;
    assert_eq!(answer.header("location"), Some("http://app.example/x"));
    let asked = idp.asked();
    assert!(
        asked[0]
            .1
            .contains("redirect_uri=http%3A%2F%2Flogin.example%2Fbase%2Foauth2%2Fcallback")
    );
}

#[tokio::test]
async fn many_cookies_are_no_matter() {
    let scene = Scene::start("").await;
    let mut browser = scene.logged_in().await;
    for number in 0..50 {
        browser
            .jar
            .insert(format!("culvert.x{number}.session"), "1.x".repeat(100));
    }
    assert_eq!(browser.get(&scene.rig, "/").await.status, 200);
    let bomb = format!("cookie: {}\r\n", "culvert.session=4.x; ".repeat(1500));
    let answer = Browser::default().ask(&scene.rig, "GET", "/", &bomb).await;
    assert_eq!(answer.status, 302);
}

#[test]
fn what_cannot_be_run_is_not_taken() {
    let (logins, _) = Logins::new(LoginKeys::new([]), LoginSettings::default());
    let resources = Resources {
        logins: Some(LoginService::new(logins)),
        ..Resources::default()
    };
    let compiled = |scheme, action: &str, config: &str| {
        let policy =
            format!("on_http_request:\n- actions: [{{type: {action}, config: {{{config}}}}}]");
        let source = Source::read(&policy, ACTIONS).unwrap();
        let compiled = source.compile(scheme, true, &resources);
        compiled.map_err(|refusal| (refusal.code.unwrap().number(), refusal.message.into_owned()))
    };
    let (google, oidc) = (
        "provider: google, client_id: a, client_secret: b",
        "issuer_url: 'https://id.example', client_id: a, client_secret: b",
    );
    let more = |base: &str, more: &str| format!("{base}, {more}");
    let repeated = |text: &str, times| vec![text; times].join(", ");
    for (action, config, code, said) in [
        ("oauth", google.to_owned(), 0, ""),
        ("openid-connect", oidc.to_owned(), 0, ""),
        (
            "openid-connect",
            more(
                oidc,
                "idle_session_timeout: 1h, max_session_duration: 8760h",
            ),
            0,
            "",
        ),
        (
            "oauth",
            "client_id: a, client_secret: b".to_owned(),
            2234,
            "provider",
        ),
        (
            "oauth",
            "provider: nobody, client_id: a, client_secret: b".to_owned(),
            2204,
            "google",
        ),
        (
            "oauth",
            "provider: google".to_owned(),
            2234,
            "no default application",
        ),
        (
            "oauth",
            "provider: google, client_id: a".to_owned(),
            2234,
            "`client_secret` is missing",
        ),
        (
            "oauth",
            "provider: google, client_secret: a".to_owned(),
            2234,
            "`client_id` is missing",
        ),
        (
            "oauth",
            "provider: google, client_id: '', client_secret: b".to_owned(),
            2223,
            "client_id",
        ),
        ("oauth", more(google, "issuer_url: x"), 2203, "issuer_url"),
        ("oauth", more(google, "auth_id: a b"), 2204, "auth_id"),
        ("oauth", more(google, "scopes: ['a b']"), 2204, "scopes[0]"),
        (
            "oauth",
            more(google, &format!("scopes: [{}]", repeated("a", 21))),
            2218,
            "scopes",
        ),
        (
            "oauth",
            more(google, "authz_url_params: {state: x}"),
            2204,
            "state",
        ),
        (
            "oauth",
            more(google, "max_session_duration: 9000h"),
            2215,
            "max_session_duration",
        ),
        (
            "oauth",
            more(google, "idle_session_timeout: 0s"),
            2215,
            "idle_session_timeout",
        ),
        (
            "oauth",
            more(google, "auth_cookie_domain: '*.x'"),
            2204,
            "auth_cookie_domain",
        ),
        (
            "oauth",
            more(google, "client_id: '${nope}'").replacen("client_id: a, ", "", 1),
            2224,
            "client_id",
        ),
        (
            "openid-connect",
            oidc.replace("https", "http"),
            2204,
            "issuer_url",
        ),
        (
            "openid-connect",
            oidc.replace("https://id.example", "http://127.0.0.1:1"),
            2204,
            "issuer_url",
        ),
        (
            "openid-connect",
            oidc.replace("id.example", "me@id.example"),
            2204,
            "issuer_url",
        ),
        (
            "openid-connect",
            oidc.replace("id.example", "id.example/?a"),
            2204,
            "issuer_url",
        ),
        (
            "openid-connect",
            "issuer_url: 'https://id.example'".to_owned(),
            2234,
            "client_id",
        ),
    ] {
        match compiled(Scheme::Https, action, &config) {
            Ok(_) => assert_eq!(code, 0, "{config}"),
            Err((found, message)) => {
                assert_eq!(found, code, "{config}: {message}");
                assert!(message.contains(said), "{message}");
            }
        }
    }
    assert_eq!(compiled(Scheme::Tcp, "oauth", google).unwrap_err().0, 2230);
    let both = format!(
        "on_http_request:\n- actions: [{{type: oauth, config: {{{google}}}}}, {{type: openid-connect, config: {{{oidc}}}}}]"
    );
    let source = Source::read(&both, ACTIONS).unwrap();
    let refusal = source.compile(Scheme::Https, true, &resources).unwrap_err();
    assert_eq!(refusal.code.unwrap().number(), 2239);
    let shown = Source::read(&both, ACTIONS).unwrap().redacted().unwrap();
    assert!(
        !shown.contains("client_secret: b") && shown.contains("client_id: a"),
        "{shown}"
    );
}
