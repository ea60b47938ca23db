//! What is wrong with a setting, in one sentence that names it and where it stands.

use figment::error::{Error, Kind};
use figment::{Figment, Metadata};

use crate::failure::Failure;

/// Names further apart than this are not meant as each other.
const NEAR: usize = 3;

/// A setting that was read and cannot be.
#[derive(Debug)]
pub(super) struct Complaint {
    setting: &'static str,
    /// Reads alone, after the name.
    text: String,
}

impl Complaint {
    /// About this setting.
    pub(super) fn new(setting: &'static str, text: impl Into<String>) -> Self {
        Self { setting, text: text.into() }
    }

    /// The sentence.
    pub(super) fn with_source(self, figment: &Figment) -> Failure {
        let path: Vec<String> = self.setting.split('.').map(str::to_owned).collect();
        let place = place(figment.find_metadata(self.setting), &path);
        Failure::failed(format!("{place}: `{}` {}", self.setting, self.text))
    }
}

/// The sentence for what serde or figment found.
pub(super) fn about(error: &Error) -> Failure {
    let mut path = error.path.clone();
    let text = match &error.kind {
        Kind::UnknownField(name, known) => {
            if path.last() != Some(name) {
                path.push(name.clone());
            }
            let section = &path[..path.len() - 1];
            format!("is no setting; {}", suggestion(name, known, section))
        }
        Kind::InvalidType(found, wanted) | Kind::InvalidValue(found, wanted) => {
            format!("must be {wanted}, not {found}")
        }
        Kind::Message(text) => text.clone(),
        other => other.to_string(),
    };
    let place = place(error.metadata.as_ref(), &path);
    if path.is_empty() {
        // The file itself cannot be read: TOML's own words, on one line.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        return Failure::failed(format!("{place}: {text}"));
    }
    Failure::failed(format!("{place}: `{}` {text}", path.join(".")))
}

fn suggestion(name: &str, known: &[&str], section: &[String]) -> String {
    let whole = |name: &str| section.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
    let distance = |candidate: &&&str| strsim::damerau_levenshtein(name, candidate);
    match known.iter().min_by_key(distance) {
        Some(nearest) if distance(&nearest) <= NEAR => format!("did you mean `{}`?", whole(nearest)),
        _ => {
            let known: Vec<String> = known.iter().map(|name| format!("`{}`", whole(name))).collect();
            format!("known are {}", known.join(", "))
        }
    }
}

/// The file, the variable or the flag that a setting came from.
fn place(metadata: Option<&Metadata>, path: &[String]) -> String {
    let Some(metadata) = metadata else { return "the settings".to_owned() };
    if let Some(file) = metadata.source.as_ref().and_then(figment::Source::file_path) {
        let name = file
            .file_name()
            .map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().into_owned());
        return name;
    }
    if metadata.name.contains("environment") {
        return format!("POMBO_{}", path.join("__").to_ascii_uppercase());
    }
    match path {
        [name] => format!("--{name}"),
        _ => "the settings".to_owned(),
    }
}
