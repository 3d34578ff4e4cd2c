//! `culvert demo --once`, the first command of the README.

use crate::harness::binary;

#[test]
fn the_demonstration_shows_a_key_a_request_and_its_event() {
    let shown = binary().args(["demo", "--once"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    for part in [
        "POST /api_keys -> ak_",
        "-> 200",
        "api_key_created.v0",
        "http_request_complete.v0",
        "\"status_code\":200",
    ] {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
    assert!(
        !text.contains("quiet.culvert.localhost\",\"http_request"),
        "the filter holds back the quiet one"
    );
    assert!(text.lines().count() < 40, "it fits on one screen:\n{text}");
}
