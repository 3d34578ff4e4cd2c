//! Derives bounds from a filter so that the store reads fewer objects that do not match.
//!
//! Bounds may be too wide, because the filter still checks each object that is read. They must never be too
//! narrow.

use std::time::Duration;

use culvert_base::{Ksuid, Timestamp};
use culvert_store::Like;

use super::{CREATED_AT, Expr, Field, ID, Match, Relation, Shape};

/// Bounds of the matching objects. Each may be too wide; objects within are still checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// No ID body of a match sorts before this.
    pub from: Option<String>,
    /// Every ID body of a match sorts before this.
    pub before: Option<String>,
    /// The object that all matches refer to.
    pub(crate) refers_to: Option<String>,
    /// Text that the stored form of every match contains.
    pub contains: Option<String>,
    /// ID bodies of the matches.
    pub ids: Option<Vec<String>>,
    /// Every match has at least one text of each of these lists.
    pub texts: Vec<Vec<Looked>>,
}

/// A text to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    pub field: &'static str,
    pub like: Like,
}

impl Looked {
    /// The text equals one of `texts`. `None` if an unset text equals one of them too.
    pub(crate) fn one_of(field: Field, texts: Vec<String>) -> Option<Self> {
        let is_sure = field.stored().is_some() && !texts.is_empty();
        (is_sure && texts.iter().all(|text| !text.is_empty())).then_some(Self {
            field: field.name,
            like: Like::OneOf(texts),
        })
    }
}

impl Span {
    pub(super) fn narrow(&mut self, expr: &Expr, prefix: &str) {
        match expr {
            Expr::And(a, b) => {
                self.narrow(a, prefix);
                self.narrow(b, prefix);
                return;
            }
            Expr::Compare(relation, a, b) => match (&**a, &**b) {
                (Expr::Field(field), literal) => {
                    self.compare(*field, *relation, literal, prefix);
                }
                (literal, Expr::Field(field)) => {
                    self.compare(*field, relation.mirrored(), literal, prefix);
                }
                _ => {}
            },
            Expr::In(value, list) => {
                if let (Expr::Field(field), Expr::List(items)) = (&**value, &**list)
                    && field.name == ID.name
                {
                    self.one_of(items, prefix);
                }
            }
            Expr::Match(_, text, part) => {
                if let (Expr::Field(field), Expr::Text(part)) = (&**text, &**part)
                    && field.stored().is_some()
                    && !part.is_empty()
                {
                    self.contains = spelled(part);
                }
            }
            _ => {}
        }
        self.texts.extend(any_of(expr));
    }

    fn compare(&mut self, field: Field, relation: Relation, literal: &Expr, prefix: &str) {
        use Relation::{Equal, Greater, GreaterEqual, Less, LessEqual};
        let (from, to) = match literal {
            Expr::Text(text) if field.name == ID.name => match body(text, prefix) {
                Some(body) => (body.to_owned(), behind(body)),
                None => return,
            },
            Expr::Time(at) if field.name == CREATED_AT.name => {
                let id = |at: Timestamp| Ksuid::new(at, [0; 16]).to_string();
                (id(at.minus(SLACK)), id(at.plus(SLACK)))
            }
            Expr::Text(text) if field.shape == Shape::Link && relation == Equal => {
                self.refers_to = (!text.is_empty()).then(|| text.clone());
                return;
            }
            Expr::Text(text) if field.stored().is_some() && relation == Equal => {
                if let (false, Some(spelled)) = (text.is_empty(), spelled(text)) {
                    self.contains = Some(format!("\"{}\":\"{spelled}\"", field.name));
                }
                return;
            }
            _ => return,
        };
        if matches!(relation, Equal | Greater | GreaterEqual) {
            self.from = self.from.take().max(Some(from));
        }
        if matches!(relation, Equal | Less | LessEqual) {
            self.bound(to);
        }
    }

    fn one_of(&mut self, items: &[Expr], prefix: &str) {
        let bodies: Option<Vec<&str>> = items
            .iter()
            .map(|item| match item {
                Expr::Text(text) => body(text, prefix),
                _ => None,
            })
            .collect();
        if let Some((first, last)) = bodies
            .as_deref()
            .and_then(|bodies| Some((bodies.iter().min()?, bodies.iter().max()?)))
        {
            self.from = self.from.take().max(Some((*first).to_owned()));
            self.bound(behind(last));
            self.ids = bodies.map(|bodies| bodies.into_iter().map(str::to_owned).collect());
        }
    }

    /// Lowers the upper bound to `before`.
    pub(crate) fn bound(&mut self, before: String) {
        self.before = Some(match self.before.take() {
            Some(known) => known.min(before),
            None => before,
        });
    }
}

/// Texts of which every match has at least one.
fn any_of(expr: &Expr) -> Option<Vec<Looked>> {
    match expr {
        Expr::Or(a, b) => {
            let mut texts = any_of(a)?;
            texts.extend(any_of(b)?);
            Some(texts)
        }
        // The sides of a top-level `&&` are searched separately.
        Expr::And(a, b) => any_of(a).or_else(|| any_of(b)),
        Expr::Compare(Relation::Equal, a, b) => match (&**a, &**b) {
            (Expr::Field(field), Expr::Text(text)) | (Expr::Text(text), Expr::Field(field)) => {
                Looked::one_of(*field, vec![text.clone()]).map(|looked| vec![looked])
            }
            _ => None,
        },
        Expr::In(value, list) => match (&**value, &**list) {
            (Expr::Field(field), Expr::List(items)) => {
                let text = |item: &Expr| match item {
                    Expr::Text(text) => Some(text.clone()),
                    _ => None,
                };
                let texts = items.iter().map(text).collect::<Option<_>>()?;
                Looked::one_of(*field, texts).map(|looked| vec![looked])
            }
            _ => None,
        },
        Expr::Match(function, text, part) => match (&**text, &**part) {
            (Expr::Field(field), Expr::Text(part))
                if field.stored().is_some() && !part.is_empty() =>
            {
                let like = match function {
                    Match::StartsWith => Like::Begins(part.clone()),
                    Match::EndsWith | Match::Contains => Like::Contains(part.clone()),
                };
                let field = field.name;
                Some(vec![Looked { field, like }])
            }
            _ => None,
        },
        _ => None,
    }
}

impl Relation {
    /// The relation with its sides swapped.
    const fn mirrored(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::GreaterEqual => Self::LessEqual,
            Self::Greater => Self::Less,
            equality => equality,
        }
    }
}

/// An ID contains the second of its object's creation, up to the time that the creation took.
const SLACK: Duration = Duration::from_secs(5);

/// The body of an ID with this prefix.
fn body<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (found, body) = culvert_base::id::split(text)?;
    (found == prefix).then_some(body)
}

/// The text that sorts directly after a body.
fn behind(body: &str) -> String {
    format!("{body}!")
}

/// A text in JSON encoding without quotes, as stored forms contain it.
fn spelled(text: &str) -> Option<String> {
    let json = serde_json::to_string(text).ok()?;
    Some(json.get(1..json.len() - 1)?.to_owned())
}
