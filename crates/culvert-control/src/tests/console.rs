//! Lifetime of console sessions.

use std::time::Duration;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const HERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

async fn sign_in(rig: &Rig) -> Secret {
    let caller = rig.admin.clone();
    rig.control.identity.sign_in(caller, HERE).await.unwrap().0
}

async fn is_valid(rig: &Rig, cookie: &Secret) -> bool {
    let session = rig.control.identity.console_session(cookie.reveal(), HERE);
    session.await.is_ok()
}

#[tokio::test]
async fn a_console_session_ends_when_idle_and_after_twelve_hours() {
    let rig = Rig::start().await;
    let cookie = sign_in(&rig).await;
    rig.clock.advance(29 * MINUTE);
    assert!(is_valid(&rig, &cookie).await);
    rig.clock.advance(29 * MINUTE);
    assert!(is_valid(&rig, &cookie).await);
    rig.clock.advance(30 * MINUTE);
    assert!(!is_valid(&rig, &cookie).await);

    let cookie = sign_in(&rig).await;
    for minutes in (20..12 * 60).step_by(20) {
        rig.clock.advance(20 * MINUTE);
        assert!(is_valid(&rig, &cookie).await, "{minutes}");
    }
    rig.clock.advance(20 * MINUTE);
    assert!(!is_valid(&rig, &cookie).await);
}

#[tokio::test]
async fn too_many_console_sessions_end_the_oldest() {
    let rig = Rig::start().await;
    let mut cookies = Vec::new();
    for _ in 0..11 {
        cookies.push(sign_in(&rig).await);
    }
    let first = cookies.remove(0);
    assert!(!is_valid(&rig, &first).await);
    for cookie in &cookies {
        assert!(is_valid(&rig, cookie).await);
    }
    // A cookie is not valid as a key, nor a key as a cookie.
    let header = format!("Bearer {}", first.reveal());
    assert!(
        rig.control
            .identity
            .authenticate(Some(&header))
            .await
            .is_err()
    );
    assert!(!is_valid(&rig, &rig.token).await);
}

#[tokio::test]
async fn ended_console_sessions_are_deleted() {
    let rig = Rig::start().await;
    let cookie = sign_in(&rig).await;
    let stored = async || rig.store.count("console_sessions").await.unwrap();
    rig.control.identity.clean_console_sessions().await.unwrap();
    assert_eq!(stored().await, 1);
    rig.clock.advance(31 * MINUTE);
    rig.control.identity.clean_console_sessions().await.unwrap();
    assert_eq!(stored().await, 0);
    assert!(!is_valid(&rig, &cookie).await);

    let cookie = sign_in(&rig).await;
    rig.control
        .identity
        .sign_out(cookie.reveal(), HERE)
        .await
        .unwrap();
    assert_eq!(stored().await, 0);
    rig.control
        .identity
        .sign_out(cookie.reveal(), HERE)
        .await
        .unwrap();
}

