//! What the system knows of a process. Absent where there is no /proc.

use std::fs;

/// Ticks per second of /proc; part of the kernel's interface, the same everywhere.
const TICKS_PER_SECOND: u64 = 100;

/// Processor time that a process has used, in microseconds.
pub(super) fn cpu_micros(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) * 1_000_000 / TICKS_PER_SECOND)
}

/// Memory that a process holds now, in MiB.
pub(super) fn resident_mb(pid: u32) -> Option<f64> {
    status(pid, "VmRSS:")
}

/// The most that it ever held, in MiB.
pub(super) fn resident_peak_mb(pid: u32) -> Option<f64> {
    status(pid, "VmHWM:")
}

fn status(pid: u32, name: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let pid = std::process::id();
        assert!(cpu_micros(pid).is_some());
        let (now, peak) = (resident_mb(pid).expect("VmRSS"), resident_peak_mb(pid).expect("VmHWM"));
        assert!(now > 1.0 && peak + 1.0 > now, "{now} {peak}");
    }
}
