//! Settings of the operator for Amazon's services.

use std::collections::BTreeMap;
use std::path::PathBuf;

use culvert_base::Secret;
use url::Url;

/// Server configuration of Amazon's services.
#[derive(Clone, Debug, Default)]
pub struct AwsSettings {
    /// Replaces the endpoint of every service.
    pub endpoint: Option<Url>,
    /// Replaces the endpoint of one service, named as in [`SERVICES`]. Overrides `endpoint`.
    pub endpoints: BTreeMap<String, Url>,
    /// The server's own keys, with which roles of users are assumed.
    pub own_keys: OwnKeys,
}

/// The services that are called, by their names in hosts and signatures.
pub const SERVICES: [&str; 7] = ["events", "firehose", "kinesis", "logs", "s3", "sqs", "sts"];

/// Where the server's own keys come from.
#[derive(Clone, Debug, Default)]
pub enum OwnKeys {
    /// The server has none; roles cannot be assumed.
    #[default]
    None,
    /// `AWS_ACCESS_KEY_ID` and the variables beside it.
    Given {
        /// Id of the key.
        id: String,
        /// The secret key.
        secret: Secret,
        /// Session token of temporary keys.
        session: Option<Secret>,
    },
    /// `AWS_WEB_IDENTITY_TOKEN_FILE`: a token of the cluster is exchanged for a role's keys.
    WebIdentity {
        /// File with the token; read at each use.
        token_file: PathBuf,
        /// `AWS_ROLE_ARN`.
        role_arn: String,
    },
    /// `AWS_CONTAINER_CREDENTIALS_FULL_URI` or `…_RELATIVE_URI`.
    Container {
        /// The URL to request.
        url: Url,
        /// Value of the `authorization` header.
        token: Option<Secret>,
        /// File with that value; read at each use.
        token_file: Option<PathBuf>,
    },
    /// The instance's metadata service, version 2.
    Instance {
        /// `http://169.254.169.254/`, or the value of `AWS_EC2_METADATA_SERVICE_ENDPOINT`.
        endpoint: Url,
    },
}
