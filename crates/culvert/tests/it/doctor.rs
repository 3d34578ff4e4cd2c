//! The commands that examine an installation: `doctor`, `health`, `upgrade --check`; and `man`.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Backend, Harness, backends, binary, eventually};
use crate::kill::Process;

/// Runs a command and returns its exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = binary().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The settings of a running process, as flags.
fn flags(process: &Process, data: &Path, database: &str) -> Vec<String> {
    let api = process.api.trim_start_matches("http://").to_owned();
    let agents = process.agents.map(|address| address.to_string());
    [
        ("data-dir", data.display().to_string()),
        ("database-url", database.to_owned()),
        ("api-addr", api),
        ("edge-http-addr", process.http.to_string()),
        ("edge-https-addr", process.https.to_string()),
        ("agents-addr", agents.unwrap_or_default()),
        ("agents-ssh-addr", String::new()),
        ("nodes-addr", String::new()),
        ("metrics-addr", process.metrics.to_string()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [format!("--{name}"), value])
    .collect()
}

fn with<'a>(command: &[&'a str], flags: &'a [String]) -> Vec<&'a str> {
    let flags = flags.iter().map(String::as_str);
    command.iter().copied().chain(flags).collect()
}

fn findings(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap();
    report["findings"].as_array().unwrap().clone()
}

fn of<'a>(findings: &'a [Value], area: &str, level: &str) -> Vec<&'a str> {
    findings
        .iter()
        .filter(|finding| finding["area"] == area && finding["level"] == level)
        .map(|finding| finding["text"].as_str().unwrap())
        .collect()
}

/// A running server is ready, and nothing is wrong with it. After its end, `health` fails and its ports are free.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_is_healthy() {
    for backend in backends().await {
        let database = backend.database().await;
        let url = database.as_ref().map_or("", |database| &database.url);
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        // An address for this test: no other one takes its ports when the server has stopped.
        let listeners = [
            "--api-addr",
            "--edge-http-addr",
            "--edge-https-addr",
            "--agents-addr",
            "--agents-ssh-addr",
            "--nodes-addr",
            "--metrics-addr",
        ];
        let listeners: Vec<_> = listeners
            .into_iter()
            .flat_map(|flag| [flag, "127.0.61.1:0"])
            .collect();
        let process = Process::start_as(binary(), &data, url, &listeners);
        let flags = flags(&process, &data, url);
        assert_eq!(
            run(&with(&["health"], &flags)),
            (0, "ready\n".into(), String::new())
        );
        let (code, report, error) = run(&with(&["doctor", "--json"], &flags));
        let found = findings(&report);
        assert_eq!((code, error.as_str()), (0, ""), "{report}");
        let responding = of(&found, "listeners", "ok");
        assert_eq!(
            responding
                .iter()
                .filter(|text| text.contains("responds")
                    || text.contains("is ready")
                    || text.contains("valid certificate"))
                .count(),
            if process.agents.is_some() { 5 } else { 4 },
            "{report}"
        );
        let stores = of(&found, "store", "ok");
        let formats = stores.iter().filter(|text| text.contains("has format"));
        assert_eq!(formats.count(), 2, "{report}");
        let (code, check, _) = run(&with(&["upgrade", "--check"], &flags));
        assert_eq!(
            (code, check.matches("; no change").count()),
            (0, 2),
            "{check}"
        );

        assert_eq!(process.terminate(), 0);
        let (code, out, error) = run(&with(&["health"], &flags));
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(error.contains("no connection to 127.0.61.1:"), "{error}");
        let (code, report, _) = run(&with(&["doctor", "--json"], &flags));
        assert_eq!(code, 0, "{report}");
        assert!(report.contains("the port is free"), "{report}");
        if let Some(database) = database {
            database.remove().await;
        }
    }
}

