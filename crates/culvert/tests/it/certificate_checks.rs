//! The checks of what a certificate needs: a real ACME server (pebble), a real name server (BIND), and authorities that
//! hang or answer wrongly.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use culvert::client::Client;
use culvert::config::Settings;
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::acme::{Authority, free_port, patiently};
use crate::destination_states::logged;
use crate::dns_records::{Bind, KEY, KEY_NAME};
use crate::harness::{Backend, Harness, backends, cluster};
use crate::nodes::beside;

/// The zone of the installation, and that of its users. Nothing connects to the addresses.
const ZONES: [(&str, &str); 2] = [
    ("edge.example", "* A 127.0.0.1"),
    (
        "managed.example",
        "good A 127.0.0.1\n\
         alias CNAME some.where.edge.example.\n\
         astray A 9.9.9.9\n\
         half A 127.0.0.1\nhalf A 9.9.9.9\n\
         loop A 127.0.0.2\n\
         near A 169.254.7.7\n\
         meta A 169.254.169.254\n\
         *.wild A 127.0.0.1\n\
         _acme-challenge.tame CNAME else.edge.example.\n*.tame A 127.0.0.1",
    ),
];

fn configure(settings: &mut Settings, bind: &Bind) {
    settings.edge.domain = "edge.example".into();
    settings.acme.dns.resolvers = vec![bind.address.to_string()];
}

async fn reserve(client: &Client, name: &str) -> Value {
    let body = json!({"domain": name});
    let made = client
        .call(Method::POST, "/reserved_domains", Some(&body))
        .await
        .unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
    made.body
}

fn check_of(domain: &Value) -> String {
    format!(
        "/reserved_domains/{}/certificate/check",
        domain["id"].as_str().unwrap()
    )
}

/// The checks of a domain by their names.
async fn check(client: &Client, domain: &Value) -> Value {
    let found = client
        .call(Method::POST, &check_of(domain), None)
        .await
        .unwrap();
    assert_eq!(found.status, 200, "{}", found.body);
    let checks = found.body["checks"].as_array().unwrap();
    let by_name = checks.iter().map(|one| {
        assert_eq!(one["result"] == "ok", one["remedy"].is_null(), "{one}");
        (one["check"].as_str().unwrap().to_owned(), one.clone())
    });
    Value::Object(by_name.collect())
}

/// What a check says, with its evidence and remedy.
fn words(check: &Value) -> String {
    let evidence = check["evidence"].as_array().unwrap().iter();
    let parts = evidence.chain([&check["text"], &check["remedy"]]);
    let parts: Vec<&str> = parts.filter_map(Value::as_str).collect();
    parts.join("; ")
}

fn says(check: &Value, result: &str, parts: &[&str]) {
    assert_eq!(check["result"], result, "{check}");
    let said = words(check);
    for part in parts {
        assert!(said.contains(part), "`{part}` in: {said}");
    }
}

/// A key of another owner without the role of an admin.
async fn member(culvert: &Harness, name: &str) -> Client {
    let bot = culvert.create("bot_users", json!({"name": name})).await;
    let key = culvert
        .create("api_keys", json!({"owner_id": bot["id"]}))
        .await;
    culvert.client_with(key["token"].as_str().unwrap())
}

/// An authority that accepts connections and says nothing.
struct Silent {
    address: SocketAddr,
    tasks: JoinSet<()>,
    asked: tokio::sync::watch::Receiver<usize>,
}

impl Silent {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (count, asked) = tokio::sync::watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut held = Vec::new();
            while let Ok((socket, _)) = listener.accept().await {
                held.push(socket);
                count.send_modify(|count| *count += 1);
            }
        });
        Self {
            address,
            tasks,
            asked,
        }
    }

    async fn wait_for(&mut self, count: usize) {
        let asked = self.asked.wait_for(|asked| *asked >= count);
        let asked = tokio::time::timeout(Duration::from_secs(60), asked);
        asked.await.expect("it is asked in time").unwrap();
    }
}

