//! Lifetime of console sessions.

use std::time::Duration;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const HERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

async fn sign_in(house: &House) -> Secret {
    let caller = house.admin.clone();
    house.control.sign_in(caller, HERE).await.unwrap().0
}

async fn is_valid(house: &House, cookie: &Secret) -> bool {
    let session = house.control.console_session(cookie.reveal(), HERE);
    session.await.is_ok()
}

#[tokio::test]
async fn a_session_ends_when_it_is_idle_and_after_half_a_day() {
    let house = House::start().await;
    let cookie = sign_in(&house).await;
    house.clock.advance(29 * MINUTE);
    assert!(is_valid(&house, &cookie).await);
    house.clock.advance(29 * MINUTE);
    assert!(is_valid(&house, &cookie).await);
    house.clock.advance(30 * MINUTE);
    assert!(!is_valid(&house, &cookie).await);

    let cookie = sign_in(&house).await;
    for minutes in (20..12 * 60).step_by(20) {
        house.clock.advance(20 * MINUTE);
        assert!(is_valid(&house, &cookie).await, "{minutes}");
    }
    house.clock.advance(20 * MINUTE);
    assert!(!is_valid(&house, &cookie).await);
}

#[tokio::test]
async fn the_oldest_of_too_many_sessions_ends() {
    let house = House::start().await;
    let mut cookies = Vec::new();
    for _ in 0..11 {
        cookies.push(sign_in(&house).await);
    }
    let first = cookies.remove(0);
    assert!(!is_valid(&house, &first).await);
    for cookie in &cookies {
        assert!(is_valid(&house, cookie).await);
    }
    // A cookie is not valid as a key, nor a key as a cookie.
    let header = format!("Bearer {}", first.reveal());
    assert!(house.control.authenticate(Some(&header)).await.is_err());
    assert!(!is_valid(&house, &house.token).await);
}

#[tokio::test]
async fn sessions_that_have_ended_leave_nothing_behind() {
    let house = House::start().await;
    let cookie = sign_in(&house).await;
    let stored = async || house.store.count("console_sessions").await.unwrap();
    house.control.clean_console_sessions().await.unwrap();
    assert_eq!(stored().await, 1);
    house.clock.advance(31 * MINUTE);
    house.control.clean_console_sessions().await.unwrap();
    assert_eq!(stored().await, 0);
    assert!(!is_valid(&house, &cookie).await);

    let cookie = sign_in(&house).await;
    house.control.sign_out(cookie.reveal()).await.unwrap();
    assert_eq!(stored().await, 0);
    house.control.sign_out(cookie.reveal()).await.unwrap();
}

#[tokio::test]
async fn a_link_signs_in_once_within_an_hour() {
    let house = House::start().await;
    let make = || house.control.make_console_link(&house.token);
    let works = async |link: &Secret| house.control.use_console_link(link.reveal()).await.is_ok();

    let link = make();
    // A wrong secret does not use the link up.
    assert!(!works(&Secret::new("x".to_owned())).await);
    assert!(!works(&house.token).await);
    let caller = house.control.use_console_link(link.reveal()).await.unwrap();
    assert_eq!(caller.owner_id, house.admin.owner_id);
    assert!(!works(&link).await, "a second use");

    // A new link replaces the one before.
    let (first, second) = (make(), make());
    assert!(!works(&first).await);
    assert!(works(&second).await);

    let late = make();
    house.clock.advance(60 * MINUTE);
    assert!(!works(&late).await);

    // It is not a token of the API, nor a cookie.
    let link = make();
    let header = format!("Bearer {}", link.reveal());
    assert!(house.control.authenticate(Some(&header)).await.is_err());
    assert!(!is_valid(&house, &link).await);
}
