//! Concurrent requests of two owners for something that only one can have: one succeeds, the other is
//! refused.

use super::agents::Open;
use super::names::{KINDS, Kind, LIMITS, Owner};
use super::*;

/// How a name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Of(Kind),
    /// An existing endpoint gets another URL.
    Rename,
}

const WAYS: [Way; 3] = [Way::Of(KINDS[0]), Way::Of(KINDS[1]), Way::Rename];

/// URLs that must belong to the same owner.
const KIN: [[&str; 2]; 6] = [
    ["https://a.", "https://a."],
    ["http://a.", "https://a."],
    ["https://*.", "https://a."],
    ["http://*.", "tls://x.y."],
    ["https://*.", "https://*.y."],
    ["tls://*.", "http://*."],
];

/// An owner takes a URL; an endpoint to rename exists already.
async fn take(open: &Open, owner: &Owner, way: Way, url: &str, neutral: &str) -> Result<(), u16> {
    match way {
        Way::Of(kind) => owner.take(open, kind, url).await.map(drop),
        Way::Rename => {
            let path = format!("/endpoints/{neutral}");
            let body = json!({"url": url});
            match open.rig.call(&owner.caller, "PATCH", &path, body).await {
                Answered::Ok(_) => Ok(()),
                refused => Err(refused.code().unwrap()),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_reservations_of_related_names_succeed_once() {
    let open = Open::with(LIMITS).await;
    let owners = [
        Owner::bot(&open, "one").await,
        Owner::bot(&open, "two").await,
    ];
    let mut n = 0;
    for kin in KIN {
        for ways in WAYS.iter().flat_map(|a| WAYS.map(|b| [*a, b])) {
            for end in ["culvert.localhost", "internal"] {
                n += 1;
                let urls = kin.map(|url| format!("{url}n{n}.{end}"));
                let mut neutral = Vec::new();
                for (at, owner) in owners.iter().enumerate() {
                    let scheme = urls[at].split_once(':').unwrap().0;
                    let url = format!("{scheme}://neutral-{n}-{at}.{end}");
                    neutral.push(match ways[at] {
                        Way::Rename => owner.take(&open, Kind::Cloud, &url).await.unwrap(),
                        Way::Of(_) => String::new(),
                    });
                }
                let (first, second) = tokio::join!(
                    take(&open, &owners[0], ways[0], &urls[0], &neutral[0]),
                    take(&open, &owners[1], ways[1], &urls[1], &neutral[1]),
                );
                let n_refused = [first, second]
                    .iter()
                    .filter(|taken| matches!(taken, Err(320 | 334 | 18006 | 18016 | 18017)))
                    .count();
                assert_eq!(
                    (n_refused, first.is_ok() || second.is_ok()),
                    (1, true),
                    "{ways:?} {urls:?}: {first:?} {second:?}"
                );
            }
        }
    }
}

/// Unrelated names do not conflict, whatever the order of changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_reservations_of_unrelated_names_all_succeed() {
    let open = Open::with(LIMITS).await;
    let owners = [
        Owner::bot(&open, "one").await,
        Owner::bot(&open, "two").await,
    ];
    for round in 0..4 {
        let (open, owners) = (&open, &owners);
        let taken = futures(24, async |n| {
            let kind = KINDS[n % 2];
            let star = if n % 12 == 5 { "*." } else { "" };
            let url = format!("https://{star}u{round}-{n}.culvert.localhost");
            owners[n / 2 % 2].take(open, kind, &url).await
        });
        for (n, taken) in taken.await.into_iter().enumerate() {
            taken.unwrap_or_else(|code| panic!("{round} {n}: {code}"));
        }
    }
}

/// Runs `n` futures concurrently.
async fn futures<T>(n: usize, run: impl AsyncFn(usize) -> T) -> Vec<T> {
    let mut waiting: Vec<_> = (0..n).map(|n| Box::pin(run(n))).collect();
    let mut done: Vec<Option<T>> = (0..n).map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut is_ready = true;
        for (one, done) in waiting.iter_mut().zip(&mut done) {
            if done.is_none() {
                match one.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *done = Some(value),
                    std::task::Poll::Pending => is_ready = false,
                }
            }
        }
        match is_ready {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// A reservation of one account and an endpoint of another, whose names conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrent_reservation_and_endpoint_of_two_accounts_succeed_once() {
    let open = Open::with(LIMITS).await;
    let owner = Owner::bot(&open, "one").await;
    let stranger = open.rig.stranger().await;
    let mut n = 0;
    for [domain, url] in [
        ["a.", "https://a."],
        ["*.", "https://a."],
        ["a.", "https://*."],
        ["a.", "http://b.a."],
        ["*.", "tls://*."],
    ] {
        for kind in KINDS {
            for is_held in [false, true] {
                n += 1;
                let domain = format!("{domain}r{n}.culvert.localhost");
                let url = format!("{url}r{n}.culvert.localhost");
                let body = json!({"domain": domain});
                let reserve = async || {
                    let path = "/reserved_domains";
                    let made = open.rig.call(&stranger, "POST", path, body.clone());
                    matches!(made.await, Answered::Created(_))
                };
                let (is_reserved, taken) = match is_held {
                    true => {
                        let taken = owner.take(&open, kind, &url).await;
                        (reserve().await, taken)
                    }
                    false => tokio::join!(reserve(), owner.take(&open, kind, &url)),
                };
                assert_ne!(
                    is_reserved,
                    taken.is_ok(),
                    "{kind:?} {domain} {url} {taken:?}"
                );
            }
        }
    }
}

/// A policy that refers to a secret, and a concurrent rename of the secret or its vault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_and_a_concurrent_rename_of_its_secret_succeed_once() {
    let rig = Rig::start().await;
    for n in 0..20 {
        let vault = json!({"name": format!("v{n}")});
        let vault = rig.post("/vaults", vault).await.body()["id"].clone();
        let secret = json!({"name": "s", "value": "x", "vault_id": vault});
        let secret = rig.post("/vault_secrets", secret).await.body()["id"].clone();
        let renamed = match n % 2 {
            0 => format!("/vault_secrets/{}", secret.as_str().unwrap()),
            _ => format!("/vaults/{}", vault.as_str().unwrap()),
        };
        let policy = json!({"on_http_request": [{"actions": [{"type": "add-headers", "config": {
            "headers": {"x-secret": format!("${{secrets.get('v{n}', 's')}}")}
        }}]}]});
        let endpoint = json!({
            "url": format!("https://s{n}.culvert.localhost"),
            "upstream_url": "http://127.0.0.1:1",
            "traffic_policy": policy.to_string(),
        });
        let change = json!({"name": format!("other-{n}")});
        let (made, renamed) = tokio::join!(
            rig.post("/endpoints", endpoint),
            rig.patch(&renamed, change)
        );
        let is_made = matches!(made, Answered::Created(_));
        let is_renamed = matches!(renamed, Answered::Ok(_));
        assert_ne!(is_made, is_renamed, "{n}: {made:?} {renamed:?}");
    }
}

/// Runs `one` until its first `steps` waits are over, then `other` to its end, then the rest of `one`. `None` if `one` has
/// ended before.
///
/// Each wait is that for a read or a commit of the store, so `other` runs between two of them.
async fn interrupted<T, U>(
    steps: usize,
    one: impl Future<Output = T>,
    other: impl Future<Output = U>,
) -> Option<(T, U)> {
    struct Woken(tokio::sync::Notify);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.notify_one();
        }
    }
    let woken = Arc::new(Woken(tokio::sync::Notify::new()));
    let waker = Arc::clone(&woken).into();
    let mut one = std::pin::pin!(one);
    for _ in 0..steps {
        let polled = one
            .as_mut()
            .poll(&mut std::task::Context::from_waker(&waker));
        if polled.is_ready() {
            return None;
        }
        woken.0.notified().await;
    }
    let other = other.await;
    Some((one.await, other))
}

