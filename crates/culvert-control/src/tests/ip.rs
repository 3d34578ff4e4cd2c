//! IP policies, their rules, and their enforcement.

use std::net::IpAddr;
use std::time::Duration;

use culvert_access::ip::restrictions::Restrictions;
use tokio_util::sync::CancellationToken;

use super::*;

impl Rig {
    /// Creates a rule of a policy; returns its ID.
    async fn rule(&self, policy: &str, action: &str, cidr: &str) -> String {
        let body = json!({"ip_policy_id": policy, "action": action, "cidr": cidr});
        let made = self.post("/ip_policy_rules?force=true", body).await.body();
        made["id"].as_str().unwrap().to_owned()
    }

    /// Creates a restriction with one policy; returns its path.
    async fn restriction(&self, place: &str, policy: &str, enforced: bool) -> String {
        let body = json!({"type": place, "ip_policy_ids": [policy], "enforced": enforced});
        let made = self.post("/ip_restrictions?force=true", body).await.body();
        format!("/ip_restrictions/{}", made["id"].as_str().unwrap())
    }
}

#[tokio::test]
pub(super) async fn ip_policy_and_rule_errors_have_their_codes() {
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let one = format!("/ip_policies/{policy}");
    for body in [json!({"action": "allow"}), json!({"action": 1})] {
        let answered = rig.post("/ip_policies", body.clone()).await;
        assert_eq!(answered.code(), Some(1423), "{body}");
        assert_eq!(rig.patch(&one, body).await.code(), Some(1423));
    }
    assert_eq!(rig.patch(&one, json!({})).await.code(), Some(1400));

    let nobody = format!("ipp_{}", "0".repeat(27));
    let stranger = rig.stranger().await;
    let foreign = rig
        .call(&stranger, "POST", "/ip_policies", json!({}))
        .await
        .body()["id"]
        .clone();
    let with = |field: &str, value: Value| {
        let mut body = json!({"ip_policy_id": policy, "action": "allow", "cidr": "192.0.2.0/24"});
        body[field] = value;
        body
    };
    for (body, code) in [
        (json!({}), 1405),
        (with("cidr", json!("")), 1405),
        (with("ip_policy_id", Value::Null), 1405),
        (with("cidr", json!("here")), 1406),
        (with("cidr", json!("192.0.2.0/33")), 1406),
        (with("cidr", json!("192.0.2.0/24 ")), 1406),
        (with("cidr", json!("9".repeat(100_000))), 1406),
        (with("cidr", json!("192.0.2.1/24")), 1409),
        (with("cidr", json!("2001:db8::1/32")), 1409),
        (with("cidr", json!("192.0.2.1")), 1413),
        (with("ip_policy_id", json!("junk junk")), 1414),
        (with("ip_policy_id", json!(rig.admin.key_id)), 227),
        (with("ip_policy_id", json!(nobody)), 1402),
        (with("ip_policy_id", foreign), 1402),
        (with("action", Value::Null), 1422),
        (with("action", json!("ALLOW")), 1422),
        (with("cidr", json!(["192.0.2.0/24"])), 215),
        (with("description", json!("x".repeat(256))), 1421),
    ] {
        let answered = rig.post("/ip_policy_rules", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let v6 = with("cidr", json!("2001:DB8::/32"));
    let made = rig.post("/ip_policy_rules", v6).await.body();
    assert_eq!(made["cidr"], "2001:db8::/32");
    assert_eq!(
        made["ip_policy"],
        json!({"id": policy, "uri": format!("{BASE}/ip_policies/{policy}")})
    );
    // Another spelling is the same prefix, whatever the action.
    let mut again = with("cidr", json!("2001:0db8:0::/32"));
    again["action"] = json!("deny");
    let answered = rig.post("/ip_policy_rules", again).await;
    assert_eq!(answered.code(), Some(1408));
    let rule = rig.rule(&policy, "deny", "192.0.2.0/24").await;
    let another = rig.ip_policy().await;
    rig.rule(&another, "allow", "192.0.2.0/24").await;
    let rule = format!("/ip_policy_rules/{rule}");
    for (body, code) in [
        (json!({}), 1401),
        (json!({"cidr": ""}), 1405),
        (json!({"cidr": "192.0.2.9/24"}), 1409),
        (json!({"cidr": "2001:db8::/32"}), 1408),
        (json!({"action": "allow"}), 214),
        (json!({"ip_policy_id": another}), 214),
    ] {
        let answered = rig.patch(&rule, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let changed = rig.patch(&rule, json!({"cidr": "10.0.0.0/8"})).await;
    assert_eq!(changed.body()["cidr"], "10.0.0.0/8");
    let list = format!("/ip_policy_rules?filter=obj.ip_policy.id%3D%3D%22{another}%22");
    let listed = rig.get(&list).await.body();
    assert_eq!(listed["ip_policy_rules"].as_array().unwrap().len(), 1);
}

#[tokio::test]
pub(super) async fn ip_restriction_errors_have_their_codes() {
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let nobody = format!("ipp_{}", "0".repeat(27));
    for (body, code) in [
        (json!({}), 1803),
        (json!({"type": "api"}), 1804),
        (json!({"type": "api", "ip_policy_ids": []}), 1804),
        (json!({"type": "API", "ip_policy_ids": [policy]}), 1803),
        (json!({"type": "api", "ip_policy_ids": [nobody]}), 1801),
        (json!({"type": "api", "ip_policy_ids": ["junk junk"]}), 223),
        (json!({"type": "api", "ip_policy_ids": ["ak_1"]}), 227),
        (json!({"type": "api", "ip_policy_ids": policy}), 215),
        (json!({"type": "api", "enforced": 1}), 215),
    ] {
        let answered = rig.post("/ip_restrictions", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let another = rig.ip_policy().await;
    let body = json!({"type": "agent", "ip_policy_ids": [another, policy, another]});
    let made = rig.post("/ip_restrictions", body.clone()).await.body();
    let ids = |view: &Value| -> Vec<Value> {
        let policies = view["ip_policies"].as_array().unwrap();
        policies.iter().map(|one| one["id"].clone()).collect()
    };
    assert_eq!(ids(&made), [json!(another), json!(policy)]);
    assert_eq!(made["enforced"], false);
    let answered = rig.post("/ip_restrictions", body.clone()).await;
    assert_eq!(answered.code(), Some(1802));
    // Another account has its own.
    let stranger = rig.stranger().await;
    let foreign = rig.call(&stranger, "POST", "/ip_restrictions", body).await;
    assert_eq!(foreign.code(), Some(1801));
    let one = format!("/ip_restrictions/{}", made["id"].as_str().unwrap());
    for (body, code) in [
        (json!({"ip_policy_ids": [nobody]}), 1801),
        (json!({"type": "api"}), 214),
    ] {
        assert_eq!(rig.patch(&one, body).await.code(), Some(code));
    }
    let kept = json!({"ip_policy_ids": [], "enforced": true});
    let kept = rig.patch(&one, kept).await.body();
    assert_eq!(ids(&kept), ids(&made));
    assert_eq!(kept["enforced"], true);
    let replaced = rig.patch(&one, json!({"ip_policy_ids": [policy]})).await;
    assert_eq!(ids(&replaced.body()), [json!(policy)]);
    assert_eq!(rig.patch(&one, json!({})).await.body()["enforced"], true);
}

#[tokio::test]
pub(super) async fn an_ip_policy_is_deleted_with_its_rules_unless_in_use() {
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let one = format!("/ip_policies/{policy}");
    let mut expected = Vec::new();
    for n in 0..7 {
        let rule = rig.rule(&policy, "allow", &format!("10.{n}.0.0/16")).await;
        expected.push((json!("ip_policy_rule_deleted.v0"), json!(rule)));
    }
    expected.push((json!("ip_policy_deleted.v0"), json!(policy)));
    let restriction = rig.restriction("endpoints", &policy, false).await;
    let (_, start) = rig.events_after(0).await;
    assert_eq!(rig.delete(&one).await.code(), Some(1420));
    assert_eq!(rig.delete(&restriction).await, Answered::NoContent);
    assert_eq!(rig.delete(&one).await, Answered::NoContent);
    let (reported, _) = rig.events_after(start).await;
    let reported: Vec<_> = reported
        .iter()
        .map(|event| (event["event_type"].clone(), event["object"]["id"].clone()))
        .collect();
    assert_eq!(reported[0].0, "ip_restriction_deleted.v0");
    assert_eq!(reported[1..], expected);
    let list = rig.get("/ip_policy_rules").await.body();
    assert_eq!(list["ip_policy_rules"], json!([]));
}

#[tokio::test]
pub(super) async fn a_dashboard_restriction_keeps_the_last_rule() {
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let delete = async |rule: &str| rig.delete(&format!("/ip_policy_rules/{rule}")).await;
    let first = rig.rule(&policy, "allow", "10.0.0.0/8").await;
    let last = rig.rule(&policy, "allow", "11.0.0.0/8").await;
    rig.restriction("api", &policy, false).await;
    let dashboard = rig.restriction("dashboard", &policy, false).await;
    assert_eq!(delete(&first).await, Answered::NoContent);
    assert_eq!(delete(&last).await.code(), Some(1419));
    rig.delete(&dashboard).await;
    assert_eq!(delete(&last).await, Answered::NoContent);
}

#[tokio::test]
async fn ip_restrictions_apply_soon_after_a_commit() {
    let rig = Rig::start().await;
    let cancel = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    let stranger = rig.stranger().await;
    let mut snapshots = rig.edge.0.subscribe();
    let inside: IpAddr = "10.0.0.1".parse().unwrap();
    let outside: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
    let refused = |caller: &Caller, address| {
        let admitted = rig.control.identity.admit(caller, address);
        admitted.err().map(|refusal| refusal.code.unwrap().number())
    };
    let policy = rig.ip_policy().await;
    let rule = rig.rule(&policy, "allow", "10.0.0.0/8").await;
    let restriction = rig.restriction("api", &policy, false).await;
    rig.restriction("endpoints", &policy, true).await;
    let edge_has_one = |snapshot: &Option<culvert_edge_config::Snapshot>| {
        snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.restrictions().len() == 1)
    };
    let deadline = Duration::from_secs(30);
    let waiting = snapshots.wait_for(edge_has_one);
    let snapshot = tokio::time::timeout(deadline, waiting).await.unwrap();
    let compiled = snapshot.unwrap().clone().unwrap();
    let guard = &compiled.restrictions()[0];
    assert!(guard.enforced && guard.admitted.contains(inside) && !guard.admitted.contains(outside));
    assert_eq!(*guard.account, *rig.admin.account);

    assert_eq!(refused(&rig.admin, outside), None, "it is not enforced");
    rig.patch(
        &format!("{restriction}?force=true"),
        json!({"enforced": true}),
    )
    .await
    .body();
    eventually("it is enforced", async || {
        refused(&rig.admin, outside) == Some(220)
    })
    .await;
    assert_eq!(refused(&rig.admin, inside), None);
    assert_eq!(refused(&stranger, outside), None, "of another account");
    rig.delete(&format!("/ip_policy_rules/{rule}?force=true"))
        .await;
    eventually("no request is admitted", async || {
        refused(&rig.admin, inside) == Some(220)
    })
    .await;
    rig.rule(&policy, "allow", "192.0.2.0/24").await;
    eventually("a new rule", async || {
        refused(&rig.admin, outside).is_none()
    })
    .await;
    cancel.cancel();
    tokio::time::timeout(deadline, tasks.join_next())
        .await
        .unwrap();
}

#[tokio::test]
async fn bootstrap_lifts_the_restriction_of_the_api() {
    let rig = Rig::start().await;
    let bootstrap = Bootstrap {
        ids: &IdMaker::new(),
        store: &rig.store,
        clock: &*rig.clock,
        entropy: &SeededEntropy::new(7),
        pepper: &rig.control.kernel.pepper,
        base: BASE,
        domain: "culvert.localhost",
        token_form: Default::default(),
    };
    let policy = rig.ip_policy().await;
    assert_eq!(
        bootstrap
            .lift_api_restriction(&AdminCommand::default())
            .await
            .unwrap(),
        0
    );
    let api = rig.restriction("api", &policy, true).await;
    let endpoints = rig.restriction("endpoints", &policy, true).await;
    let (_, start) = rig.events_after(0).await;
    assert_eq!(
        bootstrap
            .lift_api_restriction(&AdminCommand::default())
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        bootstrap
            .lift_api_restriction(&AdminCommand::default())
            .await
            .unwrap(),
        0
    );
    let lifted = rig.get(&api).await.body();
    assert_eq!(lifted["enforced"], false);
    assert_eq!(rig.get(&endpoints).await.body()["enforced"], true);
    let (reported, _) = rig.events_after(start).await;
    assert_eq!(reported.len(), 2);
    assert_eq!(reported[0]["event_type"], "admin_command.v0");
    assert_eq!(reported[1]["event_type"], "ip_restriction_updated.v0");
    assert_eq!(reported[1]["principal"], Value::Null);
    assert_eq!(reported[1]["object"], lifted);
    assert_eq!(reported[1]["cause"], reported[0]["event_id"]);
    // Unchanged restrictions are not loaded again.
    rig.patch(&format!("{api}?force=true"), json!({"enforced": true}))
        .await
        .body();
    let none = Restrictions::default();
    let loaded = Restrictions::load(&rig.store, &none).await;
    let loaded = loaded.unwrap().unwrap();
    assert_eq!(loaded.endpoints.len(), 1);
    let again = Restrictions::load(&rig.store, &loaded).await;
    assert!(again.unwrap().is_none(), "nothing changed");
}
