//! Providers, callback addresses, and configurations that are rejected.

use super::*;

#[tokio::test]
async fn each_oauth_provider_of_the_table_signs_in() {
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
    idp.tell(|script| {
        script.person.1 = json!({"id": 7, "login": "ann", "name": null, "email": null})
    });
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
    let event = scene.reported(rig.recorder.count()).await;
    assert_eq!(
        event,
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
        idp.tell(|script| script.person.1 = person.clone());
        let answer = Browser::default().log_in(rig, idp).await;
        let code = format!("ERR_NGROK_{code}");
        assert_eq!(problem(&answer), (403, Some(code.as_str())), "{person}");
    }
}

#[test]
fn invalid_sign_in_configurations_are_refused() {
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
