//! Parses the page parameters of a list (contract: management API 1.9).

use culvert_base::{Refusal, code, id};
use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::cx::base::PublicPorts;

/// Default and limit of objects per page.
pub const LIMIT_MAX: u32 = 100;

/// A list parameter besides `limit`, `before_id` and `filter`. It may be repeated, and selects the objects
/// of which it names one by its `field`.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Name of the query parameter.
    pub name: &'static str,
    /// The field.
    pub field: &'static str,
    /// The values that the field may have as it is stored, if it is given as this text.
    pub stored: fn(PublicPorts, &str) -> Vec<String>,
    /// Whether this text names an object, of which filters see this.
    pub names: fn(PublicPorts, &str, &Value) -> bool,
}

impl Argument {
    /// A parameter for a field that is given as it is stored.
    pub const fn plain(name: &'static str, field: &'static str) -> Self {
        Self {
            name,
            field,
            stored: |_, given| vec![given.to_owned()],
            names: |_, _, _| true,
        }
    }
}

const LIMIT: Parameter = Parameter {
    name: "limit",
    doc: "Maximum number of objects per page, 1 to 100; default: 100.",
    repeatable: false,
    within: Some((1, LIMIT_MAX)),
    form: Form::Text,
};

const BEFORE_ID: Parameter = Parameter {
    name: "before_id",
    doc: "Returns only objects older than the object with this ID.",
    repeatable: false,
    within: None,
    form: Form::Text,
};

const FILTER: Parameter = Parameter {
    name: "filter",
    doc: "Returns only objects that match this condition on `obj`, in a subset of CEL.",
    repeatable: false,
    within: None,
    form: Form::Text,
};

/// Parameters of a list without a filter.
pub const PLAIN: &[Parameter] = &[LIMIT, BEFORE_ID];

/// Parameters of a list with a filter.
pub(crate) const FILTERED: &[Parameter] = &[LIMIT, BEFORE_ID, FILTER];

/// Parameters of a list with a filter, whose objects have further fields.
pub const INCLUDED: &[Parameter] = &[LIMIT, BEFORE_ID, FILTER, INCLUDE];

/// Parameters of the list of endpoints.
pub const ENDPOINTS: &[Parameter] = &[
    LIMIT,
    BEFORE_ID,
    FILTER,
    repeatable("id", "Returns only endpoints with one of these IDs."),
    repeatable("ids", "Alias of `id`."),
    repeatable(
        "url",
        "Returns only endpoints with one of these URLs, in any spelling that a creation accepts.",
    ),
    repeatable("urls", "Alias of `url`."),
];

const fn repeatable(name: &'static str, doc: &'static str) -> Parameter {
    Parameter {
        name,
        doc,
        repeatable: true,
        within: None,
        form: Form::Text,
    }
}

/// The parsed query of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListQuery {
    pub limit: u32,
    /// ID body; the page contains only older objects.
    pub before: Option<String>,
    pub filter: Option<String>,
    /// Name and value, as given.
    pub arguments: Vec<(&'static str, String)>,
    /// Groups of further fields.
    pub include: Vec<&'static Part>,
}

/// The parameters that a list accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takes {
    /// ID prefixes of its objects.
    pub prefixes: &'static [&'static str],
    pub filter: bool,
    pub arguments: &'static [Argument],
    /// Groups of further fields.
    pub included: &'static [Part],
}

