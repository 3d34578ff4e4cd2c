//! Extensions: functions of the host, declared with textual signatures and checked like standard functions.

use crate::error::EvalErrorKind;
use crate::eval::cost::Meter;
use crate::resolver::Slot;
use crate::types::{Type, are_comparable};
use crate::value::{Value, ValueRef};

/// Maximum number of arguments, including the receiver and the variable in [`Extension::reads`].
pub(crate) const ARGUMENTS_MAX: usize = 5;

/// A function that the host adds to the standard library.
#[derive(Debug)]
pub struct Extension {
    /// The name. `split` is called as `x.split(…)`; `hash.md5` and `.inCidrRange` (without the dot) are called as
    /// written.
    pub name: &'static str,
    /// Whether it is called on a value: `x.name(…)`.
    pub is_member: bool,
    /// The overloads, such as `(string, int) -> list(string)`, with the receiver first. The argument types select
    /// one.
    pub signatures: &'static [&'static str],
    /// A variable that is passed before the written arguments.
    pub reads: Option<Slot>,
    /// Implements the function. The arguments have the types of one of the signatures as far as the checker knows
    /// them; a wrong type is [`EvalErrorKind::NoSuchOverload`]. The function must charge the meter before it creates
    /// a value.
    pub run: fn(&[ValueRef<'_>], &mut Meter<'_>) -> Result<Value, EvalErrorKind>,
    /// One sentence for the reference.
    pub doc: &'static str,
}

/// An extension with parsed signatures.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) function: &'static Extension,
    signatures: Vec<(Vec<Type>, Type)>,
}

impl Declared {
    /// # Panics
    /// If a signature does not parse. Signatures are part of the program, so the first test finds the mistake.
    pub(crate) fn new(function: &'static Extension) -> Self {
        let signatures = function
            .signatures
            .iter()
            .map(|text| signature(text).unwrap_or_else(|| panic!("no signature: {text}")));
        Self {
            function,
            signatures: signatures.collect(),
        }
    }

    /// The type of the result for arguments of these types. `None` if there is no overload.
    pub(crate) fn result(&self, arguments: &[Type]) -> Option<Type> {
        let mut fitting = self.signatures.iter().filter(|(parameters, _)| {
            parameters.len() == arguments.len()
                && parameters
                    .iter()
                    .zip(arguments)
                    .all(|(parameter, argument)| fits(argument, parameter))
        });
        let (_, first) = fitting.next()?;
        // With a dyn argument, several overloads may match.
        let is_certain = fitting.all(|(_, result)| result == first);
        Some(if is_certain { first.clone() } else { Type::Dyn })
    }
}

fn fits(argument: &Type, parameter: &Type) -> bool {
    match (argument, parameter) {
        (Type::List(_), Type::List(_)) | (Type::Map(..), Type::Map(..)) => {
            are_comparable(argument, parameter)
        }
        (Type::Dyn, _) | (_, Type::Dyn) => true,
        (argument, parameter) => argument == parameter,
    }
}

fn signature(text: &str) -> Option<(Vec<Type>, Type)> {
    let (parameters, result) = text.strip_prefix('(')?.split_once(") -> ")?;
    let mut types = Vec::new();
    let mut rest = parameters;
    while !rest.is_empty() {
        let (of, after) = parse(rest)?;
        types.push(of);
        rest = after.strip_prefix(", ").unwrap_or(after);
    }
    match parse(result)? {
        (of, "") => Some((types, of)),
        _ => None,
    }
}

impl Type {
    /// Parses the output of [`Display`](std::fmt::Display), such as `map(string, list(string))`.
    pub fn parse(text: &str) -> Option<Self> {
        match parse(text)? {
            (of, "") => Some(of),
            _ => None,
        }
    }
}

/// A type, and the text after it.
fn parse(text: &str) -> Option<(Type, &str)> {
    if let Some(rest) = text.strip_prefix("list(") {
        let (item, rest) = parse(rest)?;
        return Some((Type::List(Box::new(item)), rest.strip_prefix(')')?));
    }
    if let Some(rest) = text.strip_prefix("map(") {
        let (key, rest) = parse(rest)?;
        let (value, rest) = parse(rest.strip_prefix(", ")?)?;
        let of = Type::Map(Box::new(key), Box::new(value));
        return Some((of, rest.strip_prefix(')')?));
    }
    const PLAIN: [Type; 10] = [
        Type::Dyn,
        Type::Null,
        Type::Bool,
        Type::Int,
        Type::Uint,
        Type::Double,
        Type::String,
        Type::Bytes,
        Type::Timestamp,
        Type::Duration,
    ];
    PLAIN.into_iter().find_map(|of| {
        let rest = text.strip_prefix(of.to_string().as_str())?;
        Some((of, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, Limits};

    static TWICE: Extension = Extension {
        name: "twice",
        is_member: true,
        signatures: &["(string) -> string", "(string, int) -> list(string)"],
        reads: None,
        run: |arguments, meter| match arguments {
            [ValueRef::String(text)] => {
                meter.make_string(2 * text.len())?;
                Ok(Value::String([*text, *text].concat().into()))
            }
            _ => Err(EvalErrorKind::NoSuchOverload),
        },
        doc: "",
    };
    static GREETING: Extension = Extension {
        name: "say.greeting",
        is_member: false,
        signatures: &["(map(string, dyn), string) -> string"],
        reads: Some(7),
        run: |arguments, _| match arguments {
            [ValueRef::Map(map), key] => map.get(*key).cloned().ok_or(EvalErrorKind::NoSuchKey),
            _ => Err(EvalErrorKind::NoSuchOverload),
        },
        doc: "",
    };

    struct Greetings(crate::Map);

    impl crate::Resolver for Greetings {
        fn value(&self, _: Slot) -> Option<ValueRef<'_>> {
            Some(ValueRef::Map(&self.0))
        }
    }

    #[test]
    fn extensions_are_checked_and_run() {
        let env = Env::new(Limits::POLICY)
            .with_extension(&TWICE)
            .with_extension(&GREETING);
        let key = crate::Key::String("de".into());
        let greetings = Greetings(crate::Map::new(vec![(key, Value::from("Hallo"))]).unwrap());
        for (text, holds) in [
            ("'ab'.twice() == 'abab'", true),
            ("say.greeting('de').twice().size() == 10", true),
            ("['a', 'b'].all(x, x.twice().size() == 2)", true),
        ] {
            let program = env.compile_predicate(text).unwrap();
            assert_eq!(program.test(&greetings), Ok(holds), "{text}");
        }
        assert_eq!(env.compile("say.greeting('x')").unwrap().slots(), [7]);
        for text in [
            "twice('a')",
            "1.twice()",
            "say.greeting(1)",
            "other.greeting('a')",
            "say",
            "'a'.twice(1) == 'b'",
        ] {
            assert!(env.compile(text).is_err(), "{text}");
        }
    }

    #[test]
    fn types_are_read_as_they_are_written() {
        for text in ["string", "list(map(string, list(dyn)))", "timestamp"] {
            assert_eq!(Type::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "strings", "list(string", "map(string)", "list(string))"] {
            assert_eq!(Type::parse(text), None, "{text}");
        }
    }
}
