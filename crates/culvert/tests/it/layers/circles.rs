//! Circles of imports: files of a crate that all need each other, by whatever path, so that none can be read or
//! changed alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module by its segments; the crate itself has none.
type Module = Vec<String>;

/// Most files of `culvert-control` in one circle.
const FILES_MAX: usize = 6;

#[test]
fn no_circle_in_control_is_large() {
    let mut files = BTreeMap::new();
    read(
        &super::root().join("crates/culvert-control/src"),
        &[],
        &mut files,
    );
    assert!(files.len() > 80, "{} files", files.len());
    for circle in circles(&files) {
        let names: Vec<_> = circle.iter().map(|module| module.join("/")).collect();
        assert!(names.len() <= FILES_MAX, "{}: {names:?}", names.len());
    }
}

/// Every way by which one file names another counts.
#[test]
fn a_circle_is_found_by_every_path() {
    let tree = |of_a: &str| -> BTreeMap<Module, String> {
        let files = [
            ("", "mod a; mod b; mod c; pub use crate::a::Thing;"),
            ("a", of_a),
            ("b", "use crate::c::{self, Other as Name};"),
            ("c", "fn f() -> crate::Thing { todo() }"),
            ("c/d", ""),
        ];
        let files = files.map(|(name, text)| {
            let segments = name.split('/').filter(|one| !one.is_empty());
            (segments.map(str::to_owned).collect(), text.to_owned())
        });
        files.into()
    };
    for of_a in [
        "use crate::{x, b::Thing};",
        "use super::b;",
        "fn f() { crate::b::f() }",
        "fn f() { super::b::f() }",
        "pub(crate) use crate::b::{g, h::{i}};",
    ] {
        let found = circles(&tree(of_a));
        assert_eq!(found.len(), 1, "{of_a}");
        assert_eq!(found[0].len(), 3, "{of_a}");
    }
    for of_a in [
        "// crate::b::f()",
        "const A: &str = \"crate::b\";",
        "use crate::c::d;",
        "fn f() {}\n#[cfg(test)]\nmod tests { use crate::b; }",
    ] {
        assert_eq!(circles(&tree(of_a)), Vec::<Vec<Module>>::new(), "{of_a}");
    }
}

/// The text of each file below a folder, tests excepted.
fn read(folder: &Path, module: &[String], files: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" {
            continue;
        }
        let mut inner = module.to_vec();
        if !["lib", "mod"].contains(&&*name) {
            inner.push(name);
        }
        if path.is_dir() {
            read(&path, &inner, files);
        } else {
            files.insert(inner, std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The sets of files that reach each other.
fn circles(files: &BTreeMap<Module, String>) -> Vec<Vec<Module>> {
    let code: BTreeMap<&Module, String> = files
        .iter()
        .map(|(module, text)| (module, code_of(text)))
        .collect();
    let crate_of = Crate {
        modules: files.keys().collect(),
        exports: code
            .iter()
            .flat_map(|(module, code)| exports(module, code))
            .collect(),
    };
    let named: BTreeMap<&Module, BTreeSet<Module>> = code
        .iter()
        .map(|(module, code)| (*module, crate_of.named_by(module, code)))
        .collect();
    let reached = |from: &Module| {
        let mut found: BTreeSet<&Module> = BTreeSet::new();
        let mut due: Vec<&Module> = named[from].iter().collect();
        while let Some(module) = due.pop() {
            if found.insert(module) {
                due.extend(&named[module]);
            }
        }
        found
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = named
        .keys()
        .map(|module| (*module, reached(module)))
        .collect();
    let mut circles: BTreeSet<Vec<Module>> = BTreeSet::new();
    for (module, others) in &reached {
        let back = others
            .iter()
            .filter(|other| reached[**other].contains(module));
        let circle: Vec<Module> = back.map(|other| (*other).clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// A file without comments, strings and its tests.
fn code_of(text: &str) -> String {
    let text = match text.find("#[cfg(test)]\nmod ") {
        Some(tests) => &text[..tests],
        None => text,
    };
    let mut code = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => while rest.next().is_some_and(|c| c != '\n') {},
            '"' => {
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    if c == '\\' {
                        rest.next();
                    }
                }
            }
            // A quote is no string.
            '\'' if rest.peek() == Some(&'"') => {
                rest.next();
            }
            _ => code.push(c),
        }
    }
    code
}

/// The paths of a `use`, whose braces are resolved.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some((start, list)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap_or_default();
        let segments = name.split("::").map(str::trim);
        return vec![segments.map(str::to_owned).collect()];
    };
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let mut paths_of_all = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let one = list[from..at].trim();
                if !one.is_empty() {
                    paths_of_all.extend(paths(&format!("{}{one}", start.trim())));
                }
                from = at + 1;
            }
            _ => {}
        }
    }
    paths_of_all
}

