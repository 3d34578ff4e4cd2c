//! Filters of lists give what a look at every object gives, on both stores, whatever the store finds
//! objects by.

use culvert_base::{Entropy, SeededEntropy};
use http::Method;
use serde_json::{Value, json};

use super::harness::{Backend, Harness, backends};

const OBJECTS: usize = 60;
const FILTERS: usize = 60;
/// Links to next pages repeat the filter.
const FILTER_BYTES_MAX: usize = 1000;

/// A condition on an API key.
#[derive(Debug)]
enum Condition {
    Is(&'static str, String),
    IsNot(&'static str, String),
    OneOf(&'static str, Vec<String>),
    Begins(&'static str, String),
    Ends(&'static str, String),
    Contains(&'static str, String),
    NotNewer(String),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

impl Condition {
    fn holds(&self, object: &Value) -> bool {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        match self {
            Self::Is(field, value) => text(field) == value,
            Self::IsNot(field, value) => text(field) != value,
            Self::OneOf(field, values) => values.iter().any(|value| value == text(field)),
            Self::Begins(field, value) => text(field).starts_with(value),
            Self::Ends(field, value) => text(field).ends_with(value),
            Self::Contains(field, value) => text(field).contains(value),
            Self::NotNewer(id) => text("id") <= id.as_str(),
            Self::Not(inner) => !inner.holds(object),
            Self::And(a, b) => a.holds(object) && b.holds(object),
            Self::Or(a, b) => a.holds(object) || b.holds(object),
        }
    }

    fn spelled(&self) -> String {
        let quoted = |value: &String| {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{escaped}\"")
        };
        match self {
            Self::Is(field, value) => format!("{} == obj.{field}", quoted(value)),
            Self::IsNot(field, value) => format!("obj.{field} != {}", quoted(value)),
            Self::OneOf(field, values) => {
                let values: Vec<_> = values.iter().map(quoted).collect();
                format!("obj.{field} in [{}]", values.join(", "))
            }
            Self::Begins(field, value) => format!("obj.{field}.startsWith({})", quoted(value)),
            Self::Ends(field, value) => format!("obj.{field}.endsWith({})", quoted(value)),
            Self::Contains(field, value) => format!("obj.{field}.contains({})", quoted(value)),
            Self::NotNewer(id) => format!("obj.id <= \"{id}\""),
            Self::Not(inner) => format!("!({})", inner.spelled()),
            Self::And(a, b) => format!("({} && {})", a.spelled(), b.spelled()),
            Self::Or(a, b) => format!("({} || {})", a.spelled(), b.spelled()),
        }
    }
}

/// The same choices in every run.
struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, n: usize) -> usize {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        usize::try_from(u64::from_le_bytes(bytes) % u64::try_from(n).unwrap()).unwrap()
    }

    /// Of few words, so that texts share beginnings and parts; at times empty or very long.
    fn text(&self) -> String {
        const WORDS: [&str; 7] = ["a", "ab", "b", "\u{e9}", "\"\\", "%_'", "\u{10ffff}"];
        let mut text: String = (0..self.below(4))
            .map(|_| WORDS[self.below(WORDS.len())])
            .collect();
        if self.below(8) == 0 {
            text = text.repeat(100).chars().take(80).collect();
        }
        text
    }

    fn condition(&self, depth: usize, ids: &[String]) -> Condition {
        let field = ["description", "metadata", "metadata", "owner_id"][self.below(4)];
        let deeper = || Box::new(self.condition(depth - 1, ids));
        match self.below(if depth == 0 { 7 } else { 12 }) {
            0 => Condition::Is(field, self.text()),
            1 => Condition::OneOf(field, (0..=self.below(3)).map(|_| self.text()).collect()),
            2 if field != "owner_id" => Condition::Begins(field, self.text()),
            3 if field != "owner_id" => Condition::Ends(field, self.text()),
            4 if field != "owner_id" => Condition::Contains(field, self.text()),
            5 => Condition::NotNewer(ids[self.below(ids.len())].clone()),
            2..=6 => Condition::IsNot(field, self.text()),
            7 => Condition::Not(deeper()),
            8 | 9 => Condition::Or(deeper(), deeper()),
            _ => Condition::And(deeper(), deeper()),
        }
    }
}

/// Every object of a list, page by page.
async fn list(culvert: &Harness, query: &[(&str, &str)]) -> Vec<Value> {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(query)
        .finish();
    let mut path = format!("/api_keys?{query}");
    let mut objects = Vec::new();
    loop {
        let page = culvert
            .client
            .expect(Method::GET, &path, None)
            .await
            .unwrap();
        objects.extend(page["keys"].as_array().unwrap().iter().cloned());
        match page["next_page_uri"].as_str() {
            Some(next) => path = next.strip_prefix(&culvert.api).unwrap().to_owned(),
            None => return objects,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexed_filters_find_what_a_full_scan_finds() {
    for backend in backends().await {
        Box::pin(check(&backend)).await;
    }
}

async fn check(backend: &Backend) {
    let culvert = Harness::start(backend).await;
    let dice = Dice(SeededEntropy::new(11));
    for _ in 0..OBJECTS {
        // A description has less room than metadata.
        let description: String = dice.text().chars().take(60).collect();
        let metadata = dice.text().repeat(1 + 10 * (dice.below(6) / 5));
        let body = json!({"description": description, "metadata": metadata});
        culvert.create("api_keys", body).await;
    }
    let all = list(&culvert, &[]).await;
    assert!(all.len() > OBJECTS);
    let ids: Vec<String> = all
        .iter()
        .map(|object| object["id"].as_str().unwrap().to_owned())
        .collect();
    let mut n_some = 0;
    for _ in 0..FILTERS {
        let mut condition = dice.condition(3, &ids);
        while condition.spelled().len() > FILTER_BYTES_MAX {
            condition = dice.condition(3, &ids);
        }
        let filter = condition.spelled();
        let limit = ["3", "10", "100"][dice.below(3)];
        let listed = list(&culvert, &[("limit", limit), ("filter", &filter)]).await;
        let expected: Vec<&Value> = all.iter().filter(|one| condition.holds(one)).collect();
        assert_eq!(
            listed.iter().collect::<Vec<_>>(),
            expected,
            "{backend:?} {filter}"
        );
        n_some += usize::from(!expected.is_empty() && expected.len() < all.len());
    }
    assert!(
        n_some > FILTERS / 3,
        "most filters are of all or nothing: {n_some}"
    );
    culvert.stop().await;
}
