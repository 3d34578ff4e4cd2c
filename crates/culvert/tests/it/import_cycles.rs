//! Which files of a crate refer to each other in a cycle. All paths count: `use`, inline paths, and paths
//! through a re-export, which lead to the file that defines the item. Method calls count too: a call leads to the file
//! that defines the method, if the crate has one method of that name. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::layers::root;

/// Files in one cycle, at most.
const FILES_MAX: usize = 6;
/// The crates with a larger cycle. The numbers only become smaller.
const LARGER: [(&str, usize); 5] = [
    ("culvert-cel", 12),
    ("culvert-edge", 32),
    ("culvert-http", 15),
    ("culvert-resources", 13),
    ("culvert-server", 7),
];

/// Methods of foreign types that one of ours also has.
const FOREIGN_METHODS: &str = "accept add all and append authority batch begin bytes cancel chain changed check chunks clear code collect commit complete contains \
    content copy count data decode drain empty encode enter entry event expect extend fields fill filter find finish \
    first flush get grow host hop id insert is_closed is_connected is_done is_empty is_full is_none join keep last len level \
    limits lines list listen load lock message metadata name names next now open parts path pause payload pending \
    poll_close poll_closed poll_next poll_read poll_write pop port position problem push read refresh register \
    remove replace reserve reset rest retry reverse run save search seek send set size spawn split start status store \
    stream sum swap table take trim u64 u8 update upgrade url values verify version wait wake with write zip";

#[test]
fn no_large_group_of_files_imports_in_a_cycle() {
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap();
        let name = folder.file_name().into_string().unwrap();
        let cycles = Crate::read(&folder.path().join("src")).cycles();
        let largest = cycles.iter().max_by_key(|cycle| cycle.len());
        let n_files = largest.map_or(0, Vec::len);
        let files = largest.map_or(String::new(), |cycle| cycle.join(", "));
        match LARGER.iter().find(|(known, _)| *known == name) {
            None => assert!(
                n_files <= FILES_MAX,
                "{name}: {n_files} files in a cycle: {files}"
            ),
            Some((_, most)) => {
                assert_eq!(n_files, *most, "{name}: write the lower number; {files}")
            }
        }
    }
}

#[test]
fn calls_of_methods_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    write("lib.rs", "mod one;\nmod other;\nmod third;\n");
    let one =
        "pub struct One;\nimpl One {\n    fn settle(&self, other: impl Copy) { other.weigh(); }\n}";
    write("one.rs", one);
    write("third.rs", "");
    let weigh = "fn weigh(&self) {}";
    for (other, is_cycle) in [
        (
            "use crate::one::One;\npub struct O;\nimpl O { fn weigh(&self) {} }",
            true,
        ),
        (
            "use crate::one::One;\npub trait O { fn weigh(&self); }",
            true,
        ),
        // Not a method, and the method of a trait that is defined elsewhere.
        (
            "use crate::one::One;\nimpl O { fn weigh(other: &O) {} }",
            false,
        ),
        (
            "use crate::one::One;\nimpl Scale for O { fn weigh(&self) {} }",
            false,
        ),
    ] {
        write("other.rs", other);
        let cycles = Crate::read(folder.path()).cycles();
        assert_eq!(!cycles.is_empty(), is_cycle, "{other}");
    }
    // It may be either of two.
    write(
        "other.rs",
        &format!("use crate::one::One;\nimpl O {{ {weigh} }}"),
    );
    write("third.rs", &format!("impl Third {{ {weigh} }}"));
    assert!(Crate::read(folder.path()).cycles().is_empty());
}

