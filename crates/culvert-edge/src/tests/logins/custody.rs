//! Who may see what of a sign-in, and whose sessions are accepted where: tables of owners, hosts, paths, cookies and ways
//! out of the edge.

use culvert_base::net::HostName;
use culvert_events::HeaderRules;

use super::*;
use crate::tests::internal::named;

/// An endpoint of a table.
struct Place<'p> {
    host: &'p str,
    owner: &'p str,
    /// Empty: none.
    policy: &'p str,
}

/// A rule that signs in with a configuration, under conditions.
fn signs_in(expressions: &str, action: &str, config: &str) -> String {
    format!(
        "on_http_request:\n- expressions: [{expressions}]\n  actions: [{{type: {action}, config: {{{config}}}}}]\n"
    )
}

/// An origin that responds with the head it received.
pub(super) async fn echo(rig: &mut Rig) -> String {
    let address = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let length = head.len();
            client
                .send(format!(
                    "HTTP/1.1 200 x\r\ncontent-length: {length}\r\n\r\n{head}"
                ))
                .await;
        }
    })
    .await;
    format!("http://{address}")
}

impl Scene {
    /// Publishes endpoints, which all forward to the same origin.
    async fn places(&mut self, places: &[Place<'_>]) {
        let upstream = echo(&mut self.rig).await;
        let mut snapshot = Snapshot::builder().logins(Arc::clone(&self.logins));
        for (number, place) in places.iter().enumerate() {
            let mut endpoint = named(Scheme::Http, place.host, 80, &upstream, "");
            endpoint.id = format!("ep_{number}");
            if !place.policy.is_empty() {
                let policy = self.compiled(place.host, place.owner, place.policy);
                endpoint.policy = Some(Arc::new(policy));
            }
            snapshot = snapshot.endpoint(endpoint);
        }
        self.rig.edge.publish(snapshot.build()).await;
    }

    fn compiled(&self, host: &str, owner: &str, policy: &str) -> culvert_policy::Policy {
        let resources = Resources {
            logins: Some(LoginService::new(Arc::clone(&self.logins))),
            owner: owner.to_owned(),
            host: HostName::parse(host).ok(),
            ..Resources::default()
        };
        let source = Source::read(&policy.replace("URL", &self.idp.url), ACTIONS).unwrap();
        source.compile(Scheme::Http, true, &resources).unwrap()
    }

    /// Signs in at a host, and returns the browser.
    async fn signed_in_at(&self, host: &str, path: &str) -> Browser {
        let mut browser = Browser::default();
        let back = self.begun_at(&mut browser, host, path).await;
        let answer = browser.ask_at(&self.rig, host, "GET", &back, "").await;
        assert_eq!(answer.status, 302, "{}", answer.text());
        browser
    }

    /// Follows the redirect to the provider, and returns path and query of the way back.
    async fn begun_at(&self, browser: &mut Browser, host: &str, path: &str) -> String {
        let answer = browser.ask_at(&self.rig, host, "GET", path, "").await;
        assert_eq!(answer.status, 302, "{host}{path} {}", answer.text());
        let sent = sent_to(&answer);
        let nonce = sent.get("nonce").cloned().unwrap_or_default();
        self.idp.tell(|script| script.nonce = nonce);
        let back = Url::parse(&sent["redirect_uri"]).unwrap();
        format!("{}?code=c1&state={}", back.path(), sent["state"])
    }

    /// Everything that events say so far, in lower case, as header fields are.
    async fn told(&self, count: usize) -> String {
        let events = self.rig.recorder.events(count).await;
        serde_json::to_string(&events).unwrap().to_lowercase()
    }
}

/// The cookies of a signed-in browser, with all names that they have had, and other ones that stay.
fn spellings(browser: &Browser) -> Vec<String> {
    let session = &browser.jar[SESSION];
    let mut lines = Vec::new();
    for name in [
        "__Host-culvert.session",
        "__HOST-CULVERT.session",
        "__Secure-culvert.session",
        "__secure-culvert.a.session.1",
        "culvert.session",
        "Culvert.Session.2",
        "culvert.staff.session",
        "culvert.nonce",
    ] {
        lines.push(format!("{name}={session}"));
        lines.push(format!("mine=1; {name}={session}; theme=2"));
        lines.push(format!("mine=1;{name}={session}"));
        lines.push(format!("mine=1, {name} = {session}"));
        lines.push(format!("={name}={session}; mine=1"));
        lines.push(format!("mine=1\r\ncookie: {name}={session}"));
    }
    lines
}

/// Policies that show what they can see of a request, and ways to other endpoints.
const SHOWS: &str = r#"
on_http_request:
- expressions: ["req.url.path == '/answer'"]
  actions: [{type: custom-response, config: {body: "${json.encode(req.headers)} ${json.encode(req.cookies)} ${json.encode(actions)}"}}]
- expressions: ["req.url.path == '/header'"]
  actions: [{type: add-headers, config: {headers: {x-seen: "${json.encode(req.headers)} ${json.encode(req.cookies)}"}}}]
- expressions: ["req.url.path == '/log'"]
  actions: [{type: log, config: {metadata: {all: "${json.encode(req.headers)} ${json.encode(req.cookies)}"}}}]
- expressions: ["req.url.path == '/hop'"]
  actions: [{type: forward-internal, config: {url: "http://inner.internal:80"}}]
- expressions: ["req.url.path == '/call'"]
  actions:
  - {type: http-request, config: {url: "http://inner.internal:80/", headers: {cookie: "${hasReqHeader('cookie') ? req.headers['cookie'][0] : 'none=1'}; ${req.headers['x-made'][0]}"}}}
  - {type: custom-response, config: {body: "${json.encode(actions)}"}}
- expressions: ["req.url.path == '/made'"]
  actions: [{type: add-headers, config: {headers: {cookie: "${req.headers['x-made'][0]}"}}}]
on_http_response:
- expressions: ["req.url.path == '/late'"]
  actions: [{type: add-headers, config: {headers: {x-late: "${json.encode(req.headers)} ${json.encode(req.cookies)}"}}}]
"#;

#[tokio::test]
async fn no_way_out_of_the_edge_has_a_cookie_of_a_sign_in() {
    let mut scene = Scene::start("").await;
    let shown = Settings {
        header_rules: HeaderRules::redacting::<&str>(&[], &[]),
        ..behind_proxy()
    };
    scene.rig.edge.reload(&shown).unwrap();
    let inside = signs_in("", "openid-connect", CONFIG);
    let in_part = signs_in(
        "\"req.url.path.startsWith('/admin')\"",
        "openid-connect",
        CONFIG,
    );
    scene
        .places(&[
            Place {
                host: "app.example",
                owner: "usr_a",
                policy: &inside,
            },
            Place {
                host: "part.example",
                owner: "usr_a",
                policy: &in_part,
            },
            Place {
                host: "plain.example",
                owner: "usr_b",
                policy: "",
            },
            Place {
                host: "shows.example",
                owner: "usr_b",
                policy: SHOWS,
            },
            Place {
                host: "inner.internal",
                owner: "usr_b",
                policy: "",
            },
        ])
        .await;
    let browser = scene.signed_in_at("app.example", "/").await;
    let secret = browser.jar[SESSION].strip_prefix("1.").unwrap().to_owned();
    let (rig, mut count) = (&scene.rig, scene.rig.recorder.count());
    let shows = [
        "/answer", "/header", "/log", "/hop", "/call", "/made", "/late", "/",
    ];
    let places = [
        ("app.example", &["/"][..]),
        ("part.example", &["/"]),
        ("plain.example", &["/"]),
        ("shows.example", &shows),
    ];
    for (host, paths) in places {
        for (path, line) in paths.iter().flat_map(|path| {
            spellings(&browser)
                .into_iter()
                .map(move |line| (path, line))
        }) {
            // The request has no others, so that only these lines decide.
            let signed = format!("cookie: {SESSION}={}\r\n", browser.jar[SESSION]);
            let more = if host == "app.example" {
                signed.as_str()
            } else {
                ""
            };
            let made = "x-made: __Host-culvert.session=made\r\n";
            let mut client = rig.connect().await;
            client
                .send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{BY_TLS}{more}{made}cookie: {line}\r\nConnection: close\r\n\r\n"))
                .await;
            let answer = client.answer("GET").await;
            assert_eq!(answer.status, 200, "{host}{path} {line} {}", answer.text());
            let said = format!("{:?} {}", answer.headers, answer.text());
            assert!(!said.contains(&secret), "{host}{path} {line}: {said}");
            if ["/made", "/call"].contains(path) {
                assert!(!said.contains("cookie: __Host-culvert"), "{said}");
            }
            // Other cookies arrive.
            if line.contains("theme=2") && (host != "shows.example" || *path == "/") {
                assert!(
                    said.contains("mine=1; theme=2"),
                    "{host}{path} {line}: {said}"
                );
            }
            count += 1;
        }
    }
    let told = scene.told(count).await;
    assert!(!told.contains(&secret.to_lowercase()));
    assert!(!told.contains("culvert.session=1."));
    assert!(told.contains("theme=2"));
}

#[tokio::test]
async fn services_and_policies_cannot_set_a_cookie_of_a_sign_in() {
    let mut scene = Scene::start("").await;
    let lines = [
        "__Host-culvert.session=1.x; Path=/; Secure",
        "__HOST-culvert.nonce=x",
        " __Secure-culvert.session=1.x; Domain=example; Path=/; Secure",
        "=__Host-culvert.session=1.x",
        "culvert.session=1.x; Path=/",
        "culvert.staff.nonce=x",
    ];
    let fields: String = lines
        .iter()
        .map(|line| format!("set-cookie: {line}\r\n"))
        .collect();
    let head = format!("{fields}set-cookie: mine=1\r\n");
    let upstream = origin(&mut scene.rig.tasks, move |mut client| {
        let head = head.clone();
        async move {
            while client.request().await.is_some() {
                client
                    .send(format!("HTTP/1.1 103 Early Hints\r\n{head}\r\nHTTP/1.1 200 x\r\n{head}content-length: 0\r\n\r\n"))
                    .await;
            }
        }
    })
    .await;
    let upstream = format!("http://{upstream}");
    let sets = |name: &str| {
        format!(
            "{{type: {name}, config: {{headers: {{set-cookie: '__host-CULVERT.session=1.x'}}}}}}"
        )
    };
    let policies = [
        String::new(),
        format!("on_http_response: [{{actions: [{}]}}]", sets("add-headers")),
        format!(
            "on_http_request: [{{actions: [{}]}}]",
            sets("custom-response")
        ),
        "on_http_response: [{actions: [{type: log, config: {metadata: {a: b}}}]}]".to_owned(),
    ];
    for policy in &policies {
        let mut endpoint = named(Scheme::Http, "app.example", 80, &upstream, "");
        if !policy.is_empty() {
            let compiled = scene.compiled("app.example", "usr_b", policy);
            endpoint.policy = Some(Arc::new(compiled));
        }
        scene
            .rig
            .edge
            .publish(Snapshot::builder().endpoint(endpoint).build())
            .await;
        let mut client = scene.rig.connect().await;
        client
            .send("GET / HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n")
            .await;
        let mut bytes = Vec::new();
        drop(tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut bytes).await);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        assert!(text.contains("http/1.1 200"), "{text}");
        assert!(
            !text.contains("culvert.session") && !text.contains("nonce"),
            "{policy}: {text}"
        );
        if !policy.contains("custom-response") {
            assert!(text.contains("set-cookie: mine=1\r\n"), "{policy}: {text}");
        }
    }
}

