//! Operations on an API key beside the five of the contract: its restrictions, its last use, and its rotation.
//!
//! They are a sub-resource, so that keys keep the form that clients know. Changes are `api_key_updated.v0` events.

use culvert_base::{Fault, Ksuid, Refusal, Secret, Timestamp, code};
use culvert_resources::access::key_restrictions::{KeyRestrictions, NETWORKS_MAX, Network};
use culvert_resources::access::key_rules::{JudgedKey, KeyRule};
use culvert_resources::access::owner::Owner;
use culvert_resources::access::right::Scope;
use culvert_resources::access::rights::Access;
use culvert_resources::access::token;
use culvert_resources::audit::trace::{OperationKind, Performed, Trace};
use culvert_resources::cx::Cx;
use culvert_resources::input::Problem;
use culvert_resources::input::end::end;
use culvert_resources::input::force::FORCED;
use culvert_resources::list::page::Parameter;
use culvert_resources::operation::{BodySpec, Call, Method, Reply, ResponseSpec, SchemaOf, Status};
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::resource::{Extra, Reveal, Running, StoredDraft, value_refusal};
use culvert_resources::service::Attempts;
use culvert_resources::{Error, Role, audit, input, service, stored};
use culvert_store::{Changes, Head};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::api_key::included::shown;
use crate::api_key::key_use::last_uses;
use crate::api_key::model;
use crate::api_key::model::{ApiKey, PreviousToken};
use crate::api_key::overlap::{rotated, run_end};
use crate::api_key::restrictions::{API_KEY_RESTRICTED, Wanted, shown_restrictions};
use crate::api_key::rules::{check, current};
use crate::console::session;
use crate::leak::found::Leak;
use crate::lockout::{Taken, leave_a_way_in};
use crate::{Identity, api_key};

pub(crate) static API_KEY_UNRESTRICTED: OperationKind = OperationKind {
    name: "api_key_unrestricted.v0",
    doc: "All restrictions of an API key were lifted.",
    shows_body: false,
};

pub(crate) static API_KEY_ROTATED: OperationKind = OperationKind {
    name: "api_key_rotated.v0",
    doc: "An API key got a new token.",
    shows_body: true,
};

/// Longest time that the token before a rotation still works: a week.
const OVERLAP_SECONDS_MAX: u32 = 7 * 86_400;

/// The operations.
pub const OPERATIONS: [Extra<Identity>; 5] = [
    Extra {
        name: "get_restrictions",
        method: Method::Get,
        suffix: "/restrictions",
        doc: "Gets the restrictions of an API key, and when and where it was used last.",
        body: None,
        response: ok(SchemaGenerator::subschema_for::<View<'static>>),
        query: &[],
        access: Access::See,
        trace: Trace::Nothing,
        run: run_get,
    },
    Extra {
        name: "update_restrictions",
        method: Method::Patch,
        suffix: "/restrictions",
        doc: "Restricts an API key. Absent and null fields are unchanged; an empty value lifts the \
              restriction. A restricted key cannot give more rights than it has (643). To restrict the \
              last unrestricted key of an admin needs `force` (660).",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Update>,
            required: false,
        }),
        response: ok(SchemaGenerator::subschema_for::<View<'static>>),
        query: FORCED,
        access: Access::Change,
        trace: Trace::Also(&API_KEY_RESTRICTED),
        run: run_update,
    },
    Extra {
        name: "delete_restrictions",
        method: Method::Delete,
        suffix: "/restrictions",
        doc: "Lifts all restrictions of an API key.",
        body: None,
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Also(&API_KEY_UNRESTRICTED),
        run: run_delete,
    },
    Extra {
        name: "rotate",
        method: Method::Post,
        suffix: "/rotate",
        doc: "Gives an API key a new token, which is shown once. Without an overlap, the token before \
              it stops working immediately, and console sessions of the key end; for the last unrestricted \
              key of an admin, that needs `force` (660).",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Rotate>,
            required: false,
        }),
        response: ResponseSpec {
            status: Status::Created,
            schema: Some(SchemaGenerator::subschema_for::<model::View<'static>>),
        },
        query: FORCED,
        access: Access::Change,
        trace: Trace::Also(&API_KEY_ROTATED),
        run: run_rotate,
    },
    Extra {
        name: "end_overlap",
        method: Method::Delete,
        suffix: "/previous_token",
        doc: "Ends the overlap of a rotation early: the token before the rotation stops working immediately, and console \
              sessions that began with it end. For the last unrestricted key of an admin whose new token was never used, \
              that needs `force` (660).",
        body: None,
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: FORCED,
        access: Access::Change,
        trace: Trace::Objects,
        run: run_end,
    },
];