#[test]
fn every_form_of_import_path_is_counted() {
    let cycles = |one: &str, other: &str| {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("lib.rs", "mod one;\nmod other;\npub use one::One;\n");
        write("one.rs", one);
        write("other.rs", other);
        Crate::read(folder.path()).cycles()
    };
    let one = "pub struct One(crate::other::Other);";
    let both = vec![vec![String::from("one"), String::from("other")]];
    for other in [
        "use crate::one::One; pub struct Other;",
        "use super::one::{self as first}; pub struct Other(Box<first::One>);",
        "use crate::one; pub struct Other(Box<one::One>);",
        "use crate::one::*; pub struct Other(Box<One>);",
        "pub struct Other(Box<crate::one::One>);",
        "use crate::One; pub struct Other(Box<One>);",
        "pub struct Other(Box<super::One>);",
    ] {
        assert_eq!(cycles(one, other), both, "{other}");
    }
    for other in [
        "pub struct Other; // crate::one::One",
        "pub struct Other; const TEXT: &str = \"crate::one::One\";",
        "pub struct Other; #[cfg(test)] mod tests { use crate::one::One; }",
    ] {
        assert!(cycles(one, other).is_empty(), "{other}");
    }
}

/// Names from the root of a crate to a module or an item.
type Names = Vec<String>;

/// A module that has a file.
#[derive(Default)]
struct Module {
    tokens: Vec<String>,
    /// Items that the file defines.
    defined: BTreeSet<String>,
    /// Names that `use` brings in, and where they come from.
    imported: BTreeMap<String, Names>,
    /// Modules whose items `use` brings in with `*`.
    globs: Vec<Names>,
    /// Methods that the file defines, for its types or in a trait.
    methods: BTreeSet<String>,
}

/// The files of a crate by module.
pub struct Crate {
    modules: BTreeMap<Names, Module>,
}

impl Crate {
    /// The crate whose sources are below `folder`.
    pub fn read(folder: &Path) -> Self {
        let mut modules = BTreeMap::new();
        read_module(folder, "lib", Vec::new(), &mut modules);
        Self { modules }
    }

    /// Groups of files that refer to each other in cycles.
    pub fn cycles(&self) -> Vec<Vec<String>> {
        let edges: BTreeMap<&Names, BTreeSet<&Names>> = self
            .modules
            .iter()
            .map(|(name, module)| (name, self.references(name, module)))
            .collect();
        let reachable: BTreeMap<&Names, BTreeSet<&Names>> = edges
            .keys()
            .map(|from| {
                let mut reached = BTreeSet::new();
                let mut next: Vec<&Names> = edges[from].iter().copied().collect();
                while let Some(module) = next.pop() {
                    if reached.insert(module) {
                        next.extend(&edges[module]);
                    }
                }
                (*from, reached)
            })
            .collect();
        let groups: BTreeSet<Vec<String>> = edges
            .keys()
            .map(|name| {
                let both = reachable[name]
                    .iter()
                    .filter(|other| reachable[**other].contains(name));
                both.map(|other| other.join("::")).collect()
            })
            .collect();
        groups.into_iter().filter(|group| group.len() > 1).collect()
    }

    /// The other modules that items of a module refer to.
    fn references(&self, name: &Names, module: &Module) -> BTreeSet<&Names> {
        let mut paths: Vec<Names> = module.imported.values().cloned().collect();
        for (at, token) in module.tokens.iter().enumerate() {
            let starts = at == 0 || module.tokens[at - 1] != "::";
            let continues = module.tokens.get(at + 1).is_some_and(|next| next == "::");
            if starts && continues && is_name(token) {
                let path = module.tokens[at..].iter().step_by(2);
                let separators = module.tokens[at + 1..].iter().step_by(2);
                let mut names = vec![token.clone()];
                for (segment, _) in path.skip(1).zip(separators.take_while(|t| *t == "::")) {
                    if !is_name(segment) {
                        break;
                    }
                    names.push(segment.clone());
                }
                paths.push(names);
            }
        }
        let calls = module
            .calls()
            .filter_map(|call| self.only_definition_of(call));
        let items = paths.iter().filter_map(|path| self.resolve(name, path, 0));
        // With `*`, the module is named and the items are not.
        let globs = module.globs.iter().filter_map(|path| {
            let mut item = path.clone();
            item.push(String::from("*"));
            self.resolve(name, &item, 0)
        });
        let all = items.chain(globs).chain(calls);
        all.filter(|other| *other != name).collect()
    }

