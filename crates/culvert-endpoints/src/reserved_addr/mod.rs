//! Reserved address: a `host:port` for TCP endpoints that only one account can use (contract: management API
//! 2.14).
//!
//! It is assigned once, from the installation's pool (`pool`). `endpoint` decides which endpoints use it.

pub mod model;

use culvert_base::{Code, Description, Ksuid, Metadata, Refusal, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_store::{Changes, Document, Head};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::pool::{self, Taken};
use crate::reserved_addr::model::{KEY, REGION, ReservedAddr};
use crate::{host, reserved_domain};

/// The row of reserved addresses in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<ReservedAddr>();

/// A new reserved address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ReservedAddrCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Region of the address: `us`, the default and only region.
    #[schemars(extend("enum" = [REGION]))]
    region: String,
}

/// Changes to a reserved address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ReservedAddrUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for ReservedAddr {
    const DOC: &'static str = "Reserved addresses: TCP hosts and ports from the installation's \
        pool, reserved for one account.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("addr", Shape::Text),
        field("region", Shape::Text),
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::ADDRESS_DESCRIPTION_TOO_LONG),
        ("metadata", code::ADDRESS_METADATA_TOO_LONG),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::ADDRESS_UPDATE_EMPTY);
    const IN_USE: Option<Code> = Some(code::ADDRESS_IN_USE);
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        if !matches!(input.region.as_str(), "" | REGION) {
            return Err(Refusal::of(if reserved_domain::is_region(&input.region) {
                code::TCP_ADDRESS_UNAVAILABLE
            } else {
                code::ADDRESS_REGION_UNKNOWN
            })
            .into());
        }
        let taken = pool::take(cx, None).await?;
        let Taken { port, pool_changes } =
            taken.ok_or_else(|| Refusal::of(code::TCP_ADDRESS_UNAVAILABLE))?;
        let address = Self {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
            description: input.description,
            metadata: input.metadata,
            addr: format!("{}:{port}", pool::host(cx.settings)),
            region: REGION.to_owned(),
        };
        Ok(Draft {
            also: pool_changes,
            ..Draft::of(address)
        })
    }

    async fn update(
        mut self,
        _cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }

    async fn before_removal(&self, cx: &Cx<'_>, _head: &Head) -> Result<Changes, Error> {
        host::may_unreserve(cx, &self.addr).await?;
        pool::release(cx, &self.addr).await
    }
}

/// The caller's reservation of `host:port`.
pub async fn of(cx: &Cx<'_>, address: &str) -> Result<Option<Document>, Error> {
    let document = cx.store.find(ReservedAddr::KIND, KEY, address).await?;
    Ok(document.filter(|document| document.head.account == cx.caller.account))
}
