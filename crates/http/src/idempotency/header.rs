//! The header `Idempotency-Key`.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// `idempotency-key: "KEY"`, a string of structured fields (RFC 9651).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// `idempotent-replayed: true`, on an answer that was stored before.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The longest key.
const LONGEST: usize = 255;

/// A key as the value of the header, for a client; `None` if it is empty, longer than 255 bytes,
/// or not of printable ASCII.
///
/// ```
/// use leasehold_http::idempotency::{IDEMPOTENCY_KEY, key_value};
///
/// let mut headers = http::HeaderMap::new();
/// headers.insert(IDEMPOTENCY_KEY, key_value("order-41").unwrap());
/// assert_eq!(headers["idempotency-key"], "\"order-41\"");
/// ```
pub fn key_value(key: &str) -> Option<HeaderValue> {
    let printable = key.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
    if key.is_empty() || key.len() > LONGEST || !printable {
        return None;
    }
    let escaped = key.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::try_from(format!("\"{escaped}\"")).ok()
}

/// What a request says of its key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    Malformed(&'static str),
    Key(String),
}

/// Reads the one key of a request.
///
/// Quoted, as the draft has it, with parameters after it that mean nothing here; or bare, as most
/// clients send it: `"a"` and `a` are one key.
pub(crate) fn shown(headers: &HeaderMap) -> Shown {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let (first, second) = (values.next(), values.next());
    let Some(first) = first else { return Shown::Nothing };
    if second.is_some() {
        return Shown::Malformed("the header stands there more than once");
    }
    let Ok(text) = first.to_str() else { return Shown::Malformed("it is not of printable ASCII") };
    let text = text.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(rest) => unquoted(rest),
        None => bare(text),
    };
    match key {
        Ok(key) if key.is_empty() => Shown::Malformed("it is empty"),
        Ok(key) if key.len() > LONGEST => Shown::Malformed("it is longer than 255 bytes"),
        Ok(key) => Shown::Key(key),
        Err(why) => Shown::Malformed(why),
    }
}

/// What follows the first quote.
fn unquoted(rest: &str) -> Result<String, &'static str> {
    let mut key = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next() {
            None => return Err("its closing quote is missing"),
            Some('"') => break,
            Some('\\') => match chars.next() {
                Some(c @ ('"' | '\\')) => key.push(c),
                _ => return Err("a backslash stands before something else than \\ or \""),
            },
            Some('\t') => return Err("it is not of printable ASCII"),
            Some(c) => key.push(c),
        }
    }
    match chars.as_str() {
        "" => Ok(key),
        more if more.starts_with(';') => Ok(key),
        _ => Err("something follows its closing quote"),
    }
}

/// What would be a quoted one's content without a need to quote it.
fn bare(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';');
    if text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("without quotes it may have no blank, comma, semicolon, quote or backslash")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&[u8]]) -> Shown {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        shown(&headers)
    }

    #[test]
    fn a_quoted_key_and_a_bare_one_are_read() {
        let key = |text: &str| Shown::Key(text.to_owned());
        assert_eq!(read(&[]), Shown::Nothing);
        assert_eq!(read(&[b"\"8e03978e\""]), key("8e03978e"));
        assert_eq!(read(&[b"8e03978e"]), key("8e03978e"));
        assert_eq!(read(&[b" \"a b, c;\" "]), key("a b, c;"));
        assert_eq!(read(&[br#""a\"b\\c""#]), key(r#"a"b\c"#));
        assert_eq!(read(&[b"\"a\";v=1"]), key("a"));
        assert_eq!(read(&["k".repeat(255).as_bytes()]), key(&"k".repeat(255)));
    }

    #[test]
    fn what_is_no_key_is_told() {
        let long = "k".repeat(256);
        let bad: [&[&[u8]]; 12] = [
            &[b""],
            &[b"\"\""],
            &[b"\""],
            &[b"\"a"],
            &[b"\"a\"b"],
            &[br#""a\n""#],
            &[br#""a\"#],
            &[b"a b"],
            &[b"a,b"],
            &[b"\xff"],
            &[b"a", b"a"],
            &[long.as_bytes()],
        ];
        for values in bad {
            assert!(matches!(read(values), Shown::Malformed(_)), "{values:?}");
        }
    }

    #[test]
    fn what_a_client_writes_is_what_is_read() {
        for key in ["a", "a b", r#"a"b\c"#, "a;b,c"] {
            let mut headers = HeaderMap::new();
            headers.insert(IDEMPOTENCY_KEY, key_value(key).unwrap());
            assert_eq!(shown(&headers), Shown::Key(key.to_owned()));
        }
        for key in ["", "ä", "a\tb", &"k".repeat(256)] {
            assert_eq!(key_value(key), None);
        }
    }
}
