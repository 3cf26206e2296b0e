//! The header that carries a fencing token.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use leasehold_fence::Mark;

/// `fencing-token: N` or `EPOCH:N`, as [`Mark`] is written.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// Puts the token of a lease into a request, for a service behind a [`FenceLayer`](crate::fence::FenceLayer).
///
/// ```
/// use leasehold_fence::{Epoch, Mark, Token};
/// use leasehold_http::fence::FencingToken;
///
/// // With a lease of `leasehold`: lease.mark()
/// let mark = Mark { epoch: Epoch(1), token: Token::new(42).unwrap() };
/// let request = http::Request::put("/routes/berlin").fencing_token(mark).body(())?;
/// assert_eq!(request.headers()["fencing-token"], "1:42");
/// # Ok::<(), http::Error>(())
/// ```
pub trait FencingToken {
    /// The same with the header, in place of one that was there.
    #[must_use]
    fn fencing_token(self, mark: impl Into<Mark>) -> Self;
}

impl FencingToken for HeaderMap {
    fn fencing_token(mut self, mark: impl Into<Mark>) -> HeaderMap {
        self.insert(FENCING_TOKEN, value_of(mark.into()));
        self
    }
}

impl<B> FencingToken for http::Request<B> {
    fn fencing_token(mut self, mark: impl Into<Mark>) -> http::Request<B> {
        self.headers_mut().insert(FENCING_TOKEN, value_of(mark.into()));
        self
    }
}

impl FencingToken for http::request::Builder {
    fn fencing_token(mut self, mark: impl Into<Mark>) -> http::request::Builder {
        // Without headers it has an error already, which is told when it is built.
        if let Some(headers) = self.headers_mut() {
            headers.insert(FENCING_TOKEN, value_of(mark.into()));
        }
        self
    }
}

/// Digits and a colon: always a value.
fn value_of(mark: Mark) -> HeaderValue {
    HeaderValue::try_from(mark.to_string()).unwrap_or(HeaderValue::from_static("0"))
}

/// What a request says of its token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    Malformed(String),
    Token(Mark),
}

/// Reads the one token of a request; two are as bad as none that can be read.
pub(crate) fn shown(headers: &HeaderMap) -> Shown {
    let mut values = headers.get_all(FENCING_TOKEN).iter();
    let (first, second) = (values.next(), values.next());
    let Some(first) = first else { return Shown::Nothing };
    if second.is_some() {
        return Shown::Malformed("the header stands there more than once".to_owned());
    }
    let Ok(text) = first.to_str() else {
        return Shown::Malformed("it is not ASCII".to_owned());
    };
    match text.trim_matches([' ', '\t']).parse() {
        Ok(mark) => Shown::Token(mark),
        Err(error) => Shown::Malformed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_fence::{Epoch, Token};

    fn read(values: &[&'static [u8]]) -> Shown {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FENCING_TOKEN, HeaderValue::from_bytes(value).unwrap());
        }
        shown(&headers)
    }

    #[test]
    fn one_token_is_read_and_nothing_else() {
        let token = Token::new(7).unwrap();
        assert_eq!(read(&[]), Shown::Nothing);
        assert_eq!(read(&[b"7"]), Shown::Token(token.into()));
        assert_eq!(read(&[b" 2:7\t"]), Shown::Token(Mark { epoch: Epoch(2), token }));
        let bad: [&[&'static [u8]]; 6] =
            [&[b"0"], &[b""], &[b"x"], &[b"\xff"], &[b"7", b"7"], &[b"7, 8"]];
        for values in bad {
            assert!(matches!(read(values), Shown::Malformed(_)), "{values:?}");
        }
    }

    #[test]
    fn a_token_goes_into_whatever_carries_headers() {
        let mark = Mark::from(Token::new(9).unwrap());
        let map = HeaderMap::new().fencing_token(mark).fencing_token(mark);
        assert_eq!(shown(&map), Shown::Token(mark));
        let request = http::Request::new(()).fencing_token(mark);
        assert_eq!(shown(request.headers()), Shown::Token(mark));
    }
}
