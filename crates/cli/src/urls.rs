//! What the URL of a store says by itself.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use leasehold::net::StoreUrl;

use crate::output;

/// Options whose values are paths.
const FILE_OPTIONS: [&str; 3] = ["ca", "cert", "key"];

/// Whether it names a server.
pub(crate) fn is_remote(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme != "sqlite")
}

/// Whether the store's password stands in it.
pub(crate) fn has_password(url: &str) -> bool {
    is_remote(url)
        && match StoreUrl::parse(url) {
            Ok(parsed) => parsed.password.is_some(),
            Err(_) => output::redacted(url) != url,
        }
}

/// Whether anything stands in it that should not be read by everybody.
pub(crate) fn has_secret(url: &str) -> bool {
    has_password(url) || output::redacted(url) != url
}

/// The URL without its passwords, for whoever has them from elsewhere.
pub(crate) fn without_secret(url: &str) -> String {
    let shown = match StoreUrl::parse(url) {
        Ok(parsed) if is_remote(url) => parsed.shown(),
        _ => return output::redacted(url),
    };
    let Some((before, query)) = shown.split_once('?') else { return shown };
    let pairs: Vec<String> = query.split('&').filter_map(pair_without_secret).collect();
    let mark = if pairs.is_empty() { "" } else { "?" };
    format!("{before}{mark}{}", pairs.join("&"))
}

/// An option of a URL without its secret; none where it is nothing else.
fn pair_without_secret(pair: &str) -> Option<String> {
    let (option, value) = pair.split_once('=')?;
    if option.contains("password") {
        return None;
    }
    // A server that is named within, with a user and a password of its own.
    if option != "listen" || !value.contains("%40") {
        return Some(pair.to_string());
    }
    let value = unescaped(value)?;
    let shown = match StoreUrl::parse(&value) {
        Ok(parsed) => parsed.shown(),
        Err(_) => StoreUrl::parse(&format!("x://{value}")).ok()?.shown().split_off("x://".len()),
    };
    Some(format!("{option}={}", escaped(Path::new(&shown))))
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Whether it names a file from the working directory.
pub(crate) fn has_relative_file(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    is_remote(url) && query.split('&').any(|pair| relative_file(pair).is_some())
}

/// The URL with the paths in it made absolute: the command may run, and look, elsewhere.
pub(crate) fn with_absolute_files(url: &str, here: &Path) -> String {
    let Some((before, query)) = url.split_once('?').filter(|_| is_remote(url)) else {
        return url.to_string();
    };
    let absolute = |pair: &str| match relative_file(pair) {
        Some((option, path)) => format!("{option}={}/{path}", escaped(here)),
        None => pair.to_string(),
    };
    let pairs: Vec<String> = query.split('&').map(absolute).collect();
    format!("{before}?{}", pairs.join("&"))
}

fn relative_file(pair: &str) -> Option<(&str, &str)> {
    let (option, path) = pair.split_once('=')?;
    let is_absolute = path.starts_with('/') || path.starts_with("%2F") || path.starts_with("%2f");
    let is_file = FILE_OPTIONS.contains(&option) && !path.is_empty();
    (is_file && !is_absolute).then_some((option, path))
}

fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_seen_and_taken_out() {
        for (url, has, without) in [
            ("redis://u:s3cret@h:1/0?layout=plain", true, "redis://u@h:1/0?layout=plain"),
            ("redis://:s3cret@h", true, "redis://h"),
            ("postgres://app@h/db", false, "postgres://app@h/db"),
            ("sqlite:/x?mode=0660", false, "sqlite:/x?mode=0660"),
            ("redis://u:s3c/ret@h", true, "redis://u:***@h"),
            ("redis+sentinel://h/m?sentinel_password=x&ca=/c", false, "redis+sentinel://h/m?ca=/c"),
            (
                "postgres://a@h/d?listen=postgres%3A%2F%2Fu%3As3cret%40h2&epoch=1",
                false,
                "postgres://a@h/d?listen=postgres%3A//u%40h2&epoch=1",
            ),
            (
                "postgres://a@h/d?listen=u%3As3cret%40h2:5",
                false,
                "postgres://a@h/d?listen=u%40h2%3A5",
            ),
            ("redis+sentinel://h/m?sentinel_password=x", false, "redis+sentinel://h/m"),
        ] {
            assert_eq!(has_password(url), has, "{url}");
            assert_eq!(without_secret(url), without, "{url}");
            assert_eq!(has_secret(url), url != without, "{url}");
        }
    }

    #[test]
    fn certificates_are_named_from_the_root() {
        let here = Path::new("/a b");
        for (url, absolute) in [
            (
                "rediss://h?ca=c.pem&key=/k&layout=plain",
                "rediss://h?ca=/a%20b/c.pem&key=/k&layout=plain",
            ),
            ("rediss://h?cert=%2Fc.pem", "rediss://h?cert=%2Fc.pem"),
            ("rediss://h?cert=d%20/c.pem", "rediss://h?cert=/a%20b/d%20/c.pem"),
            ("sqlite:x?ca=c.pem", "sqlite:x?ca=c.pem"),
        ] {
            assert_eq!(with_absolute_files(url, here), absolute);
            assert_eq!(has_relative_file(url), url != absolute);
        }
    }
}
