//! Reserved domains: invalid requests, ownership, and the effects of removing their certificate or their
//! endpoints.

use super::*;

async fn reserve(rig: &Rig, domain: &str) -> Value {
    let body = json!({"domain": domain});
    rig.post("/reserved_domains", body).await.body()
}

fn path(object: &Value) -> String {
    let uri = object["uri"].as_str().unwrap();
    uri.strip_prefix(BASE).unwrap().to_owned()
}

#[tokio::test]
pub(super) async fn invalid_domains_are_refused() {
    let rig = Rig::start().await;
    let certificate = certificates::leaf("a.example");
    let certificate = rig.post("/tls_certificates", certificate).await.body()["id"].clone();
    let nobody = format!("cert_{}", "0".repeat(27));
    let with = |field: &str, value: Value| {
        let mut body = json!({"domain": "x.example"});
        body[field] = value;
        body
    };
    let domain = |name: &str| with("domain", json!(name));
    let policy = |policy: Value| with("certificate_management_policy", policy);
    let below = |field: &str, value: Value| {
        let mut body = json!({"domain": "x.culvert.localhost"});
        body[field] = value;
        body
    };
    for (body, code) in [
        (json!({}), 448),
        (domain("example"), 448),
        (domain("a.*.example"), 402),
        (domain("a*.example"), 403),
        (domain("a$.example"), 406),
        (domain("-a.example"), 407),
        (domain("a-.example"), 408),
        (domain("a..example"), 409),
        (domain("ab--c.example"), 410),
        (domain("a.internal"), 411),
        (domain("culvert.localhost"), 414),
        (domain("*.culvert.localhost"), 416),
        (domain(&"ab.".repeat(90)), 423),
        (domain("xn--a.example"), 429),
        (domain("a_b.example"), 438),
        (domain(&format!("{}.example", "a".repeat(64))), 513),
        (domain(&format!("{}example", "bücher.".repeat(30))), 514),
        (with("region", json!("mars")), 400),
        (with("resolves_to", json!([{"value": "mars"}])), 400),
        (with("resolves_to", json!([{}])), 215),
        (with("resolves_to", json!([{"value": "eu", "x": 1}])), 214),
        (
            with(
                "resolves_to",
                json!([{"value": "eu"}, {"value": "us"}, {"value": "eu"}]),
            ),
            456,
        ),
        (with("certificate_id", json!(nobody)), 1965),
        (with("certificate_id", json!("junk junk")), 223),
        (with("certificate_id", json!("ak_1")), 227),
        (with("description", json!("x".repeat(256))), 420),
        (with("metadata", json!("x".repeat(4097))), 421),
        (policy(json!({"authority": "another"})), 435),
        (policy(json!({"private_key_type": "dsa"})), 1909),
        (policy(json!({"renew": true})), 214),
        (
            json!({"domain": "x.example", "certificate_id": certificate, "certificate_management_policy": {"authority": "letsencrypt"}}),
            434,
        ),
        (
            below(
                "certificate_management_policy",
                json!({"authority": "letsencrypt"}),
            ),
            439,
        ),
        (below("certificate_id", certificate.clone()), 440),
        (with("cname_target", json!("x")), 214),
    ] {
        let answered = rig.post("/reserved_domains", body.clone()).await;
        let Answered::Refused(_, found, message) = answered else {
            panic!("{body} {answered:?}");
        };
        assert_eq!(found, Some(code), "{body} {message}");
    }
    let one = path(&reserve(&rig, "x.example").await);
    for (body, code) in [
        (json!({}), 422),
        (json!({"certificate_id": nobody}), 1965),
        (
            json!({"certificate_management_policy": {"authority": "another"}}),
            435,
        ),
        (
            json!({"certificate_management_policy": {"private_key_type": "dsa"}}),
            1909,
        ),
        (
            json!({"certificate_management_policy": {}, "certificate_id": certificate}),
            434,
        ),
        (json!({"resolves_to": [{"value": "x"}]}), 400),
        (
            json!({"resolves_to": [{"value": "eu"}, {"value": "eu"}]}),
            456,
        ),
        (json!({"domain": "y.example"}), 214),
    ] {
        let answered = rig.patch(&one, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let below = path(&reserve(&rig, "y.culvert.localhost").await);
    let answered = rig
        .patch(&below, json!({"certificate_id": certificate}))
        .await;
    assert_eq!(answered.code(), Some(440));
    let policy = json!({"certificate_management_policy": {"authority": "letsencrypt"}});
    assert_eq!(rig.patch(&below, policy).await.code(), Some(439));
}

#[tokio::test]
async fn domains_show_normalised_names_and_dns_targets() {
    let rig = Rig::start().await;
    let made = reserve(&rig, " App.Bücher.Example. ").await;
    assert_eq!(made["domain"], "app.xn--bcher-kva.example");
    let target = made["cname_target"].as_str().unwrap();
    let labels: Vec<_> = target.splitn(3, '.').collect();
    assert_eq!(
        (labels[0].len(), labels[1].len(), labels[2]),
        (17, 17, "culvert.localhost")
    );
    for field in [
        "region",
        "resolves_to",
        "certificate",
        "acme_challenge_cname_target",
    ] {
        assert_eq!(made[field], Value::Null, "{field}");
    }
    let policy = json!({"authority": "letsencrypt", "private_key_type": "rsa"});
    assert_eq!(made["certificate_management_policy"], policy);
    let job = json!({
        "error_code": null,
        "msg": "The certificate is being provisioned.",
        "started_at": "2027-01-15T08:00:00Z",
        "retries_at": null,
    });
    let status = json!({"renews_at": null, "provisioning_job": job});
    assert_eq!(made["certificate_management_status"], status);
    let wild = reserve(&rig, "*.wild.example").await;
    let challenge = wild["acme_challenge_cname_target"].as_str().unwrap();
    assert_eq!(
        challenge[8..],
        *".acme-challenge.culvert.localhost",
        "{challenge}"
    );
    let below = reserve(&rig, "*.x.culvert.localhost").await;
    assert_eq!(below["cname_target"], Value::Null);
    assert_eq!(below["acme_challenge_cname_target"], Value::Null);
    assert_eq!(below["certificate_management_policy"], Value::Null);
    assert_eq!(below["certificate_management_status"], Value::Null);

    let places = json!([{"value": "us-cal-1"}, {"value": "global"}]);
    let body = json!({"domain": "r.example", "region": "eu", "resolves_to": places});
    let made = rig.post("/reserved_domains", body).await.body();
    assert_eq!(
        (&made["region"], &made["resolves_to"]),
        (&json!("eu"), &places)
    );
    let one = path(&made);
    let same = rig.patch(&one, json!({"resolves_to": []})).await.body();
    assert_eq!(same, made);
    let reset = json!([{"value": "global"}]);
    let changed = rig.patch(&one, json!({"resolves_to": reset})).await.body();
    assert_eq!(changed["resolves_to"], reset);

    let listed = async |filter: &str| {
        let filter: String = url::form_urlencoded::byte_serialize(filter.as_bytes()).collect();
        let list = rig.get(&format!("/reserved_domains?filter={filter}")).await;
        list.body()["reserved_domains"].as_array().unwrap().len()
    };
    assert_eq!(listed("obj.domain.startsWith('*.')").await, 2);
    assert_eq!(listed("obj.region == 'eu'").await, 1);
    assert_eq!(listed("obj.cname_target == null").await, 1);
    assert_eq!(listed("obj.acme_challenge_cname_target != null").await, 1);
    assert_eq!(listed("obj.certificate.id == null").await, 4);
}

#[tokio::test]
pub(super) async fn a_domain_and_its_subdomains_belong_to_one_account() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    for name in [
        "a.example",
        "*.w.example",
        "deep.b.example",
        "p.culvert.localhost",
    ] {
        reserve(&rig, name).await;
        let again = rig
            .post("/reserved_domains", json!({"domain": name.to_uppercase()}))
            .await;
        assert_eq!(again.code(), Some(413), "{name}");
    }
    for (name, code) in [
        ("a.example", 414),
        ("*.w.example", 414),
        ("p.culvert.localhost", 414),
        ("x.a.example", 414),
        ("b.example", 414),
        ("*.a.example", 417),
        ("*.b.example", 417),
        ("*.x.a.example", 417),
        ("w.example", 417),
        ("x.y.w.example", 417),
        ("*.x.w.example", 417),
    ] {
        let body = json!({"domain": name});
        let answered = rig.call(&stranger, "POST", "/reserved_domains", body).await;
        assert_eq!(answered.code(), Some(code), "{name}");
    }
    for name in ["aa.example", "c.example"] {
        let body = json!({"domain": name});
        rig.call(&stranger, "POST", "/reserved_domains", body)
            .await
            .body();
    }
    // Names may nest within an account.
    for name in ["*.a.example", "x.y.w.example", "b.example"] {
        reserve(&rig, name).await;
    }
}

#[tokio::test]
async fn concurrent_reservations_of_overlapping_domains_succeed_once() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let ask = async |caller: &Caller, name: &str| {
        let body = json!({"domain": name});
        rig.call(caller, "POST", "/reserved_domains", body).await
    };
    for n in 0..5 {
        let (wild, exact) = (format!("*.r{n}.example"), format!("x.r{n}.example"));
        let (ours, theirs) = tokio::join!(ask(&rig.admin, &wild), ask(&stranger, &exact));
        let made = [&ours, &theirs].map(|one| matches!(one, Answered::Created(_)));
        assert!(made[0] != made[1], "{ours:?} {theirs:?}");
        let refused = if made[0] { theirs } else { ours };
        assert_eq!(refused.code(), Some(417));
    }
}