#[tokio::test]
async fn a_session_is_of_one_owner_application_action_and_host() {
    let mut scene = Scene::start("").await;
    let config = |id: &str, secret: &str, more: &str| {
        format!("issuer_url: URL, client_id: {id}, client_secret: {secret}{more}")
    };
    let base = config("app", "a+b", "");
    let shared = ", auth_cookie_domain: x.example";
    // Host, owner and configuration of another endpoint, and whether it accepts the session.
    let table = [
        ("a.x.example", "usr_a", base.clone(), true),
        ("a.x.example", "usr_b", base.clone(), false),
        ("a.x.example", "bot_b", base.clone(), false),
        ("b.x.example", "usr_a", base.clone(), false),
        ("b.x.example", "usr_b", base.clone(), false),
        ("a.x.example", "usr_a", config("app", "any", ""), false),
        ("a.x.example", "usr_a", config("other", "a+b", ""), false),
        (
            "a.x.example",
            "usr_a",
            config("app", "a+b", ", auth_id: s"),
            false,
        ),
        ("a.x.example", "usr_a", config("app", "a+b", shared), false),
        (
            "a.x.example",
            "usr_a",
            config("app", "a+b", ", scopes: [email]"),
            true,
        ),
    ];
    let own = signs_in("", "openid-connect", &base);
    let first = Place {
        host: "a.x.example",
        owner: "usr_a",
        policy: &own,
    };
    scene.places(&[first]).await;
    let browser = scene.signed_in_at("a.x.example", "/").await;
    for (host, owner, config, is_accepted) in table {
        let policy = signs_in("", "openid-connect", &config);
        scene
            .places(&[Place {
                host,
                owner,
                policy: &policy,
            }])
            .await;
        let session = &browser.jar[SESSION];
        // Under every name that the other sign-in may read.
        for name in [
            SESSION,
            "__Host-culvert.s.session",
            "__Secure-culvert.session",
        ] {
            let mut other = Browser::default();
            other.jar.insert(name.to_owned(), session.clone());
            let answer = other.ask_at(&scene.rig, host, "GET", "/", "").await;
            let expected = is_accepted && name == SESSION;
            assert_eq!(
                answer.status == 200,
                expected,
                "{host} {owner} {config} {name}"
            );
        }
    }
    // Shared by a domain: with the same owner and application, and with no others.
    let shared_by = |secret| signs_in("", "openid-connect", &config("app", secret, shared));
    let (own, others) = (shared_by("a+b"), shared_by("any"));
    scene
        .places(&[
            Place {
                host: "a.x.example",
                owner: "usr_a",
                policy: &own,
            },
            Place {
                host: "b.x.example",
                owner: "usr_a",
                policy: &own,
            },
            Place {
                host: "c.x.example",
                owner: "usr_b",
                policy: &own,
            },
            Place {
                host: "d.x.example",
                owner: "usr_b",
                policy: &others,
            },
        ])
        .await;
    let browser = scene.signed_in_at("a.x.example", "/").await;
    assert!(browser.jar.contains_key("__Secure-culvert.session"));
    for (host, is_accepted) in [
        ("a.x.example", true),
        ("b.x.example", true),
        ("c.x.example", false),
        ("d.x.example", false),
    ] {
        let answer = browser
            .clone()
            .ask_at(&scene.rig, host, "GET", "/", "")
            .await;
        assert_eq!(answer.status == 200, is_accepted, "{host}");
    }
}

