//! A database that lost commits, as after a fail-over to a standby without them.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

use super::rights::Cast;
use super::uses::Database;
use super::*;

const SAVE: &str = "DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved; DO $$ DECLARE t text; BEGIN \
     FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'culvert' LOOP \
       EXECUTE format('CREATE TABLE saved.%I AS TABLE culvert.%I', t, t); \
     END LOOP; END $$";
const RESTORE: &str = "DO $$ DECLARE t text; BEGIN \
     SET LOCAL session_replication_role = replica; \
     FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'saved' LOOP \
       EXECUTE format('DELETE FROM culvert.%I', t); \
       EXECUTE format('INSERT INTO culvert.%I SELECT * FROM saved.%I', t, t); \
     END LOOP; END $$";

#[tokio::test]
async fn changes_after_a_loss_of_commits_reach_the_edge() {
    let Some(database) = Database::new("lost").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    let cancel = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    let ids = || {
        let snapshot = rig.edge.0.borrow();
        let all = snapshot
            .iter()
            .flat_map(culvert_edge_config::Snapshot::endpoints);
        all.map(|one| one.id.clone()).collect::<BTreeSet<_>>()
    };
    let add = async |n: u32| {
        let body = rig.sample("endpoints", n).await;
        rig.post("/endpoints", body).await.body()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let applied = async || rig.control.is_applied(culvert_testing::PATIENCE).await;
    let rule = async |id: &str| rig.get(&format!("/endpoints/{id}")).await.body();

    let kept = add(1).await;
    database.run(SAVE).await;
    let mut lost = Vec::new();
    for n in 2..8 {
        lost.push(add(n).await);
    }
    let path = format!("/endpoints/{kept}");
    rig.patch(&path, json!({"description": "lost"})).await;
    assert!(applied().await);
    assert_eq!(ids().len(), 7);
    database.run(RESTORE).await;

    // Its revision is below those that the edge had applied.
    let new = add(9).await;
    assert!(applied().await);
    assert_eq!(ids(), BTreeSet::from([kept.clone(), new.clone()]));
    assert_ne!(rule(&kept).await["description"], "lost");
    rig.delete(&path).await;
    assert!(applied().await);
    assert_eq!(ids(), BTreeSet::from([new]));
    assert!(!rig.control.is_reading_again());
    eventually("the loss is recorded once", async || {
        let rows = rig.store.outbox_after(0, 1_000).await.unwrap();
        let told = rows
            .iter()
            .filter(|row| row.event.kind == "commits_lost.v0");
        told.count() == 1
    })
    .await;
    cancel.cancel();
    tasks.join_next().await.unwrap().unwrap();
    rig.store.close().await;
    rig.queue.close().await;
    database.remove().await;
}

/// What happens to the right of one owner's endpoint to forward to an internal endpoint of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    /// The owner grants it.
    Give,
    /// The owner ends all grants.
    Revoke,
    /// The grant ends, and a new one is given.
    GiveAgain,
    /// The name gets another owner, who grants it too.
    Take,
}

const STEPS: [Step; 5] = [
    Step::Nothing,
    Step::Give,
    Step::Revoke,
    Step::GiveAgain,
    Step::Take,
];

/// Two owners' endpoints with a name between them.
struct Forwarding<'c> {
    cast: &'c Cast,
    /// The endpoint that forwards.
    from: String,
}

