//! From a response to what is stored of it, and back.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use leasehold_data::idempotency::Answer;

use super::header::IDEMPOTENT_REPLAYED;
use crate::body::{AnyBody, Body, BoxError, whole};

/// What belongs to one connection or one moment, and is made anew for each answer.
const NOT_STORED: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Why an answer could not be read whole.
#[derive(Debug)]
pub(crate) enum Unread {
    TooLarge,
    Broken(BoxError),
}

/// Reads a body of at most so many bytes.
pub(crate) async fn read(body: impl AnyBody, limit: usize) -> Result<Bytes, Unread> {
    if usize::try_from(body.size_hint().lower()).is_ok_and(|least| least <= limit) {
        match Limited::new(body, limit).collect().await {
            Ok(read) => Ok(read.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
            Err(error) => Err(Unread::Broken(error)),
        }
    } else {
        Err(Unread::TooLarge)
    }
}

/// What is stored of a response with this body.
pub(crate) fn stored(head: &http::response::Parts, body: &Bytes) -> Answer {
    let mut lines = Vec::new();
    for (name, value) in head.headers.iter().filter(|(name, _)| !NOT_STORED.contains(name)) {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    Answer::new(head.status.as_u16(), body.to_vec()).with_head(lines)
}

/// The response that an answer stands for, or why it stands for none.
pub(crate) fn response(answer: Answer) -> Result<Response<Body>, &'static str> {
    let status = StatusCode::from_u16(answer.status).map_err(|_| "a status that is none")?;
    let headers = headers(&answer.head).ok_or("headers that are none")?;
    let mut response = Response::new(whole(answer.body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// The same, told to be a replay.
pub(crate) fn replay(answer: Answer) -> Result<Response<Body>, &'static str> {
    let mut response = response(answer)?;
    response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

fn headers(head: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let mut rest = head;
    while !rest.is_empty() {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let (line, after) = (rest.get(..end)?, rest.get(end + 2..)?);
        let colon = line.windows(2).position(|two| two == b": ")?;
        let name = HeaderName::from_bytes(line.get(..colon)?).ok()?;
        let value = HeaderValue::from_bytes(line.get(colon + 2..)?).ok()?;
        headers.append(name, value);
        rest = after;
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_the_same_when_it_is_replayed() {
        let made = Response::builder()
            .status(201)
            .header("location", "/orders/7")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2: 3")
            .header("x-bytes", HeaderValue::from_bytes(b"\xe4").unwrap())
            .header("date", "now")
            .header("content-length", "3")
            .body(())
            .unwrap();
        let answer = stored(&made.into_parts().0, &Bytes::from_static(b"a\0b"));
        let again = replay(answer.clone()).unwrap();
        assert_eq!(again.status(), 201);
        assert_eq!(again.headers()["location"], "/orders/7");
        let cookies: Vec<_> = again.headers().get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2: 3"]);
        assert_eq!(again.headers()["x-bytes"].as_bytes(), b"\xe4");
        assert_eq!(again.headers()[IDEMPOTENT_REPLAYED], "true");
        assert!(!again.headers().contains_key("date"));
        assert!(!response(answer).unwrap().headers().contains_key(IDEMPOTENT_REPLAYED));
    }

    #[test]
    fn an_answer_of_somebody_else_is_none() {
        for (status, head) in [(7, ""), (200, "no line"), (200, "x\r\n"), (200, "a b: c\r\n")] {
            let answer = Answer::new(status, "").with_head(head);
            assert!(response(answer).is_err(), "{status} {head:?}");
        }
    }
}