/// Another host of the cookie domain can set cookies for all of it, and for longer paths, which browsers send first.
#[tokio::test]
async fn hosts_of_a_cookie_domain_cannot_swap_or_displace_a_session() {
    let mut scene = Scene::start("").await;
    let config = format!("{CONFIG}, auth_cookie_domain: x.example");
    let policy = signs_in("", "openid-connect", &config);
    let place = |host| Place {
        host,
        owner: "usr_a",
        policy: &policy,
    };
    scene
        .places(&[place("a.x.example"), place("b.x.example")])
        .await;
    let (rig, name) = (&scene.rig, "__Secure-culvert.session");
    let victim = scene.signed_in_at("a.x.example", "/").await;
    scene.idp.tell(|script| {
        script.claims = json!({"sub": "evil"});
        script.person.1 = json!({"sub": "evil", "name": "Eve"});
    });
    let attacker = scene.signed_in_at("a.x.example", "/").await;
    let (own, foreign) = (victim.jar[name].clone(), attacker.jar[name].clone());
    let ask = async |host: &str, lines: &[String]| {
        let fields: String = lines
            .iter()
            .map(|line| format!("cookie: {line}\r\n"))
            .collect();
        let mut browser = Browser::default();
        let answer = browser.ask_at(rig, host, "GET", "/", &fields).await;
        (answer, browser)
    };
    let person = format!(
        "__Host-culvert.person={}",
        victim.jar["__Host-culvert.person"]
    );
    // Where the victim has signed in, no other user is accepted.
    let junk = format!("{name}=1.junk; ").repeat(50);
    for (lines, is_in) in [
        (vec![person.clone(), format!("{name}={own}")], true),
        (
            vec![person.clone(), format!("{name}={foreign}; {name}={own}")],
            true,
        ),
        (vec![person.clone(), format!("{junk}{name}={own}")], true),
        (vec![person.clone(), format!("{name}={foreign}")], false),
        // Nothing says which of them is here.
        (vec![format!("{name}={foreign}; {name}={own}")], false),
        (vec![format!("{name}={own}; {name}={own}")], true),
    ] {
        let (answer, _) = ask("a.x.example", &lines).await;
        assert_eq!(answer.status == 200, is_in, "{lines:?}");
    }
    // The person of one host is none of another.
    let (answer, browser) = ask("b.x.example", &[person, format!("{name}={own}")]).await;
    assert_eq!(answer.status, 200);
    assert!(browser.jar.contains_key("__Host-culvert.person"));
}