/// Each kind of damage is found, with a way to fix it.
#[tokio::test(flavor = "multi_thread")]
async fn each_problem_is_found_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let process = Process::start(&data, "");
    let mut flags = flags(&process, &data, "");
    assert_eq!(process.terminate(), 0);
    // A missing key, a store of a newer version, a port of another program, a file that is no certificate, names
    // that do not exist.
    std::fs::rename(data.join("master.key"), data.join("elsewhere")).unwrap();
    let newer = "UPDATE meta SET value = '999' WHERE name IN ('format', 'min_reader')";
    execute(&data.join("state.db"), newer).await;
    let other = std::net::TcpListener::bind(process_http(&flags)).unwrap();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"220 mail\r\n").unwrap();
        drop(stream);
        other
    });
    let wrong = folder.path().join("wrong.pem");
    std::fs::write(&wrong, "no certificate").unwrap();
    for (name, value) in [
        ("--edge-certificates", wrong.to_str().unwrap()),
        ("--edge-domain", "culvert.invalid"),
        ("--api-base-url", "https://console.culvert.invalid"),
    ] {
        flags.extend([name.to_owned(), value.to_owned()]);
    }
    let (code, report, error) = run(&with(&["doctor", "--json"], &flags));
    drop(answers.join());
    assert_eq!(code, 1, "{report}");
    assert!(error.contains("checks failed"), "{error}");
    let found = findings(&report);
    for (area, level, text) in [
        ("key", "fail", "is missing, and the stored secrets need it"),
        ("store", "fail", "has format 999"),
        ("listeners", "fail", "`edge.http_addr`"),
        ("certificates", "fail", "reading a certificate and its key"),
        ("dns", "warn", "`*.culvert.invalid` does not resolve"),
        (
            "services",
            "fail",
            "`console.culvert.invalid` does not resolve",
        ),
    ] {
        let all = of(&found, area, level);
        assert!(
            all.iter().any(|one| one.contains(text)),
            "{area}: {text}: {report}"
        );
    }
    for finding in &found {
        assert_eq!(
            finding["level"] == "ok",
            finding["mend"].is_null(),
            "{finding}"
        );
    }
    let (code, check, error) = run(&with(&["upgrade", "--check"], &flags));
    assert_eq!(code, 1, "{check}");
    assert!(
        check.contains("requires a version that reads format 999"),
        "{check}"
    );
    assert!(
        error.contains("this version cannot use `state.db`"),
        "{error}"
    );
}

fn process_http(flags: &[String]) -> &str {
    let at = flags.iter().position(|flag| flag == "--edge-http-addr");
    &flags[at.unwrap() + 1]
}

async fn execute(file: &Path, statement: &'static str) {
    use sqlx::{Connection, SqliteConnection};
    let url = format!("sqlite://{}", file.display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query(statement)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// An unreachable database is a finding, not a failure of the command, and its password is in no finding.
#[test]
fn an_unreachable_database_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let url = "postgres://culvert:hunter2@127.0.0.1:9/culvert";
    let data = data.to_str().unwrap();
    let (code, report, _) = run(&[
        "doctor",
        "--json",
        "--data-dir",
        data,
        "--database-url",
        url,
    ]);
    assert_eq!(code, 1);
    assert_eq!(of(&findings(&report), "store", "fail").len(), 1, "{report}");
    assert!(!report.contains("hunter2"), "{report}");
    // Nothing was created.
    assert!(!Path::new(data).exists());
}

/// Every command has a manual page, and only that of `serve` describes the settings.
#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, error) = run(&["man", folder.path().to_str().unwrap()]);
    assert_eq!((code, error.as_str()), (0, ""));
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for command in culvert::cli::commands() {
        assert!(
            page(&format!("culvert-{}.1", command.name)).contains(".TH"),
            "{}",
            command.name
        );
    }
    assert!(page("culvert.1").contains("culvert\\-serve"));
    assert!(page("culvert-serve.1").contains("edge\\-http\\-addr"));
    assert!(!page("culvert-admin-backup.1").contains("edge\\-http\\-addr"));
    let (_, version, _) = run(&["--version"]);
    assert!(version.contains(std::env::consts::ARCH), "{version}");
}

