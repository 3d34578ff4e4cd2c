//! `s3`: events as objects of an Amazon S3 bucket (contract: destinations 3.4).
//!
//! An object is made of the batches that gathered in the queue, which keeps them until the object
//! is stored. Nothing is copied, and memory holds one batch at a time. The bytes are generated
//! twice: once for their length and checksum, and once for the request.
//!
//! An object is never overwritten. It is named after its first event. If an object of that name
//! exists, its checksum is read. With an equal checksum, it was stored by an attempt whose response
//! was lost. With another checksum, it was made of fewer batches, and the checksum becomes part of
//! the new name.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::channel::Sender;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;

use culvert_base::batch::Gathering;
use culvert_base::text::hex;
use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::ANSWER_BYTES_MAX;
use culvert_target::{
    Checked, DestinationIds, Gathers, Run, Target, TargetContext, TargetSettings, TargetType,
    Verdict,
};

use crate::client::aws::arn::{Arn, ResourceType};
use crate::client::aws::auth::{self, Auth};
use crate::client::aws::{Aws, Call, Feed, Payload};
use crate::config::{invalid, parse, stored};
use crate::target::envelope::event_time;

const NAME: &str = "s3";
const BUCKET: ResourceType = ResourceType {
    field: "bucket_arn",
    service: "s3",
    resource: "",
    is_regional: false,
};
const PREFIX_BYTES_MAX: usize = 512;
const FILE_SIZE: u64 = 64 << 20;
const FILE_AGE: u64 = 300;
/// Time limit of the upload of one object.
const PUT_DEADLINE: Duration = Duration::from_secs(240);
const HEAD_DEADLINE: Duration = Duration::from_secs(13);
/// The header with the hash of the object's content.
const DIGEST: &str = "x-amz-meta-culvert-sha256";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Writes events as JSON lines to objects in an Amazon S3 bucket.",
    limits: BatchLimits {
        events_max: 5_000,
        bytes_max: 1 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: auth::merge,
    redact: auth::redact,
    open,
};

/// Configuration of the `s3` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "S3Target")]
struct Config {
    /// AWS authentication.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    auth: Option<Auth>,
    /// ARN of the bucket: `arn:aws:s3:::<name>`. The region is detected.
    #[serde(default)]
    #[schemars(extend("x-culvert-required" = true))]
    #[schemars(extend("pattern" = crate::config::ARN))]
    bucket_arn: Option<String>,
    /// Prefix of object names, such as `events/`. Default: empty.
    #[serde(default)]
    object_prefix: Option<String>,
    /// Whether objects are compressed with gzip. Default: `false`. Compression reduces the size to
    /// about a tenth.
    #[serde(default)]
    compression: Option<bool>,
    /// Maximum object size before compression in bytes: 1048576 to 1073741824, default 67108864.
    #[serde(default)]
    max_file_size: Option<u64>,
    /// Maximum object age in seconds after its first event: 10 to 3600, default 300.
    #[serde(default)]
    max_file_age: Option<u64>,
}

fn check(given: &Value, _: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    Auth::check(config.auth.as_ref(), NAME)?;
    let arn = Arn::check(config.bucket_arn.as_deref(), BUCKET)?;
    if !is_bucket(arn.resource) {
        let sentence = "`bucket_arn` must end with the name of a bucket";
        return Err(invalid(NAME, sentence));
    }
    let prefix = config.object_prefix.get_or_insert_default();
    // Characters that Amazon documents as safe, without path components that URLs resolve.
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"/!-_.*'()=".contains(&byte);
    if prefix.len() > PREFIX_BYTES_MAX
        || !prefix.bytes().all(is_safe)
        || prefix.starts_with('/')
        || prefix.split('/').any(|part| part == "." || part == "..")
    {
        return Err(invalid(
            NAME,
            "`object_prefix` may have at most 512 letters, digits and `/!-_.*'()=`, without the path segments `.` and `..`",
        ));
    }
    let size = *config.max_file_size.get_or_insert(FILE_SIZE);
    if !(1 << 20..=1 << 30).contains(&size) {
        return Err(invalid(NAME, "`max_file_size` must be 1 MiB to 1 GiB"));
    }
    let age = *config.max_file_age.get_or_insert(FILE_AGE);
    if !(10..=3600).contains(&age) {
        return Err(invalid(NAME, "`max_file_age` must be 10 to 3600 seconds"));
    }
    config.compression.get_or_insert(false);
    Ok(stored(&config))
}

