//! Installing what is missing, where that can be done without asking.

use std::process::Command;

use anyhow::{Result, bail};

use crate::child::Children;
use crate::say::say;
use crate::workspace::which;

/// Something the tests need and how people get it.
#[derive(Debug)]
pub(crate) struct Package {
    /// What it is, with the versions that will do.
    pub(crate) what: &'static str,
    /// The packages of Debian and Ubuntu.
    pub(crate) debian: &'static [&'static str],
    /// The packages of Fedora.
    pub(crate) fedora: &'static str,
    /// The formulae of Homebrew.
    pub(crate) homebrew: &'static str,
}

impl Package {
    /// Installs the package with apt when we are root on a Debian; otherwise says what to install and fails.
    pub(crate) fn install(&self, children: &mut Children) -> Result<()> {
        if !rustix::process::geteuid().is_root() || which("apt-get").is_none() {
            bail!("{}", self.missing());
        }
        let packages = self.debian.join(" ");
        say(&format!("{} not found; installing {packages}", self.what));
        children.run_ok(apt_get().arg("update"))?;
        children.run_ok(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(self.debian))
    }

    /// What to tell a person whose machine lacks it.
    pub(crate) fn missing(&self) -> String {
        format!(
            "the tests need {}. Install it with:\n  \
             Debian, Ubuntu:  sudo apt-get install {}\n  \
             Fedora:          sudo dnf install {}\n  \
             macOS:           brew install {}",
            self.what,
            self.debian.join(" "),
            self.fedora,
            self.homebrew
        )
    }
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    apt_get.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet");
    apt_get
}

#[cfg(test)]
mod tests {
    use super::Package;

    #[test]
    fn missing_package_names_the_command_of_each_system() {
        let package =
            Package { what: "Example ≥ 3", debian: &["a", "b"], fedora: "c", homebrew: "example@3" };
        let text = package.missing();
        for part in ["Example ≥ 3", "apt-get install a b", "dnf install c", "brew install example@3"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }
}