const fn ok(schema: SchemaOf) -> ResponseSpec {
    ResponseSpec {
        status: Status::Ok,
        schema: Some(schema),
    }
}

/// The restrictions of an API key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKeyRestrictions")]
struct View<'a> {
    /// The API key.
    key_id: &'a str,
    #[schemars(with = "String")]
    uri: String,
    /// The highest role of the key; empty for the role of its owner.
    #[schemars(extend("enum" = ["", "read_only", "member", "admin"]))]
    role: &'static str,
    /// What the key may do; empty for everything that its role may do. `x.write` includes `x.read`.
    scopes: Vec<Scope>,
    /// When the key stops working; null for never.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    expires_at: Option<Timestamp>,
    /// Networks that the key may be used from, such as `192.0.2.0/24`; empty for anywhere.
    #[schemars(with = "Vec<String>")]
    networks: &'a [Network],
    /// That the token of the key was reported as leaked since the last rotation; null if it was not.
    leak: Option<&'a Leak>,
    /// Until when the token before the last rotation works; null if it does not.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    previous_token_expires_at: Option<Timestamp>,
    /// When the key was used last, to the minute; null if it never was.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    last_used_at: Option<Timestamp>,
    /// Address of the last use; empty if there was none.
    last_used_from: String,
    /// When the key was rotated last; null if it never was.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    rotated_at: Option<Timestamp>,
    /// When the token of the key was used last, since the key got it; null if it never was.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    token_last_used_at: Option<Timestamp>,
    /// Address of that use; empty if there was none.
    token_last_used_from: String,
    /// When the token before the last rotation was used last, while it works; null otherwise.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    previous_token_last_used_at: Option<Timestamp>,
    /// Address of that use; empty if there was none.
    previous_token_last_used_from: String,
    /// When the token reaches the maximum age of the account; null without one.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    maximum_age_at: Option<Timestamp>,
    /// The rules of the account that the key breaks.
    broken_rules: Vec<KeyRule>,
}

/// Changes to the restrictions of an API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyRestrictionsUpdate", transform = input::update_schema)]
struct Update {
    /// The highest role of the key: `read_only`, `member` or `admin`; empty for the role of its owner.
    #[schemars(extend("enum" = ["", "read_only", "member", "admin"]))]
    role: Option<String>,
    /// What the key may do; `[]` for everything that its role may do. `x.write` includes `x.read`.
    #[schemars(with = "Option<Vec<Scope>>")]
    scopes: Option<Vec<String>>,
    /// When the key stops working: an RFC 3339 time, a date, which stands for its first moment in UTC, or the time from
    /// now, such as `90d`; empty for never. Shown as a time in UTC.
    expires_at: Option<String>,
    /// Networks that the key may be used from, such as `192.0.2.0/24`, shown in their shortest form; `[]` for anywhere.
    #[schemars(extend("maxItems" = NETWORKS_MAX))]
    networks: Option<Vec<String>>,
}

impl Update {
    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            role: self.role.as_deref(),
            scopes: self.scopes.as_deref(),
            expires_at: self.expires_at.as_deref(),
            networks: self.networks.as_deref(),
        }
    }
}

/// A rotation.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiKeyRotate", transform = input::create_schema)]
struct Rotate {
    /// Seconds that the token before the rotation still works, at most 604800; default: 0.
    #[schemars(range(max = OVERLAP_SECONDS_MAX))]
    overlap: u32,
    /// Instead of `overlap`, when the token before the rotation stops working: an RFC 3339 time, a date, which stands for
    /// its first moment in UTC, or the time from now, such as `3d`; at most a week from now.
    overlap_until: String,
}

/// An input after the checks of its names and types; values are checked once the object is known.
fn shaped<T>(read: Result<T, Problem>) -> Result<Result<T, Refusal>, Refusal> {
    match read {
        Err(Problem::Shape(refusal)) => Err(refusal),
        read => Ok(read.map_err(value_refusal::<ApiKey>)),
    }
}

fn run_get(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = identity.kernel.cx(&call.caller, &call.base);
        let document = service::named(&cx, &api_key::TYPE, &call).await?;
        let document = document.ok_or_else(Refusal::not_found)?;
        call.terms.conditions.check(&document, false)?;
        call.terms.show(&document);
        let key: ApiKey = stored::read(&document)?;
        Ok(Reply::Ok(view(&cx, &document.head, &key).await?))
    })
}

