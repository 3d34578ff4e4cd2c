//! Create, get, update and delete for every resource.
//!
//! Each write reads, decides and commits. When a document that it read has changed meanwhile, it starts over,
//! up to [`RUNS_MAX`] times. A write and its audit event are committed together, and the response shows the
//! state after the commit.
//!
//! Lists are in `list`, the rules of a resource in its own file, and the form of events in `audit`.

use std::borrow::Borrow;

use culvert_base::{Class, Fault, Refusal, code};
use culvert_events::caused_by;
use culvert_store::{
    AuditEvent, Bound, Changes, CommitError, Document, Head, RangeError, Revision, event_names,
};
use tokio::sync::MutexGuard;

use crate::access::grant::Grant;
use crate::access::rights::Access;
use crate::audit::previous::Previous;
use crate::audit::verb::Verb;
use crate::cx::Cx;
use crate::keyed_mutex::KeyedMutex;
use crate::list::include;
use crate::list::page::included;
use crate::operation::once::{self, Answer};
use crate::operation::{Call, Reply};
use crate::resource::model::{CHECKED_REFERENCE, Model};
use crate::resource::{ResourceType, Reveal, StoredDraft};
use crate::{Error, Kernel, access, audit};

/// Attempts of a write that concurrent writers overtake.
pub const RUNS_MAX: usize = 6;

/// The attempts of a write that concurrent writers may overtake, in work that runs in [`KeyedMutex::with`]. From the second
/// one on, such writes take turns on this node, so that they do not overtake each other again.
#[derive(Debug)]
pub struct Attempts<'a> {
    locks: &'a KeyedMutex,
    n_begun: usize,
    turn: Option<MutexGuard<'a, ()>>,
}

impl<'a> Attempts<'a> {
    /// None yet.
    pub fn of(locks: &'a KeyedMutex) -> Self {
        Self {
            locks,
            n_begun: 0,
            turn: None,
        }
    }

    /// Begins the next one.
    ///
    /// # Errors
    ///
    /// [`RUNS_MAX`] were overtaken.
    pub async fn begin(&mut self) -> Result<(), Error> {
        if self.n_begun == RUNS_MAX {
            return Err(overtaken());
        }
        if self.n_begun > 0 && self.turn.is_none() {
            self.turn = Some(self.locks.retry().await);
        }
        self.n_begun += 1;
        Ok(())
    }
}

/// `POST /<collection>`. The operation runs it in `KeyedMutex::with`.
pub async fn create(
    kernel: &Kernel,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = kernel.cx_of(&call, ty.create_parameters)?;
    let parts = included(&call.query, ty.included)?;
    let mut attempts = Attempts::of(cx.locks);
    loop {
        attempts.begin().await?;
        // New for each attempt, because the ID itself may be what was taken.
        let id = cx.new_id();
        let made = (ty.create)(&cx, id, call.body.clone()).await?;
        let document = Document {
            head: Head {
                id: ty.stored_id_of(id),
                kind: ty.kind.to_owned(),
                account: cx.caller.account.clone(),
                revision: 0,
                created_at: id.at(),
                updated_at: id.at(),
            },
            body: made.body,
            keys: made.links.keys,
            refs: made.links.refs,
            topics: made.links.topics,
        };
        if cx.dry_run {
            return Ok(Reply::Ok((ty.preview)(&cx, &document).await?));
        }
        let view = ty.view_text(&document, cx.base)?;
        let event = audit::event(&cx, ty, Verb::Created, &view)?;
        let reveal = made.reveal.or(ty.readable_secret(&cx, &document)?);
        let also = following(&event, made.also);
        let changes = Changes::insert(document.clone(), event).and(also);
        // Before the commit, which keeps the response.
        let view = include::with(&cx, ty, &parts, &document, view).await?;
        let answer = Answer {
            view: &view,
            reveal: reveal.as_ref(),
            document: &document,
            is_created: true,
        };
        if commit_answered(&cx, ty, changes, &answer).await? {
            return created(view, reveal.as_ref());
        }
    }
}

/// The response with a new object, and with its secret.
fn created(view: String, reveal: Option<&Reveal>) -> Result<Reply, Error> {
    Ok(match reveal {
        None => Reply::Created {
            body: view,
            secret: false,
        },
        Some(reveal) => Reply::Created {
            body: reveal.shown_in(&view)?,
            secret: true,
        },
    })
}

