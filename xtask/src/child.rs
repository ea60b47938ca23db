//! Commands in the foreground, stopped together with xtask.
//!
//! Signals do not end xtask: they are passed on to the running command, and the ordinary way out (the command's
//! end, an error, `Drop`) then stops what was started. So there is one clean-up path, not two.

use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How often a running command and the signals are looked at.
const POLL: Duration = Duration::from_millis(20);
/// How long a command may take to end after the signal before it is killed.
const GRACE: Duration = Duration::from_secs(15);

/// Runs commands one after another and listens for signals meanwhile.
#[derive(Debug)]
pub(crate) struct Children {
    signals: Signals,
    interrupted: Option<i32>,
}

impl Children {
    /// Takes over SIGINT, SIGTERM and SIGHUP.
    pub(crate) fn listen() -> Result<Self> {
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
        Ok(Self { signals, interrupted: None })
    }

    /// Runs the command to its end with our standard streams and returns its exit code.
    ///
    /// # Errors
    /// The command cannot be started, or a signal arrived before it was.
    pub(crate) fn run(&mut self, command: &mut Command) -> Result<u8> {
        self.refuse_when_interrupted()?;
        // Without a terminal the command leads its own process group, so that a signal reaches its children as
        // well (`cargo` does not pass SIGTERM to the tests it runs). At a terminal it must stay in the
        // foreground group: there Ctrl-C reaches it anyway, and it may want to read.
        let own_group = !io::stdin().is_terminal();
        if own_group {
            command.process_group(0);
        }
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let pid = Pid::from_child(&child);
        let mut kill_at: Option<Instant> = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(self.interrupted.map_or_else(|| exit_code(status), signal_code));
            }
            for signal in self.signals.pending() {
                self.interrupted = Some(signal);
                kill_at.get_or_insert_with(|| Instant::now() + GRACE);
                // Ctrl-C at the terminal has already reached the whole foreground group.
                if own_group || signal != SIGINT {
                    pass_on(pid, own_group, named(signal));
                }
            }
            // At a terminal the command may well live on after Ctrl-C (psql does), so only there we wait for ever.
            if own_group && kill_at.is_some_and(|at| Instant::now() >= at) {
                pass_on(pid, own_group, Signal::KILL);
            }
            thread::sleep(POLL);
        }
    }

    /// Runs the command like [`Children::run`] and fails when it does.
    pub(crate) fn run_ok(&mut self, command: &mut Command) -> Result<()> {
        match self.run(command)? {
            0 => Ok(()),
            code => bail!("`{}` ended with {code}", shown(command)),
        }
    }

    /// Fails when a signal has asked us to stop.
    pub(crate) fn refuse_when_interrupted(&mut self) -> Result<()> {
        if let Some(signal) = self.signals.pending().next() {
            self.interrupted = Some(signal);
        }
        if let Some(signal) = self.interrupted {
            bail!("stopped by signal {signal}");
        }
        Ok(())
    }
}

/// Runs a short command quietly and returns what it printed; fails with that when the command fails.
///
/// It leads its own process group: the steps of a clean-up must survive the Ctrl-C that asked for it.
pub(crate) fn quiet(command: &mut Command) -> Result<String> {
    let output = command
        .process_group(0)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    bail!("`{}` failed: {}", shown(command), both_streams(&output))
}

fn both_streams(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}

/// Signals the command; one that has just ended is no error.
fn pass_on(pid: Pid, group: bool, signal: Signal) {
    let _ = if group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
}

fn named(signal: i32) -> Signal {
    match signal {
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::TERM,
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => signal_code(signal),
        (None, None) => 1,
    }
}

/// The exit code a shell gives a command ended by this signal.
fn signal_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
