//! `clickhouse`: events as rows of a ClickHouse table, by its HTTP interface.
//!
//! A batch is one `INSERT`. Its deduplication token is made from the idempotency keys of its events, so a repetition of the
//! batch within the deduplication window of the table has no effect. Errors have a number in a header.

use std::sync::Arc;

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use culvert_base::text::hex;
use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::HttpResponse;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{hide, keep_secret, parse, stored};
use crate::target::http_intake::{
    Classes, HttpIntake, VendorError, check_secret, check_text, checked_base, class_of, given,
};

const NAME: &str = "clickhouse";
const NAME_BYTES_MAX: usize = 200;
const HEADERS: &str = "x-clickhouse-";
const CODE: &str = "x-clickhouse-exception-code";
const TOO_MANY_PARTS: u16 = 252;
/// Settings of the statement. Columns may be of type `String` or `JSON`, times may have a zone, and the table may lack
/// columns. The response waits until the rows are stored.
const SETTINGS: &[(&str, &str)] = &[
    ("date_time_input_format", "best_effort"),
    // No profile of the user may let it drop rows.
    ("input_format_allow_errors_num", "0"),
    ("input_format_allow_errors_ratio", "0"),
    ("input_format_json_read_objects_as_strings", "1"),
    ("input_format_skip_unknown_fields", "1"),
    ("wait_end_of_query", "1"),
    ("wait_for_async_insert", "1"),
];

/// Numbers of errors (`src/Common/ErrorCodes.cpp` of ClickHouse). Others go by the HTTP status.
const CODES: Classes<u16> = &[
    // A value or a row cannot be parsed, or does not fit its column.
    (
        FailureClass::Permanent,
        &[
            6, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 130, 131, 349, 469,
        ],
    ),
    // Unknown user, wrong password, missing grant.
    (FailureClass::Auth, &[192, 193, 194, 497, 516]),
    // The table or the database is missing or lacks a column, or the user is read-only.
    (FailureClass::Config, &[16, 48, 60, 62, 81, 115, 164, 218]),
    // Too many queries or parts, no memory or disk space, no quorum, no Keeper, a timeout.
    (
        FailureClass::Retryable,
        &[
            159, 173, 201, 202, 203, 209, 210, 225, 241, 242, 243, 252, 285, 286, 319, 394, 425,
            439, 999,
        ],
    ),
];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Inserts each event into a ClickHouse table as a row.",
    limits: BatchLimits {
        events_max: 5000,
        bytes_max: 4 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "password");
        given
    },
    redact: |stored| hide(stored, "/password", Value::Null),
    open,
};

/// Configuration of the `clickhouse` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ClickhouseTarget")]
struct Config {
    /// Base URL of the HTTP interface, such as `https://clickhouse.example:8443`.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: String,
    /// Database. Default: `default`.
    #[serde(default)]
    database: Option<String>,
    /// Existing table. The members of an event go to the columns with their names: `event_id`, `subscription_id`, `event_type`,
    /// `event_timestamp`, `account_id`, `principal` and `object`.
    table: String,
    /// User. Default: `default`.
    #[serde(default)]
    user: Option<String>,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    checked_base(NAME, &config.url, &settings.rules)?;
    check_text(NAME, "database", given(&config.database), NAME_BYTES_MAX)?;
    check_text(NAME, "table", Some(&config.table), NAME_BYTES_MAX)?;
    check_secret(NAME, "user", given(&config.user))?;
    check_secret(NAME, "password", given(&config.password))?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let user = given(&config.user).unwrap_or("default");
    let mut intake = HttpIntake::open(NAME, &config.url, "/", "application/x-ndjson", context)?
        .with(NAME, "x-clickhouse-user", user)?;
    if let Some(password) = given(&config.password) {
        intake = intake.with_secret(NAME, "x-clickhouse-key", password, password)?;
    }
    let database = given(&config.database).unwrap_or("default");
    let insert = format!(
        "INSERT INTO {}.{} FORMAT JSONEachRow",
        quoted(database),
        quoted(&config.table)
    );
    let mut query = intake.url.query_pairs_mut();
    query.append_pair("query", &insert).extend_pairs(SETTINGS);
    drop(query);
    Ok(Arc::new(Clickhouse { intake }))
}

