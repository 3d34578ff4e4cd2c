//! Parses, checks and compiles the text of a policy.

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_base::text::similar::nearest;
use culvert_base::{Code, Meter, Refusal, code};
use culvert_cel::{Limits, PatternBudget, Slot};
use culvert_http::fields::folded;
use http::header::HOST;
use url::Url;

use crate::action_type::{ActionType, Actions, NOT_BUILT};
use crate::policy::compiled::{Policy, PolicySecrets, Rule};
use crate::policy::context::{PolicyContext, Resources, refusal};
use crate::policy::expression::Condition;
use crate::policy::phase::{Ends, Phase};
use crate::policy::problems::{Enough, Problem, Problems};
use crate::policy::run::Action;
use crate::policy::taint::{Feeds, Flow, Mark, Reading};
use crate::policy::{environments, long_work, template, variables};
use crate::scheme::Scheme;
use culvert_ip_data::IpFields;
use culvert_yaml::{Node, Step};

/// Most rules of a phase.
const RULES_MAX: usize = 100;
/// Most actions, and most expressions, of a rule.
const PER_RULE_MAX: usize = 20;
/// Most warnings about a policy.
const WARNINGS_MAX: usize = 20;
/// Compiled size of all regular expressions of a policy, in bytes.
const PATTERN_BYTES_MAX: usize = 4 << 20;
/// Longest name of a rule, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The parsed text of a policy.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) text: String,
    pub(crate) root: Node,
    pub(crate) known: Actions,
}

/// An object that a policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The prefix of its ID, such as `ipp`.
    pub prefix: &'static str,
    /// The reference as written.
    pub id: String,
}

impl Source {
    /// Parses YAML or JSON. `actions` are those that a policy may have.
    ///
    /// # Errors
    /// If the text is neither, or not a policy (2236).
    pub fn read(text: &str, actions: Actions) -> Result<Self, Refusal> {
        let root = long_work::run(|| Node::parse(text))
            .map_err(|unreadable| refusal(code::POLICY_UNREADABLE, "", &unreadable.to_string()))?;
        let Node::Object(_) = root else {
            let why = "it must be an object with phases such as `on_http_request`";
            return Err(refusal(code::POLICY_UNREADABLE, "", why));
        };
        Ok(Self {
            text: text.to_owned(),
            root,
            known: actions,
        })
    }

    /// The whole text, including secrets.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text as JSON, with resolved aliases.
    pub fn to_json(&self) -> serde_json::Value {
        self.root.to_json()
    }

    /// The objects that it refers to, each once.
    pub fn references(&self) -> Vec<Reference> {
        let mut found: Vec<Reference> = Vec::new();
        for (ty, action) in self.actions() {
            let config = action.get("config");
            for (field, prefix) in ty.references {
                let Some(Node::List(items)) = config.and_then(|config| config.get(field)) else {
                    continue;
                };
                for item in items {
                    let Node::Text(text) = item else { continue };
                    // Such a field may also contain the object itself in place of its ID.
                    if !text.value.starts_with(&format!("{prefix}_")) {
                        continue;
                    }
                    let reference = Reference {
                        prefix,
                        id: text.value.clone(),
                    };
                    if !found.contains(&reference) {
                        found.push(reference);
                    }
                }
            }
        }
        found
    }

    /// The secrets that its expressions read by literal names: vault and name, each once. Computed names are known only
    /// when an expression runs.
    pub fn secrets(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        expressions(&self.root, false, &mut |source| {
            for call in culvert_cel::literal_calls(source, "secrets.get", &Limits::POLICY) {
                if let Ok([vault, name]) = <[String; 2]>::try_from(call)
                    && !found.contains(&(vault.clone(), name.clone()))
                {
                    found.push((vault, name));
                }
            }
        });
        found
    }

