//! The program `culvert-agent`, as users run it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culvert-agent"));
    let output = command.env_clear().args(arguments).output();
    output.unwrap()
}

#[test]
fn it_has_the_commands_of_an_agent() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    for command in culvert_agent::commands::ALL {
        assert!(help.contains(&format!("\n  {}", command.name)), "{help}");
    }
    assert!(!help.contains("\n  serve "), "{help}");
    let version = run(&["--version"]);
    let version = String::from_utf8(version.stdout).unwrap();
    let expected = concat!("culvert-agent ", env!("CARGO_PKG_VERSION"), " (");
    assert!(version.starts_with(expected), "{version}");
}

#[test]
fn errors_name_the_program_and_have_its_exit_codes() {
    let no_token = run(&["http", "8080"]);
    assert_eq!(no_token.status.code(), Some(2));
    let said = String::from_utf8(no_token.stderr).unwrap();
    assert!(said.starts_with("culvert-agent: no authtoken"), "{said}");
    assert_eq!(run(&["serve"]).status.code(), Some(2));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.yml");
    std::fs::write(&file, "version: 3\nendpoints: 7\n").unwrap();
    let invalid = run(&["start", "--config", file.to_str().unwrap()]);
    assert_eq!(invalid.status.code(), Some(78), "{invalid:?}");
}