/// Whether the name is valid for a bucket.
fn is_bucket(name: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (3..=63).contains(&name.len())
        && name.bytes().all(fits)
        && !name.contains("..")
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.'])
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let arn = Arn::check(config.bucket_arn.as_deref(), BUCKET)?;
    let auth = config.auth.clone().unwrap_or_default();
    // Any region of the partition can be asked for the bucket's region.
    let region = match arn.partition {
        "aws-cn" => "cn-north-1",
        "aws-us-gov" => "us-gov-west-1",
        _ => "us-east-1",
    };
    let settings = &context.settings().aws;
    let is_elsewhere = settings.endpoint.is_some() || settings.endpoints.contains_key(NAME);
    let arn = Arn { region, ..arn };
    let aws = Aws::open(NAME, &arn, &auth, context.net(), settings, ids)?;
    let bucket = arn.resource.to_owned();
    Ok(Arc::new(S3 {
        aws: ArcSwap::from_pointee(aws),
        // The certificates of Amazon's hosts are valid for one label only, so a name with dots goes
        // into the path.
        is_in_path: is_elsewhere || bucket.contains('.'),
        bucket,
        partition: arn.partition.to_owned(),
        auth,
        prefix: config.object_prefix.unwrap_or_default(),
        packs: config.compression.unwrap_or(false),
        gathering: Gathering {
            bytes_max: config.max_file_size.unwrap_or(FILE_SIZE),
            age_max: Duration::from_secs(config.max_file_age.unwrap_or(FILE_AGE)),
        },
        destination: ids.destination.to_owned(),
        account: ids.account.to_owned(),
        context: context.clone(),
    }))
}

struct S3 {
    /// The client, for the bucket's region once that is known.
    aws: ArcSwap<Aws>,
    bucket: String,
    /// Whether the bucket is in the path and not in the host name.
    is_in_path: bool,
    partition: String,
    auth: Auth,
    prefix: String,
    packs: bool,
    gathering: Gathering,
    destination: String,
    account: String,
    context: TargetContext,
}

impl std::fmt::Debug for S3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3")
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

impl Target for S3 {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.put(&Alone(batch)).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }

    fn gathers(&self) -> Option<&dyn Gathers> {
        Some(self)
    }
}

impl Gathers for S3 {
    fn gathering(&self) -> Gathering {
        self.gathering
    }

    fn put<'a>(&'a self, run: &'a dyn Run) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.put_run(run).await.map_err(|mut failure| {
                // When a bucket rejects an object, no single event is at fault.
                if matches!(failure.class, FailureClass::Permanent | FailureClass::Split) {
                    failure.class = FailureClass::Config;
                }
                failure
            })
        })
    }
}

impl S3 {
    async fn put_run(&self, run: &dyn Run) -> Result<(), Failure> {
        let object = Object::measure(run, self.packs).await?;
        let extension = if self.packs { "json.gz" } else { "json" };
        let Some(name) = self.name(run).await? else {
            return Ok(());
        };
        let key = format!("{name}.{extension}");
        if self.put_object(&key, &object).await? || self.is_stored(&key, &object).await {
            return Ok(());
        }
        let digest = &object.sha256[..16];
        let key = format!("{name}-{digest}.{extension}");
        // If that object exists too, it has the same content.
        self.put_object(&key, &object).await.map(drop)
    }

    /// The name of a run's object, without its extension. `None` if the run has no event: a batch loses those that its
    /// reader may not get any more.
    async fn name(&self, run: &dyn Run) -> Result<Option<String>, Failure> {
        for index in 0..run.batches() {
            let batch = run.batch(index).await?;
            if let Some(first) = batch.deliveries().next() {
                return self.name_of(first).map(Some);
            }
        }
        Ok(None)
    }

    fn name_of(&self, first: Delivery<'_>) -> Result<String, Failure> {
        let at = event_time(first.envelope).map(|at| at.to_millis_text());
        let at = at.as_ref().and_then(|at| at.split_once('T'));
        let at = at.and_then(|(day, time)| Some((day.replace('-', "/"), time.get(..2)?)));
        let Some((day, hour)) = at else {
            let text = "the first event has no timestamp";
            return Err(Failure::new(FailureClass::Permanent, "time", text));
        };
        Ok(format!(
            "{}{day}/{hour}/{}-{}-{}",
            self.prefix,
            self.destination,
            self.context.settings().node,
            first.event_id,
        ))
    }

