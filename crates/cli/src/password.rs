//! The store's password, from where neither a list of processes nor a log shows it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use leasehold::net::Secret;

use crate::exit::{End, config};

const VARIABLE: &str = "LEASEHOLD_STORE_PASSWORD";
const FILE_VARIABLE: &str = "LEASEHOLD_STORE_PASSWORD_FILE";
/// Where systemd puts the credentials of a service.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// The name of ours among them.
const CREDENTIAL: &str = "leasehold";

/// The longest password: longer than any that a store takes.
const PASSWORD_MAX: usize = 4096;

/// The first password there is: the variable's, that of the file which a variable names, that of
/// the service's credentials.
pub(crate) fn find(var: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Secret>, End> {
    if let Some(password) = var(VARIABLE) {
        let password = password.into_string();
        let password = password.map_err(|_| config(format!("{VARIABLE} is not UTF-8")))?;
        return checked(password, VARIABLE).map(Some);
    }
    if let Some(path) = var(FILE_VARIABLE).map(PathBuf::from) {
        let place = format!("{} ({FILE_VARIABLE})", path.display());
        let bytes = read(&path).map_err(|error| unreadable(&place, &error))?;
        return decoded(bytes, &place).map(Some);
    }
    let Some(folder) = var(CREDENTIALS) else { return Ok(None) };
    let path = Path::new(&folder).join(CREDENTIAL);
    let place = format!("the credential {}", path.display());
    match read(&path) {
        Ok(bytes) => decoded(bytes, &place).map(Some),
        // The service has credentials, and none for this.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&place, &error)),
    }
}

/// At most a byte more than a password may have; also of what is no plain file, such as a pipe.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    // With room for all of it, so that no copy is left behind when it grows.
    let mut bytes = Vec::with_capacity(PASSWORD_MAX + 64);
    let most = u64::try_from(PASSWORD_MAX + 3).unwrap_or(u64::MAX);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text without the newline that editors and `echo` put at its end.
fn decoded(bytes: Vec<u8>, place: &str) -> Result<Secret, End> {
    let mut text = String::from_utf8(bytes).map_err(|_| config(format!("{place} is not UTF-8")))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    checked(text, place)
}

fn checked(text: String, place: &str) -> Result<Secret, End> {
    let secret = Secret::new(text);
    let unfit = match secret.expose() {
        "" => "is empty",
        text if text.len() > PASSWORD_MAX => "is longer than 4096 bytes",
        text if text.contains(char::is_control) => "holds a control character",
        _ => return Ok(secret),
    };
    Err(config(format!("{place} {unfit}: want the store's password in it")))
}

fn unreadable(place: &str, error: &std::io::Error) -> End {
    config(format!("cannot read the store's password from {place}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    fn found(vars: &[(&str, &Path)]) -> Result<Option<String>, End> {
        let var = |name: &str| {
            let found = vars.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_os_str().to_os_string())
        };
        find(&var).map(|found| found.map(|secret| secret.expose().to_string()))
    }

    fn refused(vars: &[(&str, &Path)]) -> String {
        match found(vars) {
            Err(End::Fail(Code::Config, why)) => why,
            other => panic!("not refused as configuration: {other:?}"),
        }
    }

    #[test]
    fn the_first_source_wins_and_one_trailing_newline_is_not_the_passwords() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "from file\n").unwrap();
        std::fs::write(folder.path().join(CREDENTIAL), " from credential \r\n").unwrap();
        let all = [
            (VARIABLE, Path::new("from variable")),
            (FILE_VARIABLE, file.as_path()),
            (CREDENTIALS, folder.path()),
        ];
        for (from, want) in ["from variable", "from file", " from credential "].iter().enumerate() {
            assert_eq!(found(&all[from..]).unwrap().as_deref(), Some(*want));
        }
        assert_eq!(found(&[]).unwrap(), None);
        std::fs::write(&file, "two\n\n").unwrap();
        assert!(refused(&all[1..]).contains("control character"));
    }

    #[test]
    fn what_cannot_be_a_password_is_refused_by_its_place_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let vars = [(FILE_VARIABLE, file.as_path())];
        assert!(refused(&vars).contains("No such file"));
        assert_eq!(found(&[(CREDENTIALS, folder.path())]).unwrap(), None);
        for (bytes, why) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"s3cret\xff", "not UTF-8"),
            (b"s3cret\0", "control character"),
            (&[b's'; PASSWORD_MAX + 1][..], "longer than 4096"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let refusal = refused(&vars);
            assert!(refusal.contains(why) && refusal.contains(FILE_VARIABLE), "{refusal}");
            assert!(!refusal.contains("s3cret"), "{refusal}");
        }
        let longest = "s".repeat(PASSWORD_MAX);
        std::fs::write(&file, format!("{longest}\r\n")).unwrap();
        assert_eq!(found(&vars).unwrap(), Some(longest));
        assert!(refused(&[(FILE_VARIABLE, folder.path())]).contains("Is a directory"));
    }
}
