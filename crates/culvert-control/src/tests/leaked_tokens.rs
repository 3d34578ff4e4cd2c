//! Tokens that are reported as leaked.

use std::time::Duration;

use culvert_resources::settings::Leaked;

use super::*;
use crate::{LEAKED_TOKENS_PATH, Settings, signed_tokens};

const HOUR: Duration = Duration::from_secs(3_600);
const HERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn flagged(settings: &mut Settings) {
    settings.leaked = Leaked::Flagged;
}

fn plain(settings: &mut Settings) {
    settings.token_form = token::Form::Plain;
}

fn plain_and_flagged(settings: &mut Settings) {
    plain(settings);
    flagged(settings);
}

/// The two forms of new tokens, with both actions.
const SETTINGS: [fn(&mut Settings); 4] = [|_| {}, plain, flagged, plain_and_flagged];

/// A partner reports these tokens.
async fn reported(rig: &Rig, tokens: &[&str]) {
    let found = |token: &&str| json!({"token": token, "type": "x", "url": "https://git.example/a", "source": "commit"});
    let body: Value = tokens.iter().map(found).collect();
    let tokens = signed_tokens(body.to_string().as_bytes()).unwrap();
    let done = rig.control.identity.report_leaks(None, &tokens).await;
    done.unwrap();
}

fn token_of(made: &Value) -> &str {
    made["token"].as_str().unwrap()
}

/// The kinds of events after a position, and the last one of a leak.
async fn events(rig: &Rig, after: i64) -> (Vec<String>, Option<Value>) {
    let (events, _) = rig.events_after(after).await;
    let kind = |event: &Value| event["event_type"].as_str().unwrap().to_owned();
    let kinds = events.iter().map(kind).collect();
    let leak = events
        .into_iter()
        .rfind(|event| kind(event).contains("_leaked."));
    (kinds, leak)
}

/// Form of the token × state of the key × action.
#[tokio::test]
async fn leaked_tokens_of_keys_are_revoked_or_flagged() {
    for adjust in SETTINGS {
        let rig = Rig::adjusted(adjust).await;
        let revokes = rig.control.kernel.settings.leaked == Leaked::Revoked;
        let bot = rig
            .post("/bot_users", json!({"name": "deployer"}))
            .await
            .body();
        let body = json!({"owner_id": bot["id"], "description": "deploys"});
        let key = rig.post("/api_keys", body).await.body();
        let id = key["id"].as_str().unwrap();
        let path = format!("/api_keys/{id}");
        let restrictions = format!("{path}/restrictions");
        let token = token_of(&key);
        let caller = rig.authenticate(token).await.unwrap();
        let (cookie, _) = rig
            .control
            .identity
            .sign_in(caller.clone(), HERE)
            .await
            .unwrap();
        let session = async || {
            let session = rig
                .control
                .identity
                .console_session(cookie.reveal(), HERE)
                .await;
            session.is_ok()
        };
        assert!(session().await);
        assert_eq!(rig.get(&restrictions).await.body()["leak"], Value::Null);
        let shown = rig.get(&path).await.body();

        let (_, start) = rig.events_after(0).await;
        reported(&rig, &["hunter2", &guessed(token), token]).await;
        let (kinds, leak) = events(&rig, start).await;
        let expected: &[&str] = match revokes {
            true => &[
                "api_key_updated.v0",
                "api_key_leaked.v0",
                "console_session_deleted.v0",
            ],
            false => &["api_key_updated.v0", "api_key_leaked.v0"],
        };
        assert_eq!(kinds, expected);
        let leak = leak.unwrap();
        assert_eq!(leak["principal"], Value::Null);
        assert_eq!(
            leak["object"],
            json!({
                "id": id, "owner_id": bot["id"], "owner_name": "deployer", "description": "deploys",
                "url": "https://git.example/a", "source": "commit", "revoked": revokes,
                "previous_token": false, "by_partner": true,
            })
        );
        let now = rig.authenticate(token).await;
        assert_eq!(now.err(), revokes.then_some(Some(203)));
        let again = rig.control.identity.caller_again(&caller, HERE).await;
        assert_eq!(again.is_err(), revokes);
        assert_eq!(session().await, !revokes);
        let found = rig.get(&restrictions).await.body()["leak"].clone();
        assert_eq!(found["revoked"], revokes);
        assert_eq!(found["url"], "https://git.example/a");
        // The key keeps the form that clients know.
        assert_eq!(rig.get(&path).await.body(), shown);
        // There is one event for a token.
        let (_, start) = rig.events_after(0).await;
        reported(&rig, &[token, token]).await;
        assert_eq!(events(&rig, start).await.0, Vec::<String>::new());

        // A rotation gives it another token.
        let rotated = rig
            .post(&format!("{path}/rotate"), json!({"overlap": 3_600}))
            .await;
        let rotated = rotated.body();
        let second = token_of(&rotated);
        assert_eq!(rig.get(&restrictions).await.body()["leak"], Value::Null);
        assert!(rig.authenticate(second).await.is_ok());
        let third = rig
            .post(&format!("{path}/rotate"), json!({"overlap": 3_600}))
            .await;
        let third = third.body();
        // The token before the rotation leaks: only that one ends.
        let (_, start) = rig.events_after(0).await;
        reported(&rig, &[second]).await;
        let (_, leak) = events(&rig, start).await;
        assert_eq!(leak.unwrap()["object"]["previous_token"], true);
        assert_eq!(rig.authenticate(second).await.is_err(), revokes);
        assert!(rig.authenticate(token_of(&third)).await.is_ok());
        // One whose overlap is over, and one of a deleted key, are not reported.
        rig.clock.advance(2 * HOUR);
        let (_, start) = rig.events_after(0).await;
        reported(&rig, &[second, token]).await;
        assert_eq!(rig.delete(&path).await, Answered::NoContent);
        reported(&rig, &[token_of(&third)]).await;
        let (kinds, _) = events(&rig, start).await;
        assert_eq!(kinds, ["api_key_deleted.v0"]);

        // Inactive owners and expired keys have events too: the token may work again.
        let body = json!({"owner_id": bot["id"], "expires_at": "1h"});
        let expired = rig.post("/api_keys", body).await.body();
        rig.clock.advance(2 * HOUR);
        let path = format!("/bot_users/{}", bot["id"].as_str().unwrap());
        rig.patch(&path, json!({"active": false})).await.body();
        let (_, start) = rig.events_after(0).await;
        reported(&rig, &[token_of(&expired)]).await;
        assert!(events(&rig, start).await.1.is_some());
        let (everything, _) = rig.events_after(0).await;
        let everything = format!("{everything:?}");
        for token in [token, second, token_of(&third), token_of(&expired)] {
            assert!(!everything.contains(secret_of(token)));
        }
    }
}

