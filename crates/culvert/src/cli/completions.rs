//! `culvert completions <shell>`: scripts that ask `culvert complete` what may follow.

use clap::{Arg, ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_command::print;

use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "completions",
    arguments,
    run,
};

/// The shells with their scripts.
const SCRIPTS: [(&str, &str); 3] = [("bash", BASH), ("fish", FISH), ("zsh", ZSH)];

const BASH: &str = r#"_culvert() {
    local IFS=$'\n' found
    found=$(command culvert complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1)
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _culvert culvert
"#;

const FISH: &str = r#"function __culvert_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (command culvert complete -- $words[2..] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c culvert -f -a '(__culvert_complete)'
"#;

const ZSH: &str = r#"#compdef culvert
_culvert() {
    local line
    local -a words_found
    for line in "${(@f)$(command culvert complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] && words_found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    if (( $#words_found )); then
        _describe -t culvert culvert words_found
    else
        _files
    fi
}
if [[ $funcstack[1] == _culvert ]]; then
    _culvert "$@"
else
    compdef _culvert culvert
fi
"#;

fn arguments(command: Command) -> Command {
    command.about("Print a completion script for a shell").arg(
        Arg::new("shell")
            .required(true)
            .value_parser(SCRIPTS.map(|(shell, _)| shell)),
    )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let wanted = matches.get_one::<String>("shell");
        let script = SCRIPTS
            .iter()
            .find(|(shell, _)| Some(*shell) == wanted.map(String::as_str));
        match script {
            Some((_, script)) => print(script.as_bytes()),
            None => Ok(()),
        }
    })
}
