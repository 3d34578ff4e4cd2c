//! SSH certificate authority: a key that signs host and user certificates (contract: management API 2.10).
//!
//! The private key is generated here, stored encrypted, and never shown.

use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, code};
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field};
use culvert_resources::list::page::reference;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::{self, Format};
use culvert_store::{Changes, Head, Store};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::ssh::certificate_authority_model::SshCertificateAuthority;
use crate::ssh::{PublicKey, SigningKey, Spec, public_key};

/// The row of SSH certificate authorities in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<SshCertificateAuthority>();

/// Limit of RSA keys that are generated concurrently: each occupies a CPU for up to several seconds.
static RSA_AT_ONCE: Semaphore = Semaphore::const_new(1);

/// A new SSH certificate authority.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SshCertificateAuthorityCreate", transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Type of the generated key: `rsa`, `ecdsa` or `ed25519` (default).
    #[schemars(extend("enum" = ["rsa", "ecdsa", "ed25519"]))]
    private_key_type: String,
    /// Curve of an ECDSA key: `p256` (default), `p384` or `p521`.
    #[schemars(extend("enum" = ["p256", "p384", "p521"]))]
    elliptic_curve: String,
    /// Size of an RSA key in bits: 2048 (default) or 4096.
    #[schemars(extend("enum" = [2048, 4096]))]
    key_size: Option<i64>,
}

/// Changes to an SSH certificate authority.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "SshCertificateAuthorityUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
}

impl Resource for SshCertificateAuthority {
    const DOC: &'static str =
        "SSH certificate authorities: keys that sign host and user certificates.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::SSH_CA_DESCRIPTION_TOO_LONG),
        ("metadata", code::SSH_CA_METADATA_TOO_LONG),
    ];
    const IN_USE: Option<Code> = Some(code::CERTIFICATE_AUTHORITY_IN_USE);
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let key = generate(spec(&input)?).await?;
        let place = format!("{}_{id}", Self::ID_PREFIX);
        Ok(Draft::of(Self {
            format: Format,
            owner_id: cx.caller.owner_id.clone(),
            description: input.description,
            metadata: input.metadata,
            algorithm: key.algorithm(),
            public_key: key.public_line(),
            sealed_key: cx.seal.seal(cx.entropy, &place, key.to_text()?.reveal())?,
        }))
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

    /// Refuses to remove an authority whose certificates agents sign in with. Certificates of this
    /// installation's authorities must name their issuer, and older ones do not.
    async fn before_removal(&self, cx: &Cx<'_>, _head: &Head) -> Result<Changes, Error> {
        let key = PublicKey::parse(&self.public_key);
        let key = key.map_err(|bad| Fault::bare(format!("reading the key of an SSH CA: {bad}")))?;
        let registered = public_key::find(cx.store, &key.fingerprint, true).await?;
        match registered {
            Some(_) => Err(Refusal::new(
                code::CERTIFICATE_AUTHORITY_IN_USE,
                "An SSH public key registers this CA for logins of agents; delete that key first.",
            )
            .into()),
            None => Ok(Changes::default()),
        }
    }
}

/// The key of the caller's authority that a body refers to; `unknown` is the code if it does not exist.
pub async fn named(cx: &Cx<'_>, id: &str, unknown: Code) -> Result<SigningKey, Error> {
    reference(
        "ssh_certificate_authority_id",
        id,
        SshCertificateAuthority::PREFIXES,
    )?;
    let document = cx
        .own(SshCertificateAuthority::KIND, id)
        .await?
        .ok_or_else(|| {
            Refusal::new(
                unknown,
                format!("The SSH certificate authority `{id}` does not exist."),
            )
        })?;
    let authority: SshCertificateAuthority = stored::read(&document)?;
    let text = cx.seal.open(&document.head.id, &authority.sealed_key)?;
    Ok(SigningKey::from_text(authority.algorithm, &text)?)
}

/// Whether an authority of this installation has the public key with this fingerprint.
pub async fn is_known(store: &Store, fingerprint: &str) -> Result<bool, Fault> {
    for document in store.all(SshCertificateAuthority::KIND).await? {
        let authority: SshCertificateAuthority = stored::read(&document)?;
        let key = PublicKey::parse(&authority.public_key);
        if key.is_ok_and(|key| key.fingerprint == fingerprint) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn spec(input: &Create) -> Result<Spec, Refusal> {
    let ty = match input.private_key_type.as_str() {
        "" => "ed25519",
        ty @ ("rsa" | "ecdsa" | "ed25519") => ty,
        _ => return Err(Refusal::of(code::SSH_CA_KEY_TYPE_UNKNOWN)),
    };
    if input.key_size.is_some() && ty != "rsa" {
        return Err(Refusal::of(code::SSH_CA_KEY_SIZE_WITHOUT_RSA));
    }
    if !input.elliptic_curve.is_empty() && ty != "ecdsa" {
        return Err(Refusal::of(code::SSH_CA_CURVE_WITHOUT_ECDSA));
    }
    match (ty, input.elliptic_curve.as_str(), input.key_size) {
        ("rsa", _, None | Some(2048)) => Ok(Spec::Rsa2048),
        ("rsa", _, Some(4096)) => Ok(Spec::Rsa4096),
        ("rsa", ..) => Err(Refusal::of(code::SSH_CA_KEY_SIZE_INVALID)),
        ("ecdsa", "" | "p256", _) => Ok(Spec::P256),
        ("ecdsa", "p384", _) => Ok(Spec::P384),
        ("ecdsa", "p521", _) => Ok(Spec::P521),
        ("ecdsa", ..) => Err(Refusal::of(code::SSH_CA_CURVE_UNKNOWN)),
        _ => Ok(Spec::Ed25519),
    }
}

/// Generates a key without blocking other calls.
async fn generate(spec: Spec) -> Result<SigningKey, Fault> {
    if !matches!(spec, Spec::Rsa2048 | Spec::Rsa4096) {
        return SigningKey::generate(spec);
    }
    let _lock = RSA_AT_ONCE
        .acquire()
        .await
        .map_err(|error| Fault::new("waiting to generate an SSH key", error))?;
    tokio::task::spawn_blocking(move || SigningKey::generate(spec))
        .await
        .map_err(|error| Fault::new("generating an SSH key", error))?
}