/// Checks again and again: what the authority did is remembered for some seconds. The status of the first refusal; `None`
/// if there was no response.
async fn check_until_refused(client: Client, path: String) -> Option<u16> {
    loop {
        match client.call(Method::POST, &path, None).await {
            Ok(found) if found.status == 200 => {}
            Ok(found) => return Some(found.status),
            Err(_) => return None,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_check_has_its_evidence() {
    for backend in backends().await {
        let Some(mut authority) = Authority::prepare().await else {
            return;
        };
        let Some(bind) = Bind::start(&ZONES).await else {
            return;
        };
        let culvert = Harness::start_with(&backend, |settings| {
            authority.configure(settings);
            configure(settings, &bind);
        })
        .await;
        authority.point_here(&["good.managed.example", "alias.managed.example"]);
        authority
            .start(culvert.http.port(), culvert.https.port(), 86_400)
            .await;
        let client = &culvert.client;

        let good = reserve(client, "good.managed.example").await;
        let alias = reserve(client, "alias.managed.example").await;
        for domain in [&good, &alias] {
            let found = patiently("the certificate is there", async || {
                let found = check(client, domain).await;
                (found["validation"]["result"] == "ok").then_some(found)
            })
            .await;
            says(
                &found["name"],
                "ok",
                &["127.0.0.1", "leads to this installation"],
            );
            says(
                &found["authority"],
                "ok",
                &["HTTP status 200 OK", "reaches the CA"],
            );
            says(&found["dns_provider"], "ok", &["only wildcards need one"]);
            says(
                &found["validation"],
                "ok",
                &["reached port 80 or 443", "the certificate is `cert_"],
            );
            says(
                &found["ports"],
                "ok",
                &["the public port of the edge for HTTP is 80"],
            );
        }
        says(
            &check(client, &alias).await["name"],
            "ok",
            &["is an alias of `some.where.edge.example`"],
        );

        let astray = reserve(client, "astray.managed.example").await;
        let target = astray["cname_target"].as_str().unwrap();
        let found = patiently("the CA has answered", async || {
            let found = check(client, &astray).await;
            // Its answer may be that a request came with a nonce that it does not like.
            let is_final = words(&found["validation"]).contains("could not validate the domain");
            is_final.then_some(found)
        })
        .await;
        says(
            &found["name"],
            "fail",
            &[
                "9.9.9.9",
                "no address of this installation",
                target,
                "127.0.0.1",
            ],
        );
        // The words of the CA, and when it is asked again.
        says(
            &found["validation"],
            "fail",
            &[
                "could not validate the domain",
                "next attempt: ",
                "last attempt: ",
            ],
        );
        for (name, result, parts) in [
            (
                "half",
                "warn",
                &["9.9.9.9", "leads elsewhere", "an alias of"][..],
            ),
            ("loop", "fail", &["127.0.0.2", "a loopback address"]),
            ("near", "fail", &["169.254.7.7", "a link-local address"]),
            ("meta", "fail", &["169.254.169.254", "a link-local address"]),
            (
                "absent",
                "fail",
                &["does not resolve: no addresses", "an alias (CNAME)"],
            ),
        ] {
            let domain = reserve(client, &format!("{name}.managed.example")).await;
            says(&check(client, &domain).await["name"], result, parts);
        }
        let wild = reserve(client, "*.wild.managed.example").await;
        let found = check(client, &wild).await;
        says(
            &found["name"],
            "ok",
            &["`*.wild.managed.example` resolves to 127.0.0.1"],
        );
        says(
            &found["dns_provider"],
            "fail",
            &["no DNS provider is set", "`acme.dns.provider`"],
        );
        assert_eq!(found["ports"], Value::Null, "a wildcard needs no port");

        // A name of the platform, and one with an uploaded certificate, ask no CA.
        let own = reserve(client, "shop.edge.example").await;
        let found = check(client, &own).await;
        says(&found["name"], "ok", &["an address of this machine"]);
        says(
            &found["validation"],
            "ok",
            &["certificate of the installation"],
        );
        assert_eq!(found["authority"], Value::Null);
        let checked = logged(client, "certificate_checked.v0").await;
        assert!(!checked.is_empty(), "who checked is in the log");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_names_the_record_that_it_lacks() {
    let Some(bind) = Bind::start(&ZONES).await else {
        return;
    };
    let Some(mut authority) = Authority::prepare().await else {
        return;
    };
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        authority.configure(settings);
        configure(settings, &bind);
        let dns = &mut settings.acme.dns;
        dns.provider = "rfc2136".into();
        dns.nameservers = vec![bind.address.to_string()];
        dns.rfc2136.server = bind.address.to_string();
        dns.rfc2136.key_name = KEY_NAME.into();
        dns.rfc2136.key_secret = KEY.into();
    })
    .await;
    authority.start(free_port(), free_port(), 86_400).await;
    let wild = reserve(&culvert.client, "*.wild.managed.example").await;
    let found = check(&culvert.client, &wild).await;
    let target = wild["acme_challenge_cname_target"].as_str().unwrap();
    let record = format!("`_acme-challenge.wild.managed.example. CNAME {target}.`");
    says(&found["dns_provider"], "fail", &["is no alias of", &record]);
    let tame = reserve(&culvert.client, "*.tame.managed.example").await;
    says(
        &check(&culvert.client, &tame).await["dns_provider"],
        "ok",
        &[
            "accepts updates of `edge.example`",
            "is an alias of `else.edge.example`",
        ],
    );

    // What the provider says is for the operator alone.
    let member = member(&culvert, "member").await;
    let theirs = reserve(&member, "*.tame.theirs.example").await;
    let said = words(&check(&member, &theirs).await["dns_provider"]);
    assert!(
        said.contains("_acme-challenge.tame.theirs.example"),
        "{said}"
    );
    assert!(!said.contains("accepts updates"), "{said}");
    drop(bind);
    let found = patiently("the name server is away", async || {
        let found = check(&member, &theirs).await;
        let is_noticed = words(&found["dns_provider"]).contains("of this installation failed");
        is_noticed.then_some(found)
    })
    .await;
    says(&found["dns_provider"], "fail", &["ask the operator"]);
    says(&found["name"], "fail", &["does not resolve"]);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_and_admins_check_a_name() {
    let Some(bind) = Bind::start(&ZONES).await else {
        return;
    };
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        configure(settings, &bind);
        settings.acme.directory_url = String::new();
    })
    .await;
    let (owner, other) = (
        member(&culvert, "owner").await,
        member(&culvert, "other").await,
    );
    let near = reserve(&owner, "near.managed.example").await;
    let refused = other
        .call(Method::POST, &check_of(&near), None)
        .await
        .unwrap();
    assert_eq!(
        (refused.status, &refused.body["error_code"]),
        (403, &json!("ERR_NGROK_630"))
    );
    let absent = json!({"id": "rd_2bxxxxxxxxxxxxxxxxxxxxxxxxx"});
    let refused = owner
        .call(Method::POST, &check_of(&absent), None)
        .await
        .unwrap();
    assert_eq!(refused.status, 404);
    let ingress = json!({"domain": "connect.managed.example"});
    let ingress = culvert.create("agent_ingresses", ingress).await;
    let of_ingress = format!(
        "/agent_ingresses/{}/certificate/check",
        ingress["id"].as_str().unwrap()
    );
    let refused = owner.call(Method::POST, &of_ingress, None).await.unwrap();
    assert_eq!(refused.status, 403);
    let found = culvert.call(Method::POST, &of_ingress, None).await;
    assert_eq!(found.status, 200, "{}", found.body);

    // Members see that an address is private, and not which one.
    let found = check(&owner, &near).await;
    says(&found["name"], "fail", &["a link-local address"]);
    assert!(!words(&found["name"]).contains("169.254"), "{found}");
    let found_by_admin = check(&culvert.client, &near).await;
    says(&found_by_admin["name"], "fail", &["169.254.7.7"]);
    says(
        &found["authority"],
        "fail",
        &["`acme.directory_url` is not set"],
    );
    culvert.stop().await;
}

/// Checks with an authority that hangs are few at a time, end, and leave the server as it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_hangs_holds_up_nothing() {
    let Some(bind) = Bind::start(&ZONES).await else {
        return;
    };
    let mut silent = Silent::start().await;
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        configure(settings, &bind);
        settings.acme.directory_url = format!("https://{}/dir", silent.address);
    })
    .await;
    let owner = member(&culvert, "owner").await;
    let domain = reserve(&owner, "good.managed.example").await;
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let (owner, path) = (owner.clone(), check_of(&domain));
        calls.spawn(async move { owner.call(Method::POST, &path, None).await.unwrap() });
    }
    let answers = calls.join_all().await;
    let took = began.elapsed();
    let count = |status: u16| answers.iter().filter(|one| one.status == status).count();
    assert_eq!(count(200) + count(429), 100);
    assert!(count(429) > 0 && count(200) > 0, "{}", count(200));
    assert!(took < Duration::from_secs(60), "{took:?}");
    let whole = answers.iter().find(|one| one.status == 200).unwrap();
    let checks = whole.body["checks"].as_array().unwrap();
    let of_authority = checks
        .iter()
        .find(|one| one["check"] == "authority")
        .unwrap();
    // What the server meets there is not for members.
    says(of_authority, "fail", &["cannot use the CA"]);
    assert_eq!(of_authority["evidence"], json!([]));
    // Others are checked meanwhile and afterwards.
    let of_admin = check(&culvert.client, &domain).await;
    says(&of_admin["name"], "ok", &["127.0.0.1"]);
    says(
        &of_admin["authority"],
        "fail",
        &["cannot be reached", "no response within 8 s"],
    );

    let mut running = JoinSet::new();
    // Deleted while it is checked: the answer is that of an object that is not there.
    let before = *silent.asked.borrow();
    running.spawn(check_until_refused(owner.clone(), check_of(&domain)));
    silent.wait_for(before + 1).await;
    let id = domain["id"].as_str().unwrap();
    let deleted = owner
        .call(Method::DELETE, &format!("/reserved_domains/{id}"), None)
        .await;
    assert_eq!(deleted.unwrap().status, 204);
    assert_eq!(running.join_next().await.unwrap().unwrap(), Some(404));

    // A stop in the middle waits for no authority.
    let domain = reserve(&owner, "alias.managed.example").await;
    let before = *silent.asked.borrow();
    running.spawn(check_until_refused(owner.clone(), check_of(&domain)));
    silent.wait_for(before + 1).await;
    let began = Instant::now();
    culvert.stop().await;
    assert!(began.elapsed() < Duration::from_secs(40));
    assert_ne!(running.join_next().await.unwrap().unwrap(), Some(200));
    silent.tasks.abort_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_checks_and_says_its_name() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let Some(bind) = Bind::start(&ZONES).await else {
        return;
    };
    let one = Harness::start_with(&backend, |settings| {
        settings.acme.dns.resolvers = vec![bind.address.to_string()];
    })
    .await;
    let two = beside(&one).await;
    let domain = reserve(&one.client, "good.managed.example").await;
    let mut names = Vec::new();
    for client in [&one.client, &two.client_with(&one.token)] {
        let found = client
            .call(Method::POST, &check_of(&domain), None)
            .await
            .unwrap();
        assert_eq!(found.status, 200, "{}", found.body);
        names.push(found.body["node"].as_str().unwrap().to_owned());
    }
    assert_ne!(names[0], names[1]);
    one.stop().await;
    two.stop().await;
}
