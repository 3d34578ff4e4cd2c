//! Sessions: how long they last, and what they need of the provider and the journal.

use culvert_base::Clock as _;

use super::*;

#[tokio::test]
async fn sessions_end_when_idle_expired_or_signed_out() {
    let scene = Scene::start(", max_session_duration: 1h, idle_session_duration: 10m").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let seconds = Duration::from_secs;
    let mut browser = scene.logged_in().await;
    // Used, it goes on, and the browser gets a newer one.
    for _ in 0..5 {
        scene.clock.advance(seconds(500));
        let before = browser.jar[SESSION].clone();
        assert_eq!(browser.get(rig, "/").await.status, 200);
        assert_ne!(browser.jar[SESSION], before);
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
    assert!(!old.jar.contains_key(SESSION));

    // Logged out, a copy of the cookie is of no use either.
    let mut browser = scene.logged_in().await;
    let mut copy = browser.clone();
    let answer = browser
        .ask(rig, "POST", "/culvert/logout", "accept: text/html\r\n")
        .await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("<h1>Signed out</h1>"));
    assert!(!browser.jar.contains_key(SESSION));
    assert_eq!(copy.get(rig, "/").await.status, 302);
    let answer = scene
        .logged_in()
        .await
        .ask(
            rig,
            "GET",
            "/culvert/logout?redirect_path=/bye",
            "sec-fetch-site: same-origin\r\n",
        )
        .await;
    assert_eq!(answer.header("location"), Some("https://app.example/bye"));

    // Ended by others: one session, then all of a user until now.
    // The journal may still report sessions that began earlier. Times of a connection include the real time since it
    // began, so the steps are longer than the test.
    scene.clock.advance(seconds(200));
    let mut one = scene.logged_in().await;
    let now = scene.clock.now();
    let began_now = || {
        let seen = scene.seen.lock().unwrap();
        seen.iter().find(|it| it.started_at >= now).cloned()
    };
    let sighting = soon("the session is noted", async {
        loop {
            if let Some(sighting) = began_now() {
                break sighting;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut two = scene.logged_in().await;
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
        before: Some(sighting.started_at.plus(seconds(200))),
        sessions: Vec::new(),
    });
    assert_eq!(two.get(rig, "/").await.status, 302);
    // In the same moment a new one begins behind that.
    assert_eq!(scene.logged_in().await.get(rig, "/").await.status, 200);

    // What was tampered with, or is another's, is nothing.
    let mut beginner = Browser::default();
    beginner.begin(rig, idp, "/").await;
    let kept_nonce = &beginner.jar[NONCE];
    let browser = scene.logged_in().await;
    let sealed = browser.jar[SESSION].clone();
    for wrong in [
        sealed.replacen("1.", "2.", 1),
        format!("{}!", &sealed[..sealed.len() - 1]),
        format!("1.A{}", &sealed[3..]).replacen(
            "1.A",
            if &sealed[2..3] == "A" { "1.B" } else { "1.A" },
            1,
        ),
        format!("1.{}", kept_nonce),
        "1.".to_owned(),
    ] {
        let mut browser = Browser::default();
        browser.jar.insert(SESSION.to_owned(), wrong.clone());
        assert!(
            wrong == sealed || browser.get(rig, "/").await.status == 302,
            "{wrong}"
        );
    }
    // After a change of the application or of the sign-in's name, earlier sessions are invalid.
    let renamed = CONFIG.replace("client_id: app", "client_id: app2");
    scene.publish("openid-connect", &renamed).await;
    assert_eq!(browser.clone().get(rig, "/").await.status, 302);
    let named = format!("{CONFIG}, auth_id: b");
    scene.publish("openid-connect", &named).await;
    let mut moved = browser.clone();
    moved
        .jar
        .insert("__Host-culvert.b.session".to_owned(), sealed);
    assert_eq!(moved.get(rig, "/").await.status, 302);
    drop(idp.asked());
}

#[tokio::test]
async fn sessions_are_refreshed_at_the_provider() {
    let scene = Scene::start(", userinfo_refresh_interval: 5m").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let seconds = Duration::from_secs;
    let mut browser = scene.logged_in().await;
    drop(idp.asked());
    scene.clock.advance(seconds(200));
    assert_eq!(browser.get(rig, "/").await.status, 200);
    assert!(idp.asked().is_empty());
    scene.clock.advance(seconds(100));
    idp.tell(|script| {
        script.person.1["email"] = "new@x.example".into();
        script.person.1["email_verified"] = true.into();
    });
    let answer = browser.get(rig, "/").await;
    assert!(
        answer
            .text()
            .contains("x-who: new@x.example au_1 at1 true\r\n"),
        "{}",
        answer.text()
    );
    assert_eq!(idp.asked().len(), 1);

    // An expired access token is renewed first, once for all concurrent requests of the session.
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
    idp.tell(|script| script.is_down = true);
    let answer = a.get(rig, "/").await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(" false\r\n"));
    idp.tell(|script| script.is_down = false);
    assert_eq!(a.get(rig, "/").await.status, 200);
    assert!(idp.asked().is_empty());
    scene.clock.advance(seconds(60));
    assert!(a.get(rig, "/").await.text().contains(" true\r\n"));
    drop(idp.asked());

    // One that does not know the user any more ends them everywhere here.
    let mut copy = a.clone();
    scene.clock.advance(seconds(300));
    idp.tell(|script| script.person = (401, json!({"error": "invalid_token"})));
    assert_eq!(a.get(rig, "/").await.status, 302);
    assert_eq!(copy.get(rig, "/").await.status, 302);
    assert_eq!(idp.asked().len(), 1);
    idp.tell(|script| script.person = (200, json!({"sub": "u8"})));
    assert_eq!(b.get(rig, "/").await.status, 302);
}

/// Only the ID token says whether the address is verified, and a refresh has no ID token.
#[tokio::test]
async fn a_refresh_brings_no_address_that_may_be_unverified() {
    let scene = Scene::start(", userinfo_refresh_interval: 5m").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    idp.tell(|script| script.claims = json!({"email_verified": true}));
    let mut browser = scene.logged_in().await;
    idp.tell(|script| script.person.1["email"] = "boss@x.example".into());
    for is_refreshed in [false, true] {
        let answer = browser.get(rig, "/").await;
        let expected = format!("x-who: ann@x.example au_1 at1 {is_refreshed}\r\n");
        assert!(answer.text().contains(&expected), "{}", answer.text());
        scene.clock.advance(Duration::from_secs(300));
    }
    idp.tell(|script| script.claims = json!({"email_verified": false}));
    let mut browser = scene.logged_in().await;
    for is_refreshed in [false, true] {
        let answer = browser.get(rig, "/").await;
        let text = answer.text();
        assert!(text.contains(&format!(" {is_refreshed}\r\n")), "{text}");
        assert!(!text.contains("@x.example"), "{text}");
        scene.clock.advance(Duration::from_secs(300));
    }
}

#[tokio::test]
async fn an_unavailable_provider_blocks_sign_ins_and_keeps_sessions() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let mut inside = scene.logged_in().await;
    let mut under_way = Browser::default();
    let back = under_way.begin(rig, idp, "/").await;
    idp.tell(|script| script.is_down = true);
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
    let decision = scene.reported(rig.recorder.count()).await;
    assert_eq!(decision["decision"], "block");

    // Where upstreams may not be at private addresses, providers may not either.
    let guarded = Settings {
        allow_private_upstreams: false,
        ..behind_proxy()
    };
    idp.tell(|script| script.is_down = false);
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
async fn sessions_begin_while_the_journal_is_unavailable_but_not_if_it_is_full() {
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
    // A user who renews it often is recorded only occasionally.
    assert_eq!(browser.get(&ended.rig, "/").await.status, 200);
    assert_eq!(ended.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn many_session_cookies_are_handled() {
    let scene = Scene::start("").await;
    let mut browser = scene.logged_in().await;
    for number in 0..50 {
        browser.jar.insert(
            format!("__Host-culvert.x{number}.session"),
            "1.x".repeat(100),
        );
    }
    assert_eq!(browser.get(&scene.rig, "/").await.status, 200);
    let bomb = format!(
        "cookie: {}\r\n",
        "__Host-culvert.session=4.x; ".repeat(1000)
    );
    let answer = Browser::default().ask(&scene.rig, "GET", "/", &bomb).await;
    assert_eq!(answer.status, 302);
}