/// A URL as its clients see it, over TLS and in the clear: what works, and what to change where something does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_is_examined_as_its_clients_see_it() {
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.body_bytes_max = 1 << 20;
        settings.edge.redirect_http = false;
    })
    .await;
    let host = "seen.culvert.localhost";
    let policy = "on_http_request: [{actions: [{type: custom-response, config: {body: hello}}]}]";
    for scheme in ["http", "https"] {
        let url = format!("{scheme}://{host}");
        let body = json!({"url": url, "traffic_policy": policy});
        culvert.create("endpoints", body).await;
    }
    eventually("the policy answers", async || {
        culvert.get(host, "/").await.status == 200
    })
    .await;
    let data = culvert.settings.data_dir.display().to_string();
    let (http, https) = (culvert.http.to_string(), culvert.https.to_string());
    let examine = async |url: String, at: &str, more: &[&'static str]| {
        let (data, at, more) = (data.clone(), at.to_owned(), more.to_vec());
        let examined = tokio::task::spawn_blocking(move || {
            let fixed = [
                "doctor",
                &url,
                "--json",
                "--data-dir",
                &data,
                "--connect",
                &at,
            ];
            let (code, report, error) = run(&[&fixed[..], &more].concat());
            (code, findings(&report), error)
        });
        examined.await.unwrap()
    };
    let (code, found, error) = examine(format!("https://{host}/"), &https, &[]).await;
    let told = |area: &str, level: &str, text: &str| {
        let of_area = of(&found, area, level);
        assert!(
            of_area.iter().any(|it| it.contains(text)),
            "{area}: {found:#?}"
        );
    };
    assert_eq!((code, error.as_str()), (0, ""), "{found:#?}");
    told("tls", "ok", "TLS 1.3 with a valid certificate");
    told("old_tls", "ok", "TLS 1.2 is accepted");
    told("old_tls", "ok", "`edge.default_server_name` accepts them");
    told(
        "old_tls",
        "ok",
        "`edge.tls12_without_ems` accepts such clients",
    );
    told("old_tls", "ok", "TLS 1.1 is refused");
    told("old_tls", "ok", "TLS 1.0 is refused");
    told("http1.1", "ok", "got 200");
    told("http1.0", "ok", "got 200");
    told("http2", "ok", "got 200");
    told("websocket", "ok", "there is none at this path");
    told("upgrade", "ok", "got 200");
    told("h2c_upgrade", "ok", "got 200");
    told("upload", "warn", "POST of 8 MiB got 413");
    let mend = found.iter().find(|finding| finding["area"] == "upload");
    let mend = mend.unwrap()["mend"].as_str().unwrap();
    assert!(mend.contains("`edge.body_bytes_max`"), "{mend}");

    let small = ["--upload-mib", "1"];
    let (code, found, _) = examine(format!("http://{host}/"), &http, &small).await;
    assert_eq!(code, 0, "{found:#?}");
    assert!(of(&found, "tls", "ok").is_empty());
    let h2c = of(&found, "h2c", "ok");
    assert!(h2c.iter().any(|it| it.contains("got 200")), "{found:#?}");
    let upload = of(&found, "upload", "ok");
    assert!(upload.iter().any(|it| it.contains("got 200")), "{found:#?}");

    // A host without endpoint, a name without certificate, a port where nothing listens, and a text that is no URL.
    let none = ["--upload-mib", "0"];
    let unknown = "http://no.culvert.localhost/".to_owned();
    let (code, found, error) = examine(unknown, &http, &none).await;
    assert_eq!((code, of(&found, "upload", "ok").len()), (1, 0));
    let missing = of(&found, "http1.1", "fail");
    assert!(missing[0].contains("404 with ERR_NGROK_3200"), "{found:#?}");
    assert!(error.contains("checks failed"), "{error}");
    let foreign = "https://app.example.com/".to_owned();
    let (code, found, _) = examine(foreign, &https, &none).await;
    assert_eq!(
        (code, of(&found, "tls", "fail").len()),
        (1, 1),
        "{found:#?}"
    );
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = closed.local_addr().unwrap().to_string();
    drop(closed);
    let (code, found, _) = examine(format!("http://{host}/"), &at, &none).await;
    assert_eq!(code, 1);
    assert_eq!(of(&found, "connection", "fail").len(), 1, "{found:#?}");
    let (code, _, error) = run(&["doctor", "ftp://app.example.com"]);
    assert_eq!(code, 2, "{error}");
    culvert.stop().await;
}
