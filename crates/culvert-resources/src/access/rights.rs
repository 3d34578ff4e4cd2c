//! Who may see, use and change the objects of each resource.
//!
//! Three rights, one row for each resource ([`Rights`]): to *see* an object without its secrets, to *use* it, which
//! is to refer to it from one's own object, and to *change* it. Admins have all three on every object. An
//! object without a recorded owner belongs to the admins. `access` decides by these rows.

/// The rights to the objects of a resource, apart from those of admins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Who sees an object.
    pub see: See,
    /// Whose objects may refer to it.
    pub use_by: Use,
    /// Who updates and deletes it, and calls its further operations.
    pub change: Change,
}

/// Who sees an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum See {
    /// Everyone in the account.
    All,
    /// Its owner; others see only its ID and description.
    Outline,
    /// Its owner. For others it does not exist.
    Owner,
    /// The owner of the object that it is about, and the one whom it names. For others it does not exist.
    Parties,
}

/// Whose objects may refer to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing refers to it in a way that gives a right.
    Nothing,
    /// Those of everyone in the account.
    All,
    /// Those of its owner, and those that a grant names.
    Grant,
    /// Those of everyone in the account, or only those of its owner: the setting `rights.domains`.
    Setting,
}

/// Who changes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its owner.
    Owner,
    /// Its owner, unless an IP restriction uses the IP policy; then only admins.
    OwnerUnlessRestricting,
    /// Only admins.
    Admins,
}

/// What an operation on one object needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To see the object.
    See,
    /// To see all of the object and what belongs to it: for its owner.
    Whole,
    /// To change the object.
    Change,
}

impl Rights {
    /// The rights to objects that everyone sees and only admins change.
    pub const ADMINS: Self = Self {
        see: See::All,
        use_by: Use::Nothing,
        change: Change::Admins,
    };
    /// The rights to objects that only their owner sees and changes.
    pub const PRIVATE: Self = Self {
        see: See::Owner,
        use_by: Use::Nothing,
        change: Change::Owner,
    };
    /// The rights to objects that everyone sees and uses, and their owner changes.
    pub const SHARED: Self = Self {
        see: See::All,
        use_by: Use::All,
        change: Change::Owner,
    };

    /// The name of the right that an operation with this access needs, and who has it.
    pub fn of(&self, access: Access) -> (&'static str, &'static str) {
        match access {
            Access::See => ("see", self.see.holders()),
            Access::Whole => ("see", "the owner and admins"),
            Access::Change => ("change", self.change.holders()),
        }
    }
}

impl See {
    /// Whether every member of the account may read the events about the objects.
    pub const fn has_public_events(self) -> bool {
        matches!(self, Self::All)
    }

    /// Who has the right.
    pub const fn holders(self) -> &'static str {
        match self {
            Self::All => "everyone in the account",
            Self::Outline => "the owner and admins; others see the ID and the description",
            Self::Owner => "the owner and admins",
            Self::Parties => "the owner of the object, the grantee and admins",
        }
    }
}

impl Use {
    /// Who has the right.
    pub const fn holders(self) -> &'static str {
        match self {
            Self::Nothing => "–",
            Self::All => "everyone in the account",
            Self::Grant => "the owner and admins; others by a grant",
            Self::Setting => {
                "everyone in the account, or the owner and admins if the setting `rights.domains` is `owner`"
            }
        }
    }
}

impl Change {
    /// Who has the right.
    pub const fn holders(self) -> &'static str {
        match self {
            Self::Owner => "the owner and admins",
            Self::OwnerUnlessRestricting => {
                "the owner and admins; only admins while an IP restriction uses the IP policy"
            }
            Self::Admins => "admins",
        }
    }
}