    /// The one module that defines a method of this name.
    fn only_definition_of(&self, method: &str) -> Option<&Names> {
        let mut modules = self.modules.iter();
        let (name, _) = modules.find(|(_, module)| module.methods.contains(method))?;
        let is_the_only = !modules.any(|(_, module)| module.methods.contains(method));
        let is_foreign = FOREIGN_METHODS.split(' ').any(|foreign| foreign == method);
        (is_the_only && !is_foreign).then_some(name)
    }

    /// The module whose file defines the item at `path`, as written in `module`; none if the path names a
    /// module or leaves the crate.
    fn resolve(&self, module: &Names, path: &[String], depth: usize) -> Option<&Names> {
        let mut at = module.clone();
        for (index, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop();
                }
                _ => {
                    let mut child = at.clone();
                    child.push(segment.clone());
                    if self.modules.contains_key(&child) {
                        at = child;
                        continue;
                    }
                    let (key, here) = self.modules.get_key_value(&at)?;
                    if here.defined.contains(segment) || segment == "*" {
                        return Some(key);
                    }
                    if depth > 8 {
                        return None;
                    }
                    if let Some(source) = here.imported.get(segment) {
                        let mut whole = source.clone();
                        whole.extend(path[index + 1..].iter().cloned());
                        let is_itself = source.len() == 1 && source[0] == *segment;
                        return if is_itself {
                            None
                        } else {
                            self.resolve(&at, &whole, depth + 1)
                        };
                    }
                    return here.globs.iter().find_map(|glob| {
                        let mut whole = glob.clone();
                        whole.extend(path[index..].iter().cloned());
                        self.resolve(&at, &whole, depth + 1)
                    });
                }
            }
        }
        None
    }
}

/// Reads the module `stem` in `folder`, and the modules that it declares.
fn read_module(folder: &Path, stem: &str, name: Names, modules: &mut BTreeMap<Names, Module>) {
    let inner = if name.is_empty() {
        folder.to_owned()
    } else {
        folder.join(stem)
    };
    let text = std::fs::read_to_string(folder.join(format!("{stem}.rs")))
        .or_else(|_| std::fs::read_to_string(inner.join("mod.rs")))
        .unwrap_or_else(|error| panic!("{} {stem}: {error}", folder.display()));
    let tokens = without_tests(tokens(&text));
    let mut module = Module::default();
    let mut depth = 0;
    let mut at = 0;
    // A method of a trait is defined where the trait is.
    let mut implements_trait = false;
    while at < tokens.len() {
        let next = tokens.get(at + 1).map_or("", String::as_str);
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "impl" if depth == 0 => {
                let mut header = tokens[at..].iter().take_while(|token| *token != "{");
                implements_trait = header.any(|token| token == "for");
            }
            "trait" if depth == 0 => {
                implements_trait = false;
                module.defined.insert(next.to_owned());
            }
            "fn" if depth == 1 && !implements_trait && takes_self(&tokens[at..]) => {
                module.methods.insert(next.to_owned());
            }
            "use" => {
                let end = at + tokens[at..].iter().position(|t| t == ";").unwrap();
                module.import(&mut tokens[at + 1..end].iter().peekable(), &[]);
                at = end;
            }
            "mod" if tokens.get(at + 2).is_some_and(|t| t == ";") => {
                let mut child = name.clone();
                child.push(next.to_owned());
                read_module(&inner, next, child, modules);
            }
            "struct" | "enum" | "type" | "fn" | "const" | "static" | "union" | "mod"
                if depth == 0 =>
            {
                module.defined.insert(next.to_owned());
            }
            "macro_rules" => {
                module.defined.insert(tokens[at + 2].clone());
            }
            _ => {}
        }
        if tokens[at] != ";" || module.tokens.last().is_none_or(|last| last != ";") {
            module.tokens.push(tokens[at].clone());
        }
        at += 1;
    }
    modules.insert(name, module);
}