#[tokio::test]
async fn a_sign_in_under_a_condition_completes_and_nothing_of_it_reaches_the_service() {
    let mut scene = Scene::start("").await;
    let shown = Settings {
        header_rules: HeaderRules::redacting::<&str>(&[], &[]),
        ..behind_proxy()
    };
    scene.rig.edge.reload(&shown).unwrap();
    let inner = signs_in("", "openid-connect", CONFIG);
    let late = "on_http_response:\n- actions: [{type: log, config: {metadata: {u: '${req.url.raw} ${req.url}'}}}, {type: add-headers, config: {headers: {x-late: '1'}}}]\n";
    let part = signs_in(
        "\"req.url.path.startsWith('/admin')\"",
        "openid-connect",
        CONFIG,
    ) + late;
    let forwards = "on_http_request: [{actions: [{type: forward-internal, config: {url: 'http://inner.internal:80'}}]}]";
    scene
        .places(&[
            Place {
                host: "app.example",
                owner: "usr_a",
                policy: &part,
            },
            Place {
                host: "outer.example",
                owner: "usr_a",
                policy: forwards,
            },
            Place {
                host: "inner.internal",
                owner: "usr_a",
                policy: &inner,
            },
        ])
        .await;
    let rig = &scene.rig;
    for host in ["app.example", "outer.example"] {
        let mut browser = Browser::default();
        let back = scene.begun_at(&mut browser, host, "/admin/x?y=z").await;
        assert!(back.starts_with("/culvert/oauth2/callback?"));
        let state = back.split("state=").nth(1).unwrap().to_owned();
        let answer = browser.ask_at(rig, host, "GET", &back, "").await;
        let location = format!("https://{host}/admin/x?y=z");
        assert_eq!(
            answer.header("location"),
            Some(location.as_str()),
            "{}",
            answer.text()
        );
        assert_eq!(answer.header("x-late").is_some(), host == "app.example");
        let answer = browser.ask_at(rig, host, "GET", "/admin/x?y=z", "").await;
        assert_eq!(answer.status, 200);
        for method in ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"] {
            for path in [
                "/culvert/oauth2/callback?code=c9&state=s",
                "/culvert/login/",
                "/culvert/x",
            ] {
                let answer = browser
                    .ask_at(rig, host, method, path, "content-length: 0\r\n")
                    .await;
                assert!(answer.status >= 400, "{method} {path}");
                assert!(
                    answer.header("ngrok-error-code").is_some(),
                    "{method} {path}"
                );
            }
        }
        let answer = browser
            .ask_at(
                rig,
                host,
                "POST",
                "/culvert/logout",
                "content-length: 0\r\n",
            )
            .await;
        assert_eq!(answer.status, 200);
        let answer = browser.ask_at(rig, host, "GET", "/admin/x", "").await;
        assert_eq!(answer.status, 302);
        let told = scene.told(rig.recorder.count()).await;
        for secret in [state.as_str(), "code=c1", "code=c9"] {
            assert!(!told.contains(&secret.to_lowercase()), "{secret}");
        }
        assert!(told.contains("/culvert/oauth2/callback"), "{told}");
    }
}