    /// The internal hosts that its actions name, each once. Hosts that expressions compute are known only when a request
    /// arrives.
    pub fn internal_hosts(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (_, action) in self.actions() {
            let config = action.get("config");
            let Some(Node::Text(text)) = config.and_then(|config| config.get("url")) else {
                continue;
            };
            let url = Url::parse(constant(&text.value)).ok();
            let host = url.as_ref().and_then(Url::host_str).map(HostName::parse);
            if let Some(Ok(host)) = host
                && host.ends_with(".internal")
                && !found.iter().any(|known: &String| **known == *host)
            {
                found.push(host.to_string());
            }
        }
        found
    }

    /// What comes before the first expression in the URLs that its actions compute.
    pub fn computed_url_prefixes(&self) -> Vec<String> {
        let urls = self.actions().filter_map(|(_, action)| {
            let Node::Text(text) = action.get("config")?.get("url")? else {
                return None;
            };
            let (prefix, _) = text.value.split_once("${")?;
            Some(prefix.to_owned())
        });
        urls.collect()
    }

    /// Whether its expressions read secrets by computed names, which [`Self::secrets`] does not have.
    pub fn computes_secret_names(&self) -> bool {
        let mut computes = false;
        expressions(&self.root, false, &mut |source| {
            computes |= culvert_cel::has_computed_calls(source, "secrets.get", &Limits::POLICY);
        });
        computes
    }

    /// Compiles it for an endpoint.
    ///
    /// # Errors
    /// The first error, with a code of the contract (traffic policy 11).
    pub fn compile(
        &self,
        scheme: Scheme,
        has_upstream: bool,
        resources: &Resources,
    ) -> Result<Policy, Refusal> {
        let mut problems = Problems::up_to(1);
        let compiled = self.compile_all(scheme, has_upstream, resources, &mut problems);
        match (problems.into_vec().pop(), compiled) {
            (Some(problem), _) => Err(problem.refusal),
            (None, Ok(policy)) => Ok(policy),
            // Unreachable: there is enough of one problem only.
            (None, Err(Enough)) => Err(refusal(code::POLICY_UNREADABLE, "", "it is invalid")),
        }
    }

    /// The problems of a policy for an endpoint, at most `max`, in the order of the text.
    pub fn problems(
        &self,
        scheme: Scheme,
        has_upstream: bool,
        resources: &Resources,
        max: usize,
    ) -> Result<Policy, Vec<Problem>> {
        let mut problems = Problems::up_to(max.max(1));
        match self.compile_all(scheme, has_upstream, resources, &mut problems) {
            Ok(policy) if problems.is_empty() => Ok(policy),
            _ => Err(problems.into_vec()),
        }
    }

    fn compile_all(
        &self,
        scheme: Scheme,
        has_upstream: bool,
        resources: &Resources,
        problems: &mut Problems,
    ) -> Result<Policy, Enough> {
        // Thousands of expressions may have megabytes of patterns.
        long_work::run(|| self.compile_now(scheme, has_upstream, resources, problems))
    }