impl Forwarding<'_> {
    const URL: &'static str = "http://a.internal";

    /// The endpoint that has the internal name, and the index of its owner.
    async fn target(&self) -> (String, usize) {
        let rig = &self.cast.rig;
        let list = rig.get("/endpoints?limit=100").await.body();
        let mut list = list["endpoints"].as_array().unwrap().iter();
        let one = list.find(|one| one["url"] == Self::URL).unwrap();
        let owner = one["principal"]["id"].as_str().unwrap();
        let mut callers = self.cast.callers.iter();
        let owner = callers.position(|caller| caller.owner_id == owner).unwrap();
        (one["id"].as_str().unwrap().to_owned(), owner)
    }

    /// The grants on an object.
    async fn grants(&self, object: &str) -> Vec<String> {
        let list = self.cast.rig.get("/grants?limit=100").await.body();
        let list = list["grants"].as_array().unwrap().iter();
        let of_object = list.filter(|grant| grant["object_id"] == object);
        let id = |grant: &Value| grant["id"].as_str().unwrap().to_owned();
        of_object.map(id).collect()
    }

    async fn serve(&self, by: &Caller) -> String {
        let body = json!({"url": Self::URL, "upstream_url": "http://127.0.0.1:9"});
        let made = self.cast.rig.call(by, "POST", "/endpoints", body).await;
        made.body()["id"].as_str().unwrap().to_owned()
    }

    async fn give(&self, by: &Caller, object: &str) {
        let grant = json!({"object_id": object, "grantee": self.from});
        self.cast
            .rig
            .call(by, "POST", "/grants", grant)
            .await
            .body();
    }

    async fn revoke(&self, object: &str) {
        for grant in self.grants(object).await {
            let path = format!("/grants/{grant}?force=true");
            assert_eq!(self.cast.rig.delete(&path).await, Answered::NoContent);
        }
    }

    async fn take(&self, step: Step) {
        let (target, owner) = self.target().await;
        let callers = &self.cast.callers;
        match step {
            Step::Nothing => {}
            Step::Give if self.grants(&target).await.is_empty() => {
                self.give(&callers[owner], &target).await;
            }
            Step::Give => {}
            Step::Revoke => self.revoke(&target).await,
            Step::GiveAgain => {
                self.revoke(&target).await;
                self.give(&callers[owner], &target).await;
            }
            Step::Take => {
                self.revoke(&target).await;
                let path = format!("/endpoints/{target}");
                assert_eq!(self.cast.rig.delete(&path).await, Answered::NoContent);
                // The admin and the first owner by turns.
                let next = &callers[1 - owner];
                let taken = self.serve(next).await;
                self.give(next, &taken).await;
            }
        }
    }

    /// Waits until the edge has the endpoint of the database at the name, and forwards to it by the grants of the
    /// database.
    async fn is_at_edge(&self, case: &str) {
        let rig = &self.cast.rig;
        let (target, _) = self.target().await;
        let may = !self.grants(&target).await.is_empty();
        assert!(rig.control.is_applied(culvert_testing::PATIENCE).await);
        let seen = || {
            let snapshot = rig.edge.0.borrow();
            let snapshot = snapshot.as_ref()?;
            let one = |id: &str| snapshot.endpoints().find(|one| one.id == id);
            let forwards = one(&self.from)
                .zip(one(&target))
                .map(|(from, to)| snapshot.may_forward(from, "a.internal", to));
            Some((snapshot.endpoints().count(), forwards))
        };
        let wanted = Some((2, Some(may)));
        let waiting = async {
            while seen() != wanted {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(culvert_testing::PATIENCE, waiting).await;
        assert!(
            waited.is_ok(),
            "{case}: endpoints of the edge, and whether they forward: {:?}, not {wanted:?}; reading again: {}",
            seen(),
            rig.control.is_reading_again()
        );
    }
}

/// Grants, and the owner of an internal name, are those of the database that lost commits, whatever was lost and whatever
/// is done then.
#[tokio::test]
async fn rights_to_forward_follow_a_loss_of_commits() {
    let Some(database) = Database::new("lost_grants").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    let cast = Cast::of(rig).await;
    let cancel = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(cast.rig.control.clone().run(cancel.clone()));
    let computed = json!({"on_http_request": [{"actions": [{
        "type": "forward-internal", "config": {"url": "http://${req.headers['x'][0]}.internal"}}]}]});
    let front = json!({
        "url": "https://from.culvert.localhost",
        "traffic_policy": computed.to_string(),
    });
    let from = cast.rig.call(&cast.callers[2], "POST", "/endpoints", front);
    let from = from.await.body()["id"].as_str().unwrap().to_owned();
    let forwarding = Forwarding { cast: &cast, from };
    forwarding.serve(&cast.callers[1]).await;
    for before in [Step::Revoke, Step::Give] {
        for lost in STEPS {
            for then in STEPS {
                let case = format!("{before:?}, lost {lost:?}, then {then:?}");
                forwarding.take(before).await;
                forwarding.is_at_edge(&case).await;
                database.run(SAVE).await;
                forwarding.take(lost).await;
                forwarding.is_at_edge(&case).await;
                database.run(RESTORE).await;
                forwarding.take(then).await;
                forwarding.is_at_edge(&case).await;
            }
        }
    }
    cancel.cancel();
    tasks.join_next().await.unwrap().unwrap();
    cast.rig.store.close().await;
    cast.rig.queue.close().await;
    database.remove().await;
}

/// A grant that ended gives no right, although the read of the users failed right after it was read.
#[tokio::test]
async fn a_failed_read_loses_no_change_of_rights() {
    let Some(database) = Database::new("failed_read").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    let cast = Cast::of(rig).await;
    let rig = &cast.rig;
    let owner = &cast.callers[1];
    let other = rig.user("third@x.example", Role::Member, true).await;
    let vault = rig.call(owner, "POST", "/vaults", json!({"name": "v"}));
    let vault = vault.await.body()["id"].as_str().unwrap().to_owned();
    let grant = json!({"object_id": vault, "grantee": other.owner_id});
    let grant = rig.call(owner, "POST", "/grants", grant).await.body();
    let mut uses = culvert_access::use_table::Uses::empty();
    let now = rig.clock.now();
    uses.refresh(&rig.store, now).await.unwrap();
    let may = |uses: &culvert_access::use_table::Uses| {
        let referrer = culvert_resources::access::Referrer {
            owner_id: &other.owner_id,
            id: "ep_1",
        };
        uses.table
            .is_user(referrer, Some(&owner.owner_id), &[&vault])
    };
    assert!(may(&uses));

    let path = format!("/grants/{}?force=true", grant["id"].as_str().unwrap());
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    let user = format!("/users/{}", other.owner_id);
    rig.patch(&user, json!({"active": false})).await.body();
    let of_user = |value: &str| {
        let id = &other.owner_id;
        format!("UPDATE culvert.document SET links = {value} WHERE id = '{id}'")
    };
    database.run(&of_user("'damaged' || links")).await;
    uses.refresh(&rig.store, now).await.unwrap_err();
    database.run(&of_user("substr(links, 8)")).await;
    let changes = uses.refresh(&rig.store, now).await.unwrap();
    assert!(changes.objects.contains(&vault));
    assert!(!may(&uses));
    cast.rig.store.close().await;
    cast.rig.queue.close().await;
    database.remove().await;
}

/// Each file causes one event, also one that was set aside while the clock was behind.
#[tokio::test]
async fn files_of_events_that_were_set_aside_are_told_of_once() {
    let rig = Rig::start().await;
    let events = &rig.control.events;
    let lost = |file: &str| LostEvents::with_damaged(file.to_owned(), Some(3));
    let (_, mut seq) = rig.events_after(0).await;
    let both = || vec![lost("events.db.damaged-2"), lost("events.db.damaged-1")];
    for (noted, n_events) in [
        (vec![lost("events.db.damaged-2")], 1),
        (both(), 1),
        (both(), 0),
    ] {
        events.note_lost_events(noted).await.unwrap();
        events.report_lost_events().await.unwrap();
        events.report_lost_events().await.unwrap();
        let (reported, last) = rig.events_after(seq).await;
        seq = last;
        let dropped = |event: &&Value| event["event_type"] == "events_dropped.v0";
        assert_eq!(reported.iter().filter(dropped).count(), n_events);
    }
}

/// A file may have had events of any account.
#[tokio::test]
async fn a_damaged_file_is_told_of_in_each_account() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let events = &rig.control.events;
    let (_, seq) = rig.events_after(0).await;
    let lost = LostEvents::with_damaged("events.db.damaged-1".to_owned(), Some(3));
    events.note_lost_events(vec![lost]).await.unwrap();
    events.report_lost_events().await.unwrap();
    let (reported, _) = rig.events_after(seq).await;
    let mut accounts: Vec<_> = reported
        .iter()
        .map(|event| {
            assert_eq!(event["event_type"], "events_dropped.v0");
            event["account_id"].as_str().unwrap()
        })
        .collect();
    accounts.sort_unstable();
    let mut all = [&*rig.admin.account, &*stranger.account];
    all.sort_unstable();
    assert_eq!(accounts, all);
}