async fn view(cx: &Cx<'_>, head: &Head, key: &ApiKey) -> Result<String, Fault> {
    let id = head.id.as_str();
    let used = last_uses(cx.store, cx.key_uses, &[id]).await?;
    let used = used.into_iter().next().unwrap_or_default();
    let (rules, _) = current(cx).await?;
    let owner = Owner::load(cx.store, &key.owner_id).await?;
    let collection = Uri {
        base: cx.base,
        collection: ApiKey::COLLECTION,
        id,
    };
    let now = cx.clock.now();
    let issued_at = key.issued_at(head);
    let judged = JudgedKey {
        restrictions: &key.restrictions,
        issued_at,
        owner_role: owner.map_or(Role::Member, |(owner, _)| owner.role),
    };
    let previous = key.valid_previous(now);
    let of_previous = previous.and_then(|previous| used.of(&previous.digest));
    let (last_used_at, last_used_from) = shown(used.last);
    let (token_last_used_at, token_last_used_from) = shown(used.of(&key.digest));
    let (previous_token_last_used_at, previous_token_last_used_from) = shown(of_previous);
    stored::write(&View {
        key_id: id,
        uri: format!("{collection}/restrictions"),
        role: key.restrictions.role.map_or("", Role::name),
        scopes: key.restrictions.scopes.iter().collect(),
        expires_at: key.restrictions.expires_at,
        networks: &key.restrictions.networks,
        leak: key.leak.as_ref(),
        previous_token_expires_at: previous.map(|previous| previous.until),
        last_used_at,
        last_used_from,
        rotated_at: key.rotated_at,
        token_last_used_at,
        token_last_used_from,
        previous_token_last_used_at,
        previous_token_last_used_from,
        maximum_age_at: rules.old_at(issued_at),
        broken_rules: rules.broken(judged, now),
    })
}

fn run_update(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input = shaped(input::update::<Update>(call.body.clone()))?;
        let now = identity.kernel.clock.now();
        let decide = move |restrictions: &KeyRestrictions| match &input {
            Ok(update) => update.input.wanted().applied(restrictions, now),
            Err(refusal) => Err(refusal.clone()),
        };
        let kind = (&API_KEY_RESTRICTED, "api_keys_update_restrictions");
        let (head, key) = restrict(identity, &call, kind, FORCED, decide).await?;
        let cx = identity.kernel.cx(&call.caller, &call.base);
        Ok(Reply::Ok(view(&cx, &head, &key).await?))
    })
}

fn run_delete(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let kind = (&API_KEY_UNRESTRICTED, "api_keys_delete_restrictions");
        let lift = |_: &KeyRestrictions| Ok(KeyRestrictions::default());
        restrict(identity, &call, kind, &[], lift).await?;
        Ok(Reply::NoContent)
    })
}

/// Changes the restrictions of the key that the path names. Returns its head and its new form.
async fn restrict(
    identity: &Identity,
    call: &Call,
    kind: (&'static OperationKind, &'static str),
    parameters: &[Parameter],
    decide: impl Fn(&KeyRestrictions) -> Result<KeyRestrictions, Refusal> + Send,
) -> Result<(Head, ApiKey), Error> {
    let restrict = |call| restrict_locked(identity, call, kind, parameters, decide);
    service::locked(&identity.kernel, &api_key::TYPE, call, restrict).await
}

async fn restrict_locked(
    identity: &Identity,
    call: &Call,
    kind: (&'static OperationKind, &'static str),
    parameters: &[Parameter],
    decide: impl Fn(&KeyRestrictions) -> Result<KeyRestrictions, Refusal> + Send,
) -> Result<(Head, ApiKey), Error> {
    let cx = identity.kernel.cx_of(call, parameters)?;
    let ty = &api_key::TYPE;
    let mut attempts = Attempts::of(cx.locks);
    loop {
        attempts.begin().await?;
        let document = service::named(&cx, ty, call).await?;
        let document = document.ok_or_else(Refusal::not_found)?;
        cx.caller.may_write()?;
        let mut key: ApiKey = stored::read(&document)?;
        let was_way_in = key.is_way_in();
        let restrictions = decide(&key.restrictions)?;
        let before = std::mem::replace(&mut key.restrictions, restrictions);
        cx.caller.may_give(&key.restrictions)?;
        let head = document.head.clone();
        let id = head.id.as_str();
        let issued_at = key.issued_at(&head);
        let checked = check(&cx, id, issued_at, &mut key).await?;
        let also = match was_way_in && !key.is_way_in() {
            true => leave_a_way_in(&cx, &head.account, Taken::Key(id)).await?,
            false => Changes::default(),
        };
        let made = StoredDraft {
            body: stored::write(&key)?,
            links: key.links(&document.head),
            reveal: None,
            also,
        };
        let (kind, operation) = kind;
        let performed = Performed {
            before: Some(shown_restrictions(&before)?),
            after: Some(shown_restrictions(&key.restrictions)?),
            ..Performed::of(id, operation)
        };
        let made = made.and(Changes::event(audit::operation(
            &cx, kind.name, &performed,
        )?));
        let made = made.and(checked);
        if service::replace(&cx, ty, document, made).await?.is_some() {
            return Ok((head, key));
        }
    }
}

