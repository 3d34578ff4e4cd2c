//! Calls ten operations of the server with the client that progenitor makes of its OpenAPI 3.0 document.

// The test writes the document of the server beside the manifest.
progenitor::generate_api!("openapi-3.0.json");

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let variable = |name| std::env::var(name).expect("the variable is set");
    let mut headers = reqwest::header::HeaderMap::new();
    let token = format!("Bearer {}", variable("CULVERT_API_KEY"));
    headers.insert("authorization", token.parse().expect("a header"));
    let http = reqwest::Client::builder().default_headers(headers);
    let http = http.build().expect("a client");
    let api = Client::new_with_client(&variable("CULVERT_API_URL"), http);

    let me = api.self_().await.expect("self");
    assert_eq!(me.role.to_string(), "admin");
    let policy = api
        .ip_policies_create(&types::IpPolicyCreate {
            description: Some("generated".parse().expect("a description")),
            metadata: None,
        })
        .await
        .expect("create");
    assert_eq!(policy.description, "generated");
    let rule = api
        .ip_policy_rules_create(
            None,
            &types::IpPolicyRuleCreate {
                action: types::IpPolicyRuleCreateAction::Allow,
                cidr: "192.0.2.0/24".parse().expect("a network"),
                description: None,
                ip_policy_id: policy.id.parse().expect("an ID"),
                metadata: None,
            },
        )
        .await
        .expect("create a rule");
    assert_eq!(rule.ip_policy.id, policy.id);
    let change = types::IpPolicyUpdate {
        description: Some("changed".parse().expect("a description")),
        id: None,
        metadata: None,
    };
    let changed = api.ip_policies_update(&policy.id, &change).await;
    assert_eq!(changed.expect("update").description, "changed");
    let got = api.ip_policies_get(&policy.id).await.expect("get");
    assert_eq!(got.description, "changed");
    let limit = std::num::NonZeroU64::new(1);
    let page = api.ip_policies_list(None, None, limit).await.expect("list");
    assert_eq!(page.ip_policies[0].id, policy.id);
    let endpoint = types::EndpointCreate {
        upstream_url: Some("http://127.0.0.1:9".parse().expect("a URL")),
        url: Some("https://rust.culvert.localhost".to_owned()),
        ..Default::default()
    };
    let endpoint = api.endpoints_create(&endpoint).await.expect("create");
    assert_eq!(endpoint.port, 443);
    let key = types::ApiKeyCreate::default();
    let made = api.api_keys_create(None, &key).await.expect("create a key");
    assert!(made.token.is_some());
    let tried = api.api_keys_dry_run(None, &key).await.expect("try a key");
    assert_eq!(tried.role.to_string(), "admin");
    let rules = api.alert_rules_list(None, None, None).await;
    drop(rules.expect("list alert rules"));
    api.endpoints_delete(&endpoint.id).await.expect("delete");
    let gone = api.endpoints_get(&endpoint.id).await.expect_err("deleted");
    assert_eq!(gone.status().map(|status| status.as_u16()), Some(404));
    println!("progenitor: 12 operations");
}
