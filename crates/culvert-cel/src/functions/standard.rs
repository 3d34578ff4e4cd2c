//! The standard functions and macros for people: how each is called, and what it does.

/// A function or macro of the language itself.
#[derive(Debug)]
pub struct Standard {
    /// Its name.
    pub name: &'static str,
    /// How it is called.
    pub call: &'static str,
    /// Whether it is called on a value: `x.name(…)`.
    pub is_member: bool,
    /// One sentence.
    pub doc: &'static str,
}

const fn global(name: &'static str, call: &'static str, doc: &'static str) -> Standard {
    Standard {
        name,
        call,
        is_member: false,
        doc,
    }
}

const fn member(name: &'static str, call: &'static str, doc: &'static str) -> Standard {
    Standard {
        name,
        call,
        is_member: true,
        doc,
    }
}

/// Every standard function and macro, in the order of the reference.
#[rustfmt::skip]
pub static STANDARD: &[Standard] = &[
    global("has", "has(object.field) -> bool", "Whether the field has a value. It also takes an index: `has(req.headers['x-key'])`."),
    member("all", "list.all(x, condition) -> bool", "Whether the condition is true for all items, or for all keys of a map."),
    member("exists", "list.exists(x, condition) -> bool", "Whether the condition is true for at least one item, or one key of a map."),
    member("exists_one", "list.exists_one(x, condition) -> bool", "Whether the condition is true for exactly one item, or one key of a map."),
    member("map", "list.map(x, value) -> list", "The list of the values for each item. With three arguments, `list.map(x, condition, value)`, only of the items for which the condition is true."),
    member("filter", "list.filter(x, condition) -> list", "The items for which the condition is true."),
    member("sortBy", "list.sortBy(x, key) -> list", "The items in the order of their keys."),
    global("size", "size(value) -> int", "The number of characters, bytes, items or entries. Also `value.size()`."),
    member("startsWith", "string.startsWith(string) -> bool", "Whether the text begins with another."),
    member("endsWith", "string.endsWith(string) -> bool", "Whether the text ends with another."),
    member("contains", "string.contains(string) -> bool", "Whether the text contains another."),
    member("matches", "string.matches(string) -> bool", "Whether the text has a match of a regular expression (RE2)."),
    global("int", "int(value) -> int", "The value as an integer."),
    global("uint", "uint(value) -> uint", "The value as an integer without a sign."),
    global("double", "double(value) -> double", "The value as a number with fractions."),
    global("string", "string(value) -> string", "The value as text."),
    global("bytes", "bytes(string) -> bytes", "The text as bytes of UTF-8."),
    global("bool", "bool(value) -> bool", "The text `true` or `false` as a bool."),
    global("timestamp", "timestamp(string) -> timestamp", "A time in RFC 3339, or a number of seconds since 1970, as a timestamp."),
    global("duration", "duration(string) -> duration", "A text such as `1h30m` as a duration."),
    global("type", "type(value) -> type", "The type of the value."),
    global("dyn", "dyn(value) -> dyn", "The value without its type for the checker."),
    member("getFullYear", "timestamp.getFullYear([zone]) -> int", "The year."),
    member("getMonth", "timestamp.getMonth([zone]) -> int", "The month, from 0."),
    member("getDate", "timestamp.getDate([zone]) -> int", "The day of the month, from 1."),
    member("getDayOfMonth", "timestamp.getDayOfMonth([zone]) -> int", "The day of the month, from 0."),
    member("getDayOfWeek", "timestamp.getDayOfWeek([zone]) -> int", "The day of the week, from 0 for Sunday."),
    member("getDayOfYear", "timestamp.getDayOfYear([zone]) -> int", "The day of the year, from 0."),
    member("getHours", "timestamp.getHours([zone]) -> int", "The hour; of a duration, all its hours."),
    member("getMinutes", "timestamp.getMinutes([zone]) -> int", "The minute; of a duration, all its minutes."),
    member("getSeconds", "timestamp.getSeconds([zone]) -> int", "The second; of a duration, all its seconds."),
    member("getMilliseconds", "timestamp.getMilliseconds([zone]) -> int", "The milliseconds of the second."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{FUNCTIONS, Form};

    #[test]
    fn every_standard_function_is_described() {
        for (name, form, _) in &FUNCTIONS {
            let row = STANDARD.iter().find(|row| row.name == *name);
            let row = row.unwrap_or_else(|| panic!("{name} is not described"));
            let can_be = match form {
                Form::Global => !row.is_member,
                Form::Member => row.is_member,
                Form::Both => true,
            };
            assert!(can_be, "{name}");
        }
        let env = crate::Env::new(crate::Limits::POLICY);
        for macro_call in [
            "has({'a': 1}.a)",
            "[1].all(x, x > 0)",
            "[1].exists(x, x > 0)",
            "[1].exists_one(x, x > 0)",
            "[1].map(x, x > 0, x).size() == 1",
            "[1].filter(x, x > 0).size() == 1",
            "[1].sortBy(x, x).size() == 1",
        ] {
            assert!(env.compile_predicate(macro_call).is_ok(), "{macro_call}");
        }
        for row in STANDARD {
            let is_function = FUNCTIONS.iter().any(|(name, ..)| *name == row.name);
            let macros = [
                "has",
                "all",
                "exists",
                "exists_one",
                "map",
                "filter",
                "sortBy",
            ];
            assert!(is_function || macros.contains(&row.name), "{}", row.name);
            assert!(row.call.contains(&format!("{}(", row.name)), "{}", row.call);
        }
    }
}
