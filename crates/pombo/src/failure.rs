//! How a command ends when it does not do what it was asked.

use std::io;
use std::process::ExitCode;

/// Why a command ends early. Each way has its exit code (0 done, 1 failed, 2 wrong usage).
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was typed makes no sense: exit code 2.
    Usage(String),
    /// It was tried and failed: exit code 1.
    Failed(anyhow::Error),
    /// It failed, and what was printed says so already: exit code 1.
    Told,
    /// Whoever read our output has gone (`pombo events list | head`): that is no failure, exit code 0.
    ReaderGone,
}

/// What a command returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Wrong usage, in a sentence.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A failure, in a sentence that says what to do.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(anyhow::Error::msg(text.into()))
    }

    /// A failure to print.
    pub(crate) fn printing(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::ReaderGone
        } else {
            Self::Failed(anyhow::Error::new(error).context("cannot write the output"))
        }
    }

    /// What to say on stderr, if anything is left to say. One line: causes follow after a colon.
    pub(crate) fn sentence(&self) -> Option<String> {
        match self {
            Self::Usage(text) => Some(text.clone()),
            Self::Failed(error) => Some(without_numbers(&format!("{error:#}"))),
            Self::Told | Self::ReaderGone => None,
        }
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) | Self::Told => ExitCode::FAILURE,
            Self::ReaderGone => ExitCode::SUCCESS,
        }
    }
}

/// Without ` (os error 98)`: the words before it say the same to people.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    kept
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_left_out() {
        assert_eq!(without_numbers("a: No such file (os error 2): b (os error 98)"), "a: No such file: b");
        assert_eq!(without_numbers("plain"), "plain");
    }
}
