//! What the figures were measured on.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Syncs that are timed, and for how long at most.
const SYNCS: usize = 200;
/// As above.
const SYNCS_MAX: Duration = Duration::from_secs(3);
/// Bytes written before each.
const BLOCK: [u8; 4096] = [0x70; 4096];

/// Processor, cores, memory, kernel, and how long the disk takes to keep a promise.
pub(super) fn describe(directory: &Path) -> Result<String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let sync = sync_micros(directory)?;
    Ok(format!(
        "{cores} × {}, {} memory, {}, fdatasync {sync} µs",
        processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        memory().unwrap_or_else(|| "unknown".to_owned()),
        kernel()
    ))
}

fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn memory() -> Option<String> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.0} GiB", kib / 1024.0 / 1024.0))
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned()
}

/// The median time of a sync of one block, in microseconds.
fn sync_micros(directory: &Path) -> Result<u128> {
    let mut file = File::create(directory.join("sync")).context("cannot write beside the database")?;
    let begin = Instant::now();
    let mut times = Vec::with_capacity(SYNCS);
    while times.len() < SYNCS && begin.elapsed() < SYNCS_MAX {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&BLOCK)?;
        let before = Instant::now();
        file.sync_data()?;
        times.push(before.elapsed().as_micros());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_named_with_its_disk() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let text = describe(directory.path())?;
        assert!(text.contains(" memory, ") && text.contains("fdatasync "), "{text}");
        Ok(())
    }
}