#[tokio::test]
pub(super) async fn a_certificate_is_attached_to_a_domain_and_detached() {
    let rig = Rig::start().await;
    let body = certificates::leaf("a.example,*.a.example");
    let certificate = rig.post("/tls_certificates", body).await.body();
    let id = certificate["id"].clone();
    let reference = json!({"id": id, "uri": certificate["uri"]});
    let body = json!({"domain": "a.example", "certificate_id": id});
    let made = rig.post("/reserved_domains", body).await.body();
    assert_eq!(made["certificate"], reference);
    let one = path(&made);
    let kinds = async |start: i64| {
        let (reported, _) = rig.events_after(start).await;
        let of = |event: &Value| event["event_type"].as_str().unwrap().to_owned();
        reported.iter().map(of).collect::<Vec<_>>()
    };
    let now = async || rig.events_after(0).await.1;

    // Clients repeat the ID, or `""` for none.
    let same = rig.patch(&one, json!({"certificate_id": id})).await.body();
    assert_eq!(same, made);
    let none = rig.patch(&one, json!({"certificate_id": ""})).await.body();
    assert_eq!(none["certificate"], Value::Null);
    rig.patch(&one, json!({"certificate_id": id})).await.body();

    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    for (end, detaches) in [
        ("certificate_management_policy", false),
        ("certificate", true),
        ("certificate", true),
    ] {
        let special = format!("{one}/{end}");
        let absent = format!("/reserved_domains/rd_{}/{end}", "0".repeat(27));
        assert!(rig.delete(&absent).await.is_absent());
        assert!(
            rig.delete(&format!("/reserved_domains/x/{end}"))
                .await
                .is_absent()
        );
        let denied = rig.call(&reader, "DELETE", &special, Value::Null).await;
        assert_eq!(denied.code(), Some(635));
        let start = now().await;
        assert_eq!(rig.delete(&special).await, Answered::NoContent);
        assert_eq!(kinds(start).await, ["domain_updated.v0"]);
        let shown = rig.get(&one).await.body();
        assert_eq!(shown["certificate"].is_null(), detaches, "{end}");
    }

    // A certificate stays while a domain refers to it.
    rig.patch(&one, json!({"certificate_id": id})).await.body();
    let body = json!({"domain": "*.a.example", "certificate_id": id});
    let other = rig.post("/reserved_domains", body).await.body();
    for domain in [one, path(&other)] {
        let start = now().await;
        let refused = rig.delete(&path(&certificate)).await;
        assert_eq!(refused.code(), Some(1966));
        assert_eq!(kinds(start).await, Vec::<String>::new());
        let detached = rig.delete(&format!("{domain}/certificate")).await;
        assert_eq!(detached, Answered::NoContent);
    }
    assert_eq!(rig.delete(&path(&certificate)).await, Answered::NoContent);
}

