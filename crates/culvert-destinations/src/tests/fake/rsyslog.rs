//! A real syslog server for tests: rsyslog with a temporary folder, a free port and, if wanted, TLS.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{certificate, until};

/// A server that writes the parts of each message as JSON to a file.
pub(crate) struct Rsyslog {
    child: Child,
    pub(crate) port: u16,
    folder: tempfile::TempDir,
}

impl Drop for Rsyslog {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Rsyslog {
    /// `None` without `rsyslogd` or its driver of TLS; the test is then reported as ignored. With TLS, its certificate is
    /// for `syslog.example`.
    pub(crate) async fn start(is_tls: bool) -> Option<Self> {
        const PLACES: [&str; 2] = ["/usr/sbin/rsyslogd", "/usr/bin/rsyslogd"];
        let program = PLACES.into_iter().find(|place| Path::new(place).exists());
        let Some(program) = program.filter(|_| has_tls()) else {
            culvert_testing::ignore("`rsyslogd` with GnuTLS is not here");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        certificate(&folder, "syslog.example");
        let at = |name: &str| folder.path().join(name);
        let mode = if is_tls { "1" } else { "0" };
        std::fs::write(at("conf"), configuration(folder.path(), mode)).unwrap();
        let child = Command::new(program)
            .arg("-n")
            .arg("-f")
            .arg(at("conf"))
            .arg("-i")
            .arg(at("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            port: 0,
            folder,
        };
        let file = server.folder.path().join("port");
        until("rsyslog listens", || {
            let port = std::fs::read_to_string(&file).ok();
            server.port = port.and_then(|port| port.parse().ok()).unwrap_or(0);
            server.port != 0
        })
        .await;
        Some(server)
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// Kills the process, like a crash.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// The messages, once there are `count` of them.
    pub(crate) async fn received(&self, count: usize) -> Vec<Value> {
        let mut received = Vec::new();
        until("the messages", || {
            let text = std::fs::read_to_string(self.folder.path().join("out"));
            let text = text.unwrap_or_default();
            let values = serde_json::Deserializer::from_str(&text).into_iter();
            received = values.map_while(Result::ok).collect();
            received.len() >= count
        })
        .await;
        assert_eq!(received.len(), count);
        received
    }
}

/// Whether its driver for GnuTLS is installed, in the folder of this architecture.
fn has_tls() -> bool {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten();
    let folders = folders.flatten().map(|entry| entry.path());
    let mut all = folders.chain([PathBuf::from("/usr/lib")]);
    all.any(|folder| folder.join("rsyslog/lmnsd_gtls.so").exists())
}

fn configuration(folder: &Path, mode: &str) -> String {
    let folder = folder.display();
    let driver = match mode {
        "1" => r#"StreamDriver.Name="gtls" StreamDriver.AuthMode="anon""#,
        _ => r#"StreamDriver.Name="ptcp""#,
    };
    format!(
        r#"$MaxMessageSize 512k
global(workDirectory="{folder}" defaultNetstreamDriverCAFile="{folder}/cert.pem"
  defaultNetstreamDriverCertFile="{folder}/cert.pem" defaultNetstreamDriverKeyFile="{folder}/key.pem")
module(load="imtcp" {driver} StreamDriver.Mode="{mode}")
module(load="mmpstrucdata")
template(name="parts" type="list" option.jsonf="on") {{
  property(outname="facility" name="syslogfacility" format="jsonf")
  property(outname="severity" name="syslogseverity" format="jsonf")
  property(outname="time" name="timereported" dateFormat="rfc3339" format="jsonf")
  property(outname="host" name="hostname" format="jsonf")
  property(outname="app" name="app-name" format="jsonf")
  property(outname="msgid" name="msgid" format="jsonf")
  property(outname="message" name="msg" format="jsonf")
  property(outname="data" name="$!rfc5424-sd" format="jsonf")
}}
input(type="imtcp" port="0" address="127.0.0.1" listenPortFileName="{folder}/port" MaxFrameSize="500000")
action(type="mmpstrucdata" jsonRoot="$!")
action(type="omfile" file="{folder}/out" template="parts")
"#
    )
}
