//! What is typed, what is printed, and the exit codes: the contract with people and scripts.

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

mod bad_input;
mod calls;
mod help;
mod listening;
mod serving;
mod settings;
mod signatures;
mod startup;

/// Longest any of these commands may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A command of the program that is to be run, in an empty directory and without settings from outside.
struct Typed {
    command: Command,
    stdin: Vec<u8>,
    /// Kept for as long as the command runs.
    directory: TempDir,
}

/// How it ended.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Typed {
    /// `pombo …`, parted at white space.
    fn new(line: &str) -> Self {
        Self::words(line.split_whitespace())
    }

    /// `pombo …`, word by word.
    fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pombo"));
        command.args(words).current_dir(directory.path()).kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("POMBO_") {
                command.env_remove(&name);
            }
        }
        command.env_remove("DATABASE_URL");
        Self { command, stdin: Vec::new(), directory }
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    fn stdin(mut self, bytes: &[u8]) -> Self {
        bytes.clone_into(&mut self.stdin);
        self
    }

    /// Writes a file into its directory first.
    fn file(self, name: &str, content: &[u8]) -> Self {
        std::fs::write(self.directory.path().join(name), content).expect("a file can be written");
        self
    }

    async fn run(mut self) -> Ended {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("the program can be started");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let input = std::mem::take(&mut self.stdin);
        let feed = async move {
            // A command that does not read its input has closed it.
            let _ = stdin.write_all(&input).await;
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        let output = tokio::time::timeout(LIMIT, both).await.expect("the command ends in time");
        let output = output.expect("the command's output can be read");
        Ended {
            code: output.status.code().expect("the command was not killed"),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }
}

impl Ended {
    /// The one line that says what is wrong.
    #[track_caller]
    fn fails(&self, code: i32, sentence: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "nothing but data stands on stdout");
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "one sentence says what is wrong: {self:?}");
        assert!(errors[0].contains(sentence), "{:?} should hold {sentence:?}", errors[0]);
    }

    #[track_caller]
    fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }
}