#[tokio::test]
async fn a_management_policy_and_an_uploaded_certificate_replace_each_other() {
    let rig = Rig::start().await;
    let uploaded = async |name: &str| {
        let body = certificates::leaf(name);
        rig.post("/tls_certificates", body).await.body()["id"].clone()
    };
    let (id, other) = (uploaded("a.example").await, uploaded("b.example").await);
    let body = json!({"domain": "a.example", "certificate_id": id});
    let made = rig.post("/reserved_domains", body).await.body();
    let one = path(&made);
    let policy = |domain: &Value| domain["certificate_management_policy"].clone();
    assert_eq!(policy(&made), Value::Null);
    assert_eq!(made["certificate_management_status"], Value::Null);

    let wanted = json!({"private_key_type": "ecdsa"});
    for certificate_id in [json!(null), json!(""), id.clone()] {
        let body =
            json!({"certificate_management_policy": wanted, "certificate_id": certificate_id});
        let managed = rig.patch(&one, body).await.body();
        assert_eq!(managed["certificate"], Value::Null, "{certificate_id}");
        let shown = json!({"authority": "letsencrypt", "private_key_type": "ecdsa"});
        assert_eq!(policy(&managed), shown);
        // Detaching without an attached certificate is refused.
        let same = rig.patch(&one, json!({"certificate_id": ""})).await.body();
        assert_eq!(same, managed);
        let special = format!("{one}/certificate");
        assert_eq!(rig.delete(&special).await.code(), Some(436));

        let back = rig.patch(&one, json!({"certificate_id": id})).await.body();
        assert_eq!(back["certificate"]["id"], id);
        assert_eq!(policy(&back), Value::Null);
        assert_eq!(back["certificate_management_status"], Value::Null);
    }
    let body = json!({"certificate_management_policy": {}, "certificate_id": other});
    assert_eq!(rig.patch(&one, body).await.code(), Some(434));
    let detached = rig.patch(&one, json!({"certificate_id": ""})).await.body();
    assert_eq!(detached["certificate"], Value::Null);
    assert_eq!(policy(&detached), Value::Null);
}

