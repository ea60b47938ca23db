//! The receiver and the load generator, as the bench sees them: child processes that answer questions.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::messages::Answer;

/// A child process. Killed when dropped; ends by itself when this process is gone.
#[derive(Debug)]
pub(super) struct Worker {
    what: &'static str,
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts this program's hidden command.
    pub(super) fn start(what: &'static str) -> Result<Self> {
        let mut child = this_program()?
            .arg(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let questions = child.stdin.take().expect("stdin is piped");
        let answers = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        Ok(Self { what, child, questions, answers })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask<T: DeserializeOwned>(
        &mut self,
        question: &impl Serialize,
        longest: Duration,
    ) -> Result<T> {
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        let what = self.what;
        let exchange = async {
            self.questions.write_all(&line).await.with_context(|| format!("{what} is gone"))?;
            self.answers.next_line().await.with_context(|| format!("{what} is gone"))
        };
        let answer = match tokio::time::timeout(longest, exchange).await {
            Ok(answer) => answer?,
            Err(_) => bail!("{what} did not answer within {} s", longest.as_secs()),
        };
        let answer = answer.with_context(|| format!("{what} ended early"))?;
        match serde_json::from_str(&answer).with_context(|| format!("{what} answered something else"))? {
            Answer::Done(value) => Ok(value),
            Answer::Failed(why) => bail!("{what}: {why}"),
        }
    }
}

/// This program again, without the settings of the shell: the figures must not depend on them.
pub(super) fn this_program() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("POMBO_") || name == "DATABASE_URL" || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    Ok(command)
}
