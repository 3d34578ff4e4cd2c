//! Ends in bodies: when something stops working.

use culvert_base::{Refusal, Timestamp, code};

use crate::input::period::Period;

/// The end that a field of a body names, in whole seconds: an RFC 3339 time, a date, which stands for its first moment in
/// UTC, or the time from now, such as `90d`.
///
/// # Errors
///
/// 241 for other texts, and 215 if the end is not in the future.
pub fn end(field: &str, text: &str, now: Timestamp) -> Result<Timestamp, Refusal> {
    let is_date = text.len() == "2027-01-31".len();
    let end = match Period::parse(text) {
        Some(period) => Some(now.plus(period.time())),
        None if is_date => Timestamp::parse(&format!("{text}T00:00:00Z")),
        None => Timestamp::parse(text),
    };
    let end = end.ok_or_else(|| {
        let why = format!(
            "`{field}` must be an RFC 3339 time, a date such as `2027-01-31`, or a duration such as `90d`."
        );
        Refusal::new(code::TIME_MALFORMED, why)
    })?;
    let end = end.whole_seconds();
    if end <= now {
        let why = format!("`{field}` must be in the future.");
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_a_time_a_date_or_a_duration() {
        let now = Timestamp::parse("2026-11-29T22:10:00Z").unwrap();
        for (text, expected) in [
            ("2027-01-31T01:00:00+01:00", Ok("2027-01-31T00:00:00Z")),
            ("2027-01-31T00:00:00.9Z", Ok("2027-01-31T00:00:00Z")),
            ("2027-01-31", Ok("2027-01-31T00:00:00Z")),
            ("90d", Ok("2027-02-27T22:10:00Z")),
            ("1h30m", Ok("2026-11-29T23:40:00Z")),
            ("2026-11-29", Err(215)),
            ("2026-11-29T22:10:00Z", Err(215)),
            ("0s", Err(215)),
            ("2026-02-30", Err(241)),
            ("2026-13-01", Err(241)),
            ("31.01.2027", Err(241)),
            ("90", Err(241)),
            ("d", Err(241)),
            ("-1d", Err(241)),
            ("90days", Err(241)),
            ("99999999999999999999d", Err(241)),
            ("soon", Err(241)),
            ("é-é-é-é-", Err(241)),
        ] {
            let end = end("expires_at", text, now);
            let end = end.map(|end| end.to_string());
            let end = end.map_err(|refusal| refusal.code.unwrap().number());
            assert_eq!(end, expected.map(str::to_owned), "{text}");
        }
    }
}
