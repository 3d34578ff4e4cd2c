//! Sign-ins at a real OpenID provider, from the first redirect to the event. The browser, which follows redirects and
//! keeps cookies, is the program `curl`. `scripts/openid-provider` installs the provider. Without it, or without
//! curl, the tests are reported as ignored.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use http::Method;
use serde_json::{Value, json};

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, backends, cluster, eventually};

/// The provider, which runs until this is dropped.
pub struct Provider {
    pub issuer: String,
    process: Child,
}

impl Provider {
    /// Starts it with a client that has these redirect URIs.
    pub fn start(redirect_uris: &[String]) -> Option<Self> {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/openid-provider");
        let has_curl = Command::new("curl").arg("--version").output().is_ok();
        // The script writes this copy last.
        if !place.join("package.json").exists() || !has_curl {
            culvert_testing::ignore(
                "no OpenID provider, or no curl; scripts/openid-provider installs the provider",
            );
            return None;
        }
        let mut process = Command::new("node")
            .arg(place.join("provider.mjs"))
            .args(redirect_uris)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut issuer = String::new();
        let said = process.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut issuer).unwrap();
        let issuer = issuer.trim().to_owned();
        assert!(issuer.starts_with("http://127.0.0.1:"), "{issuer}");
        Some(Self { issuer, process })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A browser with its own cookie jar.
pub struct Browser {
    jar: PathBuf,
    ca: PathBuf,
    host: String,
    https: SocketAddr,
}

/// The last response of a chain of redirects.
#[derive(Debug)]
pub struct Page {
    pub status: u16,
    pub url: String,
    pub body: String,
}

impl Browser {
    pub fn new(folder: &Path, name: &str, culvert: &Harness, host: &str) -> Self {
        Self {
            jar: folder.join(name),
            ca: culvert.settings.data_dir.join("ca.pem"),
            host: host.to_owned(),
            https: culvert.https,
        }
    }

    fn url(&self, target: &str) -> String {
        format!("https://{}:{}{target}", self.host, self.https.port())
    }

