//! `culvert policy check`.

use std::fs::File;
use std::io::{self, Read};

use clap::ArgMatches;
use culvert_policy_editor::check::{Diagnostic, Severity, check};
use culvert_policy_editor::{LineIndex, Unit};
use culvert_yaml::TEXT_BYTES_MAX;
use serde::Serialize;

use super::super::output::is_text;
use super::super::{Failure, say};
use super::place;

/// A problem of a file.
#[derive(Serialize)]
struct Problem<'a> {
    file: &'a str,
    /// From 1, as the column. Columns count characters.
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    severity: &'static str,
    /// Code of the error that a write of the policy has; empty for a warning.
    error_code: String,
    message: String,
}

pub(super) fn run(given: &ArgMatches) -> Result<(), Failure> {
    let place = place(given);
    let files = given.get_many::<String>("file").into_iter().flatten();
    let is_text = is_text(given);
    let (mut all, mut n_errors) = (Vec::new(), 0);
    let files: Vec<&String> = files.collect();
    for file in &files {
        let text = read(file)?;
        let index = LineIndex::new(&text);
        for problem in check(&text, &place) {
            n_errors += usize::from(problem.severity == Severity::Error);
            let problem = of_file(file, &index, problem);
            match is_text {
                true => say(line(&problem))?,
                false => all.push(problem),
            }
        }
    }
    if !is_text {
        let json = serde_json::to_string_pretty(&all).map_err(anyhow::Error::from)?;
        say(json)?;
    }
    match n_errors {
        0 => Ok(()),
        1 => Err(Failure::Failed("1 error found".to_owned())),
        n_errors => Err(Failure::Failed(format!("{n_errors} errors found"))),
    }
}

/// Reads a file, at most one byte more than a policy may have.
fn read(file: &str) -> Result<String, Failure> {
    let most = u64::try_from(TEXT_BYTES_MAX + 1).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let read = match file {
        "-" => io::stdin().lock().take(most).read_to_end(&mut bytes),
        path => File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::Failed(format!("cannot read {file}: {error}")))?;
    // A cut character at the limit is no reason to refuse the text for another cause than its length.
    if bytes.len() > TEXT_BYTES_MAX {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        Failure::Failed(format!("{file} is not UTF-8 from byte {valid} on"))
    })
}

fn of_file<'a>(file: &'a str, index: &LineIndex<'_>, problem: Diagnostic) -> Problem<'a> {
    let start = index.position(problem.at.start, Unit::Characters);
    let end = index.position(problem.at.end, Unit::Characters);
    Problem {
        file,
        line: start.line + 1,
        column: start.column + 1,
        end_line: end.line + 1,
        end_column: end.column + 1,
        severity: problem.severity.name(),
        error_code: problem
            .code
            .map_or(String::new(), |code| format!("ERR_NGROK_{code}")),
        message: problem.message,
    }
}

fn line(problem: &Problem<'_>) -> String {
    let Problem {
        file,
        line,
        column,
        message,
        ..
    } = problem;
    let warning = if problem.error_code.is_empty() {
        "warning: "
    } else {
        ""
    };
    // A message can contain what a file has: no line break of it, and no control character of a terminal.
    let message = culvert_base::names::escaped(message);
    format!("{file}:{line}:{column}: {warning}{message}")
}
