//! `culvert diff -f PATH`: what `culvert apply` would change.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;

use super::apply::{plan, show, with_files};
use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "diff",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    with_files(command.about("Print how the server differs from files; exit with 3 if it does"))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let (_, plan) = plan(&matches).await?;
        show(
            &plan,
            matches
                .get_one::<String>("output")
                .is_some_and(|it| it == "json"),
        )?;
        match plan.is_empty() {
            true => Ok(()),
            false => Err(Failure::Differs),
        }
    })
}
