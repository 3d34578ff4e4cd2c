//! Sign-ins to the console at a real OpenID provider: who comes in, with which role, and who does not.

use culvert_edge::Inherited;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Harness, backends};
use crate::login::{Browser, Page, Provider};

/// The session that a browser has, or the status of the refusal.
async fn session(browser: &Browser, api: &str) -> Result<Value, u16> {
    let header = ["--header", "x-culvert-console: 1"];
    let page = browser
        .open(&format!("{api}/console/session"), &header)
        .await;
    match page.status {
        200 => Ok(serde_json::from_str(&page.body).unwrap()),
        status => Err(status),
    }
}

/// The number of the code with which a sign-in failed.
fn refused(page: &Page) -> Option<&str> {
    page.url.split_once("?refused=").map(|(_, number)| number)
}

#[tokio::test(flavor = "multi_thread")]
async fn people_sign_in_to_the_console_at_a_real_provider() {
    for backend in backends().await {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let api = format!("http://{address}");
        let Some(provider) = Provider::start(&[format!("{api}/console/sign-in/callback")]) else {
            return;
        };
        let sockets = Inherited::new(vec![listener]);
        let culvert = Harness::start_on(&backend, sockets, |settings| {
            settings.api.addr = address.to_string();
            let openid = &mut settings.console.openid;
            openid.issuer_url = provider.issuer.clone();
            openid.client_id = "app".into();
            openid.client_secret = "a secret of the tests".into();
            openid.scopes = vec!["email".into(), "groups".into()];
            openid.name = "Example".into();
            openid.roles = vec!["ops=admin".into(), "staff=read_only".into()];
        });
        let culvert = culvert.await;
        let folder = tempfile::tempdir().unwrap();
        let browser = |name: &str| Browser::new(folder.path(), name, &culvert, "127.0.0.1");
        let begin = format!("{api}/console/sign-in");

        let methods = browser("none").open(&format!("{begin}/methods"), &[]).await;
        assert_eq!(methods.body, r#"{"openid":{"name":"Example"}}"#);

        // A group lets in with its role, without a key.
        let ann = browser("ann");
        let page = ann.log_in_at(&begin, "ops-ann").await;
        assert_eq!(
            (page.status, page.url.as_str()),
            (200, &*format!("{api}/console/"))
        );
        let shown = session(&ann, &api).await.unwrap();
        assert_eq!(shown["role"], "admin");
        assert_eq!(shown["subject"], "ops-ann@x.example");
        assert_eq!(shown["key_id"], Value::Null);

        // What she does names her.
        let body = json!({"description": "by ann"}).to_string();
        let origin = format!("origin: {api}");
        let more = [
            "--header",
            "x-culvert-console: 1",
            "--header",
            &origin,
            "--data",
            &body,
        ];
        let more = [&more[..], &["--header", "content-type: application/json"]].concat();
        let made = ann
            .open(&format!("{api}/console/api/ip_policies"), &more)
            .await;
        assert_eq!(made.status, 201, "{}", made.body);
        let query = "/events?type=ip_policy_created.v0";
        let reported = culvert.call(Method::GET, query, None).await;
        let principal = &reported.body["events"][0]["event"]["principal"];
        assert_eq!(principal["subject"], "ops-ann@x.example");
        assert_eq!(principal["source"], "Dashboard");
        assert_eq!(principal["credential"], Value::Null);

        // A person without a group comes in only if invited.
        let bob = browser("bob");
        assert_eq!(refused(&bob.log_in_at(&begin, "bob").await), Some("647"));
        assert_eq!(session(&bob, &api).await, Err(401));
        culvert
            .create("users", json!({"email": "bob@x.example"}))
            .await;
        let bob = browser("bob again");
        let page = bob.log_in_at(&begin, "bob").await;
        assert_eq!(refused(&page), None, "{page:?}");
        assert_eq!(session(&bob, &api).await.unwrap()["role"], "member");

        // To remove a person ends its session.
        let users = culvert.call(Method::GET, "/users", None).await;
        let users = users.body["users"].as_array().unwrap().clone();
        let ann_user = users
            .iter()
            .find(|user| user["email"] == "ops-ann@x.example");
        let path = format!("/users/{}", ann_user.unwrap()["id"].as_str().unwrap());
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        assert_eq!(session(&ann, &api).await, Err(401));

        // A callback belongs to a sign-in of this browser.
        let callback = format!("{begin}/callback?code=x&state=y");
        let stranger = browser("stranger");
        let location = ["--location"];
        assert_eq!(
            refused(&stranger.open(&callback, &location).await),
            Some("648")
        );
        let cookie = format!("cookie: culvert-sign-in={}", "a".repeat(43));
        let forged = ["--location", "--header", &cookie];
        assert_eq!(
            refused(&stranger.open(&callback, &forged).await),
            Some("648")
        );
        drop(provider);
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_provider_is_reported() {
    for backend in backends().await {
        let culvert = Harness::start_with(&backend, |settings| {
            let openid = &mut settings.console.openid;
            // A port without a listener.
            openid.issuer_url = "http://127.0.0.1:1".into();
            openid.client_id = "app".into();
            openid.client_secret = "a secret of the tests".into();
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let browser = Browser::new(folder.path(), "jar", &culvert, "127.0.0.1");
        let begin = format!("{}/console/sign-in", culvert.api);
        let page = browser.open(&begin, &["--location"]).await;
        assert_eq!(refused(&page), Some("649"));
        culvert.stop().await;

        // Without a provider, there is no such page.
        let culvert = Harness::start(&backend).await;
        let browser = Browser::new(folder.path(), "jar 2", &culvert, "127.0.0.1");
        let begin = format!("{}/console/sign-in", culvert.api);
        assert_eq!(browser.open(&begin, &[]).await.status, 404);
        let methods = browser.open(&format!("{begin}/methods"), &[]).await;
        assert_eq!(methods.body, r#"{"openid":null}"#);
        culvert.stop().await;
    }
}