/// A session never lives longer than the token that it began with.
#[tokio::test]
async fn a_console_session_ends_with_its_key() {
    let rig = Rig::start().await;
    let made = rig.post("/api_keys", json!({})).await.body();
    let path = format!("/api_keys/{}/rotate", made["id"].as_str().unwrap());
    let begin = async |token: &Value| {
        let caller = rig.authenticate(token.as_str().unwrap()).await.unwrap();
        let (cookie, session) = rig
            .control
            .identity
            .sign_in(caller.clone(), HERE)
            .await
            .unwrap();
        (caller, cookie, session)
    };
    let rotate = async |overlap: u32| {
        let rotated = rig.post(&path, json!({"overlap": overlap})).await;
        rotated.body()["token"].clone()
    };
    let (caller, first, _) = begin(&made["token"]).await;
    let second = rotate(50 * 60).await;
    let (_, of_second, _) = begin(&second).await;
    let end = rig.clock.now().plus(50 * MINUTE).whole_seconds();
    // A session that begins with the token before the rotation ends with it too.
    let (_, late, session) = begin(&made["token"]).await;
    assert!(session.expires_at <= end);
    rig.clock.advance(25 * MINUTE);
    for cookie in [&first, &late, &of_second] {
        assert!(is_valid(&rig, cookie).await);
    }
    let shown = rig
        .control
        .identity
        .console_session(first.reveal(), HERE)
        .await;
    assert!(shown.unwrap().expires_at <= end);
    let again = rig
        .control
        .identity
        .caller_again(&caller, HERE)
        .await
        .unwrap();
    assert!(again.ends_at().unwrap() <= end);
    rig.clock.advance(25 * MINUTE);
    assert!(!is_valid(&rig, &first).await);
    assert!(!is_valid(&rig, &late).await);
    assert!(is_valid(&rig, &of_second).await);
    // Work that the token began ends with it too.
    assert!(
        rig.control
            .identity
            .caller_again(&caller, HERE)
            .await
            .is_err()
    );

    // Two rotations end the session of the token before them immediately.
    let third = rotate(3_600).await;
    let (_, of_third, _) = begin(&third).await;
    let (caller, _, _) = begin(&rotate(3_600).await).await;
    assert!(!is_valid(&rig, &of_second).await);
    assert!(is_valid(&rig, &of_third).await);
    rotate(0).await;
    assert!(!is_valid(&rig, &of_third).await);
    assert!(
        rig.control
            .identity
            .caller_again(&caller, HERE)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_console_session_has_the_restrictions_and_expiry_of_its_key() {
    let rig = Rig::start().await;
    let made = rig.post("/api_keys", json!({})).await.body();
    let token = made["token"].as_str().unwrap();
    let caller = rig.authenticate(token).await.unwrap();
    let (cookie, _) = rig.control.identity.sign_in(caller, HERE).await.unwrap();
    let path = format!("/api_keys/{}/restrictions", made["id"].as_str().unwrap());
    let end = rig.clock.now().plus(10 * MINUTE).whole_seconds();
    let narrowed = json!({"role": "read_only", "expires_at": end.to_string()});
    rig.patch(&path, narrowed).await.body();
    let session = rig
        .control
        .identity
        .console_session(cookie.reveal(), HERE)
        .await;
    let session = session.unwrap();
    assert_eq!(session.expires_at, end);
    assert_eq!(session.caller.role, Role::ReadOnly);
    rig.patch(&path, json!({"networks": ["192.0.2.0/24"]}))
        .await
        .body();
    assert!(!is_valid(&rig, &cookie).await);
    rig.patch(&path, json!({"networks": []})).await.body();
    assert!(is_valid(&rig, &cookie).await);
    rig.clock.advance(10 * MINUTE);
    assert!(!is_valid(&rig, &cookie).await);
}

#[tokio::test]
async fn a_sign_in_link_works_once_within_an_hour() {
    let rig = Rig::start().await;
    let make = || rig.control.identity.make_console_link(&rig.token);
    let works = async |link: &Secret| {
        let used = rig.control.identity.use_console_link(link.reveal()).await;
        used.map(|(caller, link_use)| {
            link_use.complete();
            caller
        })
    };
    let is_used = async |link: &Secret| works(link).await.is_err();

    let link = make();
    // A wrong secret does not use the link up.
    assert!(is_used(&Secret::new("x".to_owned())).await);
    assert!(is_used(&rig.token).await);
    let caller = works(&link).await.unwrap();
    assert_eq!(caller.owner_id, rig.admin.owner_id);
    assert!(is_used(&link).await, "a second use");

    // A new link replaces the one before.
    let (first, second) = (make(), make());
    assert!(is_used(&first).await);
    assert!(works(&second).await.is_ok());

    let late = make();
    rig.clock.advance(60 * MINUTE);
    assert!(is_used(&late).await);

    // It is not a token of the API, nor a cookie.
    let link = make();
    let header = format!("Bearer {}", link.reveal());
    assert!(
        rig.control
            .identity
            .authenticate(Some(&header))
            .await
            .is_err()
    );
    assert!(!is_valid(&rig, &link).await);
}

#[tokio::test]
async fn a_refused_sign_in_leaves_the_link_valid_ten_times() {
    let rig = Rig::start().await;
    let link = rig.control.identity.make_console_link(&rig.token);
    let begin = async || rig.control.identity.use_console_link(link.reveal()).await;
    let (_, link_use) = begin().await.unwrap();
    assert!(begin().await.is_err(), "a second use at the same time");
    drop(link_use);
    for _ in 1..10 {
        drop(begin().await.unwrap());
    }
    assert!(begin().await.is_err());
    // An abandoned use does not bring a replaced link back.
    let first = rig.control.identity.make_console_link(&rig.token);
    let used = rig.control.identity.use_console_link(first.reveal()).await;
    let second = rig.control.identity.make_console_link(&rig.token);
    drop(used);
    let used = rig.control.identity.use_console_link(first.reveal()).await;
    assert!(used.is_err());
    let used = rig.control.identity.use_console_link(second.reveal()).await;
    assert!(used.is_ok());
}
