//! From a store's URL to a client.

use std::sync::Arc;

use leasehold_core::{Epoch, Error, ErrorKind, Result, Store};

use crate::client::{Client, Options};

/// A client of the store that a URL names.
///
/// `sqlite:PATH` (with `?mode=0660` to share it between users) is the embedded store; `memory:` is
/// a store of this process alone, for tests. `?epoch=N` sets the epoch of the tokens.
///
/// # Errors
///
/// `Config` for a URL that names no store this build knows, and whatever opening the store brings.
///
/// ```
/// # leasehold::blocking::block_on(async {
/// let client = leasehold::connect("memory:").await?;
/// let lease = client.lock("nightly").acquire().await?;
/// assert_eq!(lease.name().as_str(), "nightly");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub async fn connect(url: &str) -> Result<Client> {
    let epoch = epoch_of(url)?;
    let options = Options { epoch, ..Options::default() };
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => Client::sqlite(leasehold_sqlite::SqliteConfig::from_url(url)?),
        "memory" if url.split('?').next() == Some("memory:") => {
            let store: Arc<dyn Store> = Arc::new(crate::memory::Memory::new());
            Client::new(store, options)
        }
        _ => Err(unknown(scheme)),
    }
}

fn unknown(scheme: &str) -> Error {
    let known = if cfg!(feature = "sqlite") { "sqlite:PATH or memory:" } else { "memory:" };
    let detail = match scheme {
        "" => format!("no scheme in the store's URL: want {known}"),
        other => format!("no store `{other}:` in this build: want {known}"),
    };
    Error::new(ErrorKind::Config, "connect", detail)
}

/// The epoch that a URL names, whatever the store.
fn epoch_of(url: &str) -> Result<Epoch> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    match query.split('&').find_map(|pair| pair.strip_prefix("epoch=")) {
        None => Ok(Epoch(0)),
        Some(number) => number.parse().map(Epoch).map_err(|_| {
            let detail = "epoch is not a number from 0 to 4294967295";
            Error::new(ErrorKind::Config, "connect", detail)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_is_read_wherever_it_stands() {
        assert_eq!(epoch_of("sqlite:/x").unwrap(), Epoch(0));
        assert_eq!(epoch_of("sqlite:/x?epoch=3").unwrap(), Epoch(3));
        assert_eq!(epoch_of("sqlite:/x?mode=0660&epoch=3").unwrap(), Epoch(3));
        assert!(epoch_of("sqlite:/x?epoch=-1").is_err());
        assert_eq!(crate::blocking::connect("memory:?epoch=2").unwrap().epoch(), Epoch(2));
    }

    #[test]
    fn an_unknown_store_is_refused_by_name() {
        let error = crate::blocking::connect("carrier-pigeon://x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("carrier-pigeon"), "{error}");
    }
}