    /// Compiles it, and goes on at a problem until there are enough of them.
    fn compile_now(
        &self,
        scheme: Scheme,
        has_upstream: bool,
        resources: &Resources,
        problems: &mut Problems,
    ) -> Result<Policy, Enough> {
        if let Node::Object(phases) = &self.root {
            for (key, _) in phases {
                if let Err(refusal) = check_phase(key) {
                    problems.note(vec![Step::Key(key.clone())], "", refusal)?;
                }
            }
        }
        let mut reader = Reader {
            problems,
            actions: self.known,
            scheme,
            resources,
            patterns: match resources.is_written {
                true => PatternBudget::new(PATTERN_BYTES_MAX),
                false => PatternBudget::unlimited(),
            },
            reads: Vec::new(),
            has_login: false,
            replaced: Vec::new(),
            warnings: Vec::new(),
            secrets: Flow::default(),
        };
        let mut compiled = Phase::ALL.map(|_| Vec::new());
        let mut handles = !scheme.is_http() || has_upstream;
        for (phase, rules) in Phase::ALL.into_iter().zip(&mut compiled) {
            let place = phase.name();
            let items = match self.root.get(place) {
                None | Some(Node::Null) => continue,
                Some(Node::List(items)) => items,
                Some(other) => {
                    let why = format!("it must be a list of rules, not {}", other.kind());
                    reader.note_phase(phase, refusal(code::POLICY_UNREADABLE, place, &why))?;
                    continue;
                }
            };
            if !phase.is_of(scheme) && !items.is_empty() {
                let why = format!("{} endpoints do not support this phase", scheme.name());
                let refusal = refusal(code::POLICY_PHASE_WRONG_PROTOCOL, place, &why);
                reader.note_phase(phase, refusal)?;
                continue;
            }
            if items.len() > RULES_MAX {
                let why = format!("it has {} rules; the limit is {RULES_MAX}", items.len());
                reader.note_phase(phase, refusal(code::POLICY_TOO_MANY_RULES, place, &why))?;
                continue;
            }
            for (index, item) in items.iter().enumerate() {
                let Some((rule, ends)) = reader.rule(phase, index, item)? else {
                    continue;
                };
                handles |= phase == Phase::Request && ends && rule.expressions.is_empty();
                rules.push(rule);
            }
        }
        // A rule with a problem may be the one that handles them.
        if !handles && reader.problems.is_empty() {
            let why = "the endpoint has no `upstream_url`, so `on_http_request` requires a rule \
                       without expressions whose last action handles every request: \
                       `custom-response`, `deny`, `close-connection`, `forward-internal`, or a \
                       `redirect` without `from`";
            let refusal = refusal(code::POLICY_TRAFFIC_UNHANDLED, "", why);
            reader.problems.note(Vec::new(), "", refusal)?;
        }
        let (uses, named, computes_names) = reader.secrets.end();
        let mut reads = reader.reads;
        reads.sort_unstable();
        reads.dedup();
        let mut ip_fields = IpFields::default();
        for (_, field) in reads.iter().filter_map(|slot| variables::data(*slot)) {
            ip_fields.insert(field);
        }
        let [connect, request, response] = compiled.map(Vec::into_boxed_slice);
        let edge_paths = request.iter().enumerate().flat_map(|(index, rule)| {
            let actions = rule.actions.iter().enumerate();
            let with_paths = actions.filter(|(_, action)| has_edge_paths(&***action));
            with_paths.map(move |(position, _)| (index, position))
        });
        let edge_paths = edge_paths.collect();
        let mut of_requests = request.iter().flat_map(|rule: &Rule| rule.actions.iter());
        let owns_all_edge_paths = of_requests.any(|action| action.edge_paths().is_some());
        let actions = request.iter().flat_map(|rule: &Rule| rule.actions.iter());
        let fields = actions.flat_map(|action| action.identity_fields());
        let identity_fields = fields.cloned().collect();
        let late = response.iter().flat_map(|rule| rule.actions.iter());
        let late_request_bytes = late.filter_map(|action| action.late_request_bytes()).max();
        let cell = |path| reads.binary_search(&variables::slot(path)).ok();
        Ok(Policy {
            edge_paths,
            owns_all_edge_paths,
            late_request_bytes,
            identity_fields,
            warnings: reader.warnings,
            owner: resources.owner.as_str().into(),
            forwards_to: resources.forwards_to.clone(),
            connect,
            request,
            response,
            results_cell: cell(variables::ACTIONS),
            vars_cell: cell(variables::VARS),
            reads_sni: cell("conn.tls.sni").is_some(),
            ip_fields,
            secrets: cell(variables::SECRETS).map(|_| PolicySecrets {
                all: Arc::clone(&resources.secrets),
                named: named.into(),
                uses: uses.into(),
                computes_names,
                right: Arc::default(),
            }),
            reads: reads.into(),
        })
    }