#[tokio::test]
async fn a_callback_that_arrives_several_times_at_once_signs_in_once() {
    let scene = Scene::start("").await;
    let (rig, idp) = (&scene.rig, &*scene.idp);
    let mut browser = Browser::default();
    let back = browser.begin(rig, idp, "/x").await;
    let mut copies = vec![browser.clone(); 8];
    let asked = copies.iter_mut().map(|copy| copy.get(rig, &back));
    let answers = futures_util::future::join_all(asked).await;
    for answer in &answers {
        assert_eq!(
            (answer.status, answer.header("location")),
            (302, Some("https://app.example/x")),
            "{}",
            answer.text()
        );
    }
    assert_eq!(
        idp.asked().len(),
        2,
        "one exchange, and one request for user data"
    );
    for copy in &mut copies {
        assert_eq!(copy.get(rig, "/").await.status, 200);
    }
    assert_eq!(rig.edge.meters().policy.logins.get(), 1);
}

#[tokio::test]
async fn responses_name_their_issuer_where_it_is_announced() {
    for (announces, issuer, status) in [
        (false, None, 302),
        (false, Some("URL"), 302),
        (false, Some("https://evil.example"), 400),
        (true, None, 400),
        (true, Some("URL"), 302),
        (true, Some("URL/"), 400),
        (true, Some("https://evil.example"), 400),
        (true, Some("URL&iss=URL"), 400),
        (true, Some(""), 400),
    ] {
        let scene = Scene::start("").await;
        let (rig, idp) = (&scene.rig, &*scene.idp);
        idp.tell(|script| script.announces_issuer = announces);
        scene.publish("openid-connect", CONFIG).await;
        let mut browser = Browser::default();
        let mut back = browser.begin(rig, idp, "/").await;
        if let Some(issuer) = issuer {
            back.push_str(&format!("&iss={}", issuer.replace("URL", &idp.url)));
        }
        let answer = browser.get(rig, &back).await;
        assert_eq!(
            answer.status,
            status,
            "{announces} {issuer:?} {}",
            answer.text()
        );
        assert_eq!(
            idp.asked().is_empty(),
            status != 302,
            "the code went to nobody"
        );
    }
}

