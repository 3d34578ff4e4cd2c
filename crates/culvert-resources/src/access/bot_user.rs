//! Stored form and view of the bot user.

use culvert_base::{Bounded, Timestamp};
use culvert_store::{Head, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::rights::Rights;
use crate::cx::base::Base;
use crate::resource::model::{Links, Model, Uri};
use crate::stored::Format;

/// ID prefixes of an object: the stored one, then the alternative.
pub const PREFIXES: &[&str] = &["bot", "service"];

/// At most 255 bytes.
pub type Name = Bounded<255>;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct BotUser {
    /// Version of the stored form.
    pub format: Format<1>,
    /// Shown in place of an e-mail address; unique within the account.
    pub name: Name,
    /// Whether its keys are valid.
    pub active: bool,
}

/// A bot as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BotUser")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    pub(crate) name: &'a str,
    pub(crate) active: bool,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
}

impl Model for BotUser {
    const NAME: &'static str = "bot_user";
    const COLLECTION: &'static str = "bot_users";
    const LIST_FIELD: &'static str = "bot_users";
    const ID_PREFIX: &'static str = "bot";
    const PREFIXES: &'static [&'static str] = PREFIXES;
    const RIGHTS: Rights = Rights::ADMINS;
    const OWNED_BY: Option<&'static str> = None;
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            name: &self.name,
            active: self.active,
            created_at: head.created_at,
        }
    }

    fn links(&self, head: &Head) -> Links {
        // Names are unique within an account; keys are unique in the installation.
        let name = format!("{} {}", head.account, &*self.name);
        Links {
            keys: vec![Key::new("name", name)],
            ..Links::default()
        }
    }
}