    pub async fn open(&self, url: &str, more: &[&str]) -> Page {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "60"])
            .args(["--write-out", "\n%{http_code} %{url_effective}"])
            .arg("--resolve")
            .arg(format!("*:{}:127.0.0.1", self.https.port()))
            // The public port, where a URL has none.
            .arg("--connect-to")
            .arg(format!(":443:127.0.0.1:{}", self.https.port()))
            .arg("--cacert")
            .arg(&self.ca)
            .arg("--cookie")
            .arg(&self.jar)
            .arg("--cookie-jar")
            .arg(&self.jar)
            .args(more)
            .arg(url);
        let done = tokio::task::spawn_blocking(move || curl.output().unwrap()).await;
        let done = done.unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let failed = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{url}: {failed}");
        let (body, end) = said.rsplit_once('\n').unwrap();
        let (status, url) = end.split_once(' ').unwrap();
        Page {
            status: status.parse().unwrap(),
            url: url.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Opens a page without following redirects.
    async fn look(&self, target: &str) -> Page {
        self.open(&self.url(target), &[]).await
    }

    /// Opens a page, and signs in with the provider's forms.
    pub async fn log_in(&self, target: &str, name: &str) -> Page {
        self.log_in_at(&self.url(target), name).await
    }

    /// The same, of any URL.
    pub async fn log_in_at(&self, url: &str, name: &str) -> Page {
        let mut page = self.open(url, &["--location"]).await;
        for _ in 0..3 {
            if !page.url.contains("/interaction/") {
                break;
            }
            let login = format!("login={name}");
            let form: &[&str] = match page.body.contains("name=\"login\"") {
                true => &["-d", "prompt=login", "-d", &login, "-d", "password=x"],
                false => &["-d", "prompt=consent"],
            };
            let more = [&["--location"], form].concat();
            page = self.open(&page.url, &more).await;
        }
        page
    }
}

fn policy(issuer: &str) -> String {
    format!(
        "on_http_request:
- actions:
  - type: openid-connect
    config:
      issuer_url: {issuer}
      client_id: app
      client_secret: a secret of the tests
      scopes: [profile, email, offline_access]
      userinfo_refresh_interval: 1s
- expressions: ['!actions.ngrok.oidc.identity.email.startsWith(\"a\")']
  actions: [{{type: deny}}]
- actions:
  - type: add-headers
    config:
      headers:
        x-email: '${{actions.ngrok.oidc.identity.email}}'
        x-user: '${{actions.ngrok.oidc.identity.id}}'
        x-session: '${{actions.ngrok.oidc.identity.current_session_id}}'
        x-refreshed: '${{actions.ngrok.oidc.userinfo_refreshed}} ${{actions.ngrok.oidc.access_token}}'
"
    )
}

pub const HOST: &str = "app.culvert.localhost";

/// Creates an endpoint with a sign-in, and waits until it is online.
async fn endpoint(culvert: &Harness, provider: &Provider, origin: &Receiver) -> Value {
    let body = json!({
        "url": format!("https://{HOST}"),
        "upstream_url": format!("http://{}", origin.address),
        "traffic_policy": policy(&provider.issuer),
    });
    culvert.create("endpoints", body).await
}

pub fn callback(culvert: &Harness) -> String {
    let port = culvert.https.port();
    format!("https://{HOST}:{port}/culvert/oauth2/callback")
}

async fn listed(culvert: &Harness, collection: &str, field: &str) -> Vec<Value> {
    let list = culvert
        .call(Method::GET, &format!("/{collection}"), None)
        .await;
    list.body[field].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn users_sign_in_at_a_real_provider() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let Some(provider) = Provider::start(&[callback(&culvert)]) else {
            culvert.stop().await;
            return;
        };
        let (hook, origin) = (Receiver::start().await, Receiver::start().await);
        let source = json!([{"type": "http_request_complete.v0"}]);
        subscribe_debug(&culvert, &hook, source).await;
        let made = endpoint(&culvert, &provider, &origin).await;
        let shown = made["traffic_policy"].as_str().unwrap();
        assert!(
            shown.contains("client_secret: a secret of the tests"),
            "{shown}"
        );
        let endpoints = listed(&culvert, "endpoints", "endpoints").await;
        let shown = endpoints[0]["traffic_policy"].as_str().unwrap();
        assert_eq!(
            shown,
            policy(&provider.issuer),
            "an admin sees what was sent"
        );
        let kept = crate::secrets::files_with(&culvert.settings.data_dir, b"a secret of the tests");
        assert_eq!(kept, Vec::<String>::new());

        let folder = tempfile::tempdir().unwrap();
        let ann = Browser::new(folder.path(), "ann", &culvert, HOST);
        eventually("the endpoint asks who it is", async || {
            ann.look("/").await.status == 302
        })
        .await;
        let page = ann.log_in("/deep/page?q=1", "ann").await;
        assert_eq!(
            (page.status, page.body.as_str()),
            (200, "received"),
            "{page:?}"
        );
        assert_eq!(page.url, ann.url("/deep/page?q=1"));
        let received = origin.received();
        let request = received.last().unwrap();
        let header = |name: &str| {
            let value = request.headers.get(name);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header("x-email").as_deref(), Some("ann@x.example"));
        assert_eq!(header("cookie"), None);
        let users = listed(&culvert, "app/users", "application_users").await;
        assert_eq!(users.len(), 1);
        assert_eq!(users[0]["provider_user_id"], "ann");
        assert_eq!(users[0]["name"], "Name of ann");
        assert_eq!(
            users[0]["identity_provider"]["url"],
            format!("{}/", provider.issuer)
        );
        assert_eq!(header("x-user").as_deref(), users[0]["id"].as_str());
        let sessions = listed(&culvert, "app/sessions", "application_sessions").await;
        assert_eq!(sessions.len(), 1);
        assert_eq!(header("x-session").as_deref(), sessions[0]["id"].as_str());
        assert_eq!(sessions[0]["endpoint"]["id"], made["id"]);
        assert_eq!(sessions[0]["application_user"]["id"], users[0]["id"]);
        let agent = sessions[0]["browser_session"]["user_agent"]["raw"].as_str();
        assert!(agent.unwrap().starts_with("curl/"), "{agent:?}");
        let user = json!({"id": "ann", "name": "Name of ann"});
        for (decision, status) in [("allow", 200), ("block", 302)] {
            let reported = |event: &Value| {
                let object = &event["object"];
                object["oauth"]
                    == json!({"app_client_id": "app", "decision": decision, "user": user})
                    && object["http"]["response"]["status_code"] == status
            };
            eventually("the event tells it", async || {
                hook.events().iter().any(reported)
            })
            .await;
        }

        // The provider's tokens expire after two seconds: they are refreshed, and the session continues.
        let token = |request: &crate::harness::Received| {
            let value = request.headers["x-refreshed"].to_str().unwrap().to_owned();
            value.split_once(' ').map(|(_, token)| token.to_owned())
        };
        let first = token(request);
        eventually("the tokens are renewed", async || {
            assert_eq!(ann.look("/").await.status, 200);
            origin.received().last().map(token) != Some(first.clone())
        })
        .await;

        // A user who signs in but whom the next rule denies.
        let bob = Browser::new(folder.path(), "bob", &culvert, HOST);
        assert_eq!(bob.log_in("/", "bob").await.status, 403);

        // Deleting a session with the management API ends it. The session at the provider continues.
        let id = listed(&culvert, "app/sessions", "application_sessions").await;
        let of_ann = id
            .iter()
            .find(|session| session["application_user"]["id"] == users[0]["id"])
            .unwrap();
        let path = format!("/app/sessions/{}", of_ann["id"].as_str().unwrap());
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        eventually("the session is over", async || {
            ann.look("/").await.status == 302
        })
        .await;
        let page = ann.log_in("/", "nobody is asked").await;
        assert_eq!(page.status, 200, "{page:?}");
        let path = format!("/app/users/{}", users[0]["id"].as_str().unwrap());
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        eventually("the user's session is over", async || {
            ann.look("/").await.status == 302
        })
        .await;
        assert_eq!(ann.log_in("/", "ann").await.status, 200);
        // A link on another site does not sign out.
        assert_eq!(ann.look("/culvert/logout").await.status, 200);
        assert_eq!(ann.look("/").await.status, 200);
        let logout = ann.url("/culvert/logout");
        let page = ann.open(&logout, &["--request", "POST"]).await;
        assert_eq!(page.status, 200);
        assert_eq!(ann.look("/").await.status, 302);
        eventually("the session is listed no more", async || {
            let sessions = listed(&culvert, "app/sessions", "application_sessions").await;
            sessions.len() == 1
        })
        .await;
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_valid_and_ends_on_every_node() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let two = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.database_url = one.settings.database_url.clone();
        settings.secrets.key_file = one.settings.key_file().to_str().unwrap().to_owned();
        settings.node_name = "two".to_owned();
    })
    .await;
    let Some(provider) = Provider::start(&[callback(&one)]) else {
        two.stop().await;
        one.stop().await;
        return;
    };
    let origin = Receiver::start().await;
    endpoint(&one, &provider, &origin).await;
    let folder = tempfile::tempdir().unwrap();
    let here = Browser::new(folder.path(), "jar", &one, HOST);
    let there = Browser {
        ca: here.ca.clone(),
        ..Browser::new(folder.path(), "jar", &two, HOST)
    };
    for browser in [&here, &there] {
        eventually("the endpoint is live", async || {
            browser.look("/").await.status == 302
        })
        .await;
    }
    assert_eq!(here.log_in("/", "ann").await.status, 200);
    // Cookies do not depend on the port.
    assert_eq!(there.look("/").await.status, 200);
    let sessions = listed(&one, "app/sessions", "application_sessions").await;
    let path = format!("/app/sessions/{}", sessions[0]["id"].as_str().unwrap());
    assert_eq!(one.call(Method::DELETE, &path, None).await.status, 204);
    for browser in [&here, &there] {
        eventually("the session is over", async || {
            browser.look("/").await.status == 302
        })
        .await;
    }
    two.stop().await;
    one.stop().await;
}

