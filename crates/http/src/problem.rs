//! Refusals as `application/problem+json` (RFC 9457).

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use crate::body::{Body, whole};

/// Why a request was not let through.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    /// For programs: it does not change.
    code: &'static str,
    /// For people.
    detail: String,
    retry_after: Option<Duration>,
    members: Vec<(&'static str, String)>,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        let detail = detail.into();
        Problem { status, code, detail, retry_after: None, members: Vec::new() }
    }

    /// Trying again after this long may help.
    pub(crate) fn retry_after(mut self, span: Duration) -> Problem {
        self.retry_after = Some(span);
        self
    }

    /// One more member of the JSON object, a text.
    #[cfg_attr(not(feature = "fence"), allow(dead_code))]
    pub(crate) fn member(mut self, name: &'static str, text: impl ToString) -> Problem {
        self.members.push((name, text.to_string()));
        self
    }

    pub(crate) fn response(self) -> Response<Body> {
        let json = self.json();
        let mut response = Response::new(whole(json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(span) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(span)));
        }
        response
    }

    fn json(&self) -> String {
        let mut json = format!("{{\"type\":\"about:blank\",\"status\":{}", self.status.as_u16());
        let title = self.status.canonical_reason().unwrap_or("Refused");
        let members = [("title", title), ("code", self.code), ("detail", &self.detail)];
        let more = self.members.iter().map(|(name, text)| (*name, text.as_str()));
        for (name, text) in members.into_iter().chain(more) {
            json.push_str(",\"");
            json.push_str(name);
            json.push_str("\":\"");
            escape(text, &mut json);
            json.push('"');
        }
        json.push('}');
        json
    }
}

/// Rounded up, and never 0: a client that comes back at once would find the same.
fn whole_seconds(span: Duration) -> u64 {
    let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    seconds.max(1)
}

fn escape(text: &str, json: &mut String) {
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                json.push('\\');
                json.push(c);
            }
            c if u32::from(c) < 0x20 => {
                let _ = write!(json, "\\u{:04x}", u32::from(c)); // a String takes everything
            }
            c => json.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_json_whatever_its_texts() {
        let problem = Problem::new(StatusCode::CONFLICT, "busy", "a \"b\" \\ \n c")
            .member("offered", 7)
            .retry_after(Duration::from_millis(1200));
        assert_eq!(
            problem.json(),
            r#"{"type":"about:blank","status":409,"title":"Conflict","code":"busy","#.to_owned()
                + r#""detail":"a \"b\" \\ \u000a c","offered":"7"}"#
        );
        let response = problem.response();
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    }

    #[test]
    fn nobody_is_told_to_come_back_at_once() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_secs(3)), 3);
    }
}
