//! Generated documents are current: a stale one is rewritten here, and the test fails once so that
//! the difference is looked at and committed.

use super::layers::root;

#[test]
fn generated_documents_are_current() {
    let pages = [
        ("docs/reference/settings.md", culvert::config::reference()),
        (
            "docs/reference/events.md",
            culvert_control::catalogue().markdown(),
        ),
        (
            "docs/reference/traffic-policy.md",
            culvert_edge::reference(),
        ),
        (
            "docs/reference/api.md",
            culvert_api::reference::api(culvert_control::operations()),
        ),
        ("docs/reference/edge-errors.md", culvert_edge::errors()),
        ("docs/reference/sizes.md", culvert_edge::sizes()),
        ("docs/reference/errors.md", culvert_api::reference::errors()),
        ("docs/reference/commands.md", culvert::cli::reference()),
        (
            "docs/openapi.json",
            format!(
                "{:#}\n",
                culvert_api::openapi(culvert_control::operations())
            ),
        ),
    ];
    let mut stale = Vec::new();
    for (path, text) in pages {
        let file = root().join(path);
        if std::fs::read_to_string(&file).unwrap_or_default() != text {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, text).unwrap();
            stale.push(path);
        }
    }
    assert!(
        stale.is_empty(),
        "rewritten, look at them and commit them: {stale:?}"
    );
}
