//! Prints responses of the API as tables that fit the terminal.

use std::io::IsTerminal;

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::names::escaped;
use serde_json::{Map, Value};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Failure;

/// Width of a table that is not printed on a terminal.
const WIDTH: usize = 120;
/// Maximum width of a cell in a column that was not chosen.
const CELL_WIDTH: usize = 44;
/// Minimum width to which a chosen column is shortened.
const CELL_WIDTH_MIN: usize = 6;
const GAP: &str = "  ";

/// Columns that tell objects apart, in the order in which they are shown.
const FIRST: [&str; 20] = [
    "id",
    "name",
    "url",
    "public_url",
    "domain",
    "addr",
    "hostname",
    "email",
    "subject",
    "description",
    "proto",
    "protocol",
    "type",
    "kind",
    "status",
    "state",
    "active",
    "forwards_to",
    "cidr",
    "action",
];
/// Columns that are shown last.
const LAST: [&str; 3] = ["created_at", "updated_at", "metadata"];

/// Adds the flags.
pub(super) fn with_table(command: Command) -> Command {
    command
        .arg(
            Arg::new("table")
                .long("table")
                .global(true)
                .action(ArgAction::SetTrue)
                .help("Print a table instead of JSON, as wide as the terminal or 120 characters"),
        )
        .arg(
            Arg::new("columns")
                .long("columns")
                .global(true)
                .value_name("FIELD[,FIELD]")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .help("Print a table of these fields; `a.b` is a field of an object"),
        )
        .arg(
            Arg::new("field")
                .long("field")
                .global(true)
                .value_name("FIELD")
                .conflicts_with_all(["table", "columns"])
                .help("Print only this field, such as `id`, without quotes: one line for each object of a list"),
        )
}

/// The values of the field that `--field` names: one for each item of a list, otherwise that of the object. `None`
/// without the flag.
pub(super) fn field_of(given: &ArgMatches, body: &Value) -> Option<Result<Vec<String>, Failure>> {
    let field = given.get_one::<String>("field")?;
    let is_terminal = std::io::stdout().is_terminal();
    Some(values(body, field, is_terminal))
}

fn values(body: &Value, field: &str, is_terminal: bool) -> Result<Vec<String>, Failure> {
    let all = match items_with(body, &[field]) {
        Some(items) => items.iter().collect(),
        None => vec![body],
    };
    let mut lines = Vec::new();
    for object in all {
        lines.push(match at(object, field) {
            None => {
                let field = escaped(field);
                return Err(Failure::Failed(format!(
                    "the response has no field `{field}`"
                )));
            }
            // A terminal would obey control characters; programs need the whole text.
            Some(Value::String(text)) if is_terminal => escaped(text).into_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        });
    }
    Ok(lines)
}

/// The items of a page; `None` if the response is no list.
fn items_of(body: &Value) -> Option<&Vec<Value>> {
    let object = body.as_object()?;
    let list = object.values().find_map(Value::as_array);
    list.filter(|_| object.contains_key("next_page_uri"))
}

/// The items whose fields these are: those of a page, or of the only list in an object that has none of the fields itself.
fn items_with<'b>(body: &'b Value, fields: &[&str]) -> Option<&'b Vec<Value>> {
    if let Some(items) = items_of(body) {
        return Some(items);
    }
    let object = body.as_object()?;
    let is_here = |field: &&str| object.contains_key(field.split('.').next().unwrap_or(field));
    if fields.is_empty() || fields.iter().any(is_here) {
        return None;
    }
    let mut lists = object.values().filter_map(Value::as_array);
    let list = lists.next().filter(|_| lists.next().is_none())?;
    list.iter().all(Value::is_object).then_some(list)
}

/// The requested table, if any.
pub(super) fn table_of(given: &ArgMatches) -> Option<Table> {
    let columns: Vec<String> = given
        .get_many::<String>("columns")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    (given.get_flag("table") || !columns.is_empty()).then(|| {
        let is_terminal = std::io::stdout().is_terminal();
        let width = crossterm::terminal::size().ok().filter(|_| is_terminal);
        Table {
            columns,
            width: width.map_or(WIDTH, |(columns, _)| usize::from(columns).max(20)),
            // Programs that read chosen columns need the whole values.
            is_shortened: is_terminal,
        }
    })
}

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    /// The chosen columns; empty to choose those that fit.
    columns: Vec<String>,
    width: usize,
    /// Whether values of chosen columns may be shortened.
    is_shortened: bool,
}

impl Table {
    /// Formats a list with one row per item, or an object with one row per field.
    pub(super) fn render(&self, body: &Value) -> String {
        let Some(object) = body.as_object() else {
            return String::new();
        };
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        match items_with(body, &columns) {
            Some(items) => self.list(items),
            None => self.object(object),
        }
    }

