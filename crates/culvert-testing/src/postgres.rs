//! PostgreSQL servers of a test's own: stopped, started again, replicated and promoted.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ignore;

/// A PostgreSQL server behind a socket in a folder.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
}

impl Postgres {
    /// A new server in an empty folder. `None` without its programs; the test is then reported as ignored.
    ///
    /// # Panics
    ///
    /// When the server cannot be started.
    pub fn start(folder: &Path) -> Option<Self> {
        let server = Self::in_folder(folder)?;
        if !server.run("initdb", &["-A", "trust", "-U", "postgres", "-k"]) {
            ignore("a PostgreSQL server of the test's own cannot be made");
            return None;
        }
        // So that a server that follows another finds where their histories part.
        let settings = server.folder.join("data/postgresql.conf");
        let mut settings = OpenOptions::new()
            .append(true)
            .open(settings)
            .expect("its settings");
        settings
            .write_all(b"wal_keep_size = 128MB\n")
            .expect("its settings");
        server.resume();
        Some(server)
    }

    /// A standby of this server in an empty folder, with streaming replication.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn standby(&self, folder: &Path) -> Self {
        let standby = Self::in_folder(folder).expect("the programs are here");
        let from = self.folder.display().to_string();
        let copy = [
            "-h", &from, "-U", "postgres", "-R", "-X", "stream", "-c", "fast",
        ];
        assert!(standby.run("pg_basebackup", &copy), "copying the server");
        standby.resume();
        standby
    }

    /// Makes this server, which was stopped, a standby of the one that was promoted after it. What only this one has is
    /// undone (`pg_rewind`).
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn follow(&self, primary: &Self) {
        let source = format!("host={} user=postgres", primary.folder.display());
        let rewind = ["--source-server", &source, "-R"];
        assert!(self.run("pg_rewind", &rewind), "undoing commits");
        self.resume();
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
        let programs = versions.into_iter().flatten().flatten();
        let programs = programs.map(|version| version.path().join("bin"));
        let Some(programs) = programs.filter(|bin| bin.join("initdb").exists()).max() else {
            ignore("PostgreSQL's own programs are not here");
            return None;
        };
        // It does not run as root, and whom it runs as makes its files here.
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder, open).expect("the folder is the test's own");
        let folder = folder.to_owned();
        Some(Self { programs, folder })
    }

    /// Its URL, over the socket.
    pub fn url(&self) -> String {
        let folder = self.folder.display();
        format!("postgres://postgres@localhost/postgres?host={folder}")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Starts it after a stop.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn resume(&self) {
        let folder = self.folder.display().to_string();
        let options = format!("-k {folder} -c listen_addresses= -c fsync=off");
        let log = format!("{folder}/log");
        let start = ["-w", "-l", &log, "-o", &options, "start"];
        assert!(self.run("pg_ctl", &start), "starting the server");
    }

    /// Stops it immediately, without closing connections. False if it did not run.
    pub fn stop(&self) -> bool {
        self.run("pg_ctl", &["-m", "immediate", "stop"])
    }

    /// Makes a standby a primary.
    ///
    /// # Panics
    ///
    /// When it is no standby.
    pub fn promote(&self) {
        assert!(self.run("pg_ctl", &["-w", "promote"]), "promoting");
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        let program = self.programs.join(program);
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        let mut command = match is_root {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", "postgres", "--"]).arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .arg("-D")
            .arg(self.folder.join("data"))
            .args(arguments);
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
