//! The common callback address: no code reaches an endpoint, and a ticket is of use only to the browser of its sign-in.

use culvert_base::net::HostName;
use culvert_policy::Secrets;
use culvert_policy::policy::compiled::SecretRight;

use super::*;
use crate::tests::internal::named;

const CENTRAL: &str = "login.example";
const ISSUER: &str = "issuer_url: URL, client_id: app, client_secret: a+b";

/// An edge with a common callback address, and endpoints of several owners.
async fn scene(announces: bool) -> Scene {
    let settings = LoginSettings {
        callback_base: Url::parse("https://login.example/base/").ok(),
        providers: BTreeMap::from([("google".to_owned(), ProviderSettings::default())]),
        ..LoginSettings::default()
    };
    let scene = Scene::with(settings, "openid-connect", ISSUER).await;
    scene.idp.tell(|script| script.announces_issuer = announces);
    scene
        .hosts(&[
            ("a.example", "ep_a", "usr_a", "openid-connect", ISSUER),
            ("b.example", "ep_b", "usr_b", "openid-connect", ISSUER),
            (
                "g.example",
                "ep_g",
                "usr_b",
                "oauth",
                "provider: google, client_id: app, client_secret: s",
            ),
        ])
        .await;
    scene
}

impl Scene {
    async fn hosts(&self, hosts: &[(&str, &str, &str, &str, &str)]) {
        let mut snapshot = Snapshot::builder().logins(Arc::clone(&self.logins));
        for (host, id, owner, action, config) in hosts {
            let policy = format!(
                "on_http_request: [{{actions: [{{type: {action}, config: {{{config}}}}}, {{type: custom-response, config: {{body: in}}}}]}}]"
            );
            let resources = Resources {
                logins: Some(LoginService::new(Arc::clone(&self.logins))),
                owner: (*owner).to_owned(),
                host: HostName::parse(host).ok(),
                ..Resources::default()
            };
            let source = Source::read(&policy.replace("URL", &self.idp.url), ACTIONS).unwrap();
            let compiled = source.compile(Scheme::Http, true, &resources).unwrap();
            let mut endpoint = named(Scheme::Http, host, 80, "http://127.0.0.1:1", "");
            endpoint.id = (*id).to_owned();
            endpoint.policy = Some(Arc::new(compiled));
            snapshot = snapshot.endpoint(endpoint);
        }
        // The proxy connects to the http endpoints. What else there is at a host does not matter.
        if hosts.iter().any(|(host, ..)| *host == "a.example") {
            let mut endpoint = named(Scheme::Https, "a.example", 443, "http://127.0.0.1:1", "");
            endpoint.id = "ep_s".to_owned();
            snapshot = snapshot.endpoint(endpoint);
        }
        self.rig.edge.publish(snapshot.build()).await;
    }

    /// One endpoint of this policy, which may read the secret `n` of the vault `v`. Returns its right to it.
    async fn host_with_secret(&self, host: &str, config: &str) -> Arc<SecretRight> {
        let secrets = Arc::new(Secrets::default());
        secrets.replace([("v", "n", "a+b")]);
        let policy = format!(
            "on_http_request: [{{actions: [{{type: openid-connect, config: {{{config}}}}}]}}]"
        );
        let resources = Resources {
            logins: Some(LoginService::new(Arc::clone(&self.logins))),
            host: HostName::parse(host).ok(),
            secrets,
            ..Resources::default()
        };
        let source = Source::read(&policy.replace("URL", &self.idp.url), ACTIONS).unwrap();
        let compiled = Arc::new(source.compile(Scheme::Http, true, &resources).unwrap());
        let right = Arc::clone(compiled.secret_right().unwrap());
        let mut endpoint = named(Scheme::Http, host, 80, "http://127.0.0.1:1", "");
        endpoint.policy = Some(compiled);
        let snapshot = Snapshot::builder().logins(Arc::clone(&self.logins));
        self.rig
            .edge
            .publish(snapshot.endpoint(endpoint).build())
            .await;
        right
    }

    /// Begins a sign-in. Returns path and query of the callback.
    async fn starts(&self, browser: &mut Browser, host: &str) -> String {
        let answer = browser.ask_at(&self.rig, host, "GET", "/x?y=z", "").await;
        assert_eq!(answer.status, 302, "{}", answer.text());
        let sent = sent_to(&answer);
        assert_eq!(
            sent["redirect_uri"],
            "https://login.example/base/oauth2/callback"
        );
        let nonce = sent.get("nonce").cloned().unwrap_or_default();
        self.idp.tell(|script| script.nonce = nonce);
        let issuer = &self.idp.url;
        format!(
            "/base/oauth2/callback?code=c1&state={}&iss={issuer}",
            sent["state"]
        )
    }

