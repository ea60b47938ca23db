//! A child process's side of the talk: questions on stdin, answers on stdout, the end when stdin ends. So it
//! goes with its parent, however that ends.

use std::io::{BufRead as _, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::messages::Answer;

/// The parent, as the child hears it.
pub(super) struct Parent {
    lines: mpsc::Receiver<String>,
}

impl Parent {
    /// The parent of this process.
    pub(super) fn new() -> Self {
        let (sender, lines) = mpsc::channel(1);
        // A thread of its own, which may wait for ever: the process ends without asking it.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        });
        Self { lines }
    }

    /// The next question; `None` when the parent is gone.
    pub(super) async fn question<Q: DeserializeOwned>(&mut self) -> Result<Option<Q>> {
        let Some(line) = self.lines.recv().await else { return Ok(None) };
        Ok(Some(serde_json::from_str(&line).context("not a question of the bench")?))
    }
}

/// Answers the question.
pub(super) fn answer<T: Serialize>(result: Result<T>) -> Result<()> {
    let answer = match result {
        Ok(value) => Answer::Done(value),
        Err(error) => Answer::Failed(format!("{error:#}")),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line).and_then(|()| stdout.flush()).context("the bench is gone")
}
