//! What refers to an object: said to who may see it, and in no refusal to others.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Harness, backends};

#[tokio::test(flavor = "multi_thread")]
async fn what_refers_to_an_object_is_named_to_who_may_see_it() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let bot = culvert.create("bot_users", json!({"name": "owner"})).await;
        let key = culvert
            .create("api_keys", json!({"owner_id": bot["id"]}))
            .await;
        let owner = culvert.client_with(key["token"].as_str().unwrap());
        let target = json!({"format": "json", "target": {"debug": {"log": true}}});
        let made = owner
            .call(Method::POST, "/event_destinations", Some(&target))
            .await
            .unwrap();
        assert_eq!(made.status, 201, "{}", made.body);
        let id = made.body["id"].as_str().unwrap().to_owned();
        let ask = format!("/referrers?object_id={id}");
        let free = owner.call(Method::GET, &ask, None).await.unwrap().body;
        assert_eq!(
            (&free["referrers"], &free["blocks"], &free["has_others"]),
            (&json!([]), &json!(false), &json!(false))
        );

        // An admin's subscription sends to it, and only admins see that one.
        let subscription =
            json!({"sources": [{"type": "vault_created.v0"}], "destination_ids": [id]});
        let subscription = culvert.create("event_subscriptions", subscription).await;
        let for_owner = owner.call(Method::GET, &ask, None).await.unwrap().body;
        assert_eq!(
            (
                &for_owner["referrers"],
                &for_owner["blocks"],
                &for_owner["has_others"]
            ),
            (&json!([]), &json!(true), &json!(true))
        );
        let for_admin = culvert.call(Method::GET, &ask, None).await.body;
        let named = &for_admin["referrers"][0];
        assert_eq!(
            (&named["id"], &named["collection"], &named["on_delete"]),
            (
                &subscription["id"],
                &json!("event_subscriptions"),
                &json!("block")
            )
        );
        assert_eq!(for_admin["has_others"], false);
        let path = format!("/event_destinations/{id}");
        let of_subscription = subscription["id"].as_str().unwrap();
        let refused = owner.call(Method::DELETE, &path, None).await.unwrap();
        assert_eq!(
            refused.body["error_code"], "ERR_NGROK_5112",
            "{}",
            refused.body
        );
        assert!(
            !refused.body.to_string().contains(of_subscription),
            "{}",
            refused.body
        );
        let refused = culvert.call(Method::DELETE, &path, None).await;
        assert!(
            refused.body.to_string().contains(of_subscription),
            "{}",
            refused.body
        );

        // What a caller does not see has no referrers for it either.
        let hidden = culvert.create("api_keys", json!({})).await;
        let of_hidden = format!("/referrers?object_id={}", hidden["id"].as_str().unwrap());
        for (path, status) in [
            (of_hidden.as_str(), 404),
            ("/referrers?object_id=ed_2bxxxxxxxxxxxxxxxxxxxxxxxxx", 404),
            ("/referrers?object_id=nothing", 404),
            ("/referrers", 400),
            ("/referrers?object_id=", 400),
        ] {
            let found = owner.call(Method::GET, path, None).await.unwrap();
            assert_eq!(found.status, status, "{path}: {}", found.body);
        }
        let removed = format!("/event_subscriptions/{of_subscription}");
        assert_eq!(
            culvert.call(Method::DELETE, &removed, None).await.status,
            204
        );
        let freed: Value = owner.call(Method::GET, &ask, None).await.unwrap().body;
        assert_eq!(freed["blocks"], false);
        culvert.stop().await;
    }
}