    /// Sends a callback to the common address, without a cookie. Returns the ticket's path, if there is one.
    async fn arrives(&self, callback: &str) -> Result<(String, String), Answer> {
        let mut nobody = Browser::default();
        let answer = nobody.ask_at(&self.rig, CENTRAL, "GET", callback, "").await;
        if answer.status != 302 {
            return Err(answer);
        }
        let url = Url::parse(answer.header("location").unwrap()).unwrap();
        assert!(!url.as_str().contains("code=") && url.path() == "/culvert/oauth2/callback");
        let path = format!("{}?{}", url.path(), url.query().unwrap());
        Ok((url.host_str().unwrap().to_owned(), path))
    }
}

#[tokio::test]
async fn a_policy_without_the_right_to_its_secrets_exchanges_no_code() {
    let scene = scene(true).await;
    let config = "issuer_url: URL, client_id: app, client_secret: \"${secrets.get('v', 'n')}\"";
    let right = scene.host_with_secret("a.example", config).await;
    let mut browser = Browser::default();
    let callback = scene.starts(&mut browser, "a.example").await;
    right.withdraw(true);
    let refused = scene.arrives(&callback).await.unwrap_err();
    assert_eq!(refused.header("ngrok-error-code"), Some("ERR_NGROK_2270"));
    assert!(scene.idp.asked().is_empty());
    right.withdraw(false);
    assert_eq!(scene.arrives(&callback).await.unwrap().0, "a.example");
}

#[tokio::test]
async fn codes_are_exchanged_at_the_common_callback_address() {
    let scene = scene(true).await;
    let rig = &scene.rig;
    for host in ["a.example", "g.example"] {
        scene.idp.tell(|script| {
            script.person.1 = json!({"sub": "u7", "name": "Ann", "email": "ann@x.example"});
        });
        let mut browser = Browser::default();
        let callback = scene.starts(&mut browser, host).await;
        let (to, ticket) = scene.arrives(&callback).await.unwrap();
        assert_eq!(to, host);
        let asked = scene.idp.asked();
        assert!(
            asked[0]
                .1
                .contains("redirect_uri=https%3A%2F%2Flogin.example%2Fbase%2Foauth2%2Fcallback"),
            "{asked:?}"
        );
        assert!(asked[0].1.contains("code_verifier="));
        // Sent several times concurrently, it begins one session.
        let mut copies = vec![browser.clone(); 4];
        let all = copies
            .iter_mut()
            .map(|copy| copy.ask_at(rig, host, "GET", &ticket, ""));
        for answer in futures_util::future::join_all(all).await {
            let back = format!("https://{host}/x?y=z");
            assert_eq!(
                answer.header("location"),
                Some(back.as_str()),
                "{}",
                answer.text()
            );
        }
        let inside = &mut copies[0];
        let answer = inside.ask_at(rig, host, "GET", "/", "").await;
        assert_eq!((answer.status, answer.text()), (200, "in"));
        assert!(!inside.jar.contains_key(NONCE));
        // Later it is of no use, and does no harm to the user.
        assert_eq!(
            inside.ask_at(rig, host, "GET", &ticket, "").await.status,
            302
        );
        let answer = Browser::default()
            .ask_at(rig, host, "GET", &ticket, "")
            .await;
        assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3107")));
        assert!(scene.idp.asked().is_empty());
    }
    for (host, target, status) in [
        (CENTRAL, "/base/oauth2/callback?state=x", 400),
        (CENTRAL, "/base/oauth2/callback", 400),
        (CENTRAL, "/oauth2/callback", 404),
        ("other.example", "/base/oauth2/callback", 404),
    ] {
        let answer = Browser::default()
            .ask_at(rig, host, "GET", target, "")
            .await;
        assert_eq!(answer.status, status, "{host}{target}");
    }
    let told = serde_json::to_string(&rig.recorder.events(rig.recorder.count()).await).unwrap();
    for secret in ["code=c1", "ticket=", "state="] {
        assert!(!told.contains(secret), "{told}");
    }
}

