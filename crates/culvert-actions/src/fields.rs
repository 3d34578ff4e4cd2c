//! Header fields that policies add.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use culvert_base::{Refusal, code};
use culvert_cel::Value;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::template::Template;
use culvert_policy::policy::values::map;
use culvert_policy::problem::{is_edge_controlled, is_edges_request};
use http::header::{HeaderName, HeaderValue, USER_AGENT};

/// Header fields whose values are templates of a policy.
#[derive(Debug)]
pub(crate) struct FieldTemplates(Vec<(HeaderName, Template)>);

/// A header field that a policy adds.
#[derive(Debug)]
pub(crate) struct Field {
    /// The name of the field.
    pub name: HeaderName,
    /// The value of the field.
    pub value: HeaderValue,
}

impl FieldTemplates {
    /// Checks names (2204), count (2218, 2223) and values (2204, 2224).
    pub(crate) fn compile(
        context: &PolicyContext<'_>,
        field: &str,
        given: &BTreeMap<String, String>,
        count: RangeInclusive<usize>,
    ) -> Result<Self, Refusal> {
        // `count` refuses an empty list, which an optional one may be.
        if *count.start() > 0 || !given.is_empty() {
            context.count(field, given.len(), *count.end())?;
        }
        let mut templates = Vec::with_capacity(given.len());
        for (name, value) in given {
            // Cut, because the error repeats it.
            let shown: String = name.chars().take(64).collect();
            let place = format!("{field}.{shown}");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                context.refuse(
                    code::POLICY_VALUE_INVALID,
                    &format!("`{place}`: this is not a header name"),
                )
            })?;
            let template = context.template(&place, value)?;
            // Expressions have a value only at a request: `header_value` checks that.
            if template
                .literals()
                .any(|text| HeaderValue::from_str(text).is_err())
            {
                let why = format!(
                    "`{place}`: a header value must not contain line breaks or control characters"
                );
                return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
            }
            templates.push((name, template));
        }
        Ok(Self(templates))
    }

    /// Removes fields that only the edge may set. They are not an error, because stored policies contain them.
    pub(crate) fn for_response(mut self) -> Self {
        self.0.retain(|(name, _)| !is_edge_controlled(name));
        self
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.0.iter().map(|(name, _)| name)
    }

    /// Hides the fields whose values come from secrets in events and captures of the exchange.
    pub(crate) fn hide(&self, x: &mut Exchange<'_>) {
        self.secret().for_each(|name| x.hide_field(name));
    }

    /// Names of fields whose values come from secrets.
    pub(crate) fn secret(&self) -> impl Iterator<Item = &HeaderName> {
        let secret = self.0.iter().filter(|(_, template)| template.is_secret());
        secret.map(|(name, _)| name)
    }

    /// The variables the values read.
    pub(crate) fn slots(&self) -> impl Iterator<Item = culvert_cel::Slot> {
        self.0.iter().flat_map(|(_, template)| template.slots())
    }

    /// Refuses names that a policy cannot change (2204). `verb` is its participle in the error.
    pub(crate) fn for_edits(
        self,
        context: &PolicyContext<'_>,
        verb: &str,
    ) -> Result<Self, Refusal> {
        let own = self.names().find(|name| {
            **name == USER_AGENT || is_edge_controlled(name) || is_edges_request(name.as_str())
        });
        if let Some(name) = own {
            let why = format!("`{name}` cannot be {verb}: the edge controls this header");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        Ok(self)
    }

    /// The fields. A field whose value would break the message is skipped and counted.
    pub(crate) fn render(&self, x: &mut Exchange<'_>) -> Vec<Field> {
        let rendered = self.render_each(x).into_iter();
        let whole = rendered.map(|(name, value)| {
            Some(Field {
                name,
                value: value?,
            })
        });
        whole.flatten().collect()
    }

    /// Each name, and its value unless that would break the message, which is counted.
    pub(crate) fn render_each(
        &self,
        x: &mut Exchange<'_>,
    ) -> Vec<(HeaderName, Option<HeaderValue>)> {
        let mut fields = Vec::with_capacity(self.0.len());
        for (name, template) in &self.0 {
            let text = template.render(x);
            fields.push((name.clone(), header_value(&text, template, x)));
        }
        fields
    }

    /// Like [`Self::render_each`]. A field has no value either if one of its expressions fails.
    pub(crate) fn render_strictly(
        &self,
        x: &mut Exchange<'_>,
    ) -> Vec<(HeaderName, Option<HeaderValue>)> {
        let mut fields = Vec::with_capacity(self.0.len());
        for (name, template) in &self.0 {
            let text = template.strict(x).ok();
            let value = text.and_then(|text| header_value(&text, template, x));
            fields.push((name.clone(), value));
        }
        fields
    }
}

/// The text of a template as a value. Text that would break the message is counted.
fn header_value(text: &str, template: &Template, x: &Exchange<'_>) -> Option<HeaderValue> {
    let Ok(mut value) = HeaderValue::from_str(text) else {
        x.conn.services.meters.failures.up();
        return None;
    };
    value.set_sensitive(template.is_secret());
    Some(value)
}

/// The names and values that were written, in the expression language.
pub(crate) fn shown(fields: &[(HeaderName, Option<HeaderValue>)]) -> Value {
    let written = fields.iter().filter_map(|(name, value)| {
        let text = String::from_utf8_lossy(value.as_ref()?.as_bytes());
        Some((name.as_str(), Value::from(&*text)))
    });
    map(written.collect())
}