/// `GET /<collection>/{id}`.
pub async fn get(kernel: &Kernel, ty: &'static ResourceType, call: Call) -> Result<Reply, Error> {
    let cx = kernel.cx(&call.caller, &call.base);
    let document = named(&cx, ty, &call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    call.terms.conditions.check(&document, false)?;
    call.terms.show(&document);
    let readable = ty.readable_secret(&cx, &document)?;
    let parts = included(&call.query, ty.included)?;
    let view = ty.view_text(&document, cx.base)?;
    let view = include::with(&cx, ty, &parts, &document, view).await?;
    Ok(reply(view, readable)?)
}

/// The response with one object, and with the secret that the caller may read.
fn reply(view: String, readable: Option<Reveal>) -> Result<Reply, Fault> {
    Ok(match readable {
        None => Reply::Ok(view),
        Some(reveal) => Reply::Secret {
            body: reveal.shown_in(&view)?,
            ids: Vec::new(),
        },
    })
}

/// `PATCH /<collection>/{id}`. The operation runs it in [`locked`].
pub async fn update(
    kernel: &Kernel,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = Cx {
        cause: call.cause.as_deref(),
        ..kernel.cx_of(&call, ty.update_parameters)?
    };
    let parts = included(&call.query, ty.included)?;
    let mut attempts = Attempts::of(cx.locks);
    loop {
        attempts.begin().await?;
        let Some(document) = named(&cx, ty, &call).await? else {
            // A body with wrong names is refused before an absent object is.
            (ty.inspect_update)(call.body.clone())?;
            return Err(Refusal::not_found().into());
        };
        (ty.inspect_update)(call.body.clone())?;
        (ty.permit)(cx.caller)?;
        let held = access::may_change(&cx, ty, &document).await?;
        call.terms.conditions.check(&document, true)?;
        check_cause(&cx, &document.head).await?;
        let mut made = (ty.update)(&cx, &document, call.body.clone()).await?;
        // The right was read before the commit, so the commit checks its conditions.
        made.also = made.also.and(held);
        let written = Document {
            body: made.body.clone(),
            ..document.clone()
        };
        let readable = ty.readable_secret(&cx, &written)?;
        if let Some(view) = replace(&cx, ty, document, made).await? {
            let view = include::with(&cx, ty, &parts, &written, view).await?;
            return Ok(reply(view, readable)?);
        }
    }
}

/// `DELETE /<collection>/{id}`. The operation runs it in [`locked`].
pub async fn delete(
    kernel: &Kernel,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = kernel.cx_of(&call, ty.delete_parameters)?;
    let mut attempts = Attempts::of(cx.locks);
    loop {
        attempts.begin().await?;
        let document = named(&cx, ty, &call)
            .await?
            .ok_or_else(Refusal::not_found)?;
        (ty.permit)(cx.caller)?;
        let held = access::may_change(&cx, ty, &document).await?;
        // The commit removes the object only at the revision that was read.
        call.terms.conditions.check(&document, true)?;
        let grants = grants_removed(&cx, &document).await?;
        let checked = (ty.check_removal)(&cx, &document, &call.query).await?;
        let before = (ty.before_removal)(&cx, &document).await?;
        let view = ty.view_text(&document, cx.base)?;
        let event = audit::event(&cx, ty, Verb::Deleted, &view)?;
        // In the order of their events: its parts come first.
        let changes = held
            .and(checked)
            .and(following(&event, before.and(grants)))
            .and(Changes::remove(document.head, event));
        if commit(&cx, ty, changes).await?.is_some() {
            return Ok(Reply::NoContent);
        }
    }
}

/// Refuses a cause that is not an event about the object.
async fn check_cause(cx: &Cx<'_>, head: &Head) -> Result<(), Error> {
    let Some(cause) = cx.cause else {
        return Ok(());
    };
    let log = cx.store.audit_log();
    let bound = Bound::Event(cause.to_owned());
    let named = match log.range(Some(&bound), None, Some(&head.account)).await {
        Ok(range) => {
            let rows = log.rows(range.first - 1, range.first, 1).await?;
            rows.first().map(|row| event_names(&row.body).0)
        }
        Err(RangeError::Unknown(_)) => None,
        Err(RangeError::Fault(fault)) => return Err(fault.into()),
    };
    if named.as_deref() == Some(head.id.as_str()) {
        return Ok(());
    }
    let why = "`culvert-cause` must be the ID of an event about this object.";
    Err(Refusal::uncoded(Class::Invalid, why).into())
}

/// Changes that follow the write with this event, which is the cause of theirs.
pub fn following(event: &AuditEvent, changes: Changes) -> Changes {
    match event {
        AuditEvent::Emit(cause) => changes.map_events(|event| caused_by(event, &cause.id)),
        AuditEvent::Suppress { .. } => changes,
    }
}

/// The removal of a document, with its audit event, which shows the last state.
pub fn removal(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    document: Document,
) -> Result<Changes, Error> {
    let view = ty.view_text(&document, cx.base)?;
    let event = audit::event(cx, ty, Verb::Deleted, &view)?;
    Ok(Changes::remove(document.head, event))
}

/// A new body for a document beside the one that is written, with its audit event.
pub fn rewriting(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    before: Document,
    body: String,
) -> Result<Changes, Error> {
    let document = Document {
        body,
        ..before.clone()
    };
    let view = ty.view_text(&document, cx.base)?;
    let previous = Previous::between(ty, &before, &document, cx.base)?;
    let event = audit::updated(cx, ty, &view, &previous)?;
    Ok(Changes::replace(document, event))
}

/// Commits a new state of a document and returns its view; `None` when the document has changed since it was
/// read. A creation below the document uses [`replace_answered`].
pub async fn replace(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    before: Document,
    made: StoredDraft,
) -> Result<Option<String>, Error> {
    let replaced = replace_answered(cx, ty, before, made, |view| Ok((view.to_owned(), false)));
    Ok(replaced.await?.map(|(view, _)| view))
}

/// The same, for a call that creates something at the document. Returns the response, with the secret of the draft.
pub async fn replace_created(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    before: Document,
    made: StoredDraft,
) -> Result<Option<Reply>, Error> {
    let answer = |view: &str| Ok((view.to_owned(), true));
    match replace_answered(cx, ty, before, made, answer).await? {
        Some((view, reveal)) => created(view, reveal.as_ref()).map(Some),
        None => Ok(None),
    }
}

/// The same, for a call whose response is not just the view, or is a creation (201). `answer` makes the response without
/// its secret, which is `made.reveal`, and says whether it is a creation.
pub async fn replace_answered(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    before: Document,
    made: StoredDraft,
    answer: impl FnOnce(&str) -> Result<(String, bool), Error>,
) -> Result<Option<(String, Option<Reveal>)>, Error> {
    if let Some(terms) = cx.terms {
        // The commit replaces the document only at the revision that was read.
        terms.conditions.check(&before, true)?;
    }
    let document = Document {
        head: Head {
            updated_at: cx.clock.now().whole_seconds(),
            ..before.head.clone()
        },
        body: made.body,
        keys: made.links.keys,
        refs: made.links.refs,
        topics: made.links.topics,
    };
    let view = ty.view_text(&document, cx.base)?;
    let previous = Previous::between(ty, &before, &document, cx.base)?;
    let event = audit::updated(cx, ty, &view, &previous)?;
    let also = following(&event, made.also);
    let changes = Changes::replace(document.clone(), event).and(also);
    let (view, is_created) = answer(&view)?;
    let answer = Answer {
        view: &view,
        reveal: made.reveal.as_ref(),
        document: &document,
        is_created,
    };
    let is_written = commit_answered(cx, ty, changes, &answer).await?;
    Ok(is_written.then_some((view, made.reveal)))
}

/// Commits a write together with its answer, if the call has a key. Returns `false` when the write must be decided again.
async fn commit_answered(
    cx: &Cx<'_>,
    ty: &ResourceType,
    changes: Changes,
    answer: &Answer<'_>,
) -> Result<bool, Error> {
    let changes = once::keeping(cx, answer)?.and(changes);
    let Some(revision) = commit(cx, ty, changes).await? else {
        return Ok(false);
    };
    if let Some(terms) = cx.terms {
        let document = answer.document;
        let key = &terms.conditions.key;
        let digest = key.digest_of(&document.body);
        terms.show_state(key.shown_at(&document.head, revision.number, &digest));
        if let Some(claim) = terms.claim.get() {
            claim.set_kept();
        }
    }
    Ok(true)
}

/// Commits; returns `None` when a document has changed and the write must be decided again.
async fn commit(
    cx: &Cx<'_>,
    ty: &ResourceType,
    changes: Changes,
) -> Result<Option<Revision>, Error> {
    match cx.store.commit(changes).await {
        Ok(revision) => Ok(Some(revision)),
        Err(CommitError::Stale) => Ok(None),
        Err(CommitError::Duplicate { kind, name }) => match ty.taken {
            Some(code) if kind == ty.kind && name != "id" => Err(Refusal::of(code).into()),
            // A document beside the resource was created meanwhile: read again.
            _ => Ok(None),
        },
        // An object that a policy refers to was removed meanwhile: read again, and report it as an error of
        // the policy.
        Err(CommitError::Missing { field, .. }) if field == CHECKED_REFERENCE => Ok(None),
        Err(CommitError::Missing { field, to }) => Err(Refusal::new(
            ty.unknown.unwrap_or(code::BODY_FIELD_INVALID),
            format!("`{field}` names `{to}`, which does not exist."),
        )
        .into()),
        Err(CommitError::InUse { by_kind, by, .. }) => {
            let by = shown(cx, &by_kind, &by).await?;
            let code = ty.in_use.unwrap_or(code::BODY_FIELD_INVALID);
            Err(Refusal::new(code, format!("{by} uses this object.")).into())
        }
        Err(error @ (CommitError::Kept | CommitError::NoRoom)) => match once::refusal_of(&error) {
            Some(refusal) => Err(refusal.into()),
            None => Err(Fault::new("keeping an answer", error).into()),
        },
        Err(CommitError::Fault(fault)) => Err(fault.into()),
    }
}

/// How an object is called that uses another, for a caller who may not see it.
async fn shown(cx: &Cx<'_>, kind: &str, id: &str) -> Result<String, Fault> {
    let unseen = || "An object that you may not see".to_owned();
    let Some(ty) = cx.resources.iter().find(|ty| ty.kind == kind) else {
        return Ok(unseen());
    };
    Ok(match cx.own(kind, id).await? {
        Some(document) if ty.is_seen_by(cx.caller, &document)? => format!("`{id}`"),
        _ => unseen(),
    })
}

/// The refusal of a write that was decided too often while others changed the object.
pub fn overtaken() -> Error {
    Refusal::uncoded(
        Class::Conflict,
        "Concurrent updates to this object conflict; try again.",
    )
    .into()
}

/// Runs a call while it holds the lock of the object that the first path parameter names.
pub async fn locked<C: Borrow<Call>, F: Future>(
    kernel: &Kernel,
    ty: &ResourceType,
    call: C,
    run: impl FnOnce(C) -> F,
) -> F::Output {
    let shown = call.borrow().path.first();
    let id = shown.and_then(|shown| ty.stored_id(shown));
    kernel.locks.with(id.as_deref().as_slice(), run(call)).await
}

/// The document that the first path parameter names, if the caller may see it.
pub async fn named(cx: &Cx<'_>, ty: &ResourceType, call: &Call) -> Result<Option<Document>, Fault> {
    match call.path.first().and_then(|shown| ty.stored_id(shown)) {
        Some(id) => match cx.own(ty.kind, &id).await? {
            Some(document) if ty.is_seen_by(cx.caller, &document)? => Ok(Some(document)),
            _ => Ok(None),
        },
        None => Ok(None),
    }
}

/// Checks the right that an operation needs to the object in its path. An object that is absent for the caller is left
/// to the operation, which reports the errors of the request first.
pub async fn check(
    kernel: &Kernel,
    ty: &ResourceType,
    needed: Access,
    call: &Call,
) -> Result<(), Error> {
    if needed == Access::See {
        return Ok(());
    }
    let cx = kernel.cx(&call.caller, &call.base);
    let Some(document) = named(&cx, ty, call).await? else {
        return Ok(());
    };
    if needed == Access::Whole {
        return access::may_see_whole(&cx, ty, &document).await;
    }
    // A role that never changes anything is reported first.
    (ty.permit)(cx.caller)?;
    access::may_change(&cx, ty, &document).await?;
    // A write of the object itself checks them again, at the revision that it replaces.
    Ok(call.terms.conditions.check(&document, true)?)
}

/// The removals of the grants on an object that is removed, and of those that name it.
async fn grants_removed(cx: &Cx<'_>, document: &Document) -> Result<Changes, Error> {
    if document.head.kind == Grant::KIND {
        return Ok(Changes::default());
    }
    let mut changes = Changes::default();
    for granted in cx.referring(Grant::KIND, &document.head).await? {
        let ty = cx.resources.iter().find(|ty| ty.kind == Grant::KIND);
        let ty = ty.ok_or_else(|| Fault::bare("removing grants: they are no resource"))?;
        changes = changes.and(removal(cx, ty, granted)?);
    }
    Ok(changes)
}
