//! Limits for the size of an expression and the cost of its evaluation.

/// Limits of one expression, its compilation and each of its evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of the text.
    pub source_bytes_max: usize,
    /// Number of nodes in the syntax tree. Every operator, literal and name is one node.
    pub nodes_max: usize,
    /// Height of the syntax tree. A chain of `&&` or `||` is one level.
    pub height_max: usize,
    /// Nesting of brackets, and signs in a row.
    pub nesting_max: usize,
    /// Nesting of `all`, `exists`, `exists_one`, `map` and `filter`.
    pub comprehension_nesting_max: usize,
    /// Length of a regular expression.
    pub pattern_bytes_max: usize,
    /// Compiled size of a literal regular expression.
    pub pattern_program_bytes_max: usize,
    /// Length of a text that a regular expression is applied to.
    pub subject_bytes_max: usize,
    /// Units that one evaluation may use. A unit is a visited node or 64 bytes of data.
    pub cost_max: u64,
    /// Total size of strings, lists and maps that one evaluation may create.
    pub memory_bytes_max: u64,
    /// Length of a string or byte string that an evaluation creates.
    pub string_bytes_max: usize,
    /// Length of a list or map that an evaluation creates.
    pub list_items_max: usize,
}

impl Limits {
    /// The limits of an event filter.
    pub const FILTER: Self = Self {
        source_bytes_max: 4096,
        nodes_max: 500,
        height_max: 32,
        nesting_max: 32,
        comprehension_nesting_max: 2,
        pattern_bytes_max: 1024,
        pattern_program_bytes_max: 1 << 20,
        subject_bytes_max: 64 << 10,
        cost_max: 10_000,
        memory_bytes_max: 1 << 20,
        string_bytes_max: 64 << 10,
        list_items_max: 1024,
    };

    /// The limits of a policy expression.
    pub const POLICY: Self = Self {
        nodes_max: 2000,
        height_max: HEIGHT_MAX,
        nesting_max: HEIGHT_MAX,
        comprehension_nesting_max: 3,
        cost_max: 100_000,
        ..Self::FILTER
    };
}

/// Upper bound of `height_max` and `nesting_max`. It bounds the recursion of parsing, compiling, running and dropping,
/// which then needs a small part of a thread's stack of 2 MiB.
pub(crate) const HEIGHT_MAX: usize = 64;

const _: () = assert!(Limits::FILTER.height_max <= HEIGHT_MAX);
const _: () = assert!(
    Limits::FILTER.source_bytes_max <= u16::MAX as usize,
    "positions are 16 bits"
);
const _: () = assert!(Limits::FILTER.string_bytes_max as u64 <= Limits::FILTER.memory_bytes_max);
