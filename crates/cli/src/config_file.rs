//! The configuration file: `store` and `namespace`, for cron and sudo, which strip the environment.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::exit::{End, config};
use crate::store_choice::Surroundings;

/// A configuration file that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    pub(crate) store: Option<String>,
    pub(crate) namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    store: Option<String>,
    namespace: Option<String>,
}

impl ConfigFile {
    /// The user's file, else the machine's; none where neither is there.
    pub(crate) fn find(around: &Surroundings<'_>) -> Result<Option<ConfigFile>, End> {
        let absolute = |name| (around.var)(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let users = absolute("XDG_CONFIG_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".config")));
        for folder in users.iter().map(PathBuf::as_path).chain([around.etc]) {
            if let Some(file) = ConfigFile::read(folder.join("leasehold/config.toml"))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    fn read(path: PathBuf) -> Result<Option<ConfigFile>, End> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(unreadable(&path, &error)),
        };
        let Keys { store, namespace } = toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            let why = error.message().replace('\n', ", ");
            config(format!("{} line {line}: {why}: want store = \"URL\"", path.display()))
        })?;
        Ok(Some(ConfigFile { path, store, namespace }))
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn unreadable(path: &Path, error: &std::io::Error) -> End {
    config(format!("cannot read {}: {error}", path.display()))
}
