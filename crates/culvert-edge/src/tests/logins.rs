//! Sign-in on live traffic, against an OpenID provider that tests control.

mod central;
mod configuration;
mod console;
mod custody;
mod providers;
mod sessions;
mod sign_in;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{ManualClock, Timestamp};
use culvert_edge_config::ACTIONS;
use culvert_http::coding::{Coding, Encoder};
use culvert_login::{
    JournalEntry, LoginKeys, LoginSettings, Logins, Noted, ProviderSettings, Revocations, Revoked,
    Sighting,
};
use culvert_policy::Scheme;
use culvert_policy::{LoginService, Resources, Source};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use sha2::Digest;
use tokio::sync::mpsc;
use url::Url;

use super::harness::*;
use super::tokens::Issuer;
use crate::{Endpoint, Settings, Snapshot};

const NOW: i64 = 1_767_225_600;
const SESSION: &str = "__Host-culvert.session";
const NONCE: &str = "__Host-culvert.nonce";

/// The responses of the provider, and the requests it received.
struct ProviderScript {
    /// The nonce of the current sign-in.
    nonce: String,
    /// Changes to the claims of the next ID tokens.
    claims: Value,
    /// The response to a userinfo request.
    person: (u16, Value),
    /// The response to a code or a refresh token instead of the regular one.
    refusal: Option<(u16, Value)>,
    /// Head and body of the requests it received, except for its keys and metadata.
    asked: Vec<(String, String)>,
    is_down: bool,
    /// Whether its metadata says that responses have its issuer (RFC 9207).
    announces_issuer: bool,
    /// Whether user data is a signed JWT.
    is_signed: bool,
    /// Whether responses are compressed.
    is_zipped: bool,
}

/// How an ID token is forged.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    OfStranger,
    Unsigned,
    BySecret,
    ByPublicKey,
    Missing,
}

const FORGERIES: [Forgery; 5] = [
    Forgery::OfStranger,
    Forgery::Unsigned,
    Forgery::BySecret,
    Forgery::ByPublicKey,
    Forgery::Missing,
];

/// An OpenID provider.
struct Idp {
    url: String,
    signer: Issuer,
    script: Mutex<ProviderScript>,
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
                    if idp.script.lock().unwrap().is_down {
                        return;
                    }
                    let (status, answer) = idp.answer(&head, &String::from_utf8(body).unwrap());
                    let (is_signed, is_zipped) = {
                        let script = idp.script.lock().unwrap();
                        (script.is_signed && head.contains(" /me "), script.is_zipped)
                    };
                    let (media, mut body) = match is_signed {
                        true => ("jwt", idp.signer.sign(&answer).into_bytes()),
                        false => ("json", answer.to_string().into_bytes()),
                    };
                    let mut coding = "";
                    if is_zipped {
                        let mut encoder = Encoder::new(Coding::Gzip);
                        encoder.write(&body).unwrap();
                        body = encoder.finish().unwrap().to_vec();
                        coding = "content-encoding: gzip\r\n";
                    }
                    let head = format!(
                        "HTTP/1.1 {status} x\r\ncontent-type: application/{media}\r\n{coding}content-length: {}\r\n\r\n",
                        body.len()
                    );
                    client.send([head.into_bytes(), body].concat()).await;
                }
            }
        })
        .await;
        let idp = Arc::new(Self {
            url: format!("http://{address}"),
            signer: Issuer::ec("k1"),
            script: Mutex::new(ProviderScript {
                nonce: String::new(),
                claims: json!({}),
                person: (
                    200,
                    json!({"sub": "u7", "name": "Ann", "email": "ann@x.example"}),
                ),
                refusal: None,
                asked: Vec::new(),
                is_down: false,
                announces_issuer: false,
                is_signed: false,
                is_zipped: false,
            }),
        });
        sender.send(Arc::clone(&idp)).await.unwrap();
        cell.set(receiver.recv().await.unwrap()).ok().unwrap();
        idp
    }

    fn answer(&self, head: &str, body: &str) -> (u16, Value) {
        let url = &self.url;
        let path = head.split(' ').nth(1).unwrap();
        let mut script = self.script.lock().unwrap();
        match path {
            "/.well-known/openid-configuration" => (
                200,
                json!({
                    "issuer": url,
                    "authorization_endpoint": format!("{url}/authorize?hint=x"),
                    "token_endpoint": format!("{url}/token"),
                    "userinfo_endpoint": format!("{url}/me"),
                    "jwks_uri": format!("{url}/keys"),
                    "authorization_response_iss_parameter_supported": script.announces_issuer,
                }),
            ),
            "/keys" => (200, json!({"keys": [self.signer.jwk()]})),
            _ => {
                script.asked.push((head.to_owned(), body.to_owned()));
                match path {
                    "/token" => match &script.refusal {
                        Some(refusal) => refusal.clone(),
                        None => (200, self.tokens(&script)),
                    },
                    "/me/emails" => (
                        200,
                        json!([
                            {"email": "old@x.example", "primary": false, "verified": true},
                            {"email": "ann@x.example", "primary": true, "verified": true},
                        ]),
                    ),
                    _ => script.person.clone(),
                }
            }
        }
    }

    fn tokens(&self, script: &ProviderScript) -> Value {
        let n = script.asked.len();
        let mut claims = json!({
            "iss": self.url, "aud": "app", "sub": "u7", "exp": NOW + 1_000_000, "iat": NOW,
            "nonce": script.nonce,
        });
        for (name, value) in script.claims.as_object().unwrap() {
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

    /// An ID token for the current sign-in, which the provider did not sign.
    fn forged(&self, forgery: Forgery, app: &str, secret: &str) -> String {
        let nonce = self.script.lock().unwrap().nonce.clone();
        let claims =
            json!({"iss": self.url, "aud": app, "sub": "u7", "exp": NOW + 600, "nonce": nonce});
        let by_hash = |key: &[u8]| {
            let mut header = Header::new(Algorithm::HS256);
            header.kid = Some("k1".to_owned());
            encode(&header, &claims, &EncodingKey::from_secret(key)).unwrap()
        };
        match forgery {
            Forgery::OfStranger => Issuer::ec("k1").sign(&claims),
            Forgery::Unsigned => {
                let part = |text: String| URL_SAFE_NO_PAD.encode(text);
                let header = json!({"alg": "none", "kid": "k1"}).to_string();
                format!("{}.{}.", part(header), part(claims.to_string()))
            }
            // Every application has a secret, and the public key of the provider is known.
            Forgery::BySecret => by_hash(secret.as_bytes()),
            Forgery::ByPublicKey => by_hash(&self.signer.public),
            Forgery::Missing => String::new(),
        }
    }

    fn tell(&self, change: impl FnOnce(&mut ProviderScript)) {
        change(&mut self.script.lock().unwrap());
    }

    /// The requests since the last call.
    fn asked(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.script.lock().unwrap().asked)
    }
}