/// An identifier in backquotes.
fn quoted(name: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('`', "\\`");
    format!("`{name}`")
}

#[derive(Debug)]
struct Clickhouse {
    intake: HttpIntake,
}

/// A row. An event in another format is its `object`.
#[derive(Serialize)]
struct Row<'a> {
    event_id: &'a str,
    subscription_id: &'a str,
    event_type: &'a str,
    event_timestamp: &'a str,
    account_id: &'a str,
    principal: Option<&'a RawValue>,
    object: &'a RawValue,
}

/// What a row has of an envelope.
#[derive(Deserialize)]
struct Envelope<'a> {
    event_type: &'a str,
    event_timestamp: &'a str,
    account_id: &'a str,
    #[serde(borrow)]
    principal: Option<&'a RawValue>,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Target for Clickhouse {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.insert(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Clickhouse {
    async fn insert(&self, batch: &Batch) -> Result<(), Failure> {
        let mut rows = Vec::new();
        let mut keys = Sha256::new();
        for delivery in batch.deliveries() {
            row(delivery, &mut rows).map_err(|_| {
                let text = "an event is malformed";
                Failure::new(FailureClass::Permanent, "encoding", text)
            })?;
            keys.update(delivery.idempotency_key());
            keys.update(b"\n");
        }
        let mut request = self.intake.batch_request(&rows);
        let token = hex(&keys.finalize());
        let url = &mut request.url;
        url.query_pairs_mut()
            .append_pair("insert_deduplication_token", &token);
        self.judge(&self.intake.send(request).await?)
    }

    fn judge(&self, response: &HttpResponse) -> Result<(), Failure> {
        let code = response.headers.get(CODE);
        let code = code.and_then(|code| code.to_str().ok());
        let code = code.or_else(|| code_in(&response.text));
        if code.is_none() && (200..300).contains(&response.status) {
            let mut names = response.headers.keys().map(HeaderName::as_str);
            let is_own = names.any(|name| name.starts_with(HEADERS)) || response.body.is_empty();
            return match is_own {
                true => Ok(()),
                false => Err(HttpIntake::foreign(response)),
            };
        }
        let number: Option<u16> = code.and_then(|code| code.parse().ok());
        let class = match number {
            // The rows of one insert have too many partitions; fewer rows have fewer.
            Some(TOO_MANY_PARTS) if response.text.contains("single INSERT block") => {
                Some(FailureClass::Split)
            }
            number => number.and_then(|number| class_of(CODES, &number)),
        };
        let error = VendorError {
            class,
            code: code.unwrap_or_default().to_owned(),
            text: String::new(),
        };
        Err(self.intake.failure(response, error))
    }
}

/// The number of an error in a body, as versions without the header begin it: `Code: 60. DB::Exception: …`.
fn code_in(body: &str) -> Option<&str> {
    let rest = body.strip_prefix("Code: ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest.get(..digits).filter(|code| !code.is_empty())
}

/// Appends the row of an event as a line.
fn row(delivery: Delivery<'_>, rows: &mut Vec<u8>) -> serde_json::Result<()> {
    let event: Envelope<'_> = serde_json::from_slice(delivery.envelope)?;
    let formatted = delivery.formatted.map(serde_json::from_slice);
    let formatted: Option<&RawValue> = formatted.transpose()?;
    let row = Row {
        event_id: delivery.event_id,
        subscription_id: delivery.subscription,
        event_type: event.event_type,
        event_timestamp: event.event_timestamp,
        account_id: event.account_id,
        principal: event.principal,
        object: formatted.unwrap_or(event.object),
    };
    serde_json::to_writer(&mut *rows, &row)?;
    rows.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests;
