//! Parts of CEL conditions, and how they are negated.
//!
//! A condition without a result for an event, because its type has no such field or the field is null, selects nothing,
//! negated or not. So each test has a second form that is false then, to be negated.

/// Alternatives of tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Condition {
    /// Each test: as it is, and in the form that always has a result.
    tests: Vec<(String, String)>,
}

impl Condition {
    pub(super) fn new(plain: String, guarded: String) -> Self {
        Self {
            tests: vec![(plain, guarded)],
        }
    }

    /// A test of a field of the object that is never null: `==`, `>=` or a function, applied to the path.
    pub(super) fn of(path: &str, test: &str) -> Self {
        Self::new(
            format!("{path}{test}"),
            format!("has({path}) && {path}{test}"),
        )
    }

    /// As [`Self::of`], of a field that may be null.
    pub(super) fn of_nullable(path: &str, test: &str) -> Self {
        let guarded = format!("has({path}) && {path} != null && {path}{test}");
        Self::new(format!("{path}{test}"), guarded)
    }

    /// A test that always has a result.
    pub(super) fn always(test: String) -> Self {
        Self::new(test.clone(), test)
    }

    #[must_use]
    pub(super) fn or(mut self, other: Self) -> Self {
        self.tests.extend(other.tests);
        self
    }

    /// Selects the events for which a test holds.
    pub(super) fn positive(&self) -> String {
        let plain = self.tests.iter().map(|(plain, _)| plain.as_str());
        joined(&plain.collect::<Vec<_>>())
    }

    /// Selects the events for which no test holds.
    pub(super) fn negative(&self) -> String {
        let guarded = self.tests.iter().map(|(_, guarded)| guarded.as_str());
        format!("!({})", guarded.collect::<Vec<_>>().join(" || "))
    }
}

fn joined(tests: &[&str]) -> String {
    match tests {
        [one] if !one.contains("&&") && !one.contains("||") => (*one).to_owned(),
        tests => format!("({})", tests.join(" || ")),
    }
}

/// One condition of alternatives; `None` if there are none.
pub(super) fn any_of(conditions: Vec<Condition>) -> Option<String> {
    let mut all = conditions.into_iter().reduce(Condition::or)?;
    let mut seen = Vec::new();
    all.tests.retain(|test| {
        let is_new = !seen.contains(test);
        seen.push(test.clone());
        is_new
    });
    Some(all.positive())
}

/// The events about an object.
pub(super) fn object(id: &str) -> Condition {
    let id = quoted(id);
    Condition::always(format!("endpoint_id == {id}"))
        .or(Condition::of("ev.id", &format!(" == {id}")))
}

/// The events of a user or bot.
pub(super) fn actor(id: &str) -> Condition {
    of_principal("id", &quoted(id))
}

/// The events whose principal has this field.
pub(super) fn of_principal(field: &str, literal: &str) -> Condition {
    let test = format!("principal.{field} == {literal}");
    let guarded = format!("principal != null && {test}");
    Condition::new(test, guarded)
}

/// The events of who has this name or email address, in any letter case.
pub(super) fn of_subject(name: &str) -> Condition {
    if !has_case(name) {
        return of_principal("subject", &quoted(name));
    }
    let pattern = quoted(&format!("(?i)^{}$", escaped(name)));
    let test = format!("principal.subject.matches({pattern})");
    let guarded = format!("principal != null && {test}");
    Condition::new(test, guarded)
}

/// The calls with a key.
pub(super) fn of_credential(id: &str) -> Condition {
    let test = format!("principal.credential.id == {}", quoted(id));
    let guarded = format!("principal != null && principal.credential != null && {test}");
    Condition::new(test, guarded)
}

/// The calls whose context has this field.
pub(super) fn of_context(field: &str, test: &str) -> Condition {
    let path = format!("principal.context.{field}");
    let guarded =
        format!("principal != null && has(principal.context) && {path} != null && {path}{test}");
    Condition::new(format!("{path}{test}"), guarded)
}

/// A string literal.
pub(super) fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                literal.push('\\');
                literal.push(c);
            }
            c if c.is_control() => literal.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// A test for a text in any letter case.
pub(super) fn contains(text: &str) -> String {
    match has_case(text) {
        true => format!(".matches({})", quoted(&format!("(?i){}", escaped(text)))),
        false => format!(".contains({})", quoted(text)),
    }
}

fn has_case(text: &str) -> bool {
    text.chars().any(|c| {
        let folded: String = c.to_lowercase().chain(c.to_uppercase()).collect();
        folded.chars().any(|other| other != c)
    })
}

/// A regular expression for exactly this text.
pub(super) fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\.+*?()|[]{}^$".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}