/// A missing file of events causes one event, whether the process that noticed it tells of it or only a later one, and
/// whether that learns that the event was written.
#[tokio::test]
async fn a_missing_file_of_events_is_told_of_once() {
    let rig = Rig::start().await;
    let events = &rig.control.events;
    let (_, mut seq) = rig.events_after(0).await;
    let now = rig.clock.now();
    let missing = async |file| {
        LostEvents::with_missing(&rig.store, file, now)
            .await
            .unwrap()
    };
    assert_eq!(missing(None).await, None);
    let noted = missing(Some("events.db")).await.unwrap();
    assert_eq!(
        (&*noted.file, noted.reason),
        ("events.db", Loss::FileMissing)
    );
    // The process ends here, and the next one finds the file that this one began, or none again.
    assert_eq!(missing(None).await.unwrap(), noted);
    assert_eq!(missing(Some("events.db")).await.unwrap(), noted);
    for n_events in [1, 0] {
        // Twice, as if the answer to the first commit had been lost.
        let twice = vec![noted.clone(), noted.clone()];
        events.note_lost_events(twice).await.unwrap();
        events.report_lost_events().await.unwrap();
        let (reported, last) = rig.events_after(seq).await;
        seq = last;
        let dropped = |event: &&Value| event["event_type"] == "events_dropped.v0";
        assert_eq!(reported.iter().filter(dropped).count(), n_events);
        assert_eq!(missing(None).await, None);
    }
    rig.clock.advance(std::time::Duration::from_secs(1));
    let later = LostEvents::with_missing(&rig.store, Some("events.db"), rig.clock.now());
    assert_ne!(later.await.unwrap().unwrap().id, noted.id, "another loss");
}
