//! How large an expression may be and what its evaluation may cost.

/// Bounds of one expression, its compilation and each of its evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of the text.
    pub source_bytes_max: usize,
    /// Nodes of the syntax tree; every operator, literal and name is one.
    pub nodes_max: usize,
    /// Height of the syntax tree, and nesting of brackets. A chain of `&&` or of `||` is one level.
    pub height_max: usize,
    /// How deep `all`, `exists`, `exists_one`, `map` and `filter` may stand in each other's bodies.
    pub comprehension_nesting_max: usize,
    /// Length of a regular expression.
    pub pattern_bytes_max: usize,
    /// Size of a regular expression that stands in the text, compiled.
    pub pattern_program_bytes_max: usize,
    /// Length of a text that a regular expression is searched in.
    pub subject_bytes_max: usize,
    /// Units one evaluation may spend; a unit is a node visited or 64 bytes touched.
    pub cost_max: u64,
    /// Bytes of strings, lists and maps one evaluation may make.
    pub memory_bytes_max: u64,
    /// Length of a string or byte string made by an evaluation.
    pub string_bytes_max: usize,
    /// Length of a list or map made by an evaluation.
    pub list_items_max: usize,
}

impl Limits {
    /// Those of an event filter.
    pub const FILTER: Self = Self {
        source_bytes_max: 4096,
        nodes_max: 500,
        height_max: 32,
        comprehension_nesting_max: 2,
        pattern_bytes_max: 1024,
        pattern_program_bytes_max: 1 << 20,
        subject_bytes_max: 64 << 10,
        cost_max: 10_000,
        memory_bytes_max: 1 << 20,
        string_bytes_max: 64 << 10,
        list_items_max: 1024,
    };

    /// Those of a policy expression.
    pub const POLICY: Self = Self {
        nodes_max: 2000,
        height_max: HEIGHT_MAX,
        comprehension_nesting_max: 3,
        cost_max: 100_000,
        ..Self::FILTER
    };
}

/// No `Limits` allow more: parsing, compiling, running and dropping recurse this deep at most, which fits a
/// thread's stack of 2 MiB many times over.
pub(crate) const HEIGHT_MAX: usize = 64;

const _: () = assert!(Limits::FILTER.height_max <= HEIGHT_MAX);
const _: () = assert!(
    Limits::FILTER.source_bytes_max <= u16::MAX as usize,
    "positions are 16 bits"
);
const _: () = assert!(Limits::FILTER.string_bytes_max as u64 <= Limits::FILTER.memory_bytes_max);
