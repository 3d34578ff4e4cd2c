//! Whether a piece of the traffic log may have an event that a filter needs, by its summary.

use crate::filter::need::{Facts, Subject, Test, What};
use crate::filter::summary::{
    ACCOUNT, ADDRESS_PARTS, CLIENT, DURATION, ENDPOINT, PATH, PATH_BYTES, SERVER_NAME, STATUS,
    Summary, URL_HOST, hash, is_end, subject_of,
};
use crate::kinds;

impl Facts for Summary<'_> {
    fn may_pass(&self, test: &Test) -> bool {
        match &test.subject {
            Subject::Kind => {
                let mut known = kinds::ALL.iter();
                known.any(|kind| self.may_have_kind(kind.name) && test.what.may_hold_for(kind.name))
            }
            Subject::Account => self.may_equal(ACCOUNT, &test.what),
            Subject::Endpoint => self.may_equal(ENDPOINT, &test.what),
            Subject::PrincipalField => false,
            Subject::Other => true,
            Subject::Field { path, .. } => {
                let has_field = kinds::ALL
                    .iter()
                    .any(|kind| kind.index_of(path).is_some() && self.may_have_kind(kind.name));
                has_field && subject_of(path).is_none_or(|subject| self.may_be(subject, &test.what))
            }
        }
    }
}

impl Summary<'_> {
    fn may_equal(&self, subject: usize, what: &What) -> bool {
        match what {
            What::Equals(texts) => (texts.iter())
                .any(|text| text.is_empty() || self.may_have(subject, hash(text.as_bytes()))),
            _ => true,
        }
    }

    /// Whether a value of a field may be as wanted. Defaults and null are not in the summary.
    fn may_be(&self, subject: usize, what: &What) -> bool {
        match (subject, what) {
            (STATUS, What::Within(first, last)) if !(*first..=*last).contains(&0) => {
                self.has_value(STATUS, |code| (*first..=*last).contains(&i64::from(code)))
            }
            (DURATION, What::Within(first, _)) if *first > 0 => self.longest() >= *first,
            (STATUS | DURATION, _) => true,
            (PATH, What::Equals(texts)) => texts.iter().any(|text| self.may_begin_path(text)),
            (PATH, What::StartsWith(begin)) => self.may_begin_path(begin),
            (PATH, _) => true,
            (CLIENT, What::StartsWith(begin)) => {
                let bytes = begin.as_bytes();
                let ends = bytes.iter().enumerate().filter(|(_, byte)| is_end(**byte));
                let last = ends.take(ADDRESS_PARTS).last();
                last.is_none_or(|(at, _)| self.may_have(CLIENT, hash(&bytes[..=at])))
            }
            (URL_HOST | SERVER_NAME, What::EndsWith(end)) => {
                let dot = end.find('.');
                dot.is_none_or(|at| self.may_have(subject, hash(&end.as_bytes()[at..])))
            }
            (_, what) => self.may_equal(subject, what),
        }
    }

    fn may_begin_path(&self, begin: &str) -> bool {
        let bytes = begin.as_bytes();
        let longest = PATH_BYTES
            .iter()
            .rev()
            .find_map(|length| bytes.get(..*length));
        longest.is_none_or(|begin| self.may_have(PATH, hash(begin)))
    }
}
