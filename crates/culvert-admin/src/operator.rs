//! Who runs a command on the machine of the server, as the operating system knows it.

use std::os::unix::fs::MetadataExt;

use culvert_control::AdminCommand;

/// The command with this name, by the user of this process.
pub(super) fn command(name: &str) -> AdminCommand {
    // The folder of a process belongs to its user.
    let user_id = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
    AdminCommand {
        name: name.to_owned(),
        user: user_name(user_id).unwrap_or_default(),
        user_id,
        sudo_user: culvert_command::environment()
            .remove("SUDO_USER")
            .unwrap_or_default(),
        terminal: terminal().unwrap_or_default(),
    }
}

/// The name in the list of local users.
fn user_name(user_id: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let number = user_id.to_string();
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    })
}

/// The terminal of the standard input, output or error.
fn terminal() -> Option<String> {
    (0..3).find_map(|number| {
        let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        let path = path.to_str()?;
        let is_terminal = path.starts_with("/dev/pts/") || path.starts_with("/dev/tty");
        is_terminal.then(|| path.to_owned())
    })
}