#[tokio::test]
async fn leaked_credentials_and_invitations_end() {
    for adjust in SETTINGS {
        let rig = Rig::adjusted(adjust).await;
        let revokes = rig.control.kernel.settings.leaked == Leaked::Revoked;
        let made = rig
            .post("/credentials", json!({"description": "a"}))
            .await
            .body();
        let path = format!("/credentials/{}", made["id"].as_str().unwrap());
        let (_, start) = rig.events_after(0).await;
        reported(&rig, &[token_of(&made)]).await;
        let (kinds, leak) = events(&rig, start).await;
        let first = match revokes {
            true => "tunnel_credential_deleted.v0",
            false => "tunnel_credential_updated.v0",
        };
        assert_eq!(kinds, [first, "tunnel_credential_leaked.v0"]);
        assert_eq!(leak.unwrap()["object"]["revoked"], revokes);
        assert_eq!(
            matches!(rig.get(&path).await, Answered::Refused(..)),
            revokes
        );
        let (_, start) = rig.events_after(0).await;
        reported(&rig, &[token_of(&made)]).await;
        assert_eq!(events(&rig, start).await.0, Vec::<String>::new());

        let body = json!({"email": "ada@x.example", "role": "admin"});
        let invited = rig.post("/users", body).await.body();
        let (_, token) = invited["invitation_url"]
            .as_str()
            .unwrap()
            .split_once('#')
            .unwrap();
        reported(&rig, &[token]).await;
        let accepted = rig.control.identity.accept_invitation(token, HERE).await;
        assert!(accepted.is_err());
        let (events, _) = rig.events_after(start).await;
        let ended = events.last().unwrap();
        assert_eq!(ended["event_type"], "invitation_deleted.v0");
        assert_eq!(ended["object"]["reason"], "leaked");

        let link = rig.control.identity.make_console_link(&rig.token);
        reported(&rig, &[link.reveal()]).await;
        assert!(
            rig.control
                .identity
                .use_console_link(link.reveal())
                .await
                .is_err()
        );
    }
}

