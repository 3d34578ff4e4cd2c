//! Ownership of names: every combination of the name that one owner has and the name that another requests.

use std::time::Duration;

use culvert_tunnel::server::{AgentAuthorizer, EndReason, EndpointRequest, SessionGrant};
use culvert_tunnel::wire::Options;

use super::agents::{Open, again, hello};
use super::*;

pub(super) const LIMITS: AgentLimits = AgentLimits {
    endpoints_per_account: 10_000,
    ..AGENTS
};

/// The state of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    /// Its connection has just broken.
    Grace,
    /// Its session has ended; its names are reserved.
    Kept,
    /// Its names are no longer reserved.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Agent,
    Cloud,
}

/// How the requested name relates to the held one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Same,
    /// A name below the held wildcard.
    Below,
    /// A wildcard above the held name.
    Above,
    /// An unrelated name.
    Beside,
}

const SCHEMES: [&str; 3] = ["http", "https", "tls"];
pub(super) const KINDS: [Kind; 2] = [Kind::Agent, Kind::Cloud];

/// An owner with an API key and an agent.
pub(super) struct Owner {
    pub(super) caller: Caller,
    pub(super) token: String,
    pub(super) grant: SessionGrant,
}

impl Owner {
    pub(super) async fn of(open: &Open, caller: Caller) -> Self {
        let made = open
            .rig
            .call(&caller, "POST", "/credentials", Value::Null)
            .await
            .body();
        let token = made["token"].as_str().unwrap().to_owned();
        let grant = open.authorize(hello(&token)).await.unwrap();
        Self {
            caller,
            token,
            grant,
        }
    }

    pub(super) async fn bot(open: &Open, name: &str) -> Self {
        let rig = &open.rig;
        let made = rig.post("/bot_users", json!({"name": name})).await.body();
        let key = json!({"owner_id": made["id"]});
        let key = rig.post("/api_keys", key).await.body();
        let caller = rig.authenticate(key["token"].as_str().unwrap()).await;
        Self::of(open, caller.unwrap()).await
    }

    /// Takes a URL; returns the ID of the endpoint, or the code of the refusal.
    pub(super) async fn take(&self, open: &Open, kind: Kind, url: &str) -> Result<String, u16> {
        match kind {
            Kind::Agent => {
                let want = wanted(url);
                let bound = open.bind(&self.grant, want).await?;
                Ok(bound.id)
            }
            Kind::Cloud => {
                let upstream = match url.split_once(':').unwrap().0 {
                    "http" | "https" => "http://127.0.0.1:1",
                    _ => "tcp://127.0.0.1:1",
                };
                let body = json!({"url": url, "upstream_url": upstream, "pooling_enabled": true});
                let made = open.rig.call(&self.caller, "POST", "/endpoints", body);
                match made.await {
                    Answered::Created(made) => Ok(made["id"].as_str().unwrap().to_owned()),
                    refused => Err(refused.code().unwrap()),
                }
            }
        }
    }

    pub(super) async fn give_up(&self, open: &Open, kind: Kind, id: &str) {
        match kind {
            Kind::Agent => open.rig.control.agents.unbind(&self.grant, id).await,
            Kind::Cloud => {
                let path = format!("/endpoints/{id}");
                let gone = open.rig.call(&self.caller, "DELETE", &path, Value::Null);
                assert_eq!(gone.await, Answered::NoContent);
            }
        }
    }
}

pub(super) fn wanted(url: &str) -> EndpointRequest {
    EndpointRequest {
        proto: url.split_once(':').unwrap().0.to_owned(),
        pooling_enabled: true,
        options: Options {
            url: url.to_owned(),
            ..Options::default()
        },
        ..EndpointRequest::default()
    }
}

/// A held name.
struct Held {
    scheme: &'static str,
    is_wildcard: bool,
    kind: Kind,
    /// Without the star.
    base: String,
    id: String,
}

impl Held {
    fn host(&self, relation: Relation) -> Option<String> {
        let base = &self.base;
        match (self.is_wildcard, relation) {
            (false, Relation::Same) => Some(format!("a.{base}")),
            (true, Relation::Same) | (false, Relation::Above) => Some(format!("*.{base}")),
            (true, Relation::Below) => Some(format!("x.y.{base}")),
            (_, Relation::Beside) => Some(format!("z-{base}")),
            _ => None,
        }
    }
}

