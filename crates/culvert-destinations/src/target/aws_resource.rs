//! Targets at one resource of Amazon, such as a stream: credentials, and the ARN of the resource.

use culvert_base::Refusal;
use culvert_target::{DestinationIds, TargetContext};

use crate::client::aws::Aws;
use crate::client::aws::arn::{Arn, ResourceType};
use crate::client::aws::auth::Auth;

/// Checks the credentials and the ARN in a configuration.
///
/// # Errors
/// Those of [`Auth::check`] and [`Arn::check`].
pub(super) fn check(
    target: &str,
    resource_type: ResourceType,
    auth: Option<&Auth>,
    arn: Option<&str>,
) -> Result<(), Refusal> {
    Auth::check(auth, target)?;
    Arn::check(arn, resource_type).map(drop)
}

/// A client of the service of the resource, and the name of the resource.
pub(super) fn open(
    resource_type: ResourceType,
    auth: Option<&Auth>,
    arn: Option<&str>,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<(Aws, String), Refusal> {
    let arn = Arn::check(arn, resource_type)?;
    let auth = auth.cloned().unwrap_or_default();
    let (net, settings) = (context.net(), &context.settings().aws);
    let aws = Aws::open(resource_type.service, &arn, &auth, net, settings, ids)?;
    Ok((aws, arn.name(resource_type).to_owned()))
}
