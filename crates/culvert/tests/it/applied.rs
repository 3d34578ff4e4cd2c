//! A change is live when it is answered.

use http::Method;
use serde_json::json;

use crate::harness::{Harness, Receiver, backends};

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_live_when_its_response_arrives() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let url = format!("http://{}", origin.address);
        for n in 0..30 {
            let host = format!("n{n}.culvert.localhost");
            let body = json!({"url": format!("http://{host}"), "upstream_url": url});
            let made = culvert.create("endpoints", body).await;
            assert_eq!(culvert.get(&host, "/").await.status, 200, "{n}: created");

            let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
            let policy = json!({"on_http_request": [{"actions": [{"type": "deny", "config": {"status_code": 418}}]}]});
            let body = json!({"traffic_policy": policy.to_string()});
            let answer = culvert.call(Method::PATCH, &path, Some(body)).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(culvert.get(&host, "/").await.status, 418, "{n}: updated");

            let answer = culvert.call(Method::DELETE, &path, None).await;
            assert_eq!(answer.status, 204, "{}", answer.body);
            assert_eq!(culvert.get(&host, "/").await.status, 404, "{n}: deleted");
        }
        culvert.stop().await;
    }
}
