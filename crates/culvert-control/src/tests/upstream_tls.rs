//! TLS to upstreams: refusals at the write, the view, and the input of the edge when the objects that the options
//! name, or the rights to use them, change.

use culvert_edge_config::{Snapshot, TlsWithheld};
use tokio_util::sync::CancellationToken;

use super::*;

const PIN: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn body(n: u32, upstream: &str, options: &Value) -> Value {
    json!({
        "url": format!("https://tls{n}.culvert.localhost"),
        "upstream_url": upstream,
        "upstream_tls": options,
    })
}

#[tokio::test]
async fn options_that_contradict_each_other_are_refused() {
    let rig = Rig::start().await;
    let https = "https://a.example";
    let leaf = certificates::leaf("a.example");
    let key = &leaf["private_key_pem"];
    let with_key = format!(
        "{}\n{}",
        leaf["certificate_pem"].as_str().unwrap(),
        key.as_str().unwrap()
    );
    for (n, (upstream, options, why)) in [
        (
            "http://a.example",
            json!({"verify": false}),
            "applies only to an `https://` upstream",
        ),
        (
            "",
            json!({"pins": [PIN]}),
            "applies only to an `https://` upstream",
        ),
        (
            https,
            json!({"verify": false, "pins": [PIN]}),
            "contradicts `ca` and `pins`",
        ),
        (
            https,
            json!({"verify": false, "ca": [leaf["certificate_pem"]]}),
            "contradicts `ca` and `pins`",
        ),
        (https, json!({"pins": ["00"]}), "a pin is a SHA-256"),
        (
            https,
            json!({"pins": vec![PIN; 17]}),
            "has more than 16 entries",
        ),
        (
            https,
            json!({"ca": ["nonsense"]}),
            "neither PEM certificates nor the ID",
        ),
        (
            https,
            json!({"ca": ["ca_000000000000000000000000000"]}),
            "does not exist",
        ),
        (
            https,
            json!({"ca": [with_key]}),
            "must not contain a private key",
        ),
        (
            https,
            json!({"ca": [key]}),
            "must not contain a private key",
        ),
        (
            https,
            json!({"server_name": "a b"}),
            "neither a host name nor an address",
        ),
        (
            https,
            json!({"client_certificate_id": "cert_000000000000000000000000000"}),
            "does not exist",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = body(u32::try_from(n).unwrap(), upstream, &options);
        if upstream.is_empty() {
            body["traffic_policy"] = json!({"on_http_request": [{"actions": [{"type": "deny"}]}]});
        }
        let refused = rig.post("/endpoints", body).await;
        assert_eq!(refused.code(), Some(18014), "{options}: {refused:?}");
        let text = format!("{refused:?}");
        assert!(text.contains(why), "{options}: {text}");
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
    let unknown = rig
        .post("/endpoints", body(90, https, &json!({"colour": "red"})))
        .await;
    assert!(unknown.code().is_some(), "{unknown:?}");
}

#[tokio::test]
async fn options_are_read_back_and_replaced_as_a_whole() {
    let rig = Rig::start().await;
    let options = json!({"pins": [PIN], "server_name": "b.example"});
    let made = rig
        .post("/endpoints", body(1, "https://a.example", &options))
        .await
        .body();
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    assert_eq!(made["upstream_tls"]["pins"], json!([PIN]));
    assert_eq!(made["upstream_tls_warnings"], json!([]));
    // Another field leaves them as they are.
    let changed = rig.patch(&path, json!({"description": "x"})).await.body();
    assert_eq!(changed["upstream_tls"], made["upstream_tls"]);
    let off = rig
        .patch(&path, json!({"upstream_tls": {"verify": false}}))
        .await
        .body();
    assert_eq!(off["upstream_tls"]["verify"], false);
    assert_eq!(off["upstream_tls"]["pins"], Value::Null);
    let warnings = off["upstream_tls_warnings"].as_array().unwrap();
    assert!(
        warnings[0]
            .as_str()
            .unwrap()
            .contains("read and change the traffic")
    );
    assert_eq!(
        rig.get(&path).await.body()["upstream_tls"],
        off["upstream_tls"]
    );
    // Without TLS they would have no effect.
    let plain = rig
        .patch(&path, json!({"upstream_url": "http://a.example"}))
        .await;
    assert_eq!(plain.code(), Some(18014), "{plain:?}");
    let both = json!({"upstream_url": "http://a.example", "upstream_tls": {}});
    let plain = rig.patch(&path, both).await.body();
    assert_eq!(plain["upstream_tls"]["verify"], Value::Null);
    assert_eq!(plain["upstream_tls_warnings"], json!([]));
}

/// A certificate for `a.example` that an authority has signed, and the authority's, which is valid until this year.
fn signed(until: i32) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "authority");
    params.not_after = rcgen::date_time_ymd(until, 2, 3);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    let leaf = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap().pem();
    (leaf, authority)
}