    /// Uploads an object. Returns false if an object of that name exists.
    async fn put_object(&self, key: &str, object: &Object<'_>) -> Result<bool, Failure> {
        let mut headers = HeaderMap::new();
        let text = |text: &str| HeaderValue::from_str(text).expect("digits and letters");
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-ndjson"),
        );
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        headers.insert("x-amz-checksum-sha256", text(&object.checksum));
        headers.insert(DIGEST, text(&object.sha256));
        let put = async |aws: &Aws| {
            aws.call(Call {
                method: Method::PUT,
                url: self.url(aws, key),
                headers: headers.clone(),
                body: Payload::Fed(object),
                deadline: PUT_DEADLINE,
                answer_bytes_max: ANSWER_BYTES_MAX,
            })
            .await
        };
        let aws = self.aws.load_full();
        let mut answer = put(&aws).await;
        if let (Err(failure), Some(region)) = (&answer, aws.elsewhere()) {
            tracing::info!(bucket = self.bucket, "the bucket is in {region}: {failure}");
            answer = put(&*self.move_to(&region)?).await;
        }
        match answer {
            Ok(_) => Ok(true),
            Err(failure) if failure.code == "PreconditionFailed" || failure.code == "412" => {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether the object of that name has these bytes. Without permission to read it, assumes that
    /// it has others.
    async fn is_stored(&self, key: &str, object: &Object<'_>) -> bool {
        let aws = self.aws.load_full();
        let head = Call {
            method: Method::HEAD,
            url: self.url(&aws, key),
            headers: HeaderMap::new(),
            body: Payload::Whole(Bytes::new()),
            deadline: HEAD_DEADLINE,
            answer_bytes_max: 0,
        };
        match aws.call(head).await {
            Ok(answer) => answer
                .headers
                .get(DIGEST)
                .is_some_and(|digest| digest.as_bytes() == object.sha256.as_bytes()),
            Err(failure) => {
                tracing::debug!("cannot read an object: {failure}");
                false
            }
        }
    }

    /// Moves to another region, for this and all later requests.
    fn move_to(&self, region: &str) -> Result<Arc<Aws>, Failure> {
        let arn = Arn {
            partition: &self.partition,
            service: NAME,
            region,
            account: "",
            resource: &self.bucket,
        };
        let ids = DestinationIds {
            destination: &self.destination,
            account: &self.account,
        };
        let (net, settings) = (self.context.net(), &self.context.settings().aws);
        let aws = Aws::open(NAME, &arn, &self.auth, net, settings, ids)
            .map_err(|refusal| Failure::new(FailureClass::Config, "region", refusal.message))?;
        let aws = Arc::new(aws);
        self.aws.store(aws.clone());
        Ok(aws)
    }

    fn url(&self, aws: &Aws, key: &str) -> Url {
        let mut url = aws.endpoint().clone();
        let key = escaped(key);
        let base = url.path().trim_end_matches('/').to_owned();
        if self.is_in_path {
            url.set_path(&format!("{base}/{}/{key}", self.bucket));
        } else {
            let host = url.host_str().unwrap_or_default();
            let host = format!("{}.{host}", self.bucket);
            url.set_host(Some(&host))
                .expect("a bucket's name is a part of a host's");
            url.set_path(&format!("{base}/{key}"));
        }
        url
    }
}

/// Percent-encodes a name for signatures: all bytes except letters, digits and `-_.~/`.
fn escaped(key: &str) -> String {
    use std::fmt::Write as _;
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("memory takes every write");
        }
    }
    escaped
}

/// Hashes and length of an object.
struct Object<'a> {
    run: &'a dyn Run,
    packs: bool,
    sha256: String,
    /// The hash in the form that S3 checks.
    checksum: String,
    length: u64,
}

impl<'a> Object<'a> {
    async fn measure(run: &'a dyn Run, packs: bool) -> Result<Self, Failure> {
        let mut made = ObjectBody::new(run, packs);
        let (mut digest, mut length) = (Sha256::new(), 0);
        while let Some(piece) = made.next().await? {
            length += u64::try_from(piece.len()).unwrap_or(0);
            digest.update(&piece);
        }
        let digest = digest.finalize();
        Ok(Self {
            run,
            packs,
            sha256: hex(&digest),
            checksum: STANDARD.encode(digest),
            length,
        })
    }
}

impl Feed for Object<'_> {
    fn sha256(&self) -> &str {
        &self.sha256
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn feed(&self, mut to: Sender<Bytes, io::Error>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut made = ObjectBody::new(self.run, self.packs);
            loop {
                match made.next().await {
                    Ok(Some(piece)) => {
                        if to.send_data(piece).await.is_err() {
                            // The request has ended.
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(failure) => return to.abort(io::Error::other(failure.text)),
                }
            }
        })
    }
}

/// Generates the bytes of an object, batch by batch.
struct ObjectBody<'a> {
    run: &'a dyn Run,
    next: usize,
    packer: Option<GzEncoder<Vec<u8>>>,
}

impl<'a> ObjectBody<'a> {
    fn new(run: &'a dyn Run, packs: bool) -> Self {
        let packer = || GzEncoder::new(Vec::new(), Compression::fast());
        Self {
            run,
            next: 0,
            packer: packs.then(packer),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while self.next < self.run.batches() {
            let lines = self.run.batch(self.next).await?.lines();
            self.next += 1;
            let Some(packer) = &mut self.packer else {
                return Ok(Some(lines));
            };
            packer.write_all(&lines).expect("memory takes every write");
            let packed = std::mem::take(packer.get_mut());
            if !packed.is_empty() {
                return Ok(Some(packed.into()));
            }
        }
        let Some(packer) = self.packer.take() else {
            return Ok(None);
        };
        let end = packer.finish().expect("memory takes every write");
        Ok(Some(end.into()))
    }
}

/// A single batch that is not in the queue.
struct Alone<'a>(&'a Batch);

impl Run for Alone<'_> {
    fn batches(&self) -> usize {
        1
    }

    fn batch(&self, _: usize) -> BoxFuture<'_, Result<Batch, Failure>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

#[cfg(test)]
mod tests;
