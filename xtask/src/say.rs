//! What xtask tells the person, apart from what the commands it runs print themselves.

use std::io::Write;

/// Writes one line to standard error.
///
/// A closed standard error must not stop the clean-up that may follow, so a failed write is ignored.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "xtask: {line}");
}
