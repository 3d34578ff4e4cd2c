//! Static types and typing rules.
//!
//! Numbers compare across types; other values compare only within their type. A value of type dyn is accepted
//! everywhere and checked at run time.

use std::fmt;

use crate::syntax::ast::Operator;

/// The static type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Known only at run time.
    Dyn,
    /// The type of `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A signed integer of 64 bits.
    Int,
    /// An unsigned integer of 64 bits.
    Uint,
    /// A floating-point number of 64 bits.
    Double,
    /// Text of Unicode characters.
    String,
    /// A sequence of bytes.
    Bytes,
    /// A point in time.
    Timestamp,
    /// A length of time.
    Duration,
    /// The type of a type.
    Type,
    /// A list with elements of this type.
    List(Box<Type>),
    /// A map with keys of the first type and values of the second.
    Map(Box<Type>, Box<Type>),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Dyn => "dyn",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Type => "type",
            Self::List(item) => return write!(f, "list({item})"),
            Self::Map(key, value) => return write!(f, "map({key}, {value})"),
        };
        f.write_str(name)
    }
}

/// The type of `left operator right`. `None` if the operator is not defined for these types.
pub(crate) fn of_binary(operator: Operator, a: &Type, b: &Type) -> Option<Type> {
    let is_dyn = *a == Type::Dyn || *b == Type::Dyn;
    Some(match operator {
        Operator::Equal | Operator::NotEqual => are_comparable(a, b).then_some(Type::Bool)?,
        Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => {
            let has_order =
                |of: &Type| !matches!(of, Type::Null | Type::List(_) | Type::Map(..) | Type::Type);
            (are_comparable(a, b) && has_order(a) && has_order(b)).then_some(Type::Bool)?
        }
        Operator::In => match b {
            Type::List(item) => are_comparable(a, item).then_some(Type::Bool)?,
            Type::Map(key, _) => are_comparable(a, key).then_some(Type::Bool)?,
            Type::Dyn => Type::Bool,
            _ => return None,
        },
        Operator::Add => match (a, b) {
            _ if is_dyn => Type::Dyn,
            (Type::Int | Type::Uint | Type::Double | Type::String | Type::Bytes, same)
                if a == same =>
            {
                a.clone()
            }
            (Type::Duration, Type::Duration) => Type::Duration,
            (Type::Timestamp, Type::Duration) | (Type::Duration, Type::Timestamp) => {
                Type::Timestamp
            }
            (Type::List(a), Type::List(b)) => {
                Type::List(Box::new(joined(a, b).unwrap_or(Type::Dyn)))
            }
            _ => return None,
        },
        Operator::Subtract => match (a, b) {
            _ if is_dyn => Type::Dyn,
            (Type::Int | Type::Uint | Type::Double, same) if a == same => a.clone(),
            (Type::Duration, Type::Duration) | (Type::Timestamp, Type::Timestamp) => Type::Duration,
            (Type::Timestamp, Type::Duration) => Type::Timestamp,
            _ => return None,
        },
        Operator::Multiply | Operator::Divide => match (a, b) {
            _ if is_dyn => Type::Dyn,
            (Type::Int | Type::Uint | Type::Double, same) if a == same => a.clone(),
            _ => return None,
        },
        Operator::Modulo => match (a, b) {
            _ if is_dyn => Type::Dyn,
            (Type::Int | Type::Uint, same) if a == same => a.clone(),
            _ => return None,
        },
    })
}

/// Whether `==` can be true for values of these types.
pub(crate) fn are_comparable(a: &Type, b: &Type) -> bool {
    let is_number = |of: &Type| matches!(of, Type::Int | Type::Uint | Type::Double);
    match (a, b) {
        (Type::Dyn, _) | (_, Type::Dyn) => true,
        (Type::List(a), Type::List(b)) => are_comparable(a, b),
        (Type::Map(key_a, a), Type::Map(key_b, b)) => {
            are_comparable(key_a, key_b) && are_comparable(a, b)
        }
        (a, b) => a == b || (is_number(a) && is_number(b)),
    }
}

/// The common type of two types, if they are compatible.
pub(crate) fn joined(a: &Type, b: &Type) -> Option<Type> {
    match (a, b) {
        (Type::Dyn, _) | (_, Type::Dyn) => Some(Type::Dyn),
        (Type::List(a), Type::List(b)) => Some(Type::List(Box::new(joined(a, b)?))),
        (Type::Map(key_a, a), Type::Map(key_b, b)) => Some(Type::Map(
            Box::new(joined(key_a, key_b)?),
            Box::new(joined(a, b)?),
        )),
        (a, b) => (a == b).then(|| a.clone()),
    }
}

/// The type of a list's items. Dyn if they differ or the list is empty.
pub(crate) fn joined_all<'t>(mut types: impl Iterator<Item = &'t Type>) -> Type {
    let first = types.next().cloned();
    first
        .and_then(|first| types.try_fold(first, |all, one| joined(&all, one)))
        .unwrap_or(Type::Dyn)
}

/// The assumed size of a value that is unknown at compile time. The meter limits larger values at run time.
pub(crate) fn assumed_size(of: &Type) -> u64 {
    match of {
        Type::String | Type::Bytes => 256,
        Type::List(_) | Type::Map(..) | Type::Dyn => 16,
        _ => 0,
    }
}
