//! The eight named providers, with the documents that they return, from their documentation.

use super::*;

/// A provider: what it is asked for, what it returns, and who the user is then.
struct Quirks {
    provider: &'static str,
    scope: &'static str,
    has_pkce: bool,
    /// Parameters of the authorization URL that only it gets.
    parameters: &'static [(&'static str, &'static str)],
    /// Whether the authorization response names it.
    issuer: Option<&'static str>,
    tokens: Value,
    person: Value,
    /// A line of the request for user data.
    asks: &'static str,
    /// User id, name and address.
    user: (&'static str, &'static str, &'static str),
}

fn table() -> Vec<Quirks> {
    let bearer = |more: Value| {
        let mut tokens = json!({"access_token": "at1", "token_type": "bearer"});
        for (name, value) in more.as_object().unwrap() {
            tokens[name] = value.clone();
        }
        tokens
    };
    let plain = Quirks {
        provider: "",
        scope: "",
        has_pkce: true,
        parameters: &[],
        issuer: None,
        tokens: json!({}),
        person: json!({}),
        asks: "authorization: Bearer at1",
        user: ("", "", ""),
    };
    vec![
        Quirks {
            provider: "amazon",
            scope: "profile",
            tokens: bearer(json!({"expires_in": 3600, "refresh_token": "Atzr|x"})),
            person: json!({"user_id": "amzn1.account.K2LI", "email": "mhashimoto-04@plaxo.com", "name": "Mork Hashimoto", "postal_code": "98052"}),
            user: (
                "amzn1.account.K2LI",
                "Mork Hashimoto",
                "mhashimoto-04@plaxo.com",
            ),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "facebook",
            scope: "email",
            has_pkce: false,
            tokens: bearer(json!({"expires_in": 5_183_944})),
            person: json!({"id": "1000", "name": "Ann", "email": "ann@x.example"}),
            user: ("1000", "Ann", "ann@x.example"),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "github",
            scope: "read:org read:user user:email",
            // No expiry, and scopes with commas.
            tokens: bearer(json!({"scope": "read:org,read:user,user:email"})),
            person: json!({"login": "octocat", "id": 583_231, "type": "User", "site_admin": false, "name": null, "email": null}),
            user: ("583231", "octocat", "ann@x.example"),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "gitlab",
            scope: "openid email profile",
            tokens: bearer(
                json!({"expires_in": 7200, "refresh_token": "r", "scope": "openid email profile", "created_at": NOW, "id_token": "not read"}),
            ),
            person: json!({"sub": "7", "sub_legacy": "x", "name": "Ann", "nickname": "ann", "email": "ann@x.example", "email_verified": true, "groups": []}),
            user: ("7", "Ann", "ann@x.example"),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "google",
            scope: "https://www.googleapis.com/auth/userinfo.email https://www.googleapis.com/auth/userinfo.profile",
            parameters: &[("access_type", "offline")],
            issuer: Some("ORIGIN"),
            tokens: bearer(
                json!({"expires_in": 3599, "refresh_token": "1//x", "scope": "email", "id_token": "not read"}),
            ),
            person: json!({"sub": "110169484474386276334", "name": "Ann", "given_name": "Ann", "picture": "https://x.example", "email": "ann@x.example", "email_verified": true}),
            user: ("110169484474386276334", "Ann", "ann@x.example"),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "linkedin",
            scope: "openid profile email",
            has_pkce: false,
            tokens: bearer(
                json!({"expires_in": 5_184_000, "scope": "email,openid,profile", "id_token": "not read"}),
            ),
            // The address is verified as a text.
            person: json!({"sub": "782bbtaQ", "name": "Ann", "locale": {"country": "US", "language": "en"}, "email": "ann@x.example", "email_verified": "true"}),
            user: ("782bbtaQ", "Ann", "ann@x.example"),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "microsoft",
            scope: "User.Read offline_access",
            tokens: bearer(
                json!({"scope": "User.Read", "expires_in": 3736, "ext_expires_in": 3736, "refresh_token": "M.R3"}),
            ),
            person: json!({"@odata.context": "https://graph.microsoft.com/v1.0/$metadata#users/$entity", "businessPhones": [], "displayName": "Ann", "mail": "boss@other.example", "userPrincipalName": "ann@x.example", "id": "87d349ed-44d7"}),
            user: ("87d349ed-44d7", "Ann", "ann@x.example"),
            ..plain_of(&plain)
        },
        Quirks {
            provider: "twitch",
            scope: "user:read:email",
            has_pkce: false,
            // Scopes are a list.
            tokens: bearer(
                json!({"expires_in": 14_124, "refresh_token": "5b93", "scope": ["user:read:email"]}),
            ),
            person: json!({"data": [{"id": "141981764", "login": "twitchdev", "display_name": "TwitchDev", "email": "ann@x.example", "created_at": "2016-12-14T20:32:28Z"}]}),
            asks: "client-id: me",
            user: ("141981764", "TwitchDev", "ann@x.example"),
            ..plain_of(&plain)
        },
    ]
}

fn plain_of(plain: &Quirks) -> Quirks {
    Quirks {
        tokens: plain.tokens.clone(),
        person: plain.person.clone(),
        ..*plain
    }
}

#[tokio::test]
async fn the_documents_of_every_named_provider_are_read() {
    let table = table();
    let names: Vec<_> = table.iter().map(|quirks| quirks.provider).collect();
    let known: Vec<_> = culvert_login::provider_names().collect();
    assert_eq!(names, known, "every provider is in the table");
    for quirks in table {
        let name = quirks.provider;
        let settings = LoginSettings {
            providers: BTreeMap::from([(name.to_owned(), ProviderSettings::default())]),
            ..LoginSettings::default()
        };
        let config = format!("provider: {name}, client_id: me, client_secret: hush");
        let scene = Scene::with(settings, "oauth", &config).await;
        let (rig, idp) = (&scene.rig, &*scene.idp);
        idp.tell(|script| {
            script.refusal = Some((200, quirks.tokens.clone()));
            script.person = (200, quirks.person.clone());
        });
        let mut browser = Browser::default();
        let answer = browser.get(rig, "/x").await;
        let sent = sent_to(&answer);
        assert_eq!(sent["scope"], quirks.scope, "{name}");
        assert_eq!(
            sent.contains_key("code_challenge"),
            quirks.has_pkce,
            "{name}"
        );
        assert!(!sent.contains_key("nonce"), "{name}");
        for (parameter, value) in quirks.parameters {
            assert_eq!(sent[*parameter], *value, "{name}");
        }
        let mut back = format!("/culvert/oauth2/callback?code=c1&state={}", sent["state"]);
        if let Some(issuer) = quirks.issuer {
            let origin = Url::parse(&idp.url).unwrap().origin().ascii_serialization();
            back.push_str(&format!("&iss={}", issuer.replace("ORIGIN", &origin)));
        }
        let answer = browser.get(rig, &back).await;
        assert_eq!(answer.status, 302, "{name} {}", answer.text());
        let asked = idp.asked();
        let form = &asked[0].1;
        assert!(
            form.contains("client_id=me&client_secret=hush"),
            "{name} {form}"
        );
        assert_eq!(
            form.contains("code_verifier="),
            quirks.has_pkce,
            "{name} {form}"
        );
        let me = asked.iter().find(|(head, _)| head.starts_with("GET /me "));
        let (head, _) = me.unwrap();
        assert!(
            head.contains(&format!("{}\r\n", quirks.asks)),
            "{name} {head}"
        );
        let (id, shown, address) = quirks.user;
        let answer = browser.get(rig, "/").await;
        assert!(
            answer
                .text()
                .contains(&format!("x-who: {address} au_1 at1 ")),
            "{name} {}",
            answer.text()
        );
        let event = scene.reported(rig.recorder.count()).await;
        assert_eq!(event["user"], json!({"id": id, "name": shown}), "{name}");
        // An error with a success status, as some return it.
        idp.tell(|script| {
            script.refusal = Some((200, json!({"error": "bad_verification_code"})));
        });
        let answer = Browser::default().log_in(rig, idp).await;
        assert_eq!(problem(&answer), (403, Some("ERR_NGROK_3125")), "{name}");
    }
}
