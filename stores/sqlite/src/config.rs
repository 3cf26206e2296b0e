//! Where the database is and who may share it.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Epoch, Error, ErrorKind};

/// Where the embedded store is and how it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The database file. Beside it stand `-wal` and `-shm` (SQLite's), `-live` (one locked byte a
    /// process) and the directory `-wake` (one FIFO a waiting process).
    pub path: PathBuf,
    /// The permission bits of all of these, whatever the umask; without it a new database is its
    /// maker's alone (0600) and an existing one is left as it is.
    pub mode: Option<u32>,
    /// Which history the tokens belong to; see [`Epoch`].
    pub epoch: Epoch,
    /// Whether missing directories above the file are made, for their maker alone (0700).
    pub create_parents: bool,
    /// For how long another program's write transaction is waited for.
    pub busy_limit: Duration,
}

impl SqliteConfig {
    /// The store at this path, for its maker alone.
    pub fn new(path: impl Into<PathBuf>) -> SqliteConfig {
        SqliteConfig {
            path: path.into(),
            mode: None,
            epoch: Epoch(0),
            create_parents: false,
            busy_limit: Duration::from_secs(10),
        }
    }

    /// Reads `sqlite:PATH?mode=0660&epoch=1`; the path may hold `%XX` escapes.
    ///
    /// ```
    /// use leasehold_sqlite::SqliteConfig;
    ///
    /// let config = SqliteConfig::from_url("sqlite:/var/lib/app/my%20locks.db?mode=0660")?;
    /// assert_eq!(config.path.to_str(), Some("/var/lib/app/my locks.db"));
    /// assert_eq!(config.mode, Some(0o660));
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Config` for another scheme, an empty path, an unknown option or a value out of bounds.
    pub fn from_url(url: &str) -> Result<SqliteConfig, Error> {
        let rest = url
            .strip_prefix("sqlite:")
            .ok_or_else(|| bad("its URL does not begin with `sqlite:`".into()))?;
        let rest = match rest.strip_prefix("//") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(bad("its URL names a host: want sqlite:PATH".into())),
            None => rest,
        };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() {
            return Err(bad("its URL has no path: want sqlite:PATH".into()));
        }
        let mut config = SqliteConfig::new(decode(path)?);
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "mode" => config.mode = Some(parse_mode(value)?),
                "epoch" => config.epoch = parse_epoch(value)?,
                _ => {
                    let key = leasehold_core::shown(key, 40);
                    return Err(bad(format!(
                        "its URL has the unknown option `{key}`: want mode or epoch"
                    )));
                }
            }
        }
        Ok(config)
    }

    /// The URL that opens the same store.
    pub fn url(&self) -> String {
        use std::fmt::Write as _;
        use std::os::unix::ffi::OsStrExt as _;
        let mut url = String::from("sqlite:");
        for &byte in self.path.as_os_str().as_bytes() {
            if byte.is_ascii_alphanumeric() || b"/._-~+,=@:".contains(&byte) {
                url.push(char::from(byte));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(url, "%{byte:02X}");
            }
        }
        let mut separator = '?';
        if let Some(mode) = self.mode {
            let _ = write!(url, "{separator}mode={mode:04o}");
            separator = '&';
        }
        if self.epoch != Epoch(0) {
            let _ = write!(url, "{separator}epoch={}", self.epoch);
        }
        url
    }
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "open the store", detail)
}

fn decode(text: &str) -> Result<PathBuf, Error> {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|&b| char::from(b).to_digit(16));
        let value = digit(0).zip(digit(1)).and_then(|(h, l)| u8::try_from(h * 16 + l).ok());
        let value = value.filter(|&byte| byte != 0);
        bytes.push(value.ok_or_else(|| {
            bad("the path in its URL holds a `%` without two hexadecimal digits after it".into())
        })?);
        rest = &rest[2..];
    }
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

fn parse_mode(text: &str) -> Result<u32, Error> {
    let octal = !text.is_empty() && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
    let mode = if octal { u32::from_str_radix(text, 8).ok() } else { None };
    // Whoever uses it writes it, so that to read alone is of no use.
    mode.filter(|mode| matches!(mode, 0o600 | 0o660 | 0o666)).ok_or_else(|| {
        let text = leasehold_core::shown(text, 20);
        bad(format!("`mode={text}` is out of bounds: want 0600, 0660 or 0666"))
    })
}

fn parse_epoch(text: &str) -> Result<Epoch, Error> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let epoch = if plain { text.parse().ok().map(Epoch) } else { None };
    epoch.ok_or_else(|| {
        let text = leasehold_core::shown(text, 20);
        bad(format!("`epoch={text}` is out of bounds: want 0 to 4294967295"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_strictly_and_survive() {
        for bad in [
            "redis:/x",
            "sqlite:",
            "sqlite:?mode=0660",
            "sqlite:/x?mdoe=0660",
            "sqlite:/x?mode=",
            "sqlite:/x?mode=0777",
            "sqlite:/x?mode=0060",
            "sqlite:/x?mode=0640",
            "sqlite:/x?mode=+660",
            "sqlite:/x?epoch=-1",
            "sqlite:/x?epoch=4294967296",
            "sqlite:/x%0",
            "sqlite:/x%00",
            "sqlite:/x%zz",
            "sqlite://host/x",
        ] {
            let error = SqliteConfig::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
        }
        let unknown = SqliteConfig::from_url("sqlite:/x?mdoe=0660").unwrap_err();
        assert!(unknown.to_string().contains("`mdoe`"), "{unknown}");
        for url in ["sqlite:/a%20b%3Fc?mode=0660&epoch=3", "sqlite:rel/x.db", "sqlite:/x?epoch=1"] {
            let config = SqliteConfig::from_url(url).unwrap();
            assert_eq!(config.url(), url);
            assert_eq!(SqliteConfig::from_url(&config.url()).unwrap(), config);
        }
        assert_eq!(
            SqliteConfig::from_url("sqlite:///x").unwrap(),
            SqliteConfig::from_url("sqlite:/x").unwrap()
        );
    }
}