#[tokio::test]
pub(super) async fn endpoints_need_a_domain_of_their_account() {
    let rig = Rig::start().await;
    let exact = reserve(&rig, "a.example").await;
    let wild = reserve(&rig, "*.a.example").await;
    let named = reserve(&rig, "n.culvert.localhost").await;
    let stranger = rig.stranger().await;
    let make = async |caller: &Caller, host: &str| {
        let body = json!({"url": format!("https://{host}"), "upstream_url": "http://127.0.0.1:9"});
        rig.call(caller, "POST", "/endpoints", body).await
    };
    let reference = |domain: &Value| json!({"id": domain["id"], "uri": domain["uri"]});
    let mut made = Vec::new();
    for (host, domain) in [
        ("a.example", reference(&exact)),
        ("x.a.example", reference(&wild)),
        ("*.y.a.example", reference(&wild)),
        ("*.a.example", reference(&wild)),
        ("n.culvert.localhost", reference(&named)),
        ("free.culvert.localhost", Value::Null),
    ] {
        let endpoint = make(&rig.admin, host).await.body();
        assert_eq!(endpoint["domain"], domain, "{host}");
        made.push(endpoint);
    }
    for host in ["b.example", "example", "*.example"] {
        assert_eq!(make(&rig.admin, host).await.code(), Some(18006), "{host}");
    }
    for host in ["z.a.example", "a.example", "n.culvert.localhost"] {
        assert_eq!(make(&stranger, host).await.code(), Some(18006), "{host}");
    }

    for domain in [&exact, &wild, &named] {
        assert_eq!(rig.delete(&path(domain)).await.code(), Some(446));
    }
    // An endpoint that moves or is removed releases its domain.
    let elsewhere = json!({"url": "https://moved.culvert.localhost"});
    let moved = rig.patch(&path(&made[0]), elsewhere).await.body();
    assert_eq!(moved["domain"], Value::Null);
    assert_eq!(rig.delete(&path(&exact)).await, Answered::NoContent);
    assert_eq!(rig.delete(&path(&made[4])).await, Answered::NoContent);
    assert_eq!(rig.delete(&path(&named)).await, Answered::NoContent);
    let same = json!({"url": made[1]["url"], "description": "d"});
    let kept = rig.patch(&path(&made[1]), same).await.body();
    assert_eq!(kept["domain"], made[1]["domain"]);
    assert_eq!(rig.delete(&path(&wild)).await.code(), Some(446));
}

/// The names that the installation has elsewhere are for admins to reserve: those of the settings, and the host of the
/// management API.
#[tokio::test]
async fn only_admins_reserve_names_of_the_installation() {
    let rig = Rig::start().await;
    let member = rig.user("member@x.example", Role::Member, true).await;
    for (name, is_own) in [
        ("own.example", true),
        ("OWN.example.", true),
        ("*.example", true),
        ("api.example", true),
        ("a.own.example", false),
        ("owned.example", false),
    ] {
        for (caller, may) in [(&member, !is_own), (&rig.admin, true)] {
            let body = json!({"domain": name});
            let answered = rig.call(caller, "POST", "/reserved_domains", body).await;
            match answered {
                Answered::Created(made) if may => {
                    let path = format!("/reserved_domains/{}", made["id"].as_str().unwrap());
                    assert_eq!(rig.delete(&path).await, Answered::NoContent);
                }
                // No account has a whole top-level domain.
                refused if name == "*.example" => assert!(refused.code().is_some()),
                refused => assert_eq!((refused.code(), may), (Some(414), false), "{name}"),
            }
        }
    }
}

/// Also below a name that an admin reserved.
#[tokio::test]
async fn only_admins_serve_names_of_the_installation() {
    let rig = Rig::start().await;
    let member = rig.user("member@x.example", Role::Member, true).await;
    for domain in ["own.example", "api.example", "other.example"] {
        rig.post("/reserved_domains", json!({"domain": domain}))
            .await
            .body();
        let body =
            json!({"url": format!("https://{domain}"), "upstream_url": "http://127.0.0.1:9"});
        let is_own = domain != "other.example";
        match rig.call(&member, "POST", "/endpoints", body.clone()).await {
            Answered::Created(made) if !is_own => {
                let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
                assert_eq!(rig.delete(&path).await, Answered::NoContent);
            }
            refused => assert_eq!((refused.code(), is_own), (Some(18006), true), "{domain}"),
        }
        let made = rig.post("/endpoints", body).await;
        assert!(matches!(made, Answered::Created(_)), "{domain}: {made:?}");
    }
}
