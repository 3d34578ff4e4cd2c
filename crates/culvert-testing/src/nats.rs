//! A real NATS server for tests, each with a temporary folder and a free port.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A server with JetStream, a user and a password.
#[derive(Debug)]
pub struct NatsServer {
    child: Child,
    /// Its port on this machine.
    pub port: u16,
    arguments: Vec<String>,
    folder: tempfile::TempDir,
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl NatsServer {
    /// The name of the user.
    pub const USER: &str = "culvert";
    /// The password of the user.
    pub const PASSWORD: &str = "n4ts-s3cr3t";

    /// `None` without `nats-server`; the test is then reported as ignored.
    pub async fn start(more: &[&str]) -> Option<Self> {
        let login = ["--user", Self::USER, "--pass", Self::PASSWORD];
        Self::start_with(&[&login, more].concat()).await
    }

    /// Like [`Self::start`], with all arguments except the location.
    pub async fn start_with(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        // Port -1: the server selects a free port and writes it to a file.
        let Ok(child) = spawn(folder.path(), "-1", &arguments) else {
            crate::ignore("`nats-server` is not here");
            return None;
        };
        let mut server = Self {
            child,
            port: 0,
            arguments,
            folder,
        };
        server.port = server.wait().await;
        Some(server)
    }

    /// A cluster of three servers.
    pub async fn start_cluster() -> Option<[Self; 3]> {
        // Each server needs the addresses of the others before any of them runs.
        let free = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let places = free.map(|free| format!("nats://{}", free.local_addr().unwrap()));
        let routes = places.join(",");
        let [one, two, three] = ["one", "two", "three"];
        let server = async |name, at: usize| {
            let cluster = ["--cluster", &places[at], "--cluster_name", "culvert"];
            let known = ["--routes", &routes, "--server_name", name];
            Self::start(&[cluster, known].concat()).await
        };
        let (one, two, three) = tokio::join!(server(one, 0), server(two, 1), server(three, 2));
        Some([one?, two?, three?])
    }

    /// Its URL with user and password.
    pub fn url(&self) -> String {
        let (user, password) = (Self::USER, Self::PASSWORD);
        format!("nats://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Kills the process, like a crash.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Restarts it at the same address with its stored data.
    pub async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), &self.port.to_string(), &self.arguments).unwrap();
        self.wait().await;
    }

    /// Deletes all stored data.
    pub fn wipe(&self) {
        std::fs::remove_dir_all(self.folder.path().join("js")).unwrap();
    }

    /// Removes the messages of a stream of a killed server, and leaves the states of its consumers.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn wipe_messages(&self, stream: &str) {
        let streams = self.folder.path().join("js/jetstream/$G/streams");
        let messages = streams.join(stream).join("msgs");
        for file in std::fs::read_dir(messages).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }

    async fn wait(&self) -> u16 {
        let name = format!("nats-server_{}.ports", self.child.id());
        let ports = self.folder.path().join(name);
        let began = std::time::Instant::now();
        loop {
            if let Some(port) = port_in(&ports) {
                return port;
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the server never said its port"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn spawn(folder: &Path, port: &str, arguments: &[String]) -> std::io::Result<Child> {
    let at = |name: &str| folder.join(name).display().to_string();
    Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", port, "-js", "-sd", &at("js")])
        .args(["--ports_file_dir", &folder.display().to_string()])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn port_in(file: &Path) -> Option<u16> {
    let text = std::fs::read_to_string(file).ok()?;
    let ports: Value = serde_json::from_str(&text).ok()?;
    let urls = ports["nats"].as_array()?;
    urls.first()?.as_str()?.rsplit(':').next()?.parse().ok()
}
