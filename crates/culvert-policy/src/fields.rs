//! Header fields that policies add.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use culvert_base::{Refusal, code};
use culvert_cel::Value;
use culvert_http::fields::is_of_one_hop;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TRAILER};

use crate::policy::context::PolicyContext;
use crate::policy::exchange::Exchange;
use crate::policy::template::Template;
use crate::problem::is_error_code;

/// Whether a field defines the length or the transfer of a message, which only the edge may set.
pub(crate) fn is_framing(name: &HeaderName) -> bool {
    is_of_one_hop(name.as_str())
        || *name == CONTENT_LENGTH
        || *name == TRAILER
        || is_error_code(name.as_str())
}

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

impl Field {
    /// Its value in the expression language.
    pub(crate) fn text(&self) -> Value {
        Value::from(&*String::from_utf8_lossy(self.value.as_bytes()))
    }
}

impl FieldTemplates {
    /// Checks names (2204), count (2218, 2223) and values (2224).
    pub(crate) fn compile(
        context: &PolicyContext<'_>,
        field: &str,
        given: &BTreeMap<String, String>,
        count: RangeInclusive<usize>,
    ) -> Result<Self, Refusal> {
        if *count.start() > 0 || !given.is_empty() {
            context.count(field, given.len(), *count.end())?;
        }
        let mut templates = Vec::with_capacity(given.len());
        for (name, value) in given {
            let shown: String = name.chars().take(64).collect();
            let place = format!("{field}.{shown}");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                context.refuse(
                    code::POLICY_VALUE_INVALID,
                    &format!("`{place}`: this is not a header name"),
                )
            })?;
            let template = context.template(&place, value)?;
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
    pub(crate) fn of_response(mut self) -> Self {
        self.0.retain(|(name, _)| !is_framing(name));
        self
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.0.iter().map(|(name, _)| name)
    }

    /// Hides the secret ones among them in events and captures of the exchange.
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

    /// The fields. A field whose value would break the message is skipped and counted.
    pub(crate) fn render(&self, x: &mut Exchange<'_>) -> Vec<Field> {
        let mut fields = Vec::with_capacity(self.0.len());
        for (name, template) in &self.0 {
            match HeaderValue::from_str(&template.render(x)) {
                Ok(mut value) => {
                    value.set_sensitive(template.is_secret());
                    fields.push(Field {
                        name: name.clone(),
                        value,
                    });
                }
                Err(_) => x.conn.services.meters.failures.up(),
            }
        }
        fields
    }
}