impl ListQuery {
    /// Parses the query of a list call.
    pub(crate) fn read(query: &[(String, String)], takes: Takes) -> Result<Self, Refusal> {
        let mut wanted = Self {
            limit: LIMIT_MAX,
            before: None,
            filter: None,
            arguments: Vec::new(),
            include: Vec::new(),
        };
        for (index, (name, value)) in query.iter().enumerate() {
            if let Some(argument) = takes.arguments.iter().find(|one| one.name == name) {
                wanted.arguments.push((argument.name, value.clone()));
                continue;
            }
            let is_known = match name.as_str() {
                "limit" | "before_id" => true,
                "filter" => takes.filter,
                "include" => !takes.included.is_empty(),
                _ => false,
            };
            if !is_known {
                let mut names = vec!["limit", "before_id"];
                names.extend(takes.filter.then_some("filter"));
                names.extend((!takes.included.is_empty()).then_some(INCLUDE.name));
                names.extend(takes.arguments.iter().map(|argument| argument.name));
                return Err(Refusal::new(
                    code::QUERY_PARAMETER_UNKNOWN,
                    format!(
                        "Unknown parameter `{}`; valid parameters: {}.",
                        name.chars().take(64).collect::<String>(),
                        names.join(", ")
                    ),
                ));
            }
            if query.iter().take(index).any(|(earlier, _)| earlier == name) {
                return Err(Refusal::new(
                    code::QUERY_PARAMETER_REPEATED,
                    format!("`{name}` is repeated."),
                ));
            }
            if value.is_empty() {
                continue;
            }
            match name.as_str() {
                "limit" => wanted.limit = limit(value)?,
                "before_id" => wanted.before = Some(before(value, takes.prefixes)?),
                "include" => wanted.include = included(query, takes.included)?,
                _ => wanted.filter = Some(value.clone()),
            }
        }
        Ok(wanted)
    }

    /// The link to the page after the one that ends with `last`.
    pub(crate) fn next_page(&self, collection_uri: &str, last: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("before_id", last);
        query.append_pair("limit", &self.limit.to_string());
        if let Some(filter) = &self.filter {
            query.append_pair("filter", filter);
        }
        if !self.include.is_empty() {
            let names: Vec<_> = self.include.iter().map(|part| part.name).collect();
            query.append_pair(INCLUDE.name, &names.join(","));
        }
        for (name, value) in &self.arguments {
            query.append_pair(name, value);
        }
        format!("{collection_uri}?{}", query.finish())
    }
}

/// The URL of a query in which a parameter has another value.
pub fn with_parameter(uri: &str, query: &[(String, String)], name: &str, value: &str) -> String {
    let mut next = form_urlencoded::Serializer::new(String::new());
    for (other, given) in query.iter().filter(|(other, _)| other != name) {
        next.append_pair(other, given);
    }
    next.append_pair(name, value);
    format!("{uri}?{}", next.finish())
}

/// Parses the number of objects per page: 233 outside its bounds, 244 if it is not a number.
pub fn limit(text: &str) -> Result<u32, Refusal> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::of(code::PAGE_LIMIT_NOT_NUMBER));
    }
    match text.parse() {
        Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
        _ => Err(Refusal::of(code::PAGE_LIMIT_OUT_OF_RANGE)),
    }
}

fn before(text: &str, prefixes: &'static [&'static str]) -> Result<String, Refusal> {
    reference("before_id", text, prefixes).map(str::to_owned)
}

/// The body of an ID that must have one of `prefixes`: 223 if `text` is not an ID, 227 (or 243 if several
/// prefixes fit) if it is an ID of another kind.
pub fn reference<'t>(
    field: &str,
    text: &'t str,
    prefixes: &'static [&'static str],
) -> Result<&'t str, Refusal> {
    match id::split(text) {
        None => Err(Refusal::new(
            code::REFERENCE_NOT_ID,
            format!("`{field}` must be an identifier."),
        )),
        Some((prefix, body)) if prefixes.contains(&prefix) => Ok(body),
        Some(_) => Err(Refusal::new(
            match prefixes {
                [_] => code::REFERENCE_WRONG_KIND,
                _ => code::REFERENCE_KIND_NOT_ALLOWED,
            },
            format!(
                "`{field}` must be an identifier that starts with `{}_`.",
                prefixes.join("_` or `")
            ),
        )),
    }
}

/// The query parameter of further fields, which clients get only if they ask for them.
pub const INCLUDE: Parameter = Parameter {
    name: "include",
    doc: "Further fields of each object, by the names of their groups, separated by commas.",
    repeatable: false,
    within: None,
    form: Form::Text,
};