    fn list(&self, items: &[Value]) -> String {
        let is_chosen = !self.columns.is_empty();
        let columns = match is_chosen {
            true => self.columns.clone(),
            false => candidates(items),
        };
        let mut shown: Vec<Vec<String>> = Vec::new();
        let mut left = self.width;
        for column in columns {
            let mut cells = vec![column.to_uppercase()];
            cells.extend(items.iter().map(|item| cell_at(item, &column)));
            if !is_chosen {
                // An ID is of use only as a whole.
                if column != "id" {
                    cells.iter_mut().for_each(|cell| shorten(cell, CELL_WIDTH));
                }
                let width = widest(&cells) + GAP.len();
                if width > left + GAP.len() && !shown.is_empty() {
                    continue;
                }
                left = left.saturating_sub(width);
            }
            shown.push(cells);
        }
        if is_chosen && self.is_shortened {
            self.fit(&mut shown);
        }
        rows(&shown)
    }

    fn object(&self, object: &Map<String, Value>) -> String {
        let whole = Value::Object(object.clone());
        let names: Vec<String> = match self.columns.is_empty() {
            true => object.keys().cloned().collect(),
            false => self.columns.clone(),
        };
        let values = names.iter().map(|name| cell_at(&whole, name)).collect();
        let mut shown = vec![names.clone(), values];
        if self.is_shortened {
            self.fit(&mut shown);
        }
        rows(&shown)
    }

    /// Shortens the widest columns until the table fits.
    fn fit(&self, columns: &mut [Vec<String>]) {
        let gaps = GAP.len() * columns.len().saturating_sub(1);
        loop {
            let widths: Vec<usize> = columns.iter().map(|cells| widest(cells)).collect();
            let total: usize = widths.iter().sum::<usize>() + gaps;
            let Some((widest, width)) = widths.iter().enumerate().max_by_key(|(_, width)| **width)
            else {
                return;
            };
            if total <= self.width || *width <= CELL_WIDTH_MIN {
                return;
            }
            let next = width.saturating_sub(total - self.width).max(CELL_WIDTH_MIN);
            // Halve at most, so that columns of equal width are shortened together.
            let next = next.max(width / 2);
            columns[widest]
                .iter_mut()
                .for_each(|cell| shorten(cell, next));
        }
    }
}

/// The columns of a list that may be shown, the most useful first: those with a value that fits in a cell. Endpoints show
/// the URL that works, with its port.
fn candidates(items: &[Value]) -> Vec<String> {
    let mut names: Vec<&String> = Vec::new();
    for item in items {
        for name in item.as_object().into_iter().flat_map(Map::keys) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let is_public = names.iter().any(|name| *name == "public_url");
    names.retain(|name| {
        *name != "uri"
            && !(is_public && *name == "url")
            && items.iter().any(|item| {
                let value = &item[name.as_str()];
                !cell(value).is_empty() && (is_plain(value) || value["id"].is_string())
            })
    });
    let rank = |name: &str| {
        let first = FIRST.iter().position(|known| *known == name);
        let last = LAST.iter().position(|known| *known == name);
        match (first, last) {
            (Some(rank), _) => rank,
            (None, None) => FIRST.len(),
            (None, Some(rank)) => FIRST.len() + 1 + rank,
        }
    };
    names.sort_by_key(|name| rank(name));
    names.into_iter().cloned().collect()
}

/// The value at a path such as `owner.id`; `None` if there is none.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(value, |value, name| match name.parse::<usize>() {
            Ok(index) if value.is_array() => value.get(index),
            _ => value.get(name),
        })
}

/// The text of the cell with the value at a path.
fn cell_at(value: &Value, path: &str) -> String {
    at(value, path).map_or_else(String::new, cell)
}

/// Whether a value is no object, and no list with one.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Object(_) => false,
        Value::Array(items) => items.iter().all(is_plain),
        _ => true,
    }
}

/// A value as the text of a cell. A reference is its ID.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(&text.escape_debug().to_string()).into_owned(),
        Value::Array(items) if is_plain(value) => {
            let items: Vec<String> = items.iter().map(cell).collect();
            items.join(",")
        }
        Value::Object(object) if object.len() <= 2 && object.contains_key("uri") => {
            cell(&value["id"])
        }
        Value::Object(object) if object.is_empty() => String::new(),
        other => other.to_string(),
    }
}

fn shorten(cell: &mut String, width: usize) {
    if cell.width() <= width {
        return;
    }
    let mut left = width.saturating_sub(1);
    let kept: String = cell
        .chars()
        .take_while(|letter| {
            let width = letter.width().unwrap_or(0);
            let fits = width <= left;
            left = left.saturating_sub(width);
            fits
        })
        .collect();
    *cell = kept + "…";
}