async fn hold(open: &Open, owner: &Owner, kinds: &[Kind]) -> Vec<Held> {
    let mut held = Vec::new();
    for scheme in SCHEMES {
        for is_wildcard in [false, true] {
            for end in ["culvert.localhost", "internal"] {
                for &kind in kinds {
                    let base = format!("n{}.{end}", held.len());
                    let mut one = Held {
                        scheme,
                        is_wildcard,
                        kind,
                        base,
                        id: String::new(),
                    };
                    let host = one.host(Relation::Same).unwrap();
                    let url = format!("{scheme}://{host}");
                    one.id = owner.take(open, kind, &url).await.unwrap();
                    held.push(one);
                }
            }
        }
    }
    held
}

#[tokio::test]
async fn a_host_its_schemes_and_its_subdomains_belong_to_one_owner() {
    for state in [State::Live, State::Grace, State::Kept, State::Over] {
        let open = Open::with(LIMITS).await;
        let mut holder = Owner::bot(&open, "holder").await;
        let other = Owner::bot(&open, "other").await;
        let admin = Owner::of(&open, open.rig.admin.clone()).await;
        let kinds: &[Kind] = match state {
            State::Live | State::Over => &KINDS,
            // Cloud endpoints have no connection.
            State::Grace | State::Kept => &[Kind::Agent],
        };
        let held = hold(&open, &holder, kinds).await;
        if state != State::Live {
            let lost = EndReason::Lost("cut".into());
            open.end(holder.grant.clone(), lost).await;
        }
        if matches!(state, State::Kept | State::Over) {
            // Wait for this session only: two other owners have sessions.
            until_gone(&open, &holder.grant.session_id).await;
            holder.grant = open.authorize(hello(&holder.token)).await.unwrap();
        }
        if state == State::Over {
            for one in held.iter().filter(|one| one.kind == Kind::Cloud) {
                holder.give_up(&open, Kind::Cloud, &one.id).await;
            }
            open.rig.clock.advance(Duration::from_secs(181));
        }
        for one in &held {
            for relation in [
                Relation::Same,
                Relation::Below,
                Relation::Above,
                Relation::Beside,
            ] {
                let Some(host) = one.host(relation) else {
                    continue;
                };
                for scheme in SCHEMES {
                    for kind in KINDS {
                        if relation == Relation::Beside && scheme != "https" {
                            continue;
                        }
                        let url = format!("{scheme}://{host}");
                        let what = format!(
                            "{state:?}: {:?} {}://{}, {kind:?} wants {url}",
                            one.kind,
                            one.scheme,
                            one.host(Relation::Same).unwrap()
                        );
                        let is_free = state == State::Over || relation == Relation::Beside;
                        let code = match kind {
                            Kind::Agent => 320,
                            Kind::Cloud => 18006,
                        };
                        match other.take(&open, kind, &url).await {
                            Ok(id) if is_free => other.give_up(&open, kind, &id).await,
                            taken => assert_eq!(taken, Err(code), "{what}"),
                        }
                    }
                }
            }
            // An admin's agent counts as another owner; an API call of an admin is allowed.
            if state == State::Live && !one.is_wildcard && one.scheme != "tls" {
                let host = one.host(Relation::Same).unwrap();
                let url = format!("{}://{host}", one.scheme);
                assert_eq!(
                    admin.take(&open, Kind::Agent, &url).await,
                    Err(320),
                    "{url}"
                );
                let added = admin.take(&open, Kind::Cloud, &url).await.unwrap();
                admin.give_up(&open, Kind::Cloud, &added).await;
            }
            // Names that the other owner's agent released stay reserved for that owner for a while.
            if state == State::Over {
                open.rig.clock.advance(Duration::from_secs(181));
            }
            // The owner can always take it, with another scheme on another port, and names below it.
            if state == State::Grace {
                continue;
            }
            let other_scheme = if one.scheme == "http" {
                "https"
            } else {
                "http"
            };
            let below = match one.is_wildcard {
                true => one.host(Relation::Below).unwrap(),
                false => one.host(Relation::Same).unwrap(),
            };
            let url = format!("{other_scheme}://{below}");
            for kind in KINDS {
                let id = holder.take(&open, kind, &url).await;
                let id = id.unwrap_or_else(|code| panic!("{state:?} {url} {code}"));
                if state != State::Kept {
                    holder.give_up(&open, kind, &id).await;
                }
            }
        }
    }
}

