//! Sign-ins to the console at an OpenID provider with hostile responses.

use culvert_base::Secret;
use culvert_login::{ConsoleOpenId, ConsoleProvider, ConsoleSignInError, Identity};

use super::*;
use crate::client_services;

const CALLBACK: &str = "http://api.example/callback";
const SECRET: &str = "a+b";

/// A sign-in that has begun: the cookie of the browser, and the query of the callback.
struct Begun {
    cookie: Secret,
    query: String,
}

struct Console {
    provider: ConsoleProvider,
    idp: Arc<Idp>,
    _rig: Rig,
}

impl Console {
    async fn start() -> Self {
        let mut rig = Rig::start().await;
        let idp = Idp::start(&mut rig).await;
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(NOW)));
        let openid = ConsoleOpenId {
            issuer_url: Url::parse(&idp.url).unwrap(),
            client_id: "app".to_owned(),
            client_secret: Secret::new(SECRET.to_owned()),
            scopes: Vec::new(),
            groups_claim: "groups".to_owned(),
            allows_loopback: true,
        };
        let services = client_services(settings(), clock).unwrap();
        Self {
            provider: ConsoleProvider::new(openid, services).unwrap(),
            idp,
            _rig: rig,
        }
    }

    async fn begin(&self) -> Begun {
        let (cookie, url) = self.provider.begin(CALLBACK).await.unwrap();
        let sent: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
        self.idp
            .tell(|script| script.nonce.clone_from(&sent["nonce"]));
        Begun {
            cookie,
            query: format!("code=c1&state={}", sent["state"]),
        }
    }

    async fn finish(&self, begun: &Begun) -> Result<Identity, ConsoleSignInError> {
        let share = culvert_base::Share::of_owner("127.0.0.1");
        let finishing = self
            .provider
            .finish(begun.cookie.reveal(), &begun.query, CALLBACK, share);
        finishing.await
    }

    async fn sign_in(&self) -> Result<Identity, ConsoleSignInError> {
        self.finish(&self.begin().await).await
    }
}

#[tokio::test]
async fn hostile_responses_do_not_sign_in_to_the_console() {
    let console = Console::start().await;
    let (idp, app) = (&*console.idp, "app");
    for (claims, is_accepted) in [
        (json!({}), true),
        (json!({"aud": ["app", "other"], "azp": "app"}), true),
        (json!({"nonce": "another"}), false),
        (json!({"nonce": null}), false),
        (json!({"iss": "http://evil.example"}), false),
        (json!({"iss": null}), false),
        (json!({"aud": "other"}), false),
        (json!({"aud": null}), false),
        (json!({"aud": ["app", "other"]}), false),
        (json!({"azp": "other"}), false),
        (json!({"exp": NOW - 61}), false),
        (json!({"exp": null}), false),
        (json!({"nbf": NOW + 100}), false),
        // The data that the provider returns are another user's.
        (json!({"sub": "u8"}), false),
        (json!({"sub": null}), false),
        (json!({"sub": ""}), false),
        (json!({"sub": 7}), false),
    ] {
        idp.tell(|script| script.claims = claims.clone());
        let outcome = console.sign_in().await;
        assert_eq!(outcome.is_ok(), is_accepted, "{claims} {outcome:?}");
    }
    idp.tell(|script| script.claims = json!({}));
    for forgery in FORGERIES {
        let begun = console.begin().await;
        let token = idp.forged(forgery, app, SECRET);
        idp.tell(|script| {
            script.refusal = Some((200, json!({"access_token": "at", "id_token": token})));
        });
        let outcome = console.finish(&begun).await;
        let Err(ConsoleSignInError::Provider(_)) = outcome else {
            panic!("{forgery:?} {outcome:?}");
        };
    }
    // The provider has given tokens for the code before.
    idp.tell(|script| script.refusal = Some((400, json!({"error": "invalid_grant"}))));
    let reused = console.sign_in().await;
    assert!(
        matches!(reused, Err(ConsoleSignInError::Denied)),
        "{reused:?}"
    );
}

#[tokio::test]
async fn a_callback_of_the_console_is_useless_in_another_browser() {
    let console = Console::start().await;
    let (mine, theirs) = (console.begin().await, console.begin().await);
    let with = |cookie: &Secret, query: String| Begun {
        cookie: cookie.clone(),
        query,
    };
    let state = mine.query.split("state=").nth(1).unwrap().to_owned();
    console.idp.asked();
    for (why, begun) in [
        ("another browser", with(&theirs.cookie, mine.query.clone())),
        ("no cookie", with(&Secret::default(), mine.query.clone())),
        (
            "the state as cookie",
            with(&Secret::new(state.clone()), mine.query.clone()),
        ),
        ("no state", with(&mine.cookie, "code=c1".to_owned())),
        (
            "two states",
            with(&mine.cookie, format!("{}&state=x", mine.query)),
        ),
        ("no code", with(&mine.cookie, format!("state={state}"))),
        (
            "another issuer",
            with(
                &mine.cookie,
                format!("{}&iss=http%3A%2F%2Fevil.example", mine.query),
            ),
        ),
        (
            "a long query",
            with(
                &mine.cookie,
                format!("{}&x={}", mine.query, "x".repeat(9000)),
            ),
        ),
    ] {
        let outcome = console.finish(&begun).await;
        assert!(
            matches!(outcome, Err(ConsoleSignInError::State)),
            "{why} {outcome:?}"
        );
    }
    // The provider got no code.
    assert!(console.idp.asked().is_empty());
}

#[tokio::test]
async fn only_an_address_that_the_provider_calls_verified_identifies_a_person() {
    let console = Console::start().await;
    let address = "ann@x.example";
    for (verified, expected) in [
        (json!(true), Some(address)),
        (json!(false), None),
        (json!("true"), None),
        (json!(1), None),
        (json!(null), None),
    ] {
        let said = json!({"email": address, "email_verified": verified});
        console.idp.tell(|script| script.claims = said.clone());
        let person = console.sign_in().await.unwrap();
        assert_eq!(person.email.as_deref(), expected, "{said}");
        assert_eq!(person.id, format!("{} u7", console.idp.url));
    }
}
