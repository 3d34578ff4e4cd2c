//! `culvert admin rotate-master-key`: if it is interrupted at any point, all secrets remain readable. Once it
//! completes, the old key is rejected.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use culvert::client::Client;
use culvert_base::{Secret, SystemClock};
use culvert_control::Seal;
use culvert_store::Store;
use http::Method;
use serde_json::{Value, json};

use crate::events_arrive::verify;
use crate::harness::{Backend, Receiver, backends, binary, eventually};
use crate::kill::Process;

/// Number of secrets in one vault: enough for several commits.
const SECRETS: usize = 150;

fn rotate(data: &Path, url: &str) -> std::process::Command {
    let mut command = binary();
    command.args(["admin", "rotate-master-key", "--database-url", url]);
    command.arg("--data-dir").arg(data);
    command
}

/// Starts the server, checks that it can read its secrets, and stops it.
async fn lives(data: &Path, url: &str, hook: &Receiver, secret: &str) {
    let server = Process::start(data, url);
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = Client::new(&server.api, token).unwrap();
    let key = client
        .expect(Method::POST, "/api_keys", Some(&json!({})))
        .await
        .unwrap();
    let user = Client::new(&server.api, key["token"].as_str().unwrap().to_owned()).unwrap();
    assert_eq!(
        user.call(Method::GET, "/self", None).await.unwrap().status,
        200
    );
    eventually("its event arrives, signed", async || {
        let requests = hook.received();
        let events = requests.iter().find(|request| {
            let text = String::from_utf8_lossy(&request.body);
            text.contains(key["id"].as_str().unwrap())
        });
        events.is_some_and(|request| {
            verify(secret, &request.headers, &request.body);
            true
        })
    })
    .await;
    assert_eq!(server.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_master_key_rotation_completes() {
    for backend in backends().await {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let database = backend.database().await;
        let url = database.as_ref().map(|database| database.url.clone());
        let url = url.unwrap_or_default();
        let hook = Receiver::start().await;

        let server = Process::start(&data, &url);
        let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
        let client = Client::new(&server.api, token.clone()).unwrap();
        let create = async |collection: &str, body: Value| {
            let path = format!("/{collection}");
            client
                .expect(Method::POST, &path, Some(&body))
                .await
                .unwrap()
        };
        let vault = create("vaults", json!({"name": "vault"})).await;
        for n in 0..SECRETS {
            let body = json!({"name": format!("s{n}"), "value": format!("value {n}"), "vault_id": vault["id"]});
            create("vault_secrets", body).await;
        }
        let target = json!({"webhook": {"url": format!("http://{}/hook", hook.address)}});
        let body = json!({"format": "json", "target": target});
        let destination = create("event_destinations", body).await;
        let secret = destination["target"]["webhook"]["secrets"][0]
            .as_str()
            .unwrap()
            .to_owned();
        let sources = json!([{"type": "api_key_created.v0"}]);
        let body = json!({"destination_ids": [destination["id"]], "sources": sources});
        create("event_subscriptions", body).await;
        assert_eq!(server.terminate(), 0);

        let key_file = data.join("master.key");
        let old = std::fs::read_to_string(&key_file).unwrap();
        // Kills the rotation before it waits for servers, while it waits, and while it writes. The exact point is
        // random. On SQLite no server can run, so it does not wait.
        let moments = match &backend {
            Backend::Sqlite => [20, 40, 70, 110],
            Backend::Postgres(_) | Backend::Cluster(..) => [30, 1_000, 3_080, 3_200],
        };
        for alive in moments {
            let mut rotation = rotate(&data, &url).spawn().unwrap();
            tokio::time::sleep(Duration::from_millis(alive)).await;
            rotation.kill().unwrap();
            rotation.wait().unwrap();
            lives(&data, &url, &hook, &secret).await;
        }
        let output = rotate(&data, &url).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("look like"), "{said}");
        let new = std::fs::read_to_string(&key_file).unwrap();
        assert_eq!(new.lines().count(), 1);
        assert_ne!(new, old);
        lives(&data, &url, &hook, &secret).await;

        let store_url = match &backend {
            Backend::Sqlite => data.join("state.db").display().to_string(),
            Backend::Postgres(_) | Backend::Cluster(..) => url.clone(),
        };
        let store = Store::open(
            &store_url.parse().unwrap(),
            Arc::new(SystemClock),
            culvert_control::texts(),
        )
        .await
        .unwrap();
        let seal = Seal::new(&Secret::new(new.trim().to_owned()));
        let stored = store.all("secret").await.unwrap();
        let mut values: Vec<String> = stored
            .iter()
            .map(|document| {
                let body: Value = serde_json::from_str(&document.body).unwrap();
                let sealed = body["sealed_value"].as_str().unwrap();
                seal.open(&document.head.id, sealed)
                    .unwrap()
                    .reveal()
                    .to_owned()
            })
            .collect();
        let mut wanted: Vec<String> = (0..SECRETS).map(|n| format!("value {n}")).collect();
        values.sort();
        wanted.sort();
        assert_eq!(values, wanted);
        store.close().await;

        // On PostgreSQL a running server stops on its own. On SQLite the rotation is rejected.
        let server = Process::start(&data, &url);
        let output = rotate(&data, &url).output().unwrap();
        if database.is_some() {
            assert!(output.status.success(), "{output:?}");
            assert_eq!(server.ended(), 1);
        } else {
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert_eq!(server.terminate(), 0);
            assert!(rotate(&data, &url).status().unwrap().success());
        }
        lives(&data, &url, &hook, &secret).await;

        culvert::keys::write_private(&key_file, &old).unwrap();
        let mut check = binary();
        check.args(["admin", "check", "--database-url", &url]);
        let output = check.arg("--data-dir").arg(&data).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("the master key does not match this database"),
            "{said}"
        );
        if let Some(database) = database {
            database.remove().await;
        }
    }
}