#[tokio::test]
async fn authorities_that_verify_nothing_are_refused() {
    let rig = Rig::start().await;
    let (leaf, authority) = signed(4000);
    let (_, expired) = signed(2001);
    let https = "https://a.example";
    for (n, (ca, why)) in [
        (leaf.clone(), "Pin it instead"),
        (authority.clone() + &leaf, "Pin it instead"),
        (expired.clone(), "expired on 2001-02-03"),
        (authority.clone() + &expired, "expired on 2001-02-03"),
    ]
    .into_iter()
    .enumerate()
    {
        let body = body(u32::try_from(n).unwrap(), https, &json!({"ca": [ca]}));
        let refused = rig.post("/endpoints", body).await;
        assert_eq!(refused.code(), Some(18014), "{refused:?}");
        assert!(format!("{refused:?}").contains(why), "{refused:?}");
    }
    // One that signed itself is a root.
    let own = certificates::leaf("a.example");
    let own = own["certificate_pem"].as_str().unwrap();
    let made = rig
        .post("/endpoints", body(8, https, &json!({"ca": [own]})))
        .await;
    assert_eq!(made.body()["upstream_tls"]["ca"][0], unix(own));
}

fn unix(text: &str) -> String {
    text.replace('\r', "")
}

#[tokio::test]
async fn only_the_certificates_of_an_authority_are_stored() {
    let rig = Rig::start().await;
    let (_, authority) = signed(4000);
    let (_, second) = signed(4000);
    let given = format!("# from Anna\n{authority}password: hush\n{second}\n");
    let options = json!({"ca": [given]});
    let made = rig
        .post("/endpoints", body(1, "https://a.example", &options))
        .await
        .body();
    let stored = unix(&(authority + &second));
    assert_eq!(made["upstream_tls"]["ca"], json!([stored]));
    // The shown value can be sent again.
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let again = rig
        .patch(&path, json!({"upstream_tls": made["upstream_tls"]}))
        .await
        .body();
    assert_eq!(again["upstream_tls"], made["upstream_tls"]);
}

/// Waits until the only endpoint has options that are withheld for this reason, or are not.
async fn until(
    snapshots: &mut tokio::sync::watch::Receiver<Option<Snapshot>>,
    withheld: Option<TlsWithheld>,
) {
    let is_so = |snapshot: &Option<Snapshot>| {
        let one = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.endpoints().next());
        let upstream = one.and_then(|one| one.upstream.as_ref());
        let options = upstream.and_then(|upstream| upstream.tls());
        options.is_some_and(|options| options.options().err() == withheld)
    };
    tokio::time::timeout(culvert_testing::PATIENCE, snapshots.wait_for(is_so))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_client_certificate_is_withheld_while_the_owner_may_not_use_it() {
    let rig = Rig::start().await;
    let cancel = CancellationToken::new();
    let mut snapshots = rig.edge.0.subscribe();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    // An admin has an endpoint present the certificate of another user.
    let owner = rig.user("owner@x.example", Role::Member, true).await;
    let second = rig.user("second@x.example", Role::Admin, true).await;
    let leaf = certificates::leaf("a.example");
    let certificate = rig
        .call(&owner, "POST", "/tls_certificates", leaf)
        .await
        .body();
    let options = json!({"client_certificate_id": certificate["id"], "pins": [PIN]});
    let made = body(1, "https://a.example", &options);
    let made = rig.call(&second, "POST", "/endpoints", made).await.body();
    until(&mut snapshots, None).await;
    // The admin becomes a member.
    let path = format!("/users/{}", second.owner_id);
    rig.patch(&path, json!({"role": "member"})).await.body();
    until(&mut snapshots, Some(TlsWithheld::Client)).await;
    rig.patch(&path, json!({"role": "admin"})).await.body();
    until(&mut snapshots, None).await;
    // Options without the certificate need no right.
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    rig.patch(&path, json!({"upstream_tls": {"pins": [PIN]}}))
        .await
        .body();
    until(&mut snapshots, None).await;
    let path = format!("/tls_certificates/{}", certificate["id"].as_str().unwrap());
    let gone = rig.delete(&path);
    assert_eq!(gone.await, Answered::NoContent);
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
}