/// A token of one kind is refused where another is expected, whatever its form.
#[tokio::test]
async fn each_parser_of_tokens_takes_both_forms_of_its_kind() {
    for adjust in [SETTINGS[0], SETTINGS[1]] {
        let open = agents::Open::of(Rig::adjusted(adjust).await).await;
        let rig = &open.rig;
        let key = rig.post("/api_keys", json!({})).await.body();
        let credential = rig.post("/credentials", json!({})).await.body();
        let body = json!({"email": "ada@x.example", "role": "member"});
        let invited = rig.post("/users", body).await.body();
        let (_, invitation) = invited["invitation_url"]
            .as_str()
            .unwrap()
            .split_once('#')
            .unwrap();
        let link = rig.control.identity.make_console_link(&rig.token);
        let (key, credential) = (token_of(&key), token_of(&credential));
        let tokens = [key, credential, link.reveal(), invitation];
        let is_plain = rig.control.kernel.settings.token_form == token::Form::Plain;
        for token in tokens {
            assert_eq!(token.starts_with("culvert_"), !is_plain);
        }
        // The API.
        let mut codes = Vec::new();
        for token in tokens {
            codes.push(rig.authenticate(token).await.err().flatten());
        }
        assert_eq!(codes, [None, Some(206), Some(203), Some(203)]);
        // Basic credentials, as the user or the password.
        use base64::Engine;
        for pair in [format!("{key}:"), format!("x:{key}"), format!("{key}:x")] {
            let pair = base64::engine::general_purpose::STANDARD.encode(pair);
            assert!(rig.judged(Some(&format!("Basic {pair}"))).await.is_ok());
        }
        // Agents.
        let mut codes = Vec::new();
        for token in tokens {
            codes.push(open.authorize(agents::hello(token)).await.err());
        }
        assert_eq!(codes, [Some(107), None, Some(107), Some(107)]);
        // Invitations, and links of the console.
        for token in [key, credential, link.reveal()] {
            assert!(
                rig.control
                    .identity
                    .accept_invitation(token, HERE)
                    .await
                    .is_err()
            );
        }
        for token in [key, credential, invitation] {
            assert!(rig.control.identity.use_console_link(token).await.is_err());
        }
        let used = rig.control.identity.use_console_link(link.reveal()).await;
        assert_eq!(used.unwrap().0.key_id, rig.admin.key_id);
        assert!(
            rig.control
                .identity
                .accept_invitation(invitation, HERE)
                .await
                .is_ok()
        );
        // A cookie is no token, and no token is a cookie.
        for token in tokens {
            let session = rig.control.identity.console_session(token, HERE).await;
            assert!(session.is_err());
        }
    }
}

