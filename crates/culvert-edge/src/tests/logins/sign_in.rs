//! The steps of a sign-in and the checks in them.

use super::custody::echo;
use super::*;
use crate::tests::internal::named;

#[tokio::test]
async fn a_user_signs_in_and_events_name_the_user() {
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
        (
            "redirect_uri",
            "https://app.example/culvert/oauth2/callback",
        ),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(sent[name], value);
    }
    assert!(!sent.contains_key("prompt"));
    let nobody =
        json!({"app_client_id": "app", "decision": "block", "user": {"id": null, "name": null}});
    assert_eq!(scene.reported(2).await, nobody);

    scene
        .idp
        .tell(|script| script.nonce = sent["nonce"].clone());
    let back = format!(
        "/culvert/oauth2/callback?code=c%201&state={}",
        sent["state"]
    );
    let answer = browser.get(&scene.rig, &back).await;
    assert_eq!(answer.status, 302, "{}", answer.text());
    assert_eq!(
        answer.header("location"),
        Some("https://app.example/a/b?c=d")
    );
    let ann = |decision: &str| json!({"app_client_id": "app", "decision": decision, "user": {"id": "u7", "name": "Ann"}});
    assert_eq!(scene.reported(4).await, ann("block"));
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
    // The upstream could otherwise return as this user.
    assert!(
        received.contains("cookie: mine=1\r\n") && !received.contains("culvert."),
        "{received}"
    );
    assert_eq!(scene.reported(6).await, ann("allow"));
    let seen = scene.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].person.provider_user_id, "u7");
    assert_eq!(seen[0].public_url, "http://app.example");
    assert_eq!(seen[0].ip_address, "127.0.0.1");
    assert!(seen[0].session.starts_with("as_") && seen[0].session.len() == 30);
    assert_eq!(scene.rig.edge.meters().policy.logins.get(), 1);

    // Another tab that started earlier also returns.
    let mut tabs = Browser::default();
    let first = tabs.begin(&scene.rig, &scene.idp, "/1").await;
    let nonce = scene.idp.script.lock().unwrap().nonce.clone();
    tabs.begin(&scene.rig, &scene.idp, "/2").await;
    scene.idp.tell(|script| script.nonce = nonce);
    let answer = tabs.get(&scene.rig, &first).await;
    assert_eq!(answer.header("location"), Some("https://app.example/1"));
}

#[tokio::test]
async fn callbacks_are_verified() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let mut browser = Browser::default();
    let back = browser.begin(rig, idp, "/").await;
    let state = back.split("state=").nth(1).unwrap();
    let mut tampered = state.to_owned();
    let last = tampered.pop().unwrap();
    tampered.push(if last == 'A' { 'B' } else { 'A' });
    let nonce_cookie = browser.jar[NONCE].clone();
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
    // Another browser has not started this sign-in, not even one with its own sign-in cookie.
    let answer = Browser::default().get(rig, &back).await;
    assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3107")));
    let mut other = Browser::default();
    other.begin(rig, idp, "/").await;
    assert_eq!(
        problem(&other.get(rig, &back).await),
        (400, Some("ERR_NGROK_3107"))
    );
    assert!(idp.asked().is_empty());

    // A sign-in completes only once, but a browser that is signed in continues.
    idp.tell(|script| script.nonce = String::new());
    let back = browser.begin(rig, idp, "/x").await;
    let before = browser.clone();
    assert_eq!(browser.get(rig, &back).await.status, 302);
    assert_eq!(idp.asked().len(), 2);
    // It may send its callback again before it has the session, which is the same.
    let answer = before.clone().get(rig, &back).await;
    assert_eq!(answer.status, 302);
    // What another browser has of it is of no use.
    let answer = Browser::default().get(rig, &back).await;
    assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3107")));
    assert!(!browser.jar.contains_key(NONCE));
    let answer = browser.get(rig, &back).await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (302, Some("https://app.example/x"))
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
async fn id_tokens_are_verified() {
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
        idp.tell(|script| script.claims = claims.clone());
        let answer = Browser::default().log_in(rig, idp).await;
        assert_eq!(answer.status, status, "{claims}");
    }
    for forgery in FORGERIES {
        let mut browser = Browser::default();
        let back = browser.begin(rig, idp, "/").await;
        let token = idp.forged(forgery, "app", "a+b");
        idp.tell(|script| {
            script.refusal = Some((200, json!({"access_token": "at", "id_token": token})));
        });
        let answer = browser.get(rig, &back).await;
        assert_eq!(
            problem(&answer),
            (403, Some("ERR_NGROK_3303")),
            "{forgery:?}"
        );
    }
    for (status, event, expected) in [
        (400, json!({"error": "invalid_grant"}), (403, "3125")),
        (401, json!({"error": "invalid_client"}), (403, "3125")),
        (500, json!({"error": "oops"}), (502, "5536")),
        (200, json!({"token_type": "bearer"}), (502, "5536")),
    ] {
        idp.tell(|state| state.refusal = Some((status, event.clone())));
        let answer = Browser::default().log_in(rig, idp).await;
        let code = format!("ERR_NGROK_{}", expected.1);
        assert_eq!(
            problem(&answer),
            (expected.0, Some(code.as_str())),
            "{event}"
        );
    }
}

