//! Whole policies for common tasks: those of the guide, which are kept there alone.

use std::sync::LazyLock;

const GUIDE: &str = include_str!("../../../docs/how-to/traffic-policy.md");

/// A policy for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The task.
    pub title: String,
    /// The policy.
    pub text: String,
}

/// Every template, in the order of the guide: a block behind a comment with its title.
pub fn all() -> &'static [Template] {
    static ALL: LazyLock<Vec<Template>> = LazyLock::new(|| {
        let parts = GUIDE.split("<!-- template: ").skip(1);
        let found = parts.filter_map(|part| {
            let (title, rest) = part.split_once(" -->")?;
            let (language, rest) = rest.trim_start().strip_prefix("```")?.split_once('\n')?;
            let (text, _) = rest.split_once("```")?;
            matches!(language, "yaml" | "json").then(|| Template {
                title: title.to_owned(),
                text: text.to_owned(),
            })
        });
        found.collect()
    });
    &ALL
}