/// The `use` declarations of a file, each with whether it is public.
fn uses(code: &str) -> impl Iterator<Item = (bool, &str)> {
    code.split(';').filter_map(|item| {
        let at = item.rfind("use ")?;
        let before = item[..at].trim_end();
        let is_public = before.ends_with("pub") || before.ends_with(')');
        let starts = at == 0 || !item[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        starts.then_some((is_public, &item[at + 4..]))
    })
}

/// A path from the crate's root, if it is of this crate.
fn absolute(module: &Module, path: &[String]) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    let n_up = path.iter().take_while(|one| *one == "super").count();
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module.as_slice(), rest].concat()),
        "super" => {
            let kept = module.len().checked_sub(n_up)?;
            Some([&module[..kept], &path[n_up..]].concat())
        }
        _ => None,
    }
}

/// The names that a file makes its own: module and name, and the path behind.
fn exports(module: &Module, code: &str) -> Vec<((Module, String), Module)> {
    let public = uses(code).filter(|(is_public, _)| *is_public);
    public
        .flat_map(|(_, tree)| paths(tree))
        .filter_map(|path| {
            let name = path.last()?.clone();
            Some(((module.clone(), name), absolute(module, &path)?))
        })
        .collect()
}

struct Crate<'a> {
    modules: BTreeSet<&'a Module>,
    exports: BTreeMap<(Module, String), Module>,
}

impl Crate<'_> {
    /// The file that a path from the root is in.
    fn file_of(&self, path: &[String]) -> Module {
        let mut path = path.to_vec();
        // Names that stand for each other end here.
        for _ in 0..8 {
            let length = (0..=path.len()).rev();
            let mut lengths =
                length.filter(|length| self.modules.contains(&path[..*length].to_vec()));
            let length = lengths.next().unwrap_or(0);
            let (module, rest) = path.split_at(length);
            let export = rest.first().and_then(|name| {
                let behind = self.exports.get(&(module.to_vec(), name.clone()))?;
                Some([behind.as_slice(), &rest[1..]].concat())
            });
            match export {
                Some(behind) => path = behind,
                None => return module.to_vec(),
            }
        }
        Vec::new()
    }

    /// The other files that a file names.
    fn named_by(&self, module: &Module, code: &str) -> BTreeSet<Module> {
        let mut found: Vec<Vec<String>> = uses(code).flat_map(|(_, tree)| paths(tree)).collect();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut rest = code;
        while let Some(at) = rest.find("::") {
            let start = rest[..at].rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
            let inline = &rest[start..];
            let end = inline
                .find(|c| !is_word(c) && c != ':')
                .unwrap_or(inline.len());
            // A path before a brace was read as a `use`.
            if !inline[..end].ends_with("::") {
                found.push(inline[..end].split("::").map(str::to_owned).collect());
            }
            rest = &inline[end..];
        }
        let files = found.into_iter().filter_map(|mut path| {
            if path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            // A file names those of its folder without a start.
            let own = [module.as_slice(), &path[..1.min(path.len())]].concat();
            let path = match absolute(module, &path) {
                Some(path) => path,
                None if self.modules.contains(&own) => own,
                None => return None,
            };
            Some(self.file_of(&path))
        });
        // The root only declares the others.
        files
            .filter(|file| file != module && !file.is_empty())
            .collect()
    }
}
