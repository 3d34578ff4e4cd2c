//! An outage of the database under traffic: the test stops its PostgreSQL server and starts it again.
//! Traffic continues, the API reports the outage, and everything catches up afterwards.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, RawAnswer, Receiver, eventually};

/// A PostgreSQL server behind a socket in a folder, for this test alone.
struct Postgres {
    programs: PathBuf,
    folder: tempfile::TempDir,
}

impl Postgres {
    /// `None` without its programs; the test is then reported as ignored.
    fn start() -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
        let programs = versions.into_iter().flatten().flatten();
        let programs = programs.map(|version| version.path().join("bin"));
        let Some(programs) = programs.filter(|bin| bin.join("initdb").exists()).max() else {
            culvert_testing::ignore("PostgreSQL's own programs are not here");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        // It does not run as root, and whom it runs as makes its files here.
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let server = Self { programs, folder };
        if !server.run("initdb", &["-A", "trust", "-U", "postgres"]) {
            culvert_testing::ignore("a PostgreSQL server of the test's own cannot be made");
            return None;
        }
        server.resume();
        Some(server)
    }

    fn backend(&self) -> Backend {
        let folder = self.folder.path().display();
        Backend::Postgres(format!(
            "postgres://postgres@localhost/postgres?host={folder}"
        ))
    }

    fn resume(&self) {
        let folder = self.folder.path().display().to_string();
        let options = format!("-k {folder} -c listen_addresses=");
        let log = format!("{folder}/log");
        assert!(self.run("pg_ctl", &["-w", "-l", &log, "-o", &options, "start"]));
    }

    /// Stops it immediately, without closing connections.
    fn stop(&self) -> bool {
        self.run("pg_ctl", &["-m", "immediate", "stop"])
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        let program = self.programs.join(program);
        let data = self.folder.path().join("data");
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
            use std::os::unix::fs::MetadataExt;
            own.uid() == 0
        });
        let mut command = match is_root {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", "nobody", "--"]).arg(program);
                command
            }
            false => Command::new(program),
        };
        command.arg("-D").arg(data).args(arguments);
        command.current_dir("/").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_outage_stops_no_traffic_and_loses_no_event() {
    const HOST: &str = "steady.culvert.localhost";
    let Some(postgres) = tokio::task::spawn_blocking(Postgres::start).await.unwrap() else {
        return;
    };
    let culvert = Harness::start(&postgres.backend()).await;
    let hook = Receiver::start().await;
    let sources = json!([
        {"type": "http_request_complete.v0", "fields": ["http.request.url.path"]},
        {"type": "api_key_created.v0"},
    ]);
    subscribe_debug(&culvert, &hook, sources).await;
    let origin = Receiver::start().await;
    culvert.endpoint("steady", origin.address).await;
    eventually("requests are reported of", async || {
        culvert.get(HOST, "/before").await;
        !hook.events().is_empty()
    })
    .await;

    assert!(postgres.stop());
    let called = culvert.call(Method::POST, "/api_keys", Some(json!({})));
    let refused = called.await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.body["error_code"], "ERR_NGROK_10000");
    let mut requests = JoinSet::new();
    for worker in 0..4 {
        let at = culvert.http;
        requests.spawn(async move {
            for nth in 0..100 {
                let head = format!("GET /away/{worker}/{nth} HTTP/1.1\r\nhost: {HOST}\r\n");
                let request = format!("{head}connection: close\r\n\r\n");
                let RawAnswer { status, .. } = crate::harness::raw(at, request.as_bytes()).await;
                assert_eq!(status, 200, "traffic needs no database");
                // Spread over some of the recorder's tries to write.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    requests.join_all().await;
    let refused = culvert.call(Method::GET, "/api_keys", None).await;
    assert_eq!(refused.status, 503, "{}", refused.body);

    postgres.resume();
    eventually("the API answers again", async || {
        let answer = culvert
            .call(Method::POST, "/api_keys", Some(json!({})))
            .await;
        answer.status == 201
    })
    .await;
    hook.wait_for("api_key_created.v0", 1).await;
    let reported = || {
        let events = hook.events();
        let paths = events
            .iter()
            .filter_map(|event| event["object"]["http"]["request"]["url"]["path"].as_str());
        let mut paths: Vec<String> = paths
            .filter(|path| path.starts_with("/away/"))
            .map(str::to_owned)
            .collect();
        paths.sort_unstable();
        paths.dedup();
        paths.len()
    };
    // A batch that was on its way when the database went is free again when its lease is over.
    let deadline = Instant::now() + Duration::from_secs(180);
    while reported() < 400 {
        assert!(
            Instant::now() < deadline,
            "{} of 400 were reported of",
            reported()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("database away: 400 requests answered, 400 reported of, lost 0");
    culvert.stop().await;
}