/// A group of fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// As in `include`.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [&'static str],
}

/// The further fields of one object.
pub type Fields = Map<String, Value>;

/// The groups that a query asks for.
///
/// # Errors
///
/// 215 for an unknown group, and 232 if the parameter is repeated.
pub(crate) fn included(
    query: &[(String, String)],
    known: &'static [Part],
) -> Result<Vec<&'static Part>, Refusal> {
    let mut given = query.iter().filter(|(name, _)| name == INCLUDE.name);
    let first = given.next();
    if given.next().is_some() {
        let why = "`include` is repeated; separate names by commas.";
        return Err(Refusal::new(code::QUERY_PARAMETER_REPEATED, why));
    }
    let names = first.map_or("", |(_, value)| value).split(',');
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    let part = |name: &str| {
        known.iter().find(|part| part.name == name).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|part| part.name).collect();
            let why = format!("`include` must be of {}.", names.join(", "));
            Refusal::new(code::BODY_FIELD_INVALID, why)
        })
    };
    names.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Takes = Takes {
        prefixes: &["ak"],
        filter: true,
        arguments: &[Argument::plain("url", "url")],
        included: &[Part {
            name: "usage",
            fields: &["last_used_at"],
        }],
    };

    fn read(query: &[(&str, &str)]) -> Result<ListQuery, u16> {
        let query: Vec<_> = query
            .iter()
            .map(|(n, v)| ((*n).into(), (*v).into()))
            .collect();
        ListQuery::read(&query, TAKES).map_err(|refusal| refusal.code.unwrap().number())
    }

    #[test]
    fn page_parameters_are_validated_with_codes() {
        assert_eq!(read(&[]).unwrap().limit, 100);
        assert_eq!(
            read(&[("limit", ""), ("before_id", "")]).unwrap().limit,
            100
        );
        for (query, code) in [
            ([("limit", "0")], 233),
            ([("limit", "101")], 233),
            ([("limit", "-1")], 233),
            ([("limit", "99999999999999999999")], 233),
            ([("limit", "ten")], 244),
            ([("limit", "1.5")], 244),
            ([("before_id", "bot_1")], 227),
            ([("before_id", "junk!")], 223),
            ([("order", "asc")], 231),
            ([("include", "secrets")], 215),
        ] {
            assert_eq!(read(&query), Err(code), "{query:?}");
        }
        assert_eq!(read(&[("limit", "1"), ("limit", "")]), Err(232));
        let two = read(&[("url", "a"), ("url", "b")]).unwrap();
        assert_eq!(two.arguments.len(), 2);
        let severals = Takes {
            prefixes: &["bot", "service"],
            ..TAKES
        };
        let query = [("before_id".to_owned(), "ak_1".to_owned())];
        let refused = ListQuery::read(&query, severals).unwrap_err();
        assert_eq!(refused.code, Some(code::REFERENCE_KIND_NOT_ALLOWED));
    }

    #[test]
    fn next_page_uri_repeats_the_query() {
        let wanted = read(&[("limit", "2"), ("filter", "obj.id == 'é&'"), ("url", "a b")]).unwrap();
        assert_eq!(
            wanted.next_page("http://x/api_keys", "ak_1"),
            "http://x/api_keys?before_id=ak_1&limit=2&filter=obj.id+%3D%3D+%27%C3%A9%26%27&url=a+b"
        );
    }
}

/// One query parameter.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The name in the query string.
    pub name: &'static str,
    /// Its description.
    pub doc: &'static str,
    /// Whether it may be given more than once.
    pub repeatable: bool,
    /// Bounds of an integer; `None` for text.
    pub within: Option<(u32, u32)>,
    /// What the text is. An empty value counts as not given.
    pub form: Form,
}

/// What the text of a query parameter is, for programs that make a client from the OpenAPI document.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Any text.
    Text,
    /// An RFC 3339 time.
    Time,
    /// `true` or `false`.
    Flag,
    /// One of these values.
    Choice(&'static [&'static str]),
}