#[tokio::test]
async fn a_ticket_is_of_one_browser_and_endpoint_for_a_minute() {
    let scene = scene(true).await;
    let rig = &scene.rig;
    // The attacker completes their own sign-in up to the ticket, and makes the victim's browser finish it.
    let mut attacker = Browser::default();
    let callback = scene.starts(&mut attacker, "a.example").await;
    let (_, ticket) = scene.arrives(&callback).await.unwrap();
    let mut victim = Browser::default();
    scene.starts(&mut victim, "a.example").await;
    let answer = victim.ask_at(rig, "a.example", "GET", &ticket, "").await;
    assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3107")));
    assert_eq!(
        victim.ask_at(rig, "a.example", "GET", "/", "").await.status,
        302
    );
    // The ticket of one endpoint, at others.
    for host in ["b.example", "g.example"] {
        let answer = attacker.clone().ask_at(rig, host, "GET", &ticket, "").await;
        assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")), "{host}");
    }
    // A state or another text is no ticket, and a callback with a code belongs to the common address.
    let state = callback
        .split("state=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap();
    for query in [
        format!("ticket={state}"),
        "ticket=x".to_owned(),
        format!("code=c1&state={state}"),
    ] {
        let target = format!("/culvert/oauth2/callback?{query}");
        let answer = attacker
            .clone()
            .ask_at(rig, "a.example", "GET", &target, "")
            .await;
        assert_eq!(answer.status, 400, "{query}");
    }
    assert_eq!(scene.idp.asked().len(), 2);
    // After a minute it has expired.
    scene.clock.advance(Duration::from_secs(61));
    let answer = attacker.ask_at(rig, "a.example", "GET", &ticket, "").await;
    assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")));
}

#[tokio::test]
async fn an_attempt_is_completed_only_for_the_endpoint_and_application_that_began_it() {
    type Host = (
        &'static str,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
    );
    const OWN: Host = ("a.example", "ep_a", "usr_a", "openid-connect", ISSUER);
    let changes: [(&str, &[Host]); 7] = [
        ("gone", &[]),
        (
            "another endpoint",
            &[("a.example", "ep_z", OWN.2, OWN.3, OWN.4)],
        ),
        (
            "another host",
            &[("z.example", "ep_a", OWN.2, OWN.3, OWN.4)],
        ),
        (
            "another owner",
            &[("a.example", "ep_a", "usr_b", OWN.3, OWN.4)],
        ),
        (
            "another application",
            &[(
                "a.example",
                "ep_a",
                OWN.2,
                OWN.3,
                "issuer_url: URL, client_id: evil, client_secret: a+b",
            )],
        ),
        (
            "another secret",
            &[(
                "a.example",
                "ep_a",
                OWN.2,
                OWN.3,
                "issuer_url: URL, client_id: app, client_secret: evil",
            )],
        ),
        (
            "another action",
            &[(
                "a.example",
                "ep_a",
                OWN.2,
                OWN.3,
                "issuer_url: URL, client_id: app, client_secret: a+b, auth_id: z",
            )],
        ),
    ];
    for (what, hosts) in changes {
        let scene = scene(true).await;
        let callback = scene.starts(&mut Browser::default(), "a.example").await;
        scene.hosts(hosts).await;
        let answer = scene.arrives(&callback).await.unwrap_err();
        assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")), "{what}");
        assert!(
            scene.idp.asked().is_empty(),
            "{what}: the code went to nobody"
        );
    }
}

/// Many issuers share the address, and any user may set up one. A code must not go to another issuer than it is of.
#[tokio::test]
async fn the_code_of_one_issuer_does_not_go_to_another() {
    let scene = scene(true).await;
    let callback = scene.starts(&mut Browser::default(), "a.example").await;
    let plain = callback.split("&iss=").next().unwrap().to_owned();
    for callback in [plain.clone(), format!("{plain}&iss=https://honest.example")] {
        let answer = scene.arrives(&callback).await.unwrap_err();
        assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")));
    }
    // The origins of known providers are known.
    let callback = scene.starts(&mut Browser::default(), "g.example").await;
    let plain = callback.split("&iss=").next().unwrap().to_owned();
    let answer = scene
        .arrives(&format!("{plain}&iss=https://honest.example"))
        .await;
    assert_eq!(answer.unwrap_err().status, 400);
    assert!(scene.idp.asked().is_empty());
    // Issuers whose responses do not say so have an address for each endpoint.
    let quiet = self::scene(false).await;
    let answer = Browser::default()
        .ask_at(&quiet.rig, "a.example", "GET", "/", "")
        .await;
    let sent = sent_to(&answer);
    assert_eq!(
        sent["redirect_uri"],
        "https://a.example/culvert/oauth2/callback"
    );
    let target = format!("/base/oauth2/callback?code=c1&state={}", sent["state"]);
    assert_eq!(quiet.arrives(&target).await.unwrap_err().status, 400);
    assert!(quiet.idp.asked().is_empty());
}

/// The attacker begins a sign-in and makes the victim's browser go through the provider. The attacker's browser could use
/// the ticket, and knows the state, but not the code.
#[tokio::test]
async fn the_result_of_a_code_is_for_requests_with_this_code_alone() {
    for host in ["a.example", "g.example"] {
        let scene = scene(true).await;
        let mut attacker = Browser::default();
        let callback = scene.starts(&mut attacker, host).await;
        let (_, ticket) = scene.arrives(&callback).await.unwrap();
        let answer = Browser::default()
            .ask_at(&scene.rig, host, "GET", &ticket, "")
            .await;
        assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3107")));
        let asked = scene.idp.asked().len();
        for code in ["c", "c2", "C1", "c1+"] {
            let guess = callback.replace("code=c1&", &format!("code={code}&"));
            let answer = scene.arrives(&guess).await.unwrap_err();
            assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")), "{code}");
        }
        // The victim's browser may send its callback again. The provider gets no further code of this attempt.
        assert!(scene.arrives(&callback).await.is_ok());
        assert!(asked > 0 && scene.idp.asked().is_empty());
    }
}

/// Codes at the common callback address go to no endpoint at its host, whatever the method is.
#[tokio::test]
async fn the_common_callback_address_belongs_to_the_edge() {
    let scene = scene(true).await;
    scene
        .hosts(&[("login.example", "ep_l", "usr_b", "openid-connect", ISSUER)])
        .await;
    for (method, target, status) in [
        ("POST", "/base/oauth2/callback?code=c1", 404),
        ("HEAD", "/base/oauth2/callback?code=c1", 404),
        ("GET", "/base/oauth2/callback?code=c1", 400),
        ("GET", "/base/oauth2/callbacks", 302),
    ] {
        let answer = Browser::default()
            .ask_at(&scene.rig, CENTRAL, method, target, "content-length: 0\r\n")
            .await;
        assert_eq!(answer.status, status, "{method} {target}");
    }
}

/// A policy without the right to its secrets sends none to the provider.
#[tokio::test]
async fn a_withdrawn_secret_completes_no_sign_in() {
    let scene = scene(true).await;
    let secrets = Arc::new(Secrets::default());
    secrets.replace([("v", "n", "a+b"), ("v", "i", "canary-app")]);
    scene
        .idp
        .tell(|script| script.claims = json!({"aud": "canary-app"}));
    let resources = Resources {
        logins: Some(LoginService::new(Arc::clone(&scene.logins))),
        secrets,
        ..Resources::default()
    };
    let policy = "on_http_request: [{actions: [{type: openid-connect, config: {issuer_url: URL, client_id: \"${secrets.get('v', 'i')}\", client_secret: \"${secrets.get('v', 'n')}\"}}]}]";
    let source = Source::read(&policy.replace("URL", &scene.idp.url), ACTIONS).unwrap();
    let compiled = Arc::new(source.compile(Scheme::Http, true, &resources).unwrap());
    let mut endpoint = named(Scheme::Http, "a.example", 80, "http://127.0.0.1:1", "");
    endpoint.policy = Some(Arc::clone(&compiled));
    let snapshot = Snapshot::builder().logins(Arc::clone(&scene.logins));
    scene
        .rig
        .edge
        .publish(snapshot.endpoint(endpoint).build())
        .await;
    let callback = scene.starts(&mut Browser::default(), "a.example").await;
    compiled.secret_right().unwrap().withdraw(true);
    let answer = scene.arrives(&callback).await.unwrap_err();
    assert_eq!(problem(&answer), (500, Some("ERR_NGROK_2270")));
    assert!(scene.idp.asked().is_empty());
    compiled.secret_right().unwrap().withdraw(false);
    assert!(scene.arrives(&callback).await.is_ok());
    // An ID of the application that is a secret is shown to the provider alone.
    let events = scene.rig.recorder.events(1).await;
    let told = serde_json::to_string(&events).unwrap();
    assert!(
        told.contains("app_client_id") && !told.contains("canary"),
        "{told}"
    );
}

/// The client that begins a sign-in chooses its port, at which another service may be.
#[tokio::test]
async fn tickets_go_to_the_ports_of_the_edge_alone() {
    let scene = scene(true).await;
    for (host, is_central) in [
        ("a.example", true),
        ("a.example:443", true),
        ("a.example:20001", false),
        ("g.example:80", false),
    ] {
        let answer = Browser::default()
            .ask_at(&scene.rig, host, "GET", "/", "")
            .await;
        let to = sent_to(&answer)["redirect_uri"].clone();
        let expected = match is_central {
            true => "https://login.example/base/oauth2/callback".to_owned(),
            false => format!("https://{host}/culvert/oauth2/callback"),
        };
        assert_eq!(to, expected, "{host}");
    }
}
