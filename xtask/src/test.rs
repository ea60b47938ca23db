//! `cargo xtask test`.

use std::ffi::OsString;

use anyhow::Result;

use crate::child::Children;
use crate::cluster::Cluster;
use crate::receivers::Receivers;
use crate::workspace::cargo;

/// Arguments of `cargo test` that choose packages themselves.
const CHOOSES_PACKAGES: &[&str] = &["-p", "--package", "--workspace", "--all", "--manifest-path"];

/// Builds the tests, starts what they need, runs them and returns their exit code.
pub(crate) fn run(children: &mut Children, arguments: &[OsString]) -> Result<u8> {
    let dashes = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let (of_cargo, of_tests) = arguments.split_at(dashes);
    let cargo_test = || {
        let mut command = cargo();
        command.arg("test").args(packages(of_cargo)).args(of_cargo);
        command
    };
    let receivers = Receivers::find_or_install(children)?;
    // Built before the server starts: a compile error then shows at once, and no server idles through the build.
    let code = children.run(cargo_test().arg("--no-run"))?;
    if code != 0 {
        return Ok(code);
    }
    let cluster = Cluster::start(children)?;
    let mut test = cargo_test();
    test.args(of_tests);
    cluster.export(&mut test);
    receivers.export(&mut test);
    children.run(&mut test)
}

/// What to add so that the whole workspace is tested unless the arguments choose.
fn packages(arguments: &[OsString]) -> Option<&'static str> {
    let chosen = arguments.iter().filter_map(|argument| argument.to_str()).any(|argument| {
        let name = argument.split_once('=').map_or(argument, |(name, _)| name);
        CHOOSES_PACKAGES.contains(&name) || (argument.starts_with("-p") && !argument.starts_with("--"))
    });
    (!chosen).then_some("--workspace")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::packages;

    fn of(line: &str) -> Option<&'static str> {
        packages(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn whole_workspace_is_tested_unless_packages_are_chosen() {
        for all in ["", "--lib", "--no-fail-fast claims", "--profile dist"] {
            assert_eq!(of(all), Some("--workspace"), "{all:?}");
        }
        for chosen in ["-p pombo", "-ppombo", "--package=pombo --lib", "--package pombo", "--workspace"] {
            assert_eq!(of(chosen), None, "{chosen:?}");
        }
    }
}