/// The same with the rename between any two steps of the request with the policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_renamed_at_each_step_of_a_policy_that_names_it() {
    // A write that is interrupted keeps its lock, which must not be that of the other.
    let locks = keyed_mutex::KeyedMutex::of_size(1 << 16);
    let rig = Rig::build(None, None, AGENTS, locks, |_| ()).await;
    let endpoint = |n: usize, policy: Option<&str>| {
        json!({
            "url": format!("https://p{n}.culvert.localhost"),
            "upstream_url": "http://127.0.0.1:1",
            "traffic_policy": policy.unwrap_or_default(),
        })
    };
    let mut n = 0;
    for renames_vault in [false, true] {
        for is_update in [false, true] {
            let mut steps = 0;
            loop {
                (n, steps) = (n + 1, steps + 1);
                let vault = json!({"name": format!("w{n}")});
                let vault = rig.post("/vaults", vault).await.body()["id"].clone();
                let secret = json!({"name": "s", "value": "x", "vault_id": vault});
                let secret = rig.post("/vault_secrets", secret).await.body()["id"].clone();
                let renamed = match renames_vault {
                    false => format!("/vault_secrets/{}", secret.as_str().unwrap()),
                    true => format!("/vaults/{}", vault.as_str().unwrap()),
                };
                let policy = json!({"on_http_request": [{"actions": [{"type": "add-headers", "config": {
                    "headers": {"x-secret": format!("${{secrets.get('w{n}', 's')}}")}
                }}]}]});
                let policy = policy.to_string();
                let before = match is_update {
                    true => Some(rig.post("/endpoints", endpoint(n, None)).await.body()),
                    false => None,
                };
                let write = async {
                    match &before {
                        Some(before) => {
                            let path = format!("/endpoints/{}", before["id"].as_str().unwrap());
                            rig.patch(&path, json!({"traffic_policy": policy})).await
                        }
                        None => rig.post("/endpoints", endpoint(n, Some(&policy))).await,
                    }
                };
                let rename = rig.patch(&renamed, json!({"name": format!("other-{n}")}));
                let Some((written, renamed)) = interrupted(steps, write, rename).await else {
                    break;
                };
                let is_written = matches!(written, Answered::Created(_) | Answered::Ok(_));
                let is_renamed = matches!(renamed, Answered::Ok(_));
                let case = format!("{renames_vault} {is_update} {steps}: {written:?} {renamed:?}");
                assert_ne!(is_written, is_renamed, "{case}");
            }
            // A look-up that takes no time is no step. The commit is one.
            assert!(steps > 1, "{renames_vault} {is_update}: {steps}");
        }
    }
}
