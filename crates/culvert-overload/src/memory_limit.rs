//! The memory that this process may use: of the machine, and of its control group and those around it (cgroups(7)).
//! Containers, systemd's `MemoryMax` and others set limits there, in version 1 and 2.

/// Half of the memory of the machine or its control groups, whichever is less.
pub fn memory_max() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    [group_limit(read), machine_memory(read)]
        .into_iter()
        .flatten()
        .fold(u64::MAX, |least, given| least.min(given / 2))
}

fn machine_memory(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib = rest.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The lowest limit of the process's control group and of those that contain it. `None` without a limit.
fn group_limit(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let mounts = read("/proc/self/mountinfo")?;
    let mut limits = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let Some(group) = groups.lines().find_map(|line| mount.group_of(line)) else {
            continue;
        };
        let mut folder = mount.folder_of(group);
        loop {
            let limit = read(&format!("{folder}/{}", mount.file));
            limits.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
            if folder.len() <= mount.point.len() {
                break;
            }
            folder.truncate(folder.rfind('/').unwrap_or(0));
        }
    }
    limits.into_iter().min()
}

/// A file system with limits of memory.
struct Mount<'a> {
    /// The group that is mounted.
    root: &'a str,
    point: &'a str,
    /// The file with the limit of a group.
    file: &'static str,
    /// Whether it is version 2.
    is_unified: bool,
}

impl<'a> Mount<'a> {
    /// Parses a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut fields = after.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        let is_unified = match kind {
            "cgroup2" => true,
            "cgroup" if options.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        Some(Self {
            root: root.trim_end_matches('/'),
            point,
            file: match is_unified {
                true => "memory.max",
                false => "memory.limit_in_bytes",
            },
            is_unified,
        })
    }

    /// The group in a line of `/proc/self/cgroup`, if it is of this hierarchy.
    fn group_of<'b>(&self, line: &'b str) -> Option<&'b str> {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        let is_it = match self.is_unified {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|it| it == "memory"),
        };
        is_it.then_some(group)
    }

    /// The folder of a group. For a group that is not below the mounted one, as in a container, that of the mounted one.
    fn folder_of(&self, group: &str) -> String {
        let below = group.strip_prefix(self.root).unwrap_or("");
        let is_below = below.starts_with('/') && !below.split('/').any(|part| part == "..");
        match is_below {
            true => format!("{}{}", self.point, below.trim_end_matches('/')),
            false => self.point.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw";
    const MEMORY: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

    #[track_caller]
    fn check(group: &str, mounts: &str, files: &[(&str, &str)], expected: Option<u64>) {
        let limit = group_limit(|path| match path {
            "/proc/self/cgroup" => Some(group.to_owned()),
            "/proc/self/mountinfo" => Some(mounts.to_owned()),
            path => {
                let found = files.iter().find(|(file, _)| *file == path);
                found.map(|(_, text)| format!("{text}\n"))
            }
        });
        assert_eq!(limit, expected);
    }

    #[test]
    fn a_limit_holds_for_the_groups_below_it() {
        let service = "0::/system.slice/culvert.service";
        let of_service = "/sys/fs/cgroup/system.slice/culvert.service/memory.max";
        let of_slice = "/sys/fs/cgroup/system.slice/memory.max";
        check(service, UNIFIED, &[(of_service, "max")], None);
        check(service, UNIFIED, &[(of_service, "700")], Some(700));
        let both = [(of_service, "700"), (of_slice, "500")];
        check(service, UNIFIED, &both, Some(500));
        let other = [("/sys/fs/cgroup/other.slice/memory.max", "1")];
        check(service, UNIFIED, &other, None);
        // A container sees its own group as the root.
        check(
            "0::/",
            UNIFIED,
            &[("/sys/fs/cgroup/memory.max", "9")],
            Some(9),
        );
    }

    #[test]
    fn version_1_has_its_own_file_and_hierarchy() {
        let groups = "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/c";
        let mounts = format!("34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n{MEMORY}");
        let of_group = "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes";
        let of_root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let files = [(of_group, "300"), (of_root, "9223372036854771712")];
        check(groups, &mounts, &files, Some(300));
        // A container whose group is mounted, with the path outside, or with none that fits.
        let bound = "35 31 0:32 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        for group in ["/docker/1", "/docker/12", "/../../docker/1", "/"] {
            let group = format!("4:memory:{group}");
            check(&group, bound, &[(of_root, "800")], Some(800));
        }
        let below = "/sys/fs/cgroup/memory/web/memory.limit_in_bytes";
        let files = [(of_root, "800"), (below, "200")];
        check("4:memory:/docker/1/web", bound, &files, Some(200));
        check("", "", &[], None);
    }

    #[test]
    fn the_memory_of_this_machine_is_known() {
        if std::path::Path::new("/proc/meminfo").exists() {
            assert!(memory_max() < u64::MAX);
        }
    }
}