fn run_rotate(identity: &Identity, call: Call) -> Running<'_> {
    let rotate = |call| rotate(identity, call);
    Box::pin(service::locked(
        &identity.kernel,
        &api_key::TYPE,
        call,
        rotate,
    ))
}

fn rotate(identity: &Identity, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input = shaped(input::create::<Rotate>(call.body.clone()))?;
        let cx = identity.kernel.cx_of(&call, FORCED)?;
        let ty = &api_key::TYPE;
        let mut attempts = Attempts::of(cx.locks);
        loop {
            attempts.begin().await?;
            let document = service::named(&cx, ty, &call).await?;
            let document = document.ok_or_else(Refusal::not_found)?;
            cx.caller.may_write()?;
            let now = cx.clock.now();
            let overlap = check_overlap(&input.clone()?, now)?;
            let mut key: ApiKey = stored::read(&document)?;
            // The new token is shown to the caller, who can use it immediately.
            cx.caller.may_give(&key.restrictions)?;
            let (_, body) = culvert_base::id::split(&document.head.id).unwrap_or_default();
            let id: Ksuid = body
                .parse()
                .map_err(|error| Fault::new("reading the ID of an API key", error))?;
            let form = cx.settings.token_form;
            let token = form.mint(token::Kind::Key, id, cx.entropy);
            let digest = cx.pepper.digest(token.reveal());
            let old = std::mem::replace(&mut key.digest, digest);
            let issued_at = key.issued_at(&document.head);
            key.leak = None;
            key.rotated_at = Some(now);
            key.previous = overlap.map(|until| PreviousToken {
                digest: old,
                issued_at: Some(issued_at),
                until,
            });
            let checked = check(&cx, &document.head.id, now, &mut key).await?;
            let noted = rotated(&cx, &document.head, &key).await?;
            // A holder of the previous token may have signed in with it.
            let also = match overlap {
                None => {
                    // The new token may be lost with the response.
                    let taken = Taken::Key(&document.head.id);
                    let way_in = leave_a_way_in(&cx, &document.head.account, taken).await?;
                    way_in.and(session::removal(&cx, body).await?)
                }
                Some(_) => Changes::default(),
            };
            let also = also.and(noted);
            let reveal = Reveal {
                pointer: "/token".to_owned(),
                json: Secret::new(format!("\"{}\"", token.reveal())),
            };
            let made = StoredDraft {
                body: stored::write(&key)?,
                links: key.links(&document.head),
                reveal: Some(reveal),
                also,
            };
            let rotated = Performed {
                asked: call.body.as_ref(),
                ..Performed::of(&document.head.id, "api_keys_rotate")
            };
            let rotated = audit::operation(&cx, API_KEY_ROTATED.name, &rotated)?;
            let made = made.and(Changes::event(rotated)).and(checked);
            if let Some(reply) = service::replace_created(&cx, ty, document, made).await? {
                return Ok(reply);
            }
        }
    })
}

/// When the token before the rotation stops working; `None` for immediately. Codes 215 and 241.
fn check_overlap(input: &Rotate, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
    let invalid = |why: String| Err(Refusal::new(code::BODY_FIELD_INVALID, why));
    let longest = std::time::Duration::from_secs(OVERLAP_SECONDS_MAX.into());
    if input.overlap > OVERLAP_SECONDS_MAX {
        return invalid(format!(
            "`overlap` must be at most {OVERLAP_SECONDS_MAX} seconds."
        ));
    }
    match (input.overlap, input.overlap_until.as_str()) {
        (0, "") => Ok(None),
        (seconds, "") => Ok(Some(
            now.plus(std::time::Duration::from_secs(seconds.into())),
        )),
        (0, text) => {
            let until = end("overlap_until", text, now)?;
            if until > now.plus(longest) {
                return invalid("`overlap_until` must be at most a week from now.".to_owned());
            }
            Ok(Some(until))
        }
        _ => invalid("`overlap` and `overlap_until` exclude each other.".to_owned()),
    }
}
