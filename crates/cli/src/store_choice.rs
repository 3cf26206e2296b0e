//! Which store: `--store`, else the environment, else a file, else the embedded store.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use leasehold::sqlite::SqliteConfig;

use crate::config_file::ConfigFile;
use crate::exit::{Code, End, config};
use crate::urls;

/// The name of the embedded store's file, where its folder was chosen by default.
const FILE_NAME: &str = "leasehold.db";

/// Variables by which an orchestrator is known: its containers share no file system.
const ORCHESTRATORS: [&str; 3] =
    ["KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4", "NOMAD_ALLOC_ID"];

/// What of the world the choice depends on.
pub(crate) struct Surroundings<'a> {
    /// A variable of the environment; empty ones count as none.
    pub(crate) var: &'a dyn Fn(&str) -> Option<OsString>,
    /// The user is root.
    pub(crate) root: bool,
    /// This is a container.
    pub(crate) container: &'a dyn Fn() -> bool,
    /// Where the machine's own configuration is: `/etc`.
    pub(crate) etc: &'a Path,
}

/// The store that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Its URL, with an absolute path.
    pub(crate) url: String,
    /// Who named it.
    pub(crate) source: Source,
    /// A prefix of names that the configuration file sets.
    pub(crate) namespace: Option<String>,
}

/// Who named a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Option,
    Variable,
    File(PathBuf),
    Default,
}

/// Chooses the store.
pub(crate) fn choose(option: Option<&str>, around: &Surroundings<'_>) -> Result<Choice, End> {
    if let Some(url) = option {
        return chosen(url, Source::Option, None);
    }
    if let Some(url) = (around.var)("LEASEHOLD_STORE") {
        let url = url.to_str().ok_or_else(|| config("LEASEHOLD_STORE is not UTF-8"))?;
        return match with_secret_of_file(url, around) {
            Some((url, path)) => chosen(&url, Source::File(path), None),
            None => chosen(url, Source::Variable, None),
        };
    }
    let file = ConfigFile::find(around)?;
    let namespace = file.as_ref().and_then(|file| file.namespace.clone());
    if let Some(ConfigFile { store: Some(url), path, .. }) = file {
        let source = Source::File(path);
        if is_relative(&url) {
            return Err(config(format!(
                "{} names a store, or a file of it, by a relative path, which would be another \
                 one in each directory: want one that begins with /",
                place(&source)
            )));
        }
        return chosen(&url, source, namespace);
    }
    let path = embedded_path(around)?;
    let url = SqliteConfig::new(path).url();
    Ok(Choice { url, source: Source::Default, namespace })
}

/// The embedded store, for what is kept in it whatever the store: the marks of fences.
pub(crate) fn embedded(choice: &Choice, around: &Surroundings<'_>) -> Result<String, End> {
    if choice.url.starts_with("sqlite:") {
        return Ok(choice.url.clone());
    }
    embedded_path(around).map(|path| SqliteConfig::new(path).url())
}

/// The same URL with the password that the configuration file has for it: a run whose store the file
/// names passes it on without the password, and a run within it must not be refused for that.
fn with_secret_of_file(url: &str, around: &Surroundings<'_>) -> Option<(String, PathBuf)> {
    if !urls::is_remote(url) || urls::has_password(url) {
        return None;
    }
    // A file that cannot be read is no matter where the store is named without it.
    let ConfigFile { store, path, .. } = ConfigFile::find(around).ok()??;
    let store = store.filter(|named| urls::has_password(named))?;
    (urls::without_secret(&store) == urls::without_secret(url)).then_some((store, path))
}

fn chosen(url: &str, source: Source, namespace: Option<String>) -> Result<Choice, End> {
    if url.is_empty() {
        let why = format!("{} is empty: want a store's URL, such as sqlite:PATH", place(&source));
        return Err(config(why));
    }
    Ok(Choice { url: absolute(url)?, source, namespace })
}

/// What named the store, for messages.
fn place(source: &Source) -> String {
    match source {
        Source::Option => "--store".into(),
        Source::Variable => "LEASEHOLD_STORE".into(),
        Source::File(path) => path.display().to_string(),
        Source::Default => "the default store".into(),
    }
}

