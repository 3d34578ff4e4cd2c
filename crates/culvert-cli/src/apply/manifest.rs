//! Reads the files: YAML or JSON documents, each one object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::kinds::{Identity, ManifestKind, kind};
use super::reference::{Reference, TextPart, is_name, parts, references};

/// Limit of the objects of one run.
const OBJECTS_MAX: usize = 20_000;
/// Limit of the bytes of one file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// One object of the files.
#[derive(Debug)]
pub struct Manifest {
    pub(super) kind: &'static ManifestKind,
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Raised by hand to send hidden fields again.
    pub(super) revision: u64,
    /// ID of an existing object that gets this name.
    pub(super) id: Option<String>,
    /// Where the token of a new key or credential is written.
    pub(super) token_file: Option<PathBuf>,
    /// Create fields, with secrets filled in and references as written.
    pub(super) spec: Map<String, Value>,
    pub(super) references: Vec<Reference>,
    /// Fields with a value from a file, which plans do not print.
    pub(super) from_files: BTreeSet<String>,
    /// Values from the environment, which plans do not print.
    pub(super) secrets: Vec<String>,
    /// File and line, for messages.
    pub(super) place: String,
}

/// A document as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    kind: String,
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    revision: u64,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    token_file: Option<PathBuf>,
    #[serde(default)]
    spec: Map<String, Value>,
}

/// Labels that an object must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(BTreeMap<String, String>);

impl Selector {
    /// Reads `app=shop,tier=web`.
    ///
    /// # Errors
    /// A sentence, if a part is no `key=value`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pair = |part: &str| match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(format!("`{part}` is not `key=value`")),
        };
        text.split(',')
            .map(pair)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether an object with these labels is selected.
    pub(super) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// Reads files and folders; folders with their subfolders, in the order of names. `environment` has the values of
/// `${env:NAME}`. Only selected objects are returned.
///
/// # Errors
/// A sentence with the place of the first problem.
pub fn load(
    paths: &[PathBuf],
    environment: &HashMap<String, String>,
    selector: &Selector,
) -> Result<Vec<Manifest>, String> {
    let mut files = Vec::new();
    for path in paths {
        gather(path, true, &mut files)?;
    }
    let mut manifests: Vec<Manifest> = Vec::new();
    let mut known: HashMap<(&str, String), String> = HashMap::new();
    for file in files {
        let unreadable = |error| format!("cannot read `{}`: {error}", file.display());
        if std::fs::metadata(&file).map_err(unreadable)?.len() > FILE_BYTES_MAX {
            return Err(format!("`{}` is larger than 16 MiB", file.display()));
        }
        let text = std::fs::read_to_string(&file).map_err(unreadable)?;
        let is_json = file.extension().is_some_and(|it| it == "json");
        let read = if is_json {
            json(&text)
        } else {
            documents(&text)
        };
        for (line, value) in
            read.map_err(|(line, why)| format!("{}:{line}: {why}", file.display()))?
        {
            let place = format!("{}:{line}", file.display());
            let said = |why: String| format!("{place}: {why}");
            let manifest =
                Manifest::read(value, &file, place.clone(), environment).map_err(said)?;
            let key = (manifest.kind.collection, manifest.name.clone());
            if let Some(first) = known.insert(key, place.clone()) {
                let why = format!(
                    "{}/{} is also in {first}",
                    manifest.kind.collection, manifest.name
                );
                return Err(said(why));
            }
            manifests.push(manifest);
            if manifests.len() > OBJECTS_MAX {
                return Err(format!("the files have more than {OBJECTS_MAX} objects"));
            }
        }
    }
    manifests.retain(|manifest| selector.selects(&manifest.labels));
    Ok(manifests)
}

/// The files at a path. A file that is named is read whatever its extension.
fn gather(path: &Path, is_named: bool, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let unreadable = |error| format!("cannot read `{}`: {error}", path.display());
    if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
        let is_ours = path
            .extension()
            .is_some_and(|it| it == "yaml" || it == "yml" || it == "json");
        if is_named || is_ours {
            files.push(path.to_owned());
        }
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(unreadable)?;
    let mut entries: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    entries.retain(|entry| {
        !entry
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    });
    entries.sort();
    entries
        .iter()
        .try_for_each(|entry| gather(entry, false, files))
}