/// OpenID Connect Core 5.3.2: the user data must have the `sub` of the ID token.
#[tokio::test]
async fn user_data_of_another_user_is_refused() {
    let scene = Scene::start(", userinfo_refresh_interval: 5m").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let person = |sub: Value| {
        let mut person = json!({"name": "Ann", "email": "ann@x.example"});
        if !sub.is_null() {
            person["sub"] = sub;
        }
        (200, person)
    };
    let foreign = [
        json!(null),
        json!(""),
        json!("u8"),
        json!(" u7"),
        json!(["u7"]),
        json!(7),
    ];
    for sub in foreign {
        idp.tell(|script| script.person = person(sub.clone()));
        let answer = Browser::default().log_in(rig, idp).await;
        assert_eq!(problem(&answer), (403, Some("ERR_NGROK_3110")), "{sub}");
        // Nor in the check of a session.
        idp.tell(|script| script.person = person("u7".into()));
        let mut browser = scene.logged_in().await;
        idp.tell(|script| script.person = person(sub.clone()));
        scene.clock.advance(Duration::from_secs(300));
        assert_eq!(browser.get(rig, "/").await.status, 302, "{sub}");
    }
    // A `sub` that is a number in both is no text, as OpenID Connect wants it, and one with blanks would be another.
    for sub in [json!(7), json!("u7 ")] {
        idp.tell(|script| {
            script.claims = json!({"sub": sub});
            script.person = person(sub.clone());
        });
        let answer = Browser::default().log_in(rig, idp).await;
        assert_eq!(answer.status, 403, "{sub}");
    }
}

#[tokio::test]
async fn redirects_after_sign_in_stay_on_the_host() {
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
        let location = format!("https://app.example{path}");
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
    // An explicit sign-in always starts one, even if the provider has a session.
    let answer = Browser::default().get(rig, "/culvert/login").await;
    assert_eq!(sent_to(&answer)["prompt"], "login");
    // All paths below it belong to the edge, signed in or not.
    let mut inside = scene.logged_in().await;
    for target in [
        "/culvert/login?auth_id=other",
        "/culvert/",
        "/culvert/x",
        "/%63ulvert/x",
        "/a/../culvert/x",
        "/culvert//oauth2/callback/",
    ] {
        for browser in [&mut Browser::default(), &mut inside] {
            let answer = browser.get(rig, target).await;
            assert_eq!(problem(&answer), (404, Some("ERR_NGROK_3622")), "{target}");
        }
    }
    for target in ["/culvert", "/culvertx", "/a/culvert/login"] {
        assert_eq!(inside.get(rig, target).await.status, 200, "{target}");
    }
}