    /// The actions with a known type.
    fn actions(&self) -> impl Iterator<Item = (&'static ActionType, &Node)> {
        let rules = Phase::ALL
            .into_iter()
            .flat_map(|phase| match self.root.get(phase.name()) {
                Some(Node::List(rules)) => rules.as_slice(),
                _ => &[],
            });
        let actions = rules.flat_map(|rule| match rule.get("actions") {
            Some(Node::List(actions)) => actions.as_slice(),
            _ => &[],
        });
        actions.filter_map(|action| match action.get("type")? {
            Node::Text(name) => Some((self.known.find(&name.value)?, action)),
            _ => None,
        })
    }
}

/// Keys whose values are expressions; other values have expressions between `${` and `}`.
const EXPRESSIONS: [&str; 3] = ["expressions", "retry_condition", "bucket_key"];

/// Passes on each expression of a node that contains `secrets`.
fn expressions(node: &Node, is_expression: bool, look: &mut dyn FnMut(&str)) {
    match node {
        Node::Null | Node::Bool(_) | Node::Number(_) => {}
        Node::List(items) => {
            for item in items {
                expressions(item, is_expression, look);
            }
        }
        Node::Object(entries) => {
            for (key, value) in entries {
                let is_expression = EXPRESSIONS.contains(&key.as_str());
                expressions(value, is_expression, look);
            }
        }
        Node::Text(text) => {
            // A header or a variable may have the name of such a key, so its value may be a template all the same.
            let mut sources = template::sources(&text.value);
            if is_expression {
                sources.push(&text.value);
            }
            for source in sources {
                if source.contains("secrets") {
                    look(source);
                }
            }
        }
    }
}

/// Compiles rules.
struct Reader<'c> {
    problems: &'c mut Problems,
    actions: Actions,
    scheme: Scheme,
    resources: &'c Resources,
    /// What its regular expressions may still take.
    patterns: PatternBudget,
    /// What expressions and templates read so far.
    reads: Vec<Slot>,
    has_login: bool,
    /// Header fields of requests that the actions so far set or remove, as servers read their names.
    replaced: Vec<String>,
    warnings: Vec<String>,
    secrets: Flow,
}