/// The objects of JSON text: one, a list, or several in sequence.
fn json(text: &str) -> Result<Vec<(usize, Value)>, (usize, String)> {
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter() {
        match value.map_err(|error| (error.line(), error.to_string()))? {
            Value::Array(items) => found.extend(items.into_iter().map(|item| (1, item))),
            value => found.push((1, value)),
        }
    }
    Ok(found)
}

/// The documents of a text with their first lines. Documents are separated by lines with `---`, which no YAML text
/// has anywhere else.
fn documents(text: &str) -> Result<Vec<(usize, Value)>, (usize, String)> {
    let is_marker = |line: &str| line == "---" || line.starts_with("--- ") || line == "...";
    let mut found = Vec::new();
    let (mut start, mut document) = (1, String::new());
    let mut read = |start: usize, document: &str| -> Result<(), (usize, String)> {
        let is_empty = document.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#')
        });
        if is_empty {
            return Ok(());
        }
        let blank = document
            .lines()
            .take_while(|line| line.trim().is_empty() || line.starts_with('#'))
            .count();
        let line = start + blank;
        match culvert_yaml::read_yaml(document).map_err(|why| (line, why))? {
            Value::Array(items) => found.extend(items.into_iter().map(|item| (line, item))),
            value => found.push((line, value)),
        }
        Ok(())
    };
    for (index, line) in text.lines().enumerate() {
        if is_marker(line.trim_end()) {
            read(start, &document)?;
            document.clear();
            start = index + 2;
        } else {
            document.push_str(line);
            document.push('\n');
        }
    }
    read(start, &document)?;
    Ok(found)
}

impl Manifest {
    fn read(
        value: Value,
        file: &Path,
        place: String,
        environment: &HashMap<String, String>,
    ) -> Result<Self, String> {
        let document: Document = serde_path_to_error::deserialize(value).map_err(|error| {
            match error.path().to_string().as_str() {
                "." => error.inner().to_string(),
                path => format!("`{path}`: {}", error.inner()),
            }
        })?;
        let Some(kind) = kind(&document.kind) else {
            let known: Vec<_> = super::kinds::KINDS
                .iter()
                .map(|kind| kind.collection)
                .collect();
            return Err(format!(
                "the kind `{}` is unknown; kinds are {}",
                document.kind,
                known.join(", ")
            ));
        };
        if !is_name(&document.name) {
            let why = "a name has 1 to 128 letters, digits, `.`, `_`, `-` and `*`";
            return Err(format!("the name `{}` is malformed; {why}", document.name));
        }
        if kind.has_token != document.token_file.is_some() && document.id.is_none() {
            return Err(match kind.has_token {
                true => format!(
                    "`token_file` is required: the token of one of {} is shown once",
                    kind.collection
                ),
                false => format!("`token_file` is not a field of {}", kind.collection),
            });
        }
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut manifest = Self {
            kind,
            name: document.name,
            labels: document.labels,
            revision: document.revision,
            id: document.id,
            token_file: document.token_file.map(|path| folder.join(path)),
            spec: Map::new(),
            references: Vec::new(),
            from_files: BTreeSet::new(),
            secrets: Vec::new(),
            place,
        };
        for (field, value) in document.spec {
            if !kind.create.contains(&field) {
                let fields: Vec<_> = kind.create.iter().map(String::as_str).collect();
                return Err(format!(
                    "{} have no field `{field}`; fields are {}",
                    kind.collection,
                    fields.join(", ")
                ));
            }
            // The port in `upstream_url: 3000` is a number in YAML, and a text on the command line.
            let value = match value {
                Value::Number(number) if kind.texts.contains(&field) && number.is_u64() => {
                    Value::String(number.to_string())
                }
                value => manifest.fill(&field, value, folder, environment)?,
            };
            manifest.spec.insert(field, value);
        }
        if let Identity::Field(field) = kind.identity {
            if manifest
                .spec
                .get(field)
                .is_some_and(|value| *value != *manifest.name)
            {
                return Err(format!("`{field}` of {} must be the name", kind.collection));
            }
            if !manifest.labels.is_empty() || manifest.revision != 0 {
                return Err(format!(
                    "{} have no metadata, so they take neither `labels` nor `revision`",
                    kind.collection
                ));
            }
            manifest
                .spec
                .insert(field.to_owned(), Value::from(&*manifest.name));
        }
        for field in &kind.required {
            if !manifest.spec.contains_key(field) {
                return Err(format!("`{field}` is required"));
            }
        }
        manifest.metadata()?;
        references(
            &Value::Object(manifest.spec.clone()),
            &mut manifest.references,
        );
        manifest.references.sort();
        manifest.references.dedup();
        if let Some(later) = manifest
            .references
            .iter()
            .find(|it| super::kinds::kind(it.kind).is_some_and(|it| it.rank() > kind.rank()))
        {
            let why = "which are made later";
            return Err(format!(
                "{} cannot refer to {}, {why}",
                kind.collection, later.kind
            ));
        }
        Ok(manifest)
    }

