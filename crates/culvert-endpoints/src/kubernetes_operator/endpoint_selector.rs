//! Endpoint selectors of Kubernetes operators: conditions on an endpoint, in the language of `culvert-cel`.

use culvert_base::{Refusal, code};
use culvert_cel::{Env, Limits, Predicate, Resolver, Slot, Type, Value, ValueRef};
use serde_json::Value as Json;

use crate::endpoint::model::Binding as EndpointBinding;
use crate::kubernetes_operator::model::Binding;

/// Limit of selectors of one operator.
pub(crate) const SELECTORS_MAX: usize = 64;

/// The selectors of an operator.
#[derive(Debug)]
pub(crate) struct Selectors(Vec<Predicate>);

impl Selectors {
    /// The selectors of a binding. Without a binding they select nothing.
    pub(crate) fn of(binding: Option<&Binding>) -> Self {
        let sources = binding.iter().flat_map(|one| &one.endpoint_selectors);
        Self(sources.filter_map(|one| compile(one).ok()).collect())
    }

    /// Whether one of them selects an endpoint. A selector that fails to evaluate does not.
    pub(crate) fn select(&self, endpoint: &EndpointFacts) -> bool {
        let mut selectors = self.0.iter();
        selectors.any(|one| one.test(endpoint).unwrap_or(false))
    }
}

/// Refuses selectors that do not compile, or too many.
pub fn check(sources: &[String]) -> Result<(), Refusal> {
    if sources.len() > SELECTORS_MAX {
        let why = format!("An operator may have at most {SELECTORS_MAX} endpoint selectors.");
        return Err(Refusal::new(code::ENDPOINT_SELECTOR_INVALID, why));
    }
    for (index, source) in sources.iter().enumerate() {
        compile(source).map_err(|error| {
            Refusal::new(
                code::ENDPOINT_SELECTOR_INVALID,
                format!("`binding.endpoint_selectors[{index}]` is invalid: {error}."),
            )
        })?;
    }
    Ok(())
}

/// A field of an endpoint and its type.
type Selectable = (&'static str, fn() -> Type);

/// The fields of an endpoint that selectors can use.
const SELECTED: &[Selectable] = &[
    ("bindings", || Type::List(Box::new(Type::String))),
    ("description", || Type::String),
    ("host", || Type::String),
    ("hostport", || Type::String),
    ("id", || Type::String),
    ("metadata", || Type::String),
    ("name", || Type::String),
    ("pooling_enabled", || Type::Bool),
    ("port", || Type::Int),
    ("proto", || Type::String),
    ("public_url", || Type::String),
    ("region", || Type::String),
    ("scheme", || Type::String),
    ("type", || Type::String),
    ("url", || Type::String),
];

fn compile(source: &str) -> Result<Predicate, culvert_cel::Error> {
    let mut env = Env::new(Limits::FILTER);
    for (slot, (name, of)) in (0..).zip(SELECTED) {
        env = env.with_slot(&format!("endpoint.{name}"), slot, of());
    }
    env.compile_predicate(source)
}

/// The values of an endpoint for selectors, in the order of the fields.
#[derive(Debug)]
pub struct EndpointFacts(Vec<Value>);

impl EndpointFacts {
    /// The values of an endpoint as the API shows it; `None` if no operator may bind it.
    pub fn of(endpoint: &Json) -> Option<Self> {
        let bindings = endpoint["bindings"].as_array()?;
        let offered = EndpointBinding::Kubernetes.name();
        if !bindings.iter().any(|name| name == offered) {
            return None;
        }
        let value = |name: &str| match &endpoint[name] {
            Json::Bool(flag) => Value::Bool(*flag),
            Json::Number(number) => Value::Int(number.as_i64().unwrap_or(0)),
            Json::Array(items) => {
                let texts = items.iter().filter_map(Json::as_str);
                Value::List(texts.map(Value::from).collect())
            }
            other => Value::from(other.as_str().unwrap_or_default()),
        };
        let values = SELECTED.iter().map(|(name, _)| match *name {
            // Its owner chooses the spelling of `url`, and must not choose what a selector sees.
            "url" => value("public_url"),
            name => value(name),
        });
        Some(Self(values.collect()))
    }
}

impl Resolver for EndpointFacts {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        self.0.get(usize::from(slot)).map(Value::borrow)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_endpoint_is_bound_if_offered_and_selected() {
        let bound = |sources: &[&str], bindings: Json| {
            let endpoint = json!({
                "bindings": bindings, "url": "HTTP://A.b", "public_url": "http://a.b", "port": 80, "metadata": "team=x",
                "pooling_enabled": true,
            });
            let selectors = sources.iter().map(|source| compile(source).unwrap());
            let selectors = Selectors(selectors.collect());
            EndpointFacts::of(&endpoint).is_some_and(|facts| selectors.select(&facts))
        };
        for (source, expected) in [
            ("true", true),
            ("false", false),
            ("endpoint.url == 'http://a.b'", true),
            ("endpoint.port > 80", false),
            (
                "endpoint.metadata.contains('team=x') && endpoint.pooling_enabled",
                true,
            ),
            ("'kubernetes' in endpoint.bindings", true),
        ] {
            assert_eq!(
                bound(&[source], json!(["kubernetes"])),
                expected,
                "{source}"
            );
            assert!(!bound(&[source], json!(["public"])));
        }
        assert!(bound(&["false", "true"], json!(["kubernetes"])));
        assert!(!bound(&[], json!(["kubernetes"])));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,200}") {
            drop(check(std::slice::from_ref(&text)));
        }
    }
}