#[tokio::test]
async fn other_sites_cannot_sign_a_user_out() {
    let scene = Scene::start("").await;
    let rig = &scene.rig;
    let html = "accept: text/html\r\n";
    for (method, fields, ends) in [
        ("GET", "", false),
        ("GET", "sec-fetch-site: cross-site\r\n", false),
        ("GET", "sec-fetch-site: same-origin\r\n", true),
        ("GET", "sec-fetch-site: same-site\r\n", true),
        ("GET", "sec-fetch-site: none\r\n", true),
        ("POST", "content-length: 0\r\n", true),
        (
            "POST",
            "content-length: 0\r\norigin: https://app.example\r\n",
            true,
        ),
        (
            "POST",
            "content-length: 0\r\norigin: https://evil.example\r\n",
            false,
        ),
        (
            "POST",
            "content-length: 0\r\nsec-fetch-site: cross-site\r\n",
            false,
        ),
        (
            "POST",
            "content-length: 0\r\nsec-fetch-site: same-origin\r\norigin: null\r\n",
            true,
        ),
    ] {
        let mut browser = scene.logged_in().await;
        let fields = format!("{html}{fields}");
        let answer = browser.ask(rig, method, "/culvert/logout", &fields).await;
        assert_eq!(answer.status, 200);
        let (heading, has_form) = if ends {
            ("Signed out", false)
        } else {
            ("Sign out?", true)
        };
        assert!(
            answer.text().contains(&format!("<h1>{heading}</h1>")),
            "{}",
            answer.text()
        );
        assert_eq!(
            answer
                .text()
                .contains("<form method=\"post\"><button>Sign out</button>"),
            has_form
        );
        assert_eq!(
            browser.get(rig, "/").await.status == 302,
            ends,
            "{method} {fields}"
        );
    }
}

#[tokio::test]
async fn sign_ins_need_https() {
    let scene = Scene::start("").await;
    let answer = scene
        .rig
        .ask("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    assert_eq!(problem(&answer), (403, Some("ERR_NGROK_3128")));
    assert_eq!(answer.header("set-cookie"), None);
    let policy = signs_in("", "openid-connect", CONFIG).replace("URL", "https://id.example");
    let written = |host: &str, scheme, has_proxy, config: &str| {
        let resources = Resources {
            logins: Some(LoginService::new(Arc::clone(&scene.logins))),
            host: HostName::parse(host).ok(),
            is_written: true,
            has_tls_before_edge: has_proxy,
            ..Resources::default()
        };
        let source = Source::read(&policy.replace("client_id: app", config), ACTIONS).unwrap();
        let compiled = source.compile(scheme, true, &resources);
        compiled
            .map(drop)
            .map_err(|refusal| refusal.code.unwrap().number())
    };
    let plain = "client_id: app";
    for (host, scheme, has_proxy, expected) in [
        ("app.example", Scheme::Https, false, Ok(())),
        ("app.example", Scheme::Http, false, Err(2205)),
        ("app.example", Scheme::Http, true, Ok(())),
        ("app.internal", Scheme::Http, false, Ok(())),
    ] {
        assert_eq!(
            written(host, scheme, has_proxy, plain),
            expected,
            "{host} {scheme:?}"
        );
    }
    for (id, expected) in [
        ("client_id: '${secrets.get(\"v\", \"n\")}'", Ok(())),
        ("client_id: '${endpoint.host}'", Ok(())),
        ("client_id: '${req.host}'", Err(2224)),
        ("client_id: '${string(vars.x)}'", Err(2224)),
    ] {
        assert_eq!(
            written("app.example", Scheme::Https, false, id),
            expected,
            "{id}"
        );
    }
}