async fn until_gone(open: &Open, session_id: &str) {
    eventually("the session has ended", async || {
        let sessions = open.collection("tunnel_sessions").await;
        !sessions.iter().any(|one| one["id"] == *session_id)
    })
    .await;
}

/// With its token an agent gets its random name and port again, and no other owner gets them before.
#[tokio::test]
async fn random_names_and_ports_return_to_their_owner() {
    let open = Open::with(LIMITS).await;
    let holder = Owner::bot(&open, "holder").await;
    let other = Owner::bot(&open, "other").await;
    let wants = ["https://", "tcp://"].map(wanted);
    let mut had = Vec::new();
    for want in &wants {
        had.push(open.bind(&holder.grant, want.clone()).await.unwrap());
    }
    let lost = EndReason::Lost("cut".into());
    open.end(holder.grant.clone(), lost).await;
    // During the grace period and after it; also with the token of the other owner.
    for is_over in [false, true] {
        if is_over {
            until_gone(&open, &holder.grant.session_id).await;
        }
        for (want, had) in wants.iter().zip(&had) {
            let by_name = wanted(&had.url);
            let by_token = again(want, had);
            for want in [by_name, by_token] {
                let refused = open.bind(&other.grant, want).await.unwrap_err();
                assert!(matches!(refused, 307 | 320 | 335), "{} {refused}", had.url);
            }
        }
        // Other owners get the other two ports.
        let mut ports = Vec::new();
        for _ in 0..2 {
            ports.push(open.bind(&other.grant, wants[1].clone()).await.unwrap());
        }
        assert!(ports.iter().all(|port| port.url != had[1].url));
        let full = open.bind(&other.grant, wants[1].clone()).await;
        assert!(full.is_err(), "no port is left but the reserved one");
        for port in ports {
            open.rig.control.agents.unbind(&other.grant, &port.id).await;
        }
    }
    let back = open.authorize(hello(&holder.token)).await.unwrap();
    // An agent of the same owner without a token still gets a port.
    let port = open.bind(&back, wants[1].clone()).await.unwrap();
    assert_eq!(
        port.url, had[1].url,
        "the other two are reserved for the other"
    );
    open.rig.control.agents.unbind(&back, &port.id).await;
    for (want, had) in wants.iter().zip(&had) {
        let kept = open.bind(&back, again(want, had)).await.unwrap();
        assert_eq!((&kept.id, &kept.url), (&had.id, &had.url));
    }
    // A name that an agent unbinds stays reserved like those of an ended session: the agent may be connecting
    // to another node, or restarting.
    for had in &had {
        open.rig.control.agents.unbind(&back, &had.id).await;
        let taken = open.bind(&other.grant, wanted(&had.url)).await;
        assert!(matches!(taken, Err(307 | 320)), "{} {taken:?}", had.url);
    }
    for (want, had) in wants.iter().zip(&had) {
        let kept = open.bind(&back, again(want, had)).await.unwrap();
        assert_eq!(kept.url, had.url);
        open.rig.control.agents.unbind(&back, &kept.id).await;
    }
    open.rig.clock.advance(Duration::from_secs(181));
    let taken = open.bind(&other.grant, wanted(&had[0].url)).await;
    assert_eq!(taken.unwrap().url, had[0].url);
}

/// Names of the installation itself.
#[tokio::test]
async fn names_of_the_installation_are_refused() {
    let open = Open::with(LIMITS).await;
    let admin = Owner::of(&open, open.rig.admin.clone()).await;
    for name in [
        "connect",
        "api",
        "tcp",
        "1.tcp",
        "27.tcp",
        "*.tcp",
        "x.y.connect",
        "*.api",
        "abcdefgh.acme-challenge",
        "admin",
        "x.auth",
        "console",
        "*.login",
        "metrics",
    ] {
        let host = format!("{name}.culvert.localhost");
        for scheme in SCHEMES {
            let url = format!("{scheme}://{host}");
            let agents = admin.take(&open, Kind::Agent, &url).await.unwrap_err();
            assert!(matches!(agents, 318 | 319), "{url} {agents}");
            assert_eq!(
                admin.take(&open, Kind::Cloud, &url).await,
                Err(18006),
                "{url}"
            );
        }
        let reserved = open.rig.post("/reserved_domains", json!({"domain": host}));
        assert_eq!(reserved.await.code(), Some(414), "{host}");
    }
    for name in [
        "_acme-challenge",
        "_acme-challenge.x",
        "*._acme-challenge.x",
    ] {
        for kind in KINDS {
            let url = format!("https://{name}.culvert.localhost");
            assert!(admin.take(&open, kind, &url).await.is_err(), "{url}");
        }
    }
    for name in ["connects", "my-api", "api.my", "tcps", "1.x"] {
        let url = format!("https://{name}.culvert.localhost");
        admin.take(&open, Kind::Agent, &url).await.unwrap();
    }
}

