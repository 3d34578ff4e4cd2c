//! The functions of policy expressions beyond the language's own: one table, for the checker, for
//! evaluation and for the reference.

mod codes;
mod hashes;
mod lists;
mod messages;
mod row;
mod texts;

use std::sync::LazyLock;

use culvert_cel::Extension;

use crate::policy::phase::Phase;

/// A function, and the first phase that has it.
#[derive(Debug)]
pub struct Function {
    /// The first phase that has it; later ones do too.
    pub since: Phase,
    /// The function.
    pub extension: &'static Extension,
}

/// Every function, in the order of the reference. A name has one entry for each way to call it.
pub static ALL: LazyLock<Vec<Function>> = LazyLock::new(|| {
    let files = [
        messages::rows(),
        texts::rows(),
        lists::rows(),
        codes::rows(),
        hashes::rows(),
    ];
    let rows = files.into_iter().flatten();
    // They live as long as the process: compiled expressions point at them.
    rows.map(|(since, extension)| Function {
        since,
        extension: Box::leak(Box::new(extension)),
    })
    .collect()
});

#[cfg(test)]
mod tests;