fn widest(cells: &[String]) -> usize {
    cells.iter().map(|cell| cell.width()).max().unwrap_or(0)
}

/// The lines of columns of equal length.
fn rows(columns: &[Vec<String>]) -> String {
    let widths: Vec<usize> = columns.iter().map(|cells| widest(cells)).collect();
    let mut text = String::new();
    for row in 0..columns.first().map_or(0, Vec::len) {
        let mut line = String::new();
        for (cells, width) in columns.iter().zip(&widths) {
            let cell = &cells[row];
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.width() + GAP.len()));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(columns: &[&str], width: usize, is_shortened: bool) -> Table {
        Table {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            width,
            is_shortened,
        }
    }

    fn list() -> Value {
        let item = |id: &str, text: &str| {
            json!({
                "created_at": "2026-11-24T00:00:00Z", "description": text, "id": id,
                "labels": ["a", "b"], "metadata": "", "owner": {"id": "usr_1", "uri": "u"},
                "policy": {"on": [{"x": 1}]}, "uri": "http://a/b",
            })
        };
        json!({"things": [item("thing_1", "short"), item("thing_2", &"long ".repeat(40))], "next_page_uri": null})
    }

    #[test]
    fn chosen_fields_may_be_those_of_the_only_list() {
        let body = json!({"node": "a", "upstreams": [{"url": "u1", "used": true}, {"url": "u2", "used": false}]});
        let shown = table(&["url", "used"], 120, false).render(&body);
        assert_eq!(shown, "URL  USED\nu1   true\nu2   false\n");
        assert_eq!(values(&body, "url", false).unwrap(), ["u1", "u2"]);
        assert_eq!(values(&body, "node", false).unwrap(), ["a"]);
        assert!(values(&body, "other", false).is_err());
    }

    #[test]
    fn default_columns_fit_the_width() {
        for width in [40, 80, 120] {
            let text = table(&[], width, false).render(&list());
            assert!(text.lines().all(|line| line.width() <= width), "{text}");
            assert!(text.contains("thing_2"), "{text}");
        }
        assert_eq!(
            table(&[], 120, false)
                .render(&list())
                .lines()
                .next()
                .unwrap(),
            "ID       DESCRIPTION                                   LABELS  OWNER  CREATED_AT"
        );
        let endpoint = json!({"id": "ep_1", "url": "https://a.example", "public_url": "https://a.example:8443"});
        assert_eq!(
            table(&[], 120, false).render(&json!({"endpoints": [endpoint], "next_page_uri": null})),
            "ID    PUBLIC_URL\nep_1  https://a.example:8443\n"
        );
        assert_eq!(
            table(&[], 120, false).render(&json!({"things": [], "next_page_uri": null})),
            ""
        );
    }

    #[test]
    fn selected_columns_are_complete_for_programs_and_fit_a_terminal() {
        let whole = table(&["id", "owner.id", "description"], 40, false).render(&list());
        assert!(whole.contains(&"long ".repeat(39)), "{whole}");
        assert!(
            whole.starts_with("ID       OWNER.ID  DESCRIPTION\n"),
            "{whole}"
        );
        let short = table(&["id", "description"], 40, true).render(&list());
        assert!(short.lines().all(|line| line.width() <= 40), "{short}");
        assert!(short.contains('…'));
    }

    #[test]
    fn a_field_is_printed_as_it_is() {
        let of_list = |field| values(&list(), field, false);
        assert_eq!(of_list("id").unwrap(), ["thing_1", "thing_2"]);
        assert_eq!(of_list("owner.id").unwrap(), ["usr_1", "usr_1"]);
        assert_eq!(of_list("labels.1").unwrap(), ["b", "b"]);
        let missing = of_list("token").unwrap_err().to_string();
        assert_eq!(missing, "the response has no field `token`");
        let empty = json!({"things": [], "next_page_uri": null});
        assert!(values(&empty, "id", false).unwrap().is_empty());
        let one = json!({"token": "a\u{1b}\"b", "no": null, "many": [1]});
        let of_one = |field, is_terminal| values(&one, field, is_terminal).unwrap().concat();
        assert_eq!(of_one("token", false), "a\u{1b}\"b");
        assert!(!of_one("token", true).contains('\u{1b}'));
        assert_eq!(of_one("no", false), "");
        assert_eq!(of_one("many", false), "[1]");
    }

    #[test]
    fn an_object_has_a_row_for_each_field() {
        let object = json!({"id": "a", "on": {"deep": true}, "text": "tab\t"});
        assert_eq!(
            table(&[], 120, false).render(&object),
            "id    a\non    {\"deep\":true}\ntext  tab\\t\n"
        );
        assert_eq!(
            table(&["on.deep"], 120, false).render(&object),
            "on.deep  true\n"
        );
    }
}