fn is_relative(url: &str) -> bool {
    url.strip_prefix("sqlite:").is_some_and(|path| !path.starts_with('/'))
        || urls::has_relative_file(url)
}

/// The URL with the paths in it made absolute: the command may run, and look, elsewhere.
fn absolute(url: &str) -> Result<String, End> {
    if !is_relative(url) {
        return Ok(url.to_string());
    }
    let nowhere = |error| config(format!("cannot find the working directory: {error}"));
    if urls::is_remote(url) {
        let here = std::env::current_dir().map_err(nowhere)?;
        return Ok(urls::with_absolute_files(url, &here));
    }
    let mut parsed = SqliteConfig::from_url(url)?;
    parsed.path = std::path::absolute(&parsed.path).map_err(nowhere)?;
    Ok(parsed.url())
}

fn embedded_path(around: &Surroundings<'_>) -> Result<PathBuf, End> {
    if let Some(name) = ORCHESTRATORS.into_iter().find(|name| (around.var)(name).is_some()) {
        return Err(config(format!(
            "no store is named, and under an orchestrator ({name} is set) an embedded one would \
             be this container's alone: name one with --store or LEASEHOLD_STORE"
        )));
    }
    let folder = embedded_folder(around)?;
    Ok(folder.join(FILE_NAME))
}

fn embedded_folder(around: &Surroundings<'_>) -> Result<PathBuf, End> {
    // systemd lists several, separated by colons; the first is the unit's own.
    if let Some(dirs) = (around.var)("STATE_DIRECTORY") {
        let first = dirs.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
        let dir = PathBuf::from(OsString::from_vec(first.to_vec()));
        if !dir.is_absolute() {
            return Err(config("STATE_DIRECTORY is not an absolute path"));
        }
        return Ok(dir);
    }
    // The base directory specification has relative paths ignored.
    let absolute = |name| (around.var)(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if let Some(dir) = absolute("XDG_STATE_HOME") {
        return Ok(dir.join("leasehold"));
    }
    if around.root {
        return Ok("/var/lib/leasehold".into());
    }
    match absolute("HOME") {
        Some(home) => Ok(home.join(".local/state/leasehold")),
        None => Err(config(
            "no store is named and HOME is not set, so there is no place for an embedded one: \
             name one with --store sqlite:PATH, LEASEHOLD_STORE or XDG_STATE_HOME",
        )),
    }
}

impl Choice {
    /// Makes the folder of a store that nobody named, for this user alone.
    pub(crate) fn make_folder(&self) -> Result<(), End> {
        if self.source != Source::Default {
            return Ok(());
        }
        let path = SqliteConfig::from_url(&self.url)?.path;
        let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) else {
            return Ok(());
        };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| {
            config(format!(
                "cannot make the folder {} for the embedded store: {error}; name a store with \
                 --store or LEASEHOLD_STORE",
                folder.display()
            ))
        })
    }

    /// What the user should be told about the choice.
    pub(crate) fn warning(&self, around: &Surroundings<'_>) -> Option<&'static str> {
        match self.source {
            Source::Option if urls::has_secret(&self.url) => Some(
                "a password in --store shows in the list of processes: use \
                 LEASEHOLD_STORE_PASSWORD_FILE",
            ),
            Source::Default if (around.container)() => Some(
                "no store is named: only this container sees the lock (name one with --store or \
                 LEASEHOLD_STORE)",
            ),
            _ => None,
        }
    }
}

/// Whether this process is in a container, as far as container engines say.
pub(crate) fn in_container() -> bool {
    std::env::var_os("container").is_some()
        || Path::new("/.dockerenv").exists()
        || Path::new("/run/.containerenv").exists()
}

/// A store that this build cannot speak to is told in the words of the choice.
pub(crate) fn unfit(choice: &Choice, error: leasehold_core::Error) -> End {
    let code = Code::from(error.kind());
    if code == Code::Config && choice.source != Source::Default {
        return End::Fail(code, format!("failed to {error} (named by {})", place(&choice.source)));
    }
    error.into()
}

#[cfg(test)]
#[path = "store_choice_tests.rs"]
mod tests;