impl Module {
    /// The methods that the file calls.
    fn calls(&self) -> impl Iterator<Item = &str> {
        let calls = self.tokens.windows(3).filter(|three| {
            three[0] == "." && is_name(&three[1]) && matches!(three[2].as_str(), "(" | "::")
        });
        calls.map(|three| three[1].as_str())
    }

    /// Reads one tree of a `use`, whose path so far is `prefix`.
    fn import<'t>(
        &mut self,
        tokens: &mut std::iter::Peekable<impl Iterator<Item = &'t String>>,
        prefix: &[String],
    ) {
        let mut path = prefix.to_vec();
        while let Some(token) = tokens.next() {
            match token.as_str() {
                "::" => {}
                "*" => return self.globs.push(path),
                "{" => {
                    while tokens.peek().is_some_and(|next| *next != "}") {
                        self.import(tokens, &path);
                        if tokens.peek().is_some_and(|next| *next == ",") {
                            tokens.next();
                        }
                    }
                    tokens.next();
                    return;
                }
                "as" => {
                    let alias = tokens.next().unwrap().clone();
                    self.imported.insert(alias, path);
                    return;
                }
                "self" if !prefix.is_empty() && path.len() == prefix.len() => {}
                name => path.push(name.to_owned()),
            }
            if tokens
                .peek()
                .is_none_or(|next| matches!(next.as_str(), "," | "}"))
            {
                break;
            }
        }
        if let Some(name) = path.last() {
            self.imported.insert(name.clone(), path.clone());
        }
    }
}

/// Whether the function at the beginning of `tokens` is a method.
fn takes_self(tokens: &[String]) -> bool {
    let first = tokens.iter().skip_while(|token| *token != "(").skip(1);
    let mut first = first.take_while(|token| !matches!(token.as_str(), ":" | "," | ")"));
    first.any(|token| token == "self")
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Drops the items behind `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].iter().take(TEST.len()).eq(TEST.iter()) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += TEST.len();
        let mut depth = 0;
        while at < tokens.len() {
            let token = tokens[at].as_str();
            at += 1;
            match token {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            if depth < 0 {
                at -= 1;
            }
            if depth < 0 || depth == 0 && matches!(token, ";" | "}" | ",") {
                break;
            }
        }
    }
    kept
}

/// Names, `::` and single characters; no comments, no literals.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['"', ..] => quoted(rest),
            ['\'', '\\', ..] => 3 + rest[3..].iter().take_while(|c| **c != '\'').count() + 1,
            ['\'', _, '\'', ..] => 3,
            ['\'', ..] => 1 + rest[1..].iter().take_while(|c| is_part(c)).count(),
            ['r', '"' | '#', ..] | ['b', 'r', '"' | '#', ..] if raw(rest) > 0 => raw(rest),
            ['b', '"' | '\'', ..] => 1,
            [':', ':', ..] => {
                tokens.push("::".to_owned());
                2
            }
            [first, ..] if is_part(first) => {
                let length = rest.iter().take_while(|c| is_part(c)).count();
                tokens.push(rest[..length].iter().collect());
                length
            }
            [first, ..] => {
                if !first.is_whitespace() {
                    tokens.push(first.to_string());
                }
                1
            }
            [] => break,
        };
        at += length;
    }
    tokens
}

/// The length of the string literal that `chars` begins with.
fn quoted(chars: &[char]) -> usize {
    let mut at = 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of the raw string literal that `chars` begins with; 0 without one.
fn raw(chars: &[char]) -> usize {
    let start = chars.iter().take_while(|c| matches!(c, 'b' | 'r')).count();
    let hashes = chars[start..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + hashes) != Some(&'"') {
        return 0;
    }
    let body = start + hashes + 1;
    let end = (body..chars.len()).find(|at| {
        chars[*at] == '"'
            && chars[at + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes
    });
    end.map_or(chars.len() - 1, |end| end + hashes) + 1
}