impl Reader<'_> {
    /// A problem of a whole phase.
    fn note_phase(&mut self, phase: Phase, refusal: Refusal) -> Result<(), Enough> {
        let path = vec![Step::Key(phase.name().to_owned())];
        self.problems.note(path, phase.name(), refusal)
    }

    /// A rule, and whether its actions respond to all traffic; `None` if it is none.
    fn rule(
        &mut self,
        phase: Phase,
        index: usize,
        item: &Node,
    ) -> Result<Option<(Rule, bool)>, Enough> {
        let path = vec![Step::Key(phase.name().to_owned()), Step::Item(index)];
        let mut place = format!("{}, rule {}", phase.name(), index + 1);
        let (name, expressions, actions) = match parts_of_rule(item, &mut place) {
            Ok(parts) => parts,
            Err(refusal) => {
                self.problems.note(path, &place, refusal)?;
                return Ok(None);
            }
        };
        let at = |list: &str, index: usize| {
            let mut path = path.clone();
            path.extend([Step::Key(list.to_owned()), Step::Item(index)]);
            path
        };
        let mut conditions = Vec::with_capacity(expressions.len());
        for (index, source) in expressions.iter().enumerate() {
            let place = format!("{place}, expression {}", index + 1);
            match self.expression(phase, source, &place) {
                Ok(condition) => conditions.push(condition),
                Err(refusal) => self
                    .problems
                    .note(at("expressions", index), &place, refusal)?,
            }
        }
        let mut compiled = Vec::with_capacity(actions.len());
        let mut types = Vec::with_capacity(actions.len());
        let mut ends_by = None;
        let mut handles = false;
        let mut guards = false;
        for (index, item) in actions.iter().enumerate() {
            let place = format!("{place}, action {}", index + 1);
            let (ty, action) = match self.action(phase, item, &place) {
                Ok(action) => action,
                Err(refusal) => {
                    self.problems.note(at("actions", index), &place, refusal)?;
                    continue;
                }
            };
            if let Some(before) = ends_by {
                let why = format!(
                    "`{}` can never run, because `{before}` before it always ends the phase",
                    ty.name
                );
                let refusal = refusal(code::POLICY_ACTION_UNREACHABLE, &place, &why);
                self.problems.note(at("actions", index), &place, refusal)?;
                continue;
            }
            let is_final = ty.ends == Ends::Always || action.is_final();
            if is_final {
                ends_by = Some(ty.name);
            }
            let ends = if is_final { Ends::Always } else { ty.ends };
            types.push((ty.name, ends));
            guards |= ty.guards;
            handles |= is_final || action.handles();
            compiled.push(action);
        }
        let rule = Rule {
            name,
            expressions: conditions.into_boxed_slice(),
            terminates_tls: compiled.iter().any(|action| action.terminates_tls()),
            guards,
            actions: compiled.into(),
            types: types.into(),
            failures: Meter::default(),
            refusals: Meter::default(),
        };
        Ok(Some((rule, handles)))
    }

    fn expression(
        &mut self,
        phase: Phase,
        source: &Node,
        place: &str,
    ) -> Result<Condition, Refusal> {
        let source = match source {
            Node::Text(text) => text.value.as_str(),
            Node::Bool(true) => "true",
            Node::Bool(false) => "false",
            other => {
                let why = format!("an expression must be a string, not {}", other.kind());
                return Err(refusal(code::POLICY_EXPRESSION_INVALID, place, &why));
            }
        };
        let compiled = environments::of(phase)
            .compile_predicate_within(&self.patterns, source)
            .map(Condition::new)
            .map_err(|error| {
                let why = environments::explain(&error, phase);
                refusal(code::POLICY_EXPRESSION_INVALID, place, &why)
            })?;
        self.has_data(
            phase,
            compiled.slots(),
            place,
            code::POLICY_EXPRESSION_INVALID,
        )?;
        self.reads.extend(compiled.slots());
        let slots = compiled.slots().iter().copied();
        let reading = Reading::of("", Feeds::Action, [source], slots, Mark::default());
        let reading = reading.into_iter().collect();
        self.secrets.follow(phase, place, None, reading);
        Ok(compiled)
    }

    /// Rejects variables whose IP data is not loaded: a rule that never matches is a mistake, and dangerous if it denies.
    fn has_data(
        &self,
        phase: Phase,
        slots: &[Slot],
        place: &str,
        code: Code,
    ) -> Result<(), Refusal> {
        let Some(data) = &self.resources.ip_data else {
            return Ok(());
        };
        let mut unfilled = slots
            .iter()
            .filter_map(|slot| variables::unfilled(*slot, phase));
        if let Some(variable) = unfilled.next() {
            let why = match variable.filled {
                variables::Filled::Answered => "is available only in `on_http_response`",
                _ => "never has a value on this server",
            };
            let why = format!("`{}` {why}", variable.path);
            return Err(refusal(code, place, &why));
        }
        for (variable, field) in slots.iter().filter_map(|slot| variables::data(*slot)) {
            let mut wanted = IpFields::default();
            wanted.insert(field);
            if !data.missing(wanted).is_empty() {
                let why = format!(
                    "`{}` is not available on this server; it requires {}",
                    variable.path,
                    field.source()
                );
                return Err(refusal(code, place, &why));
            }
        }
        Ok(())
    }

    fn action(
        &mut self,
        phase: Phase,
        item: &Node,
        place: &str,
    ) -> Result<(&'static ActionType, Box<dyn Action>), Refusal> {
        let Node::Object(entries) = item else {
            let why = format!("an action must be an object, not {}", item.kind());
            return Err(refusal(code::POLICY_UNREADABLE, place, &why));
        };
        known_keys(entries, &["type", "config"], place)?;
        let Some(Node::Text(name)) = item.get("type") else {
            return Err(refusal(
                code::POLICY_ACTION_UNKNOWN,
                place,
                "`type` must name an action",
            ));
        };
        let name = name.value.as_str();
        let Some(ty) = self.actions.find(name) else {
            if let Some(missing) = NOT_BUILT.iter().find(|row| row.name == name) {
                let why = format!("`{name}` {}", missing.reason);
                return Err(refusal(missing.code, place, &why));
            }
            let shown: String = name.chars().take(64).collect();
            let known = self.actions.sorted().into_iter().map(|ty| ty.name);
            let hint = hint(nearest(&shown, known));
            let why = format!("unknown action `{shown}`{hint}");
            return Err(refusal(code::POLICY_ACTION_UNKNOWN, place, &why));
        };
        let place = &format!("{place} ({name})");
        if !ty.phases.contains(&phase) {
            let phases: Vec<_> = ty.phases.iter().map(|phase| phase.name()).collect();
            let why = format!("it is supported only in {}", phases.join(" and "));
            return Err(refusal(code::POLICY_ACTION_WRONG_PHASE, place, &why));
        }
        if !ty.schemes.contains(&self.scheme) {
            let why = format!("it does not support {} endpoints", self.scheme.name());
            return Err(refusal(code::POLICY_ACTION_WRONG_PROTOCOL, place, &why));
        }
        if ty.is_login && std::mem::replace(&mut self.has_login, true) {
            let why = "a policy may have only one sign-in action";
            return Err(refusal(code::POLICY_SECOND_LOGIN, place, why));
        }
        let config = item
            .get("config")
            .map_or(serde_json::Value::Null, Node::to_json);
        let resources = self.resources;
        let context =
            PolicyContext::new(phase, self.scheme, place, config, resources, &self.patterns);
        let compiled = (ty.compile)(&context)?;
        let slots = compiled.slots();
        self.has_data(phase, &slots, place, code::POLICY_TEMPLATE_INVALID)?;
        self.reads.extend(slots);
        let readings = context.into_readings();
        self.warn(phase, place, &*compiled);
        self.secrets.follow(phase, place, Some(ty), readings);
        Ok((ty, compiled))
    }
}

