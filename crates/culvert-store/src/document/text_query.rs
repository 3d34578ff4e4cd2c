//! Queries for documents by their texts.

use std::collections::BTreeSet;

use culvert_base::Fault;

use crate::commit::state_log::StateCommand;
use crate::database::dialect::{Arg, While};
use crate::database::statements::{GET_MANY, TEXTS_CONTAINING, TEXTS_ONE_OF, state};
use crate::document::text_index::{
    BEGINNING_BYTES_MAX, Like, TextQuery, begin, behind, json, value,
};
use crate::document::{BEHIND_EVERY_ID, Document, Key, PageQuery};
use crate::store::Store;

impl Store {
    /// Whether the text index is complete.
    pub async fn has_all_texts(&self) -> Result<bool, Fault> {
        let (revision, texts) = self.shared.state_log.read_ledger(self.pool()).await?;
        Ok(texts.is_complete(revision.number))
    }

    /// Ids of the documents that may have such a text, newest (largest) first. Every document with the text is included.
    /// `None` if there are more than `max`.
    pub async fn ids_by_text(
        &self,
        query: TextQuery<'_>,
        max: u32,
    ) -> Result<Option<Vec<String>>, Fault> {
        let doing = "finding documents by a text";
        let encoded = |error| Fault::new(doing, error);
        let (kind, account) = (Arg::Text(query.kind), Arg::Text(query.account));
        let field = Arg::Text(query.field);
        let limit = Arg::Int(i64::from(max).saturating_add(1));
        let site = &self.shared.database.site;
        let rows = match query.like {
            Like::OneOf(texts) => {
                let values: BTreeSet<_> = texts.iter().map(|text| value(text)).collect();
                let values = json(&values).map_err(encoded)?;
                let arguments = [kind, account, field, limit, Arg::Text(&values)];
                self.pool()
                    .rows(doing, site.spell(TEXTS_ONE_OF), &arguments)
                    .await?
            }
            Like::Begins(text) => {
                let text = Key::spelled(text);
                let from = begin(&text, BEGINNING_BYTES_MAX);
                let before = behind(from);
                let arguments = [
                    kind,
                    account,
                    field,
                    limit,
                    Arg::Text(from),
                    Arg::Text(&before),
                ];
                self.pool()
                    .rows(doing, state::TEXTS_BETWEEN, &arguments)
                    .await?
            }
            Like::Contains(text) => {
                let quoted = json(&text).map_err(encoded)?;
                let in_json = quoted.get(1..quoted.len() - 1).unwrap_or_default();
                let text = Key::spelled(text);
                let arguments = [
                    kind,
                    account,
                    field,
                    limit,
                    Arg::Text(&text),
                    Arg::Text(in_json),
                ];
                self.pool()
                    .rows(doing, site.spell(TEXTS_CONTAINING), &arguments)
                    .await?
            }
        };
        if rows.len() > usize::try_from(max).unwrap_or(usize::MAX) {
            return Ok(None);
        }
        let mut ids = rows
            .iter()
            .map(|row| row.get(0).during(doing))
            .collect::<Result<Vec<String>, _>>()?;
        ids.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Some(ids))
    }

    /// A page of the documents that have this text in a field, newest first.
    pub async fn page_by_text(
        &self,
        query: &PageQuery,
        field: &str,
        text: &str,
    ) -> Result<Vec<Document>, Fault> {
        let arguments = [
            Arg::Text(&query.kind),
            Arg::Text(&query.account),
            Arg::Text(query.before.as_deref().unwrap_or(BEHIND_EVERY_ID)),
            Arg::Int(i64::from(query.limit)),
            Arg::Text(field),
            Arg::Text(&value(text)),
        ];
        self.documents(state::PAGE_BY_TEXT, &arguments).await
    }

    /// The existing ones of these documents, newest first.
    pub async fn get_many(&self, ids: &[String]) -> Result<Vec<Document>, Fault> {
        let list = json(&ids).map_err(|error| Fault::new("reading documents", error))?;
        let sql = self.shared.database.site.spell(GET_MANY);
        let mut documents = self.documents(sql, &[Arg::Text(&list)]).await?;
        documents.sort_unstable_by(|a, b| b.head.id.cmp(&a.head.id));
        Ok(documents)
    }

    /// Claims the text index for the fields of this program, unless it has it. Then the index is rebuilt.
    pub(crate) async fn claim_texts(&self) -> Result<(), Fault> {
        let state_log = &self.shared.state_log;
        if state_log.mark.is_empty() || state_log.read_ledger(self.pool()).await?.1.is_ours {
            return Ok(());
        }
        self.write("beginning to index texts", StateCommand::ClaimTexts)
            .await
            .map(drop)
    }
}
