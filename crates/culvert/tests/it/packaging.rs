//! Packages, image and chart: the suites in `tests/packaging`, which build them with the binary under test by
//! `packaging/build`. A suite whose tools are missing is reported as ignored; `scripts/packaging-tools` and the
//! packages that `./test` installs provide them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::sync::Mutex;

use super::layers::root;
use crate::harness::binary;

/// The suites build artefacts of the whole binary, so they run one after another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Debian packages are installed, upgraded under load without a lost request, removed and purged.
#[tokio::test(flavor = "multi_thread")]
async fn a_deb_is_installed_upgraded_under_load_and_purged() {
    on_a_machine("test_packages.Packages.test_deb").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rpm_is_installed_upgraded_under_load_and_erased() {
    on_a_machine("test_packages.Packages.test_rpm").await;
}

/// The README, the tutorial and the guides work as a reader pastes them, on an empty machine each.
#[tokio::test(flavor = "multi_thread")]
async fn the_documents_work_on_a_machine_with_the_package() {
    let named = [
        "ip", "named", "pebble", "openssl", "curl", "unshare", "minisign",
    ];
    if is_root() && has(&named) && has_readers_programs() {
        on_a_machine("test_guides").await;
    }
}

/// Whether the Debian root, if there is one, has all that readers of the documents have. Reports an older one as ignored.
fn has_readers_programs() -> bool {
    let wanted = std::fs::read_to_string(root().join("tests/docs/reader")).unwrap();
    let Ok(found) = std::fs::read_to_string(root().join("target/packaging/root.packages")) else {
        return true;
    };
    let found: Vec<&str> = found.trim().split(',').collect();
    let rows = wanted.lines().filter(|line| !line.starts_with('#'));
    let missing = rows
        .filter_map(|line| line.split_whitespace().nth(1))
        .find(|package| !found.contains(package));
    if let Some(package) = missing {
        culvert_testing::ignore(format_args!(
            "the Debian root has no `{package}`; scripts/packaging-tools makes it again"
        ));
    }
    missing.is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_inputs_make_the_same_packages() {
    if has(&["dpkg-deb", "rpmbuild", "readelf"]) {
        let test = "test_packages.Packages.test_the_same_inputs_make_the_same_packages";
        run(Path::new("python3"), test).await;
    }
}

/// The image has one layer and no rights, and its server is healthy on a read-only root.
#[tokio::test(flavor = "multi_thread")]
async fn the_image_is_small_and_runs_without_rights() {
    if is_root() && has(&["buildah", "skopeo", "umoci", "readelf", "unshare", "ip"]) {
        let python = environment().unwrap_or_else(|| PathBuf::from("python3"));
        run(&python, "test_image").await;
    }
}

/// The guide for containers works as a reader pastes it, with Podman in the place of Docker.
#[tokio::test(flavor = "multi_thread")]
async fn the_guide_for_containers_works_with_the_image() {
    if !is_root() || !has(&["buildah", "podman", "readelf", "unshare", "ip", "curl"]) {
        return;
    }
    // As the test does it. A container may not.
    let mounts = "mount --make-rprivate / && umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup";
    let mounted = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "sh", "-c", mounts])
        .output();
    match mounted {
        Ok(done) if done.status.success() => run(Path::new("python3"), "test_container").await,
        _ => culvert_testing::ignore("no control groups of the second version can be mounted here"),
    }
}

/// The chart renders what Kubernetes accepts, and what it rendered before.
#[tokio::test(flavor = "multi_thread")]
async fn the_chart_renders_what_kubernetes_accepts() {
    match environment() {
        Some(python) => run(&python, "test_chart").await,
        None => culvert_testing::ignore(
            "no Helm for the tests of the chart; scripts/packaging-tools installs it",
        ),
    }
}

