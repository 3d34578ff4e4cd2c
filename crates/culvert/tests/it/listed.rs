//! A file in a folder that has a table is listed in it, in order.

use super::layers::root;

/// Folders whose `mod.rs` holds a table of what the files export.
const TABLES: &[(&str, &str)] = &[
    ("crates/culvert/src/cli", "TYPE"),
    ("crates/culvert-agent/src/commands", "TYPE"),
    ("crates/culvert-cli/src/commands", "TYPE"),
    ("crates/culvert-server/src/commands", "TYPE"),
    ("crates/culvert-actions/src/action", "TYPE"),
    ("crates/culvert-destinations/src/target", "TYPE"),
    ("crates/culvert-events/src/kinds", ""),
];

/// Files that those folders share and that add nothing to the table.
const SHARED: &[&str] = &[
    "aws_resource",
    "command",
    "envelope",
    "examples",
    "http_intake",
    "message",
    "message_pieces",
    "output",
    "prompt",
    "record_stream",
    "settings",
    "table",
    "troubles",
    "verdict",
];

#[test]
fn every_file_of_a_table_folder_is_listed_and_the_list_is_sorted() {
    for (folder, export) in TABLES {
        let table = std::fs::read_to_string(root().join(folder).join("mod.rs")).unwrap();
        let start = table
            .find("ALL")
            .unwrap_or_else(|| panic!("{folder}/mod.rs has no table"));
        let list = table[start..].split("];").next().unwrap();
        let mut names: Vec<String> = std::fs::read_dir(root().join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|file| file.strip_suffix(".rs").map(String::from))
            .filter(|name| !["mod", "tests"].contains(&name.as_str()) && !name.ends_with("_tests"))
            .filter(|name| !SHARED.contains(&name.as_str()))
            .collect();
        names.sort();
        let mut last = 0;
        for name in names {
            let source =
                std::fs::read_to_string(root().join(folder).join(format!("{name}.rs"))).unwrap();
            if !export.is_empty() && !source.contains(&format!("static {export}:")) {
                panic!("{folder}/{name}.rs exports no `static {export}`");
            }
            let entry = format!("{name}::");
            let is_whole = |at: &usize| {
                let before = list.get(..*at).and_then(|text| text.chars().next_back());
                !before.is_some_and(|it| it.is_alphanumeric() || it == '_')
            };
            let mut found = list.match_indices(&entry).map(|(at, _)| at);
            let at = found
                .find(is_whole)
                .unwrap_or_else(|| panic!("{folder}/{name}.rs is not listed"));
            assert!(at > last, "{folder}: `{name}` is out of order");
            last = at;
        }
    }
}