#[tokio::test]
async fn requests_that_are_not_navigations_are_refused_without_a_session() {
    let scene = Scene::start(", allow_cors_preflight: true").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let ask = "Origin: https://b.example\r\nAccess-Control-Request-Method: POST\r\n";
    let answer = Browser::default().ask(rig, "OPTIONS", "/", ask).await;
    assert_eq!(answer.status, 200);
    let event =
        json!({"app_client_id": "app", "decision": "allow", "user": {"id": null, "name": null}});
    assert_eq!(scene.reported(2).await, event);
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
async fn upstreams_learn_who_signed_in_and_clients_cannot_say_it() {
    let scene = Scene::start(
        ", allow_cors_preflight: true, forward_identity: {headers: {x-user: email, x-nick: username}, assertion: {header: x-assertion, claims: [email, name, username]}}",
    )
    .await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let forged = "X-User: mallory\r\nx_user: mallory\r\nx-nick: mallory\r\nX-Assertion: mallory\r\nculvert-assertion: mallory\r\n";
    let mut browser = scene.logged_in().await;
    let answer = browser.ask(rig, "GET", "/", forged).await;
    assert_eq!(answer.status, 200);
    let head = answer.text();
    assert!(!head.contains("mallory"), "{head}");
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let values: Vec<_> = lines.filter(|(given, _)| *given == name).collect();
        assert!(values.len() < 2, "{head}");
        values.first().map(|(_, value)| (*value).to_owned())
    };
    assert_eq!(field("x-user").as_deref(), Some("ann@x.example"));
    assert_eq!(field("x-nick"), None, "the provider says none");
    let assertion = field("x-assertion").unwrap();
    let payload = assertion.split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    assert_eq!(claims["sub"], "u7");
    assert_eq!(claims["idp"], format!("{}/", idp.url));
    assert_eq!(claims["aud"], "http://app.example");
    assert_eq!(
        (&claims["email"], &claims["name"]),
        (&json!("ann@x.example"), &json!("Ann"))
    );
    assert!(claims.get("username").is_none());
    // A request that passes without a user.
    let ask =
        format!("Origin: https://b.example\r\nAccess-Control-Request-Method: POST\r\n{forged}");
    let answer = Browser::default().ask(rig, "OPTIONS", "/", &ask).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.text().contains("mallory"), "{}", answer.text());
    // Services fetch the keys without a session.
    let keys = Browser::default().get(rig, "/culvert/jwks.json").await;
    assert_eq!(keys.status, 200);
    assert_eq!(
        serde_json::from_str::<Value>(keys.text()).unwrap()["keys"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn user_data_may_be_signed_and_compressed() {
    let me = json!({"sub": "u7", "email": "signed@x.example"});
    let with = |name: &str, value: Value| {
        let mut claims = me.clone();
        claims[name] = value;
        claims
    };
    for (person, status) in [
        (me.clone(), 302),
        (with("aud", json!(["app"])), 302),
        (with("aud", json!("another")), 502),
        (with("iss", json!("https://evil.example")), 502),
        (with("sub", json!("u8")), 403),
    ] {
        let scene = Scene::start("").await;
        let (rig, idp) = (&scene.rig, &*scene.idp);
        idp.tell(|script| {
            script.person = (200, person.clone());
            (script.is_signed, script.is_zipped) = (true, true);
        });
        let mut browser = Browser::default();
        let answer = browser.log_in(rig, idp).await;
        assert_eq!(answer.status, status, "{person}: {}", answer.text());
        if status == 302 {
            let answer = browser.get(rig, "/").await;
            assert!(
                answer.text().contains("signed@x.example"),
                "{}",
                answer.text()
            );
        }
    }
}

/// Endpoints of one internal address may have different policies. The one that signs in handles all callbacks, so that
/// their codes reach no service.
#[tokio::test]
async fn the_member_of_a_pool_that_signs_in_answers_paths_of_the_edge() {
    let mut scene = Scene::start("").await;
    let upstream = echo(&mut scene.rig).await;
    let forward = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://in.internal}}]}]";
    let call = "on_http_request: [{actions: [{type: http-request, config: {url: 'http://in.internal/culvert/login', on_error: continue}}, {type: custom-response, config: {body: '${actions.ngrok.http_request.res.status_code}'}}]}]";
    let sign_in =
        format!("on_http_request: [{{actions: [{{type: openid-connect, config: {{{CONFIG}}}}}]}}]");
    let resources = Resources {
        logins: Some(LoginService::new(Arc::clone(&scene.logins))),
        ..Resources::default()
    };
    let source = Source::read(&sign_in.replace("URL", &scene.idp.url), ACTIONS).unwrap();
    let compiled = Arc::new(source.compile(Scheme::Http, true, &resources).unwrap());
    let mut snapshot = Snapshot::builder().logins(Arc::clone(&scene.logins));
    for (host, policy) in [("app.example", forward), ("call.example", call)] {
        snapshot = snapshot.endpoint(named(Scheme::Http, host, 80, "", policy));
    }
    for member in 0..2 {
        let mut endpoint = named(Scheme::Http, "in.internal", 80, &upstream, "");
        endpoint.id = format!("ep_in{member}");
        endpoint.policy = (member == 1).then(|| Arc::clone(&compiled));
        snapshot = snapshot.endpoint(endpoint);
    }
    scene.rig.edge.publish(snapshot.build()).await;
    let mut others = 0;
    for _ in 0..6 {
        let mut browser = Browser::default();
        let callback = "/culvert/oauth2/callback?code=c1&state=x";
        let answer = browser.get(&scene.rig, callback).await;
        assert_eq!(problem(&answer), (400, Some("ERR_NGROK_3108")));
        let answer = browser
            .ask_at(&scene.rig, "call.example", "GET", "/", "")
            .await;
        assert!(
            answer.status == 200 && !answer.text().starts_with("200"),
            "{}",
            answer.text()
        );
        others += usize::from(browser.get(&scene.rig, "/").await.status != 302);
    }
    assert!(others > 0, "the others get the rest");
}