#[tokio::test]
async fn any_caller_may_report_and_learns_nothing() {
    let rig = Rig::start().await;
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let key = rig
        .post("/api_keys", json!({"scopes": ["keys.read"]}))
        .await
        .body();
    let narrow = rig.authenticate(token_of(&key)).await.unwrap();
    let stranger = rig.stranger().await;
    let report =
        |token: &str| json!({"tokens": [{"token": token, "url": "https://x.example/\u{7}"}]});
    for caller in [&reader, &narrow, &stranger] {
        let victim = rig.post("/api_keys", json!({})).await.body();
        let token = token_of(&victim);
        let (_, start) = rig.events_after(0).await;
        for wrong in ["", "hunter2", &guessed(token), caller.key_id.as_str()] {
            let answered = rig
                .call(caller, "POST", "/leaked_tokens", report(wrong))
                .await;
            assert_eq!(answered, Answered::NoContent, "{wrong}");
        }
        assert_eq!(rig.events_after(start).await.0, Vec::<Value>::new());
        let answered = rig
            .call(caller, "POST", "/leaked_tokens", report(token))
            .await;
        assert_eq!(answered, Answered::NoContent);
        assert_eq!(rig.authenticate(token).await, Err(Some(203)));
        let (_, leak) = events(&rig, start).await;
        let leak = leak.unwrap();
        assert_eq!(leak["object"]["url"], "https://x.example/");
        assert_eq!(leak["object"]["by_partner"], false);
        // Another account does not become known.
        let by = match caller.account == rig.admin.account {
            true => json!(caller.owner_id),
            false => Value::Null,
        };
        assert_eq!(leak["principal"]["id"], by);
    }
    for (body, code) in [
        (json!({}), 215),
        (json!({"tokens": []}), 215),
        (json!({"tokens": [{}]}), 215),
        (json!({"tokens": "x"}), 215),
        (json!({"tokens": [{"token": "x", "more": 1}]}), 214),
        (json!({"tokens": vec![json!({"token": "x"}); 101]}), 215),
    ] {
        let answered = rig.post("/leaked_tokens", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    for (body, code) in [("", 213), ("{}", 213), ("[]", 215), ("[1]", 213)] {
        let refusal = signed_tokens(body.as_bytes()).unwrap_err();
        assert_eq!(refusal.code.map(Code::number), Some(code), "{body}");
    }
}

/// A revoked key of an admin is no way in.
/// A report whose answer was lost, such as by a crash before it was kept, is sent again: it has no second effect.
#[tokio::test]
async fn a_report_that_runs_again_changes_nothing() {
    for adjust in SETTINGS {
        let rig = Rig::adjusted(adjust).await;
        let key = rig.post("/api_keys", json!({})).await.body();
        let credential = rig.post("/credentials", json!({})).await.body();
        let tokens = [token_of(&key), token_of(&credential)].map(|token| json!({"token": token}));
        let report = async |key: &str| {
            let mut terms = Terms::default();
            terms.key = Some(key.to_owned());
            let body = json!({"tokens": tokens});
            let terms = Arc::new(terms);
            rig.call_on(&rig.admin, "POST", LEAKED_TOKENS_PATH, body, terms)
                .await
        };
        let (_, start) = rig.events_after(0).await;
        assert_eq!(report("a").await, Answered::NoContent);
        let (reported, end) = rig.events_after(start).await;
        assert!(reported.len() >= 2, "{reported:?}");
        // Another key is like a kept answer that is not there.
        for key in ["b", "a"] {
            assert_eq!(report(key).await, Answered::NoContent);
        }
        assert_eq!(rig.events_after(end).await.0, Vec::<Value>::new());
    }
}

#[tokio::test]
async fn a_revoked_key_does_not_count_as_a_way_in() {
    let rig = Rig::start().await;
    let spare = rig.post("/api_keys", json!({})).await.body();
    reported(&rig, &[token_of(&spare)]).await;
    let own = format!("/api_keys/{}", rig.admin.key_id);
    assert_eq!(rig.delete(&own).await.code(), Some(660));
    let rotate = format!("/api_keys/{}/rotate", spare["id"].as_str().unwrap());
    assert!(matches!(
        rig.post(&rotate, json!({})).await,
        Answered::Created(_)
    ));
    assert_eq!(rig.delete(&own).await, Answered::NoContent);
}

/// A token that is flagged works on, so the place where it was found must not show it to everyone who reads events.
#[tokio::test]
async fn the_place_of_a_leak_shows_no_token_and_no_invisible_characters() {
    for adjust in SETTINGS {
        let rig = Rig::adjusted(adjust).await;
        let key = rig.post("/api_keys", json!({})).await.body();
        let other = rig.post("/api_keys", json!({})).await.body();
        let (token, other) = (token_of(&key), token_of(&other));
        let (_, start) = rig.events_after(0).await;
        let long = format!("https://shop.example/{}?key={token}", "a".repeat(2_000));
        let hidden = format!("{}\u{200b}{}", &token[..30], &token[30..]);
        let url = format!(
            "https://shop.example/?key={token}&other={other}&x_{token}#{hidden}\u{202e}gpj"
        );
        let body = json!({"tokens": [
            {"token": token, "url": url, "source": token},
            {"token": other, "url": long},
        ]});
        assert_eq!(rig.post("/leaked_tokens", body).await, Answered::NoContent);
        let (events, _) = rig.events_after(start).await;
        let leaks: Vec<&Value> = events
            .iter()
            .filter(|event| event["event_type"] == "api_key_leaked.v0")
            .map(|event| &event["object"])
            .collect();
        let shown =
            "https://shop.example/?key=[redacted]&other=[redacted]&x_[redacted]#[redacted]gpj";
        assert_eq!(leaks[0]["url"], shown);
        assert_eq!(leaks[0]["source"], "[redacted]");
        assert!(
            leaks[1]["url"]
                .as_str()
                .unwrap()
                .ends_with("?key=[redacted]")
        );
        let path = format!("/api_keys/{}/restrictions", key["id"].as_str().unwrap());
        assert_eq!(rig.get(&path).await.body()["leak"]["url"], shown);
        let everything = format!("{events:?}");
        for token in [token, other] {
            assert!(!everything.contains(secret_of(token)));
        }
    }
}

/// A partner sends all matches together, and an endpoint must take many.
#[tokio::test]
async fn a_partner_may_report_many_tokens_together() {
    let rig = Rig::start().await;
    let key = rig.post("/api_keys", json!({})).await.body();
    let token = token_of(&key);
    let noise = guessed(token);
    let mut tokens = vec![noise.as_str(); 500];
    tokens.push(token);
    reported(&rig, &tokens).await;
    assert_eq!(rig.authenticate(token).await, Err(Some(203)));
}