/// Who may see what of a sign-in: owner, host, path and cookies, with the cookie jars of two people. The endpoints of a bot
/// sign in at the same provider with the same client ID, which is public, and with a secret that it made up.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_gets_anything_of_a_sign_in_at_a_real_provider() {
    const OTHERS: [&str; 2] = ["bot.culvert.localhost", "plain.culvert.localhost"];
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.oauth.callback_base = "https://login.culvert.localhost".to_owned();
        settings.events.redact_headers = Vec::new();
        settings.events.redact_query = Vec::new();
    })
    .await;
    let redirect = "https://login.culvert.localhost/oauth2/callback".to_owned();
    let Some(provider) = Provider::start(&[redirect]) else {
        culvert.stop().await;
        return;
    };
    let (hook, own, others) = (
        Receiver::start().await,
        Receiver::start().await,
        Receiver::start().await,
    );
    let source = json!([{"type": "http_request_complete.v0"}]);
    subscribe_debug(&culvert, &hook, source).await;
    let bot = culvert.create("bot_users", json!({"name": "bot"})).await;
    let key = json!({"owner_id": bot["id"]});
    let key = culvert.create("api_keys", key).await;
    let bot = culvert.client_with(key["token"].as_str().unwrap());
    let sign_in = |condition: &str, secret: &str| {
        json!({"on_http_request": [{
            "expressions": [condition],
            "actions": [{"type": "openid-connect", "config": {
                "issuer_url": provider.issuer, "client_id": "app", "client_secret": secret,
            }}],
        }]})
        .to_string()
    };
    let admins = sign_in("req.url.path.startsWith('/admin')", "a secret of the tests");
    let body = json!({
        "url": format!("https://{HOST}"), "traffic_policy": admins,
        "upstream_url": format!("http://{}", own.address),
    });
    culvert.create("endpoints", body).await;
    for (host, policy) in OTHERS
        .into_iter()
        .zip([sign_in("true", "made up"), String::new()])
    {
        let body = json!({
            "url": format!("https://{host}"), "traffic_policy": policy,
            "upstream_url": format!("http://{}", others.address),
        });
        let made = bot.expect(Method::POST, "/endpoints", Some(&body)).await;
        made.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let people = ["ann", "bob"].map(|name| Browser::new(folder.path(), name, &culvert, HOST));
    let at = |host: &str, path: &str| format!("https://{host}{path}");
    for (host, path, status) in [
        (HOST, "/admin", 302),
        (OTHERS[0], "/", 302),
        (OTHERS[1], "/", 200),
    ] {
        eventually("the endpoint is live", async || {
            people[0].open(&at(host, path), &[]).await.status == status
        })
        .await;
    }
    for (person, name) in people.iter().zip(["ann", "bob"]) {
        let page = person.log_in_at(&at(HOST, "/admin/x?y=z"), name).await;
        assert_eq!((page.status, page.url), (200, at(HOST, "/admin/x?y=z")));
    }
    // All that the browsers keep.
    let jars = people
        .iter()
        .map(|person| std::fs::read_to_string(&person.jar).unwrap());
    let kept: Vec<(String, String)> = jars
        .flat_map(|jar| {
            let lines = jar.lines().filter(|line| line.contains("culvert."));
            let pairs = lines.filter_map(|line| {
                let mut parts = line.split('\t').rev();
                let (value, name) = (parts.next()?, parts.next()?);
                name.contains("culvert.")
                    .then(|| (name.to_owned(), value.to_owned()))
            });
            pairs.collect::<Vec<_>>()
        })
        .collect();
    assert!(
        kept.len() >= 2
            && kept
                .iter()
                .all(|(name, _)| name.starts_with("__Host-culvert.")),
        "{kept:?}"
    );
    for (host, path, status) in [
        (HOST, "/", 200),
        (HOST, "/other", 200),
        (HOST, "/admin", 302),
        (HOST, "/culvert/x", 404),
        (OTHERS[0], "/", 302),
        (OTHERS[0], "/culvert/x", 404),
        (OTHERS[1], "/", 200),
        (OTHERS[1], "/culvert/oauth2/callback", 200),
    ] {
        for (name, value) in &kept {
            for spelled in [
                name.clone(),
                name.to_ascii_uppercase(),
                name.replace("__Host-", "__Secure-"),
                name.replace("__Host-", ""),
            ] {
                // The owner of the other endpoint sends what it might have got.
                let field = format!("cookie: mine=1; {spelled}={value}");
                let stranger = Browser::new(folder.path(), "nobody", &culvert, HOST);
                let page = stranger.open(&at(host, path), &["--header", &field]).await;
                let is_session = *name == spelled && name.ends_with("session");
                let expected = if host == HOST && path == "/admin" && is_session {
                    200
                } else {
                    status
                };
                assert_eq!(page.status, expected, "{host}{path} {spelled}");
            }
        }
        for person in &people {
            drop(person.open(&at(host, path), &[]).await);
        }
    }
    let received: Vec<_> = own
        .received()
        .into_iter()
        .chain(others.received())
        .collect();
    let heads = format!(
        "{:?}",
        received
            .iter()
            .map(|request| &request.headers)
            .collect::<Vec<_>>()
    );
    assert!(heads.contains("mine=1"));
    eventually("the events arrive", async || {
        hook.events().len() >= received.len()
    })
    .await;
    // Events have header fields in lower case.
    let told = serde_json::to_string(&hook.events())
        .unwrap()
        .to_lowercase();
    for (name, value) in &kept {
        // Without the number of cookies.
        let secret = value.split('.').next_back().unwrap();
        assert!(!heads.contains(secret), "{name} reached a service");
        let lower = secret.to_lowercase();
        assert!(!told.contains(&lower), "{name} is in an event");
    }
    for parameter in ["code=", "state=", "ticket="] {
        assert!(!told.contains(parameter), "{parameter} is in an event");
    }
    culvert.stop().await;
}
