//! The operator's command that writes TXT records, for DNS challenges.
//!
//! It runs without a shell, so names and values are never interpreted. The action, name and value are passed as three
//! arguments and as three environment variables.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::Failure;

/// Maximum length of the output that is kept of a failed command, in bytes.
const SAID_BYTES_MAX: u64 = 4096;

/// A command that adds and removes DNS records.
#[derive(Clone)]
pub struct DnsHook {
    /// The program.
    pub program: PathBuf,
    /// Its environment, in addition to the three variables.
    pub environment: Vec<(String, String)>,
    /// Its time limit.
    pub limit: Duration,
}

impl std::fmt::Debug for DnsHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The environment contains secrets of the operator.
        f.debug_struct("DnsHook")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

impl DnsHook {
    /// Adds (`add`) or removes (`remove`) a TXT record. The command must exit only when the authority can see the
    /// change; exit code 0 means success.
    pub async fn run(&self, action: &str, name: &str, value: &str) -> Result<(), Failure> {
        let failed = |why: String| {
            tracing::warn!(
                program = %self.program.display(),
                action,
                name,
                why,
                "the DNS hook failed"
            );
            // The output of the command is only for the operator.
            Failure::passing("the DNS hook of this installation failed; see the server log")
        };
        let mut command = Command::new(&self.program);
        command
            .args([action, name, value])
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("CULVERT_DNS_ACTION", action)
            .env("CULVERT_DNS_NAME", name)
            .env("CULVERT_DNS_VALUE", value)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .map_err(|error| failed(format!("it failed to start: {error}")))?;
        let said = child.stderr.take();
        let ended = async {
            let mut text = Vec::new();
            if let Some(mut said) = said {
                // Reads all output, so that the command does not block, but keeps only the beginning.
                (&mut said)
                    .take(SAID_BYTES_MAX)
                    .read_to_end(&mut text)
                    .await?;
                tokio::io::copy(&mut said, &mut tokio::io::sink()).await?;
            }
            Ok::<_, std::io::Error>((child.wait().await?, text))
        };
        match tokio::time::timeout(self.limit, ended).await {
            Ok(Ok((status, _))) if status.success() => Ok(()),
            Ok(Ok((status, said))) => {
                let said = String::from_utf8_lossy(&said);
                Err(failed(format!("{status}: {}", said.trim())))
            }
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("timed out after {:?}", self.limit))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(program: &str, limit: Duration) -> DnsHook {
        DnsHook {
            program: program.into(),
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            limit,
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_hook_gets_its_words_as_they_are() {
        use std::os::unix::fs::PermissionsExt;
        let name = format!("culvert-hook-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let (program, output) = (folder.join("hook"), folder.join("output"));
        let script = format!(
            "#!/bin/sh\nprintf '%s|' \"$@\" \"$CULVERT_DNS_ACTION\" \"$CULVERT_DNS_NAME\" \"$CULVERT_DNS_VALUE\" \"$HOME\" > '{}'\n",
            output.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let hook = hook(program.to_str().unwrap(), Duration::from_secs(60));
        let hostile = "$(touch x); `id` && \"'";
        hook.run("add", "n.example", hostile).await.unwrap();
        assert_eq!(
            std::fs::read_to_string(&output).unwrap(),
            format!("add|n.example|{hostile}|add|n.example|{hostile}||")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_hook_that_fails_hangs_or_is_not_there_fails() {
        let patient = Duration::from_secs(60);
        for (program, limit) in [
            ("/bin/false", patient),
            ("/nowhere/hook", patient),
            ("/usr/bin/yes", Duration::from_millis(200)),
        ] {
            let failure = hook(program, limit).run("add", "n", "v").await.unwrap_err();
            assert!(failure.why.contains("DNS hook"), "{program}");
        }
    }
}
