//! What people and scripts read: data on stdout, everything else on stderr.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(120);
/// Between the columns of a table.
const GAP: &str = "  ";

/// Where and how a command prints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// `--json`: machine-readable data on stdout.
    json: bool,
    /// Whether stdout is a terminal.
    is_terminal: bool,
}

#[expect(clippy::unused_self, reason = "printing asks for the value that knows how this run prints")]
impl Output {
    /// For this run.
    pub(crate) fn new(json: bool) -> Self {
        Self { json, is_terminal: io::stdout().is_terminal() }
    }

    /// Whether JSON is wanted on stdout.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// A line of data for people. Control characters are escaped: much of what is shown was written by others.
    pub(crate) fn line(self, text: &str) -> Outcome {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{}", printable(text)).map_err(Failure::printing)
    }

    /// Data as JSON: indented on a terminal, on one line elsewhere.
    pub(crate) fn json(self, value: &impl Serialize) -> Outcome {
        let text =
            if self.is_terminal { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        self.bytes(text.map_err(anyhow::Error::new)?.as_bytes())
    }

    /// Bytes as they are, and the end of a line where they lack one.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Outcome {
        let mut stdout = io::stdout().lock();
        let end: &[u8] = if bytes.ends_with(b"\n") { b"" } else { b"\n" };
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.write_all(end))
            .and_then(|()| stdout.flush())
            .map_err(Failure::printing)
    }

    /// Exactly these bytes: what is asked for byte for byte.
    pub(crate) fn exact(self, bytes: &[u8]) -> Outcome {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::printing)
    }

    /// A table; for people.
    pub(crate) fn table(self, table: &Table) -> Outcome {
        let mut stdout = io::stdout().lock();
        stdout.write_all(table.render().as_bytes()).map_err(Failure::printing)
    }

    /// Long work without a known length: a spinner, on a terminal only.
    pub(crate) fn spinner(self, what: &'static str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(None, progress_target());
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("the template is fixed"),
        );
        bar.set_message(what);
        bar.enable_steady_tick(TICK);
        bar
    }

    /// Long work of a known length: a bar, on a terminal only.
    pub(crate) fn bar(self, what: &'static str, length: u64) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(length), progress_target());
        let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {elapsed}");
        bar.set_style(style.expect("the template is fixed").progress_chars("=> "));
        bar.set_message(what);
        bar.enable_steady_tick(TICK);
        bar
    }
}

fn progress_target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// A line on stderr: what is neither data nor a log. Nobody may be reading; that stops nothing.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// The text with control characters escaped, so that nothing shown can move the cursor or clear a screen.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().fold(String::with_capacity(text.len() + 16), |mut out, letter| {
        if letter.is_control() && letter != '\n' && letter != '\t' {
            write!(out, "{}", letter.escape_default()).expect("writing to a String cannot fail");
        } else {
            out.push(letter);
        }
        out
    });
    Cow::Owned(escaped)
}

/// Rows under headings, aligned.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row; empty cells show as `-`.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| {
            let cell = printable(&cell).replace(['\n', '\t'], " ");
            if cell.is_empty() { "-".to_owned() } else { cell }
        });
        self.rows.push(cells.collect());
    }

    fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "{cell:<width$}{GAP}").expect("writing to a String cannot fail");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_hold_no_control_characters() {
        let mut table = Table::new(&["ID", "URL"]);
        table.row(["ep_1".to_owned(), "https://a.example/\x1b[2J".to_owned()]);
        table.row(["ep_long".to_owned(), String::new()]);
        assert_eq!(table.render(), "ID       URL\nep_1     https://a.example/\\u{1b}[2J\nep_long  -\n");
    }

    #[test]
    fn lines_keep_their_breaks() {
        assert_eq!(printable("a\nb\x07"), "a\nb\\u{7}");
    }
}
