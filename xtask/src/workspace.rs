//! Where things are, and how to start the `cargo` that started us.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the root of the checkout")
}

/// The directory for what xtask keeps between runs; git does not see it.
pub(crate) fn scratch() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    root().join(target).join("xtask")
}

/// `cargo`, run in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    without_cargo_run(&mut cargo);
    cargo
}

/// Takes out of a command's environment what `cargo run` put into ours.
///
/// Build scripts of some dependencies are rebuilt when `CARGO_MANIFEST_DIR` and the like change, so handing
/// xtask's on would compile them again each time a developer alternates between `cargo` and `cargo xtask`.
pub(crate) fn without_cargo_run(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
                || matches!(name, "CARGO" | "CARGO_BIN_NAME" | "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE")
        });
        if ours {
            command.env_remove(name);
        }
    }
}

/// The first program of that name in `PATH`.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    which_all(name).into_iter().next()
}

/// Every program of that name in `PATH`: an old one may stand before the one that will do.
pub(crate) fn which_all(name: &str) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .filter(|program| program.is_file())
        .collect()
}