/// Whether an action handles paths of the edge itself, or publishes keys at one.
fn has_edge_paths(action: &dyn Action) -> bool {
    action.edge_paths().is_some() || action.key_set().is_some()
}

impl Reader<'_> {
    /// Notes likely mistakes of an action.
    fn warn(&mut self, phase: Phase, place: &str, action: &dyn Action) {
        let mut warn = |why: &str| {
            if self.warnings.len() < WARNINGS_MAX {
                self.warnings.push(format!("{place}: {why}."));
            }
        };
        if let Some(why) = action.warning() {
            warn(why);
        }
        if phase != Phase::Request {
            return;
        }
        for name in action.adds() {
            if *name != HOST && !self.replaced.contains(&folded(name)) {
                warn(&format!(
                    "clients can send `{name}` too, and their value comes first; use `set-headers` if the upstream relies on it"
                ));
            }
        }
        let set = action.identity_fields();
        let set = action.replaces().into_iter().chain(set);
        self.replaced.extend(set.map(folded));
    }
}

fn known_keys(entries: &[(String, Node)], known: &[&str], place: &str) -> Result<(), Refusal> {
    let unknown = entries
        .iter()
        .find(|(key, _)| !known.contains(&key.as_str()));
    let Some((key, _)) = unknown else {
        return Ok(());
    };
    let shown: String = key.chars().take(64).collect();
    let hint = hint(nearest(&shown, known.iter().copied()));
    let why = format!(
        "unknown field `{shown}`{hint}; valid fields: {}",
        known.join(", ")
    );
    Err(refusal(code::POLICY_UNREADABLE, place, &why))
}

