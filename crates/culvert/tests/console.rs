//! The console in a real browser against the real binary: the suite in `console/tests`. A separate test binary,
//! so that no other test takes the processor from the browser. Without Node, its packages
//! (`scripts/console`) or Chromium the test is reported as ignored.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on should stop"
)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Those that `console/tests/browser.mjs` looks for.
const BROWSERS: [&str; 2] = ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"];

/// A server that ends with the test.
struct Server {
    child: Child,
    /// What it said where it accepts, such as `http=127.0.0.1:8080`.
    addresses: Vec<String>,
    folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_culvert"))
            .arg("serve")
            .env("CULVERT_DATA_DIR", folder.path().join("data"))
            .env("CULVERT_API__ADDR", "127.0.0.1:0")
            .env("CULVERT_EDGE__HTTP_ADDR", "127.0.0.1:0")
            .env("CULVERT_EDGE__HTTPS_ADDR", "127.0.0.1:0")
            .env("CULVERT_AGENTS__ADDR", "127.0.0.1:0")
            .env("CULVERT_AGENTS__SSH_ADDR", "127.0.0.1:0")
            .env("CULVERT_METRICS__ADDR", "127.0.0.1:0")
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("culvert ready"));
        let line = line.expect("the server becomes ready");
        Self {
            child,
            addresses: line.split(' ').map(str::to_owned).collect(),
            folder,
        }
    }

    fn address(&self, name: &str) -> &str {
        let mut found = self.addresses.iter();
        found.find_map(|one| one.strip_prefix(name)).unwrap()
    }

    fn agents(&self) -> String {
        let (_, port) = self.address("agents=").rsplit_once(':').unwrap();
        format!("localhost:{port}")
    }

    fn token(&self) -> String {
        let path = self.folder.path().join("data/bootstrap-key");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn console() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console")
}

/// Every page does its task, shows no error and has no fault of accessibility.
#[test]
fn the_console_works_in_a_browser() {
    let has_packages = console().join("node_modules/.installed").exists();
    let has_browser = BROWSERS.iter().any(|path| Path::new(path).exists());
    if !has_packages || !has_browser {
        culvert_testing::ignore(
            "no browser, or no packages for the console; scripts/console gets them",
        );
        return;
    }
    let server = Server::start();
    let api = server.address("api=");
    let (_, port) = api.rsplit_once(':').unwrap();
    let done = Command::new("npm")
        .args(["test", "--silent"])
        .current_dir(console())
        // Without TLS the session's cookie is set on a loopback name alone.
        .env("CULVERT_CONSOLE_URL", format!("http://localhost:{port}"))
        .env("CULVERT_API_URL", api)
        .env("CULVERT_API_KEY", server.token())
        .env("CULVERT_HTTP", server.address("http="))
        .env("CULVERT_PROGRAM", env!("CARGO_BIN_EXE_culvert"))
        .env("CULVERT_AGENTS", server.agents())
        .env("CULVERT_CA", server.folder.path().join("data/ca.pem"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{errors}");
}
