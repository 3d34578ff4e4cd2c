//! Rotation of the master key: re-encrypts the secrets of every resource, even after interruptions.

use culvert_resources::resource::Life;

use crate::Reencrypted;
use crate::operations::resources::ALL;
use crate::reencrypt;
use crate::tests::*;

fn sealed_under(seal: &Seal, body: &Value, id: &str) -> usize {
    match body {
        Value::String(text) => usize::from(seal.open(id, text).is_ok()),
        Value::Array(items) => items.iter().map(|item| sealed_under(seal, item, id)).sum(),
        Value::Object(fields) => fields
            .values()
            .map(|field| sealed_under(seal, field, id))
            .sum(),
        _ => 0,
    }
}

/// Counts the stored secrets that this seal decrypts.
async fn secrets(rig: &Rig, seal: &Seal) -> usize {
    let documents = rig.store.documents_after("", 10_000).await.unwrap();
    let open = documents.iter().map(|document| {
        let body = serde_json::from_str(&document.body).unwrap();
        sealed_under(seal, &body, &document.head.id)
    });
    open.sum()
}

#[tokio::test]
async fn reencryption_completes_after_any_interruption() {
    let rig = Rig::start().await;
    for ty in ALL.iter().filter(|ty| ty.life == Life::Configured) {
        let sample = rig.sample(ty.collection, 1).await;
        rig.post(&format!("/{}", ty.collection), sample)
            .await
            .body();
    }
    for n in 0..150 {
        let sample = rig.sample("event_destinations", n).await;
        rig.post("/event_destinations", sample).await.body();
    }
    let old = Secret::new("a master key of the tests".into());
    let new = Secret::new("another master key".into());
    let before = secrets(&rig, &Seal::new(&old)).await;
    assert!(before > 154, "{before}");
    // User text that looks like an encrypted value stays unchanged.
    let key_id = Seal::new(&old)
        .seal(&SeededEntropy::new(1), "x", "y")
        .unwrap()
        .split_once('.')
        .unwrap()
        .0
        .to_owned();
    let fake = format!("{key_id}.QUJD");
    let made = rig
        .post("/ip_policies", json!({"description": fake}))
        .await
        .body();
    let (_, reported) = rig.events_after(0).await;

    let entropy = SeededEntropy::new(3);
    let both = Seal::new(&new).with_older([&old]);
    // Interrupt it after more and more steps, until one run completes.
    let mut n_polls = 0;
    let done = loop {
        n_polls += 1;
        let mut left = n_polls;
        let mut running = Box::pin(reencrypt(&rig.store, &both, &entropy));
        let cut = std::future::poll_fn(|cx| {
            use std::future::Future;
            use std::task::Poll;
            match running.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => {
                    left -= 1;
                    Poll::Pending
                }
            }
        })
        .await;
        drop(running);
        assert_eq!(
            secrets(&rig, &both).await,
            before,
            "all can be read at any time"
        );
        if let Some(outcome) = cut {
            break outcome.unwrap();
        }
    };
    assert_eq!(done.strange, 1);
    assert!(n_polls > 1, "it was never cut off");
    assert_eq!(secrets(&rig, &Seal::new(&new)).await, before);
    assert_eq!(secrets(&rig, &Seal::new(&old)).await, 0);
    let again = reencrypt(&rig.store, &both, &entropy).await.unwrap();
    assert_eq!(
        again,
        Reencrypted {
            documents: 0,
            strange: 1
        }
    );
    let path = format!("/ip_policies/{}", made["id"].as_str().unwrap());
    assert_eq!(rig.get(&path).await.body(), made);
    // The secrets are unchanged, so no event is emitted.
    assert_eq!(rig.events_after(reported).await.0, Vec::<Value>::new());
}