fn list<'n>(item: &'n Node, key: &str, place: &str) -> Result<&'n [Node], Refusal> {
    match item.get(key) {
        None | Some(Node::Null) => Ok(&[]),
        Some(Node::List(items)) => Ok(items),
        Some(other) => {
            let why = format!("`{key}` must be a list, not {}", other.kind());
            Err(refusal(code::POLICY_UNREADABLE, place, &why))
        }
    }
}

/// The URL, or the part before its first expression if that has the whole host; else nothing.
fn constant(url: &str) -> &str {
    // `$${` is a dollar sign and a brace.
    let mut expressions = url.match_indices("${").map(|(at, _)| at);
    let first = expressions.find(|at| !url[..*at].ends_with('$'));
    let Some(before) = first.and_then(|at| url.get(..at)) else {
        return url;
    };
    let is_whole = before
        .split_once("://")
        .is_some_and(|(_, rest)| rest.contains([':', '/', '?', '#', '\\']));
    if is_whole { before } else { "" }
}

/// What was probably meant.
fn hint(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

/// The name of a rule, its expressions and its actions. The name is added to its place.
fn parts_of_rule<'n>(
    item: &'n Node,
    place: &mut String,
) -> Result<(String, &'n [Node], &'n [Node]), Refusal> {
    let Node::Object(entries) = item else {
        let why = format!("a rule must be an object, not {}", item.kind());
        return Err(refusal(code::POLICY_UNREADABLE, place, &why));
    };
    known_keys(entries, &["name", "expressions", "actions"], place)?;
    let name = match item.get("name") {
        None | Some(Node::Null) => String::new(),
        Some(Node::Text(name)) => name.value.clone(),
        Some(_) => {
            let why = "`name` must be a string";
            return Err(refusal(code::POLICY_UNREADABLE, place, why));
        }
    };
    if name.len() > NAME_BYTES_MAX {
        let why = format!("`name` is longer than {NAME_BYTES_MAX} bytes");
        return Err(refusal(code::POLICY_STRING_TOO_LONG, place, &why));
    }
    if !name.is_empty() {
        let shown: String = name.chars().take(64).collect();
        *place = format!("{place} ({shown})");
    }
    let expressions = list(item, "expressions", place)?;
    let actions = list(item, "actions", place)?;
    for (name, items) in [("expressions", expressions), ("actions", actions)] {
        if items.len() > PER_RULE_MAX {
            let why = format!("it has {} {name}; the limit is {PER_RULE_MAX}", items.len());
            return Err(refusal(code::POLICY_RULE_TOO_LONG, place, &why));
        }
    }
    if actions.is_empty() {
        let why = "it has no actions";
        return Err(refusal(code::POLICY_RULE_WITHOUT_ACTION, place, why));
    }
    Ok((name, expressions, actions))
}

/// Refuses a key of a policy that is no phase.
fn check_phase(key: &str) -> Result<(), Refusal> {
    let why = match key {
        key if Phase::ALL.iter().any(|phase| phase.name() == key) => return Ok(()),
        "inbound" => "`inbound` has been renamed to `on_http_request`",
        "outbound" => "`outbound` has been renamed to `on_http_response`",
        "on_event_stream_message" => {
            let why = "`on_event_stream_message` is not supported";
            return Err(refusal(code::POLICY_VALUE_INVALID, "", why));
        }
        _ => {
            let shown: String = key.chars().take(64).collect();
            let names = Phase::ALL.map(Phase::name);
            let hint = hint(nearest(&shown, names));
            let names = names.map(|name| format!("`{name}`"));
            let why = format!(
                "unknown phase `{shown}`{hint}; valid phases: {}",
                names.join(", ")
            );
            return Err(refusal(code::POLICY_UNREADABLE, "", &why));
        }
    };
    Err(refusal(code::POLICY_UNREADABLE, "", why))
}