    /// The metadata in the spec: none, or an object.
    pub(super) fn metadata(&self) -> Result<Map<String, Value>, String> {
        let wrong = || {
            format!(
                "`metadata` must be a mapping: `culvert apply` adds the key `{}`",
                super::IDENTITY
            )
        };
        let metadata = match self.spec.get("metadata") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(entries)) => entries.clone(),
            Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
        };
        match metadata.contains_key(super::IDENTITY) {
            true => Err(format!(
                "the metadata key `{}` is reserved",
                super::IDENTITY
            )),
            false => Ok(metadata),
        }
    }

    /// Fills in the values from files and from the environment.
    fn fill(
        &mut self,
        field: &str,
        value: Value,
        folder: &Path,
        environment: &HashMap<String, String>,
    ) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => Value::String(self.filled(field, &text, folder, environment)?),
            Value::Array(items) => {
                let items = items
                    .into_iter()
                    .map(|item| self.fill(field, item, folder, environment));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Value::Object(entries) => {
                let entries = entries
                    .into_iter()
                    .map(|(key, value)| Ok((key, self.fill(field, value, folder, environment)?)));
                Value::Object(entries.collect::<Result<_, String>>()?)
            }
            other => other,
        })
    }

    fn filled(
        &mut self,
        field: &str,
        text: &str,
        folder: &Path,
        environment: &HashMap<String, String>,
    ) -> Result<String, String> {
        if let Some(rest) = text.strip_prefix("@@") {
            return Ok(format!("@{rest}"));
        }
        let read;
        let text = match text.strip_prefix('@') {
            None => text,
            Some(path) => {
                let path = folder.join(path);
                read = std::fs::read_to_string(&path).map_err(|error| {
                    format!("`{field}`: cannot read `{}`: {error}", path.display())
                })?;
                if field != "traffic_policy" {
                    self.from_files.insert(field.to_owned());
                }
                let read = read.strip_suffix('\n').unwrap_or(&read);
                read.strip_suffix('\r').unwrap_or(read)
            }
        };
        let mut whole = String::with_capacity(text.len());
        for part in parts(text) {
            match part {
                TextPart::Text(text) => whole.push_str(text),
                TextPart::Inner(inner) => match inner.strip_prefix("env:") {
                    Some(name) => {
                        let value = environment.get(name);
                        let value = value.ok_or_else(|| {
                            format!("`{field}`: the environment variable `{name}` is not set")
                        })?;
                        if !value.is_empty() {
                            self.secrets.push(value.clone());
                        }
                        whole.push_str(value);
                    }
                    None => whole.extend(["${", inner, "}"]),
                },
            }
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Vec<Manifest>, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "from a file\n").unwrap();
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "not: read").unwrap();
        let environment = [("PIN".to_owned(), "1234".to_owned())]
            .into_iter()
            .collect();
        let read = load(
            &[folder.path().to_owned()],
            &environment,
            &Selector::default(),
        );
        let shown = folder.path().display().to_string();
        read.map_err(|why| why.replace(&format!("{shown}/"), ""))
    }

    #[test]
    fn several_documents_make_several_objects() {
        let text = "# A comment\n---\nkind: vaults\nname: keys\nlabels: {app: shop}\n---\n# Its secret\nkind: vault_secrets\nname: pin\nspec:\n  name: pin\n  value: pin-${env:PIN}\n  description: '@secret'\n  vault_id: ${vaults/keys}\n---\n[{kind: vaults, name: a}, {kind: vaults, name: b, spec: {name: '@@b'}}]\n";
        let error = read(text).unwrap_err();
        assert_eq!(error, "a.yaml:3: `name` is required");
        let read = read(
            &text
                .replace(
                    "labels: {app: shop}",
                    "labels: {app: shop}\nspec: {name: keys}",
                )
                .replace("name: a}", "name: a, spec: {name: a}}"),
        )
        .unwrap();
        assert_eq!(read.len(), 4);
        assert_eq!(read[1].spec["value"], "pin-1234");
        assert_eq!(read[1].spec["description"], "from a file");
        assert_eq!(read[1].secrets, ["1234"]);
        assert!(read[1].from_files.contains("description"));
        assert_eq!(read[1].references.len(), 1);
        assert_eq!(read[3].spec["name"], "@b");
        assert_eq!(json!(read[0].labels), json!({"app": "shop"}));
        let selector = Selector::parse("app=shop").unwrap();
        assert!(selector.selects(&read[0].labels) && !selector.selects(&read[1].labels));
        assert!(Selector::parse("app").is_err());
    }

    #[test]
    fn a_number_in_a_text_field_is_its_digits() {
        let text = "kind: endpoints\nname: a\nspec: {url: a.example, upstream_url: 3000, pooling_enabled: true, timeouts: {idle: 3}}";
        let read = read(text).unwrap();
        assert_eq!(read[0].spec["upstream_url"], "3000");
        assert_eq!(read[0].spec["timeouts"]["idle"], 3);
        assert_eq!(read[0].spec["pooling_enabled"], true);
    }

    #[test]
    fn invalid_files_are_refused_with_their_line() {
        for (text, why) in [
            (
                "kind: vaults\nname: a\nspec: {nam: b}",
                "a.yaml:1: vaults have no field `nam`; fields are description, metadata, name",
            ),
            (
                "\n\nkind: cats\nname: a",
                "a.yaml:3: the kind `cats` is unknown",
            ),
            (
                "kind: vaults\nname: a b\nspec: {name: a}",
                "a.yaml:1: the name `a b` is malformed",
            ),
            (
                "kind: vaults\nname: a\nspec: {name: '${env:NO}'}",
                "a.yaml:1: `name`: the environment variable `NO` is not set",
            ),
            (
                "kind: vaults\nname: a\nspec: {name: '@no'}",
                "a.yaml:1: `name`: cannot read `no`",
            ),
            (
                "kind: vaults\nname: a\nextra: 1",
                "a.yaml:1: `extra`: unknown field",
            ),
            (
                "kind: vaults\nname: a\nspec: {name: a}\n---\nkind: vaults\nname: a\nspec: {name: b}",
                "a.yaml:5: vaults/a is also in a.yaml:1",
            ),
            (
                "kind: vaults\nname: a\nspec: {name: a, metadata: text}",
                "a.yaml:1: `metadata` must be a mapping",
            ),
            (
                "kind: vaults\nname: a\nspec: {name: a, metadata: {culvert_apply: 1}}",
                "a.yaml:1: the metadata key `culvert_apply` is reserved",
            ),
            (
                "kind: api_keys\nname: a",
                "a.yaml:1: `token_file` is required",
            ),
            (
                "kind: vaults\nname: a\ntoken_file: x\nspec: {name: a}",
                "a.yaml:1: `token_file` is not a field of vaults",
            ),
            (
                "kind: bot_users\nname: a\nspec: {name: b}",
                "a.yaml:1: `name` of bot_users must be the name",
            ),
            (
                "kind: vaults\nname: a\nspec: {name: '${endpoints/b}'}",
                "a.yaml:1: vaults cannot refer to endpoints",
            ),
            ("kind: [", "a.yaml:1: "),
            ("text", "a.yaml:1: "),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.starts_with(why), "{said}");
        }
    }
}