/// Another account's reservation covers the names below and above it.
#[tokio::test]
async fn names_around_a_reservation_of_another_account_are_refused() {
    let open = Open::with(LIMITS).await;
    let admin = Owner::of(&open, open.rig.admin.clone()).await;
    let stranger = open.rig.stranger().await;
    for domain in ["r.culvert.localhost", "a.s.culvert.localhost"] {
        let body = json!({"domain": domain});
        let path = "/reserved_domains";
        open.rig.call(&stranger, "POST", path, body).await.body();
    }
    for (host, is_free) in [
        ("r.culvert.localhost", false),
        ("x.r.culvert.localhost", false),
        ("y.x.r.culvert.localhost", false),
        ("*.r.culvert.localhost", false),
        ("*.s.culvert.localhost", false),
        ("s.culvert.localhost", true),
        ("b.s.culvert.localhost", true),
    ] {
        for kind in KINDS {
            let url = format!("https://{host}");
            match admin.take(&open, kind, &url).await {
                Ok(id) => {
                    assert!(is_free, "{url}");
                    admin.give_up(&open, kind, &id).await;
                }
                Err(code) => assert!(
                    !is_free && [18006, 318, 319, 320].contains(&code),
                    "{url} {code}"
                ),
            }
        }
    }
}

/// An owner who binds and unbinds names has no more reserved names than the endpoint limit; the oldest are
/// removed first.
#[tokio::test]
async fn names_kept_for_agents_are_limited() {
    let limits = AgentLimits {
        endpoints_per_account: 5,
        ..AGENTS
    };
    let open = Open::with(limits).await;
    let owner = Owner::bot(&open, "owner").await;
    for round in 0..4 {
        let grant = open.authorize(hello(&owner.token)).await.unwrap();
        for n in 0..3 {
            let want = wanted(&format!("https://k{round}-{n}.culvert.localhost"));
            open.bind(&grant, want).await.unwrap();
        }
        open.end(grant.clone(), EndReason::Lost("cut".into())).await;
        until_gone(&open, &grant.session_id).await;
        open.rig.clock.advance(Duration::from_secs(1));
    }
    let kind = host::KIND;
    open.until_count(kind, |count| count <= 5).await;
    let names: Vec<String> = open
        .rig
        .store
        .all(kind)
        .await
        .unwrap()
        .into_iter()
        .flat_map(|document| document.keys)
        .map(|key| key.value)
        .collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(names.iter().filter(|name| name.starts_with("k3-")).count() == 3);
    assert!(!names.iter().any(|name| name.starts_with("k0-")));
    // Once expired, all are removed.
    open.rig.clock.advance(Duration::from_secs(181));
    let policy = open.rig.ip_policy().await;
    assert!(!policy.is_empty(), "a commit wakes the keeper");
    open.until_count(kind, |count| count == 0).await;
}

/// The wildcard of all internal names would keep every other owner from using one.
#[tokio::test]
async fn only_admins_bind_wildcard_internal_names() {
    let open = Open::with(LIMITS).await;
    let owner = Owner::bot(&open, "owner").await;
    let admin = Owner::of(&open, open.rig.admin.clone()).await;
    for (kind, code, of_tcp) in [(Kind::Agent, 318, 307), (Kind::Cloud, 18006, 18006)] {
        for scheme in SCHEMES {
            let url = format!("{scheme}://*.internal");
            assert_eq!(owner.take(&open, kind, &url).await, Err(code), "{url}");
        }
        let port = owner.take(&open, kind, "tcp://*.internal:5000").await;
        assert_eq!(port, Err(of_tcp));
        for (who, url) in [
            (&owner, "https://*.a.internal"),
            (&admin, "https://*.internal"),
        ] {
            let taken = who.take(&open, kind, url).await;
            who.give_up(&open, kind, &taken.unwrap()).await;
            // An agent's name stays reserved for a while.
            open.rig.clock.advance(Duration::from_secs(200));
        }
    }
}
