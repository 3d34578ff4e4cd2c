//! Categories of addresses: lists of networks, by name.
//!
//! A list is a text file with one network (`192.0.2.0/24`, `2001:db8::/32`) or address per line. Empty lines,
//! and text after `#` or `;`, are ignored.

use std::net::IpAddr;
use std::path::Path;

use culvert_base::{IpSet, Prefix, Verdict};

use crate::address::prefix;

/// Maximum number of lists: an address is looked up in each.
const LISTS_MAX: usize = 256;
/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Lists by name.
#[derive(Debug, Default)]
pub(crate) struct Categories(Vec<(String, IpSet)>);

impl Categories {
    /// Adds the list of a file. The error completes a sentence that begins with the path.
    pub(crate) fn read(&mut self, name: &str, path: &Path) -> Result<(), String> {
        let is_label = |label: &str| {
            let is_fit = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
            };
            !label.is_empty() && label.bytes().all(is_fit)
        };
        if name.len() > NAME_BYTES_MAX || !name.split('.').all(is_label) {
            return Err(format!(
                "has the invalid list name `{name}`; a name must be dot-separated labels of lower-case letters, digits, `-` and `_`"
            ));
        }
        if self.0.iter().any(|(known, _)| known == name) {
            return Err(format!("has the duplicate list name `{name}`"));
        }
        if self.0.len() == LISTS_MAX {
            return Err(format!("exceeds the limit of {LISTS_MAX} lists"));
        }
        let cannot = |error: std::io::Error| format!("cannot be read: {error}");
        if std::fs::metadata(path).map_err(cannot)?.len() > FILE_BYTES_MAX {
            return Err(format!("is larger than {} MiB", FILE_BYTES_MAX >> 20));
        }
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        self.0.push((name.to_owned(), networks(&text)?));
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lists of a category, including those of its subcategories.
    fn lists(&self, category: &str) -> impl Iterator<Item = &IpSet> {
        let is_in = move |name: &str| {
            let below = name.strip_prefix(category);
            below.is_some_and(|below| below.is_empty() || below.starts_with('.'))
        };
        let lists = self.0.iter().filter(move |(name, _)| is_in(name));
        lists.map(|(_, list)| list)
    }

    /// Whether the category exists.
    pub(crate) fn has(&self, category: &str) -> bool {
        self.lists(category).next().is_some()
    }

    /// Whether an address is in a category.
    pub(crate) fn contain(&self, category: &str, address: IpAddr) -> bool {
        self.lists(category).any(|list| list.contains(address))
    }

    /// The categories of an address, sorted and without duplicates.
    pub(crate) fn of(&self, address: IpAddr) -> Vec<&str> {
        let mut found = Vec::new();
        for (name, list) in &self.0 {
            if list.contains(address) {
                let ends = name.match_indices('.').map(|(at, _)| at);
                found.extend(ends.filter_map(|end| name.get(..end)));
                found.push(name);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn networks(text: &str) -> Result<IpSet, String> {
    let mut networks: Vec<(Verdict, Prefix)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let written = line.split(['#', ';']).next().unwrap_or_default().trim();
        if written.is_empty() {
            continue;
        }
        let Some(network) = prefix(written) else {
            let shown: String = written.chars().take(64).collect();
            return Err(format!(
                "has `{shown}` in line {}, which is neither a network such as `192.0.2.0/24` nor an IP address",
                index + 1
            ));
        };
        networks.push((Verdict::Allow, network));
    }
    // A job that truncates the file before writing it must not disable a block list.
    if networks.is_empty() {
        return Err("contains no network".to_owned());
    }
    Ok(IpSet::of(networks))
}