/// A browser that uses one host. It reaches the edge through a proxy that terminates TLS.
#[derive(Clone, Default)]
pub(super) struct Browser {
    jar: BTreeMap<String, String>,
}

const BY_TLS: &str = "x-forwarded-proto: https\r\n";

/// Settings with a trusted proxy, which tests are.
fn behind_proxy() -> Settings {
    Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..settings()
    }
}

impl Browser {
    async fn ask(&mut self, rig: &Rig, method: &str, target: &str, fields: &str) -> Answer {
        self.ask_at(rig, "app.example", method, target, fields)
            .await
    }

    /// Sends a request to any host, with all cookies.
    async fn ask_at(
        &mut self,
        rig: &Rig,
        host: &str,
        method: &str,
        target: &str,
        fields: &str,
    ) -> Answer {
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
                "{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{BY_TLS}{cookie}{fields}\r\n"
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

    /// Follows the redirect to the provider, and returns the URL of the way back.
    async fn begin(&mut self, rig: &Rig, idp: &Idp, target: &str) -> String {
        let answer = self.get(rig, target).await;
        assert_eq!(answer.status, 302, "{}", answer.text());
        let sent = sent_to(&answer);
        let nonce = sent.get("nonce").cloned().unwrap_or_default();
        idp.tell(|script| script.nonce = nonce);
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

/// An edge with an endpoint behind a sign-in, and what it reports about sign-ins.
pub(super) struct Scene {
    pub(super) rig: Rig,
    idp: Arc<Idp>,
    logins: Arc<Logins>,
    clock: Arc<ManualClock>,
    /// Recorded sessions.
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
        let mut rig = Rig::at(behind_proxy(), Arc::clone(&clock) as _).await;
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
            // Responds with the request head it received.
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
            assertions: Some(Arc::clone(self.logins.assertions())),
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

    /// The sign-in fields of the last event.
    async fn reported(&self, count: usize) -> Value {
        let events = self.rig.recorder.events(count).await;
        of(&events, HTTP).last().unwrap()["object"]["oauth"].clone()
    }
}

fn problem(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.header("ngrok-error-code"))
}
