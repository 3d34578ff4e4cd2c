//! Names of Amazon's resources, parsed and checked (contract: destinations 2).

use culvert_base::{Refusal, code};

const ARN_BYTES_MAX: usize = 2048;

/// `arn:<partition>:<service>:<region>:<account>:<resource>`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arn<'a> {
    pub(crate) partition: &'a str,
    pub(crate) service: &'a str,
    /// Lower-case letters, digits and dashes; empty for global services.
    pub(crate) region: &'a str,
    /// Twelve digits, or empty.
    pub(crate) account: &'a str,
    pub(crate) resource: &'a str,
}

/// What an ARN in a field must name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceType {
    pub(crate) field: &'static str,
    pub(crate) service: &'static str,
    /// What the resource starts with, such as `stream/`.
    pub(crate) resource: &'static str,
    /// Whether region and account must be there.
    pub(crate) is_regional: bool,
}

impl<'a> Arn<'a> {
    /// Parses an ARN; `None` if `text` is not one.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let fits = text.len() <= ARN_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        let mut parts = text.splitn(6, ':');
        let mut part = || parts.next();
        let ("arn", arn) = (
            part()?,
            Self {
                partition: part()?,
                service: part()?,
                region: part()?,
                account: part()?,
                resource: part()?,
            },
        ) else {
            return None;
        };
        let region_fits = arn.region.is_empty() || is_region(arn.region);
        let account_fits = arn.account.is_empty()
            || (arn.account.len() == 12 && arn.account.bytes().all(|byte| byte.is_ascii_digit()));
        (fits && region_fits && account_fits && !arn.resource.is_empty()).then_some(arn)
    }

    /// The ARN in a field, if it names a resource of the right service and kind.
    ///
    /// # Errors
    /// 5120 malformed, 5118 partition, 5119 service, 5130 type of resource.
    pub(crate) fn check(
        text: Option<&'a str>,
        resource_type: ResourceType,
    ) -> Result<Self, Refusal> {
        let ResourceType {
            field,
            service,
            resource,
            is_regional,
        } = resource_type;
        let arn = text.and_then(Self::parse).ok_or_else(|| {
            Refusal::new(
                code::ARN_MALFORMED,
                format!(
                    "`{field}` is not an ARN such as {}.",
                    example(resource_type)
                ),
            )
        })?;
        if !is_partition(arn.partition) {
            let sentence =
                format!("The partition of `{field}` must be an AWS partition, such as `aws`.");
            return Err(Refusal::new(code::ARN_PARTITION_UNKNOWN, sentence));
        }
        if arn.service != service {
            let sentence = format!("`{field}` must be an ARN of the service `{service}`.");
            return Err(Refusal::new(code::ARN_WRONG_SERVICE, sentence));
        }
        if is_regional && (arn.region.is_empty() || arn.account.is_empty()) {
            let sentence = format!(
                "`{field}` must have a region and an account, as in {}.",
                example(resource_type)
            );
            return Err(Refusal::new(code::ARN_MALFORMED, sentence));
        }
        match arn.resource.strip_prefix(resource) {
            None => {
                let sentence = format!(
                    "`{field}` must have the same resource type as {}.",
                    example(resource_type)
                );
                Err(Refusal::new(code::ARN_WRONG_RESOURCE, sentence))
            }
            Some(name) if !is_name(name) => {
                let sentence =
                    format!("The resource name in `{field}` is not valid for the service.");
                Err(Refusal::new(code::ARN_MALFORMED, sentence))
            }
            Some(_) => Ok(arn),
        }
    }

    /// The name after the type of a resource.
    pub(crate) fn name(&self, resource_type: ResourceType) -> &'a str {
        let name = self
            .resource
            .strip_prefix(resource_type.resource)
            .unwrap_or_default();
        name.strip_suffix(":*").unwrap_or(name)
    }
}

/// Checks that `text` is the ARN of an IAM role (5104).
pub(crate) fn check_role(text: Option<&str>) -> Result<(), Refusal> {
    let is_role = text.and_then(Arn::parse).is_some_and(|arn| {
        is_partition(arn.partition)
            && arn.service == "iam"
            && !arn.account.is_empty()
            && arn
                .resource
                .strip_prefix("role/")
                .is_some_and(|name| !name.is_empty())
    });
    if is_role {
        Ok(())
    } else {
        Err(Refusal::of(code::ARN_NOT_ROLE))
    }
}

/// Whether a text is valid as a region in a host name.
pub(crate) fn is_region(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&text.len())
        && text.bytes().all(fits)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Any text with `aws`, and the partition of published examples.
fn is_partition(text: &str) -> bool {
    text.contains("aws") || text == "ngrok-local"
}

fn is_name(text: &str) -> bool {
    let name = text.strip_suffix(":*").unwrap_or(text);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/#".contains(&byte);
    !name.is_empty() && name.len() <= 512 && name.bytes().all(allowed)
}

fn example(resource_type: ResourceType) -> String {
    let scope = match resource_type.is_regional {
        true => "us-east-1:123456789012",
        false => ":",
    };
    format!(
        "`arn:aws:{}:{scope}:{}name`",
        resource_type.service, resource_type.resource
    )
}
