//! `culvert service`: systemd accepts the units, and a user's unit is installed, shown and removed. The service manager
//! is replaced by a script, because tests have none.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::binary;

/// Prints the unit of `culvert service install`.
fn unit(folder: &Path, arguments: &[&str]) -> String {
    for name in ["culvert.toml", "agent.yml"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    let output = binary()
        .current_dir(folder)
        .args(["service", "install", "--print"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn systemd_accepts_the_units() {
    let analyze = Command::new("systemd-analyze").arg("--version").output();
    if !analyze.is_ok_and(|output| output.status.success()) {
        culvert_testing::ignore("no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        (
            "culvert.service",
            &["serve", "--config", "culvert.toml"][..],
        ),
        ("culvert-agent.service", &["start", "--config", "agent.yml"]),
    ] {
        for is_user in [false, true] {
            let more: &[&str] = if is_user { &["--user"] } else { &[] };
            let text = unit(folder.path(), &[arguments, more].concat());
            let path = folder.path().join(name);
            std::fs::write(&path, &text).unwrap();
            let verify = |arguments: &[&str]| {
                let output = Command::new("systemd-analyze")
                    .args(arguments)
                    .arg(&path)
                    .env("XDG_RUNTIME_DIR", folder.path())
                    .output()
                    .unwrap();
                let text = |bytes| String::from_utf8(bytes).unwrap();
                (
                    output.status.success(),
                    text(output.stdout) + &text(output.stderr),
                )
            };
            let manager = if is_user { "--user" } else { "--system" };
            let verified = verify(&[manager, "verify", "--man=no"]);
            assert_eq!(verified, (true, String::new()), "{text}");
            if !is_user {
                let (is_hardened, found) =
                    verify(&["security", "--offline=true", "--threshold=20"]);
                assert!(is_hardened, "{found}");
            }
        }
    }
}

#[test]
fn a_user_service_is_installed_shown_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("bin")).unwrap();
    let script = "#!/bin/sh\necho \"$*\" >>\"$CALLS\"\ncase $2 in is-active) echo active;; esac\n";
    std::fs::write(at("bin/systemctl"), script).unwrap();
    std::fs::set_permissions(at("bin/systemctl"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(at("agent.yml"), "version: 3\n").unwrap();
    let run = |arguments: &[&str]| {
        let output = binary()
            .current_dir(folder.path())
            .env("PATH", format!("{}:/usr/bin:/bin", at("bin").display()))
            .env("CALLS", at("calls"))
            .env("XDG_CONFIG_HOME", folder.path())
            .arg("service")
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let installed = at("systemd/user/culvert-agent.service");
    assert_eq!(run(&["status", "--user"]).0, 1);
    let (code, _, error) = run(&["install", "--user", "--config", "agent.yml"]);
    assert_eq!(code, 0, "{error}");
    let unit = std::fs::read_to_string(&installed).unwrap();
    assert!(unit.contains("agent.yml --console-ui=false\n"), "{unit}");
    let (code, out, _) = run(&["status", "--user"]);
    assert_eq!((code, &out[..]), (0, "culvert-agent.service  active\n"));
    assert_eq!(run(&["uninstall", "--user"]).0, 0);
    assert!(!installed.exists());
    let calls = std::fs::read_to_string(at("calls")).unwrap();
    assert_eq!(
        calls.lines().collect::<Vec<_>>(),
        [
            "--user daemon-reload",
            "--user enable --now culvert-agent.service",
            "--user is-active culvert-agent.service",
            "--user disable --now culvert-agent.service",
            "--user daemon-reload",
        ]
    );
    // A unit that another program wrote is not touched.
    std::fs::write(&installed, "[Service]\n").unwrap();
    assert_eq!(run(&["install", "--user", "--config", "agent.yml"]).0, 1);
    assert_eq!(run(&["uninstall", "--user"]).0, 1);
    assert_eq!(std::fs::read_to_string(&installed).unwrap(), "[Service]\n");
}
