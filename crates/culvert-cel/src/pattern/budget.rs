//! How large the patterns of one text may become together.

use std::cell::Cell;

/// How many bytes the patterns of one text may take when they are compiled, all together.
///
/// Without it, a text of a few hundred bytes could keep a processor for a minute: a pattern of ten bytes may need a
/// megabyte and tens of milliseconds, and a policy has room for thousands of them. Failed tries count as well, because
/// they cost the same. So do classes of many characters, whose tables take time even if nothing of them is compiled.
#[derive(Debug)]
pub struct PatternBudget {
    bytes_max: usize,
    left: Cell<usize>,
}

/// Why a pattern was not built.
#[derive(Debug)]
pub enum NotBuilt {
    /// It is no regular expression.
    Invalid(regex::Error),
    /// Its compiled form exceeds its own limit.
    TooLarge,
    /// It would exceed the limit of all patterns of the text together, in bytes.
    BudgetSpent(usize),
}

impl PatternBudget {
    /// The budget of one expression that stands alone.
    pub const EXPRESSION_BYTES: usize = 4 << 20;

    /// A budget of this size. A pattern that may take 1 MiB counts as 4 KiB, or 20, 84, 340 and 1,364 KiB if it is
    /// larger.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            left: Cell::new(bytes_max),
        }
    }

    /// For texts that were accepted before, which must stay usable.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Builds a pattern of at most `bytes_max` compiled bytes, with this number of large classes: tries small limits first,
    /// so that a small pattern takes little of the budget. Returns the limit that sufficed.
    ///
    /// # Errors
    /// If it is invalid, too large, or the budget is spent.
    pub fn build<R>(
        &self,
        bytes_max: usize,
        n_classes: usize,
        build: impl Fn(usize) -> Result<R, regex::Error>,
    ) -> Result<(R, usize), NotBuilt> {
        // Each try reads the tables of the classes again.
        let shares = match n_classes {
            0 => &SHARES[..],
            _ => &SHARES[SHARES.len() - 2..],
        };
        for share in shares {
            let limit = bytes_max / share;
            let price = limit.saturating_add(n_classes.saturating_mul(CLASS_BYTES));
            let Some(left) = self.left.get().checked_sub(price) else {
                return Err(NotBuilt::BudgetSpent(self.bytes_max));
            };
            self.left.set(left);
            match build(limit) {
                Ok(regex) => return Ok((regex, limit)),
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => return Err(NotBuilt::Invalid(error)),
            }
        }
        Err(NotBuilt::TooLarge)
    }
}

/// What a large class counts, in bytes.
const CLASS_BYTES: usize = 16 << 10;
/// Parts of the largest size that are tried, smallest first.
const SHARES: [usize; 5] = [256, 64, 16, 4, 1];