/// systemd finds no mistake in the units, and little that an attacker could use.
#[test]
fn the_units_are_valid_and_hardened() {
    if !has(&["systemd-analyze"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let systemd = root().join("packaging/systemd");
    let program = binary().get_program().to_str().unwrap().to_owned();
    let here = |name: &str| folder.path().join(name);
    let units = ["culvert.service", "culvert-backup.service"];
    for unit in units {
        let text = std::fs::read_to_string(systemd.join(unit)).unwrap();
        std::fs::write(here(unit), text.replace("/usr/bin/culvert", &program)).unwrap();
    }
    for unit in ["culvert.socket", "culvert-backup.timer"] {
        std::fs::copy(systemd.join(unit), here(unit)).unwrap();
    }
    let analyze = |arguments: &[&str], units: &[&str]| {
        let output = Command::new("systemd-analyze")
            .args(arguments)
            .args(units.iter().map(|unit| here(unit)))
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout) + &text(output.stderr),
        )
    };
    assert_eq!(
        analyze(
            &["verify", "--man=no"],
            &[&units[..], &["culvert-backup.timer"]].concat()
        ),
        (true, String::new()),
        "systemd-analyze verify"
    );
    for unit in units {
        let (is_hardened, found) =
            analyze(&["security", "--offline=true", "--threshold=20"], &[unit]);
        assert!(is_hardened, "{found}");
    }
}

/// Every address of the socket unit is one of the settings in the package, so each socket is used.
#[test]
fn the_socket_unit_has_the_addresses_of_the_settings() {
    let packaging = root().join("packaging");
    let unit = std::fs::read_to_string(packaging.join("systemd/culvert.socket")).unwrap();
    let mut sockets: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ListenStream="))
        .collect();
    let file = packaging.join("culvert.toml");
    let settings = culvert::config::load(Some(&file), &std::collections::HashMap::new(), &[]);
    let settings = settings.unwrap();
    let mut listeners = [
        settings.edge.http_addr.as_str(),
        &settings.edge.https_addr,
        &settings.agents.addr,
        &settings.agents.ssh_addr,
        &settings.api.addr,
        &settings.metrics.addr,
    ];
    sockets.sort_unstable();
    listeners.sort_unstable();
    assert_eq!(sockets, listeners);
}

async fn on_a_machine(test: &str) {
    if !is_root()
        || !has(&[
            "systemd-nspawn",
            "nsenter",
            "dpkg-deb",
            "rpmbuild",
            "readelf",
        ])
    {
        return;
    }
    if !root().join("target/packaging/root.packages").is_file() {
        culvert_testing::ignore(
            "no Debian root to install packages in; scripts/packaging-tools makes it",
        );
        return;
    }
    run(Path::new("python3"), test).await;
}

fn is_root() -> bool {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        culvert_testing::ignore("this test mounts and needs root");
    }
    is_root
}

/// Whether all programs are here. Reports a missing one as ignored.
fn has(programs: &[&str]) -> bool {
    let path = culvert::config::environment();
    let path = path.get("PATH").cloned().unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .collect();
    for program in programs {
        if !folders.iter().any(|folder| folder.join(program).is_file()) {
            culvert_testing::ignore(format_args!("`{program}` is not here"));
            return false;
        }
    }
    true
}

/// The Python of the environment with Helm, if `scripts/packaging-tools` made it.
fn environment() -> Option<PathBuf> {
    let place = root().join("target/packaging/python");
    // The script writes this copy last.
    let is_whole = place.join("requirements.txt").exists();
    is_whole.then(|| place.join("bin/python"))
}

/// Runs a suite, or one test of it, with the binary under test, without its symbols.
async fn run(python: &Path, test: &str) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("culvert");
    let program = binary().get_program().to_owned();
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&small)
        .arg(&program)
        .status();
    if !stripped.is_ok_and(|status| status.success()) {
        std::fs::copy(&program, &small).unwrap();
    }
    let mut command = Command::new(python);
    for (name, value) in binary().get_envs() {
        if value.is_none() {
            command.env_remove(name);
        }
    }
    let output = command
        .args(["-B", "-m", "unittest", test])
        .current_dir(root().join("tests/packaging"))
        .env("CULVERT_BINARY", &small)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}
