//! What can go wrong at a call, and how it is told.

use leasehold_core::{Error, ErrorKind};
use tonic::{Code, ConnectError, Status};

/// What stands for "doing" until a verb says what it does.
pub(crate) const DOING: &str = "ask the store";

/// A call that came to nothing.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) cause: Cause,
    pub(crate) detail: String,
    advice: Option<&'static str>,
    maybe: bool,
}

/// What the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No connection: the request was never sent.
    NotSent,
    /// This member cannot; another may.
    Member,
    /// The token has run out or is not known to this member.
    Token,
    /// The lease that was named is gone.
    LeaseGone,
    /// The cluster has no users, so that nobody can show who they are.
    NoAuth,
    /// None of these.
    Other,
}

impl Failure {
    fn new(kind: ErrorKind, cause: Cause, detail: impl Into<String>) -> Failure {
        Failure { kind, cause, detail: detail.into(), advice: None, maybe: false }
    }

    fn advise(mut self, advice: &'static str) -> Failure {
        self.advice = Some(advice);
        self
    }

    fn maybe(mut self) -> Failure {
        self.maybe = true;
        self
    }

    /// No answer in time.
    pub(crate) fn late() -> Failure {
        let detail = "no answer in time";
        Failure::new(ErrorKind::Unreachable, Cause::Member, detail).maybe()
    }

    /// An answer that cannot be right.
    pub(crate) fn odd(detail: &str) -> Failure {
        Failure::new(ErrorKind::Corrupt, Cause::Other, detail).maybe()
    }

    /// What the server, or the connection to it, said.
    pub(crate) fn of(status: &Status) -> Failure {
        let text = status.message();
        if is_connect(status) {
            return not_connected(status);
        }
        let why = causes(status);
        if why.contains("received fatal alert") {
            return unfit_tls(&why);
        }
        let said = |kind, cause| Failure::new(kind, cause, plain(text));
        let has = |part: &str| text.contains(part);
        if has("requested lease not found") {
            return said(ErrorKind::Unavailable, Cause::LeaseGone);
        }
        if has("invalid auth token") || has("revision in header is old") {
            return said(ErrorKind::Permission, Cause::Token);
        }
        if has("authentication is not enabled") {
            return said(ErrorKind::Config, Cause::NoAuth);
        }
        if has("invalid user ID or password") {
            return said(ErrorKind::Permission, Cause::Other);
        }
        if has("user name is empty") || has("user name not found") {
            return Failure::new(ErrorKind::Permission, Cause::Other, "it asks for a user")
                .advise("name a user and a password in the store's URL");
        }
        if has("database space exceeded") || has("NOSPACE") {
            let detail = "the cluster has raised its NOSPACE alarm and takes no writes";
            return Failure::new(ErrorKind::Unavailable, Cause::Other, detail)
                .advise("compact and defragment it, then `etcdctl alarm disarm`");
        }
        if has("request is too large") {
            return said(ErrorKind::Usage, Cause::Other);
        }
        match status.code() {
            Code::PermissionDenied => {
                let detail = "this user may not use these keys";
                Failure::new(ErrorKind::Permission, Cause::Other, detail)
                    .advise("grant it a role with readwrite on the store's prefix")
            }
            Code::Unauthenticated => said(ErrorKind::Permission, Cause::Token),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => {
                said(ErrorKind::Unavailable, Cause::Member).maybe()
            }
            Code::ResourceExhausted => said(ErrorKind::Unavailable, Cause::Other).maybe(),
            Code::Unimplemented => not_etcd(),
            // A member that dies half-way leaves no status either: only a first word is sure to come
            // from another server.
            Code::Unknown | Code::Internal if has("grpc-status") || has("HTTP status") => {
                let detail = "it does not answer as etcd does";
                Failure::new(ErrorKind::Unreachable, Cause::Member, detail).maybe()
            }
            // A connection that broke half-way.
            Code::Unknown | Code::Internal => {
                let mut failure = said(ErrorKind::Unreachable, Cause::Member).maybe();
                failure.detail = format!("the connection broke: {why}");
                failure
            }
            Code::Ok | Code::DataLoss => said(ErrorKind::Unreachable, Cause::Member).maybe(),
            _ => said(ErrorKind::Bug, Cause::Other).maybe(),
        }
    }

    /// The error that a caller gets.
    pub(crate) fn error(self, url: &str) -> Error {
        let error = Error::new(self.kind, DOING, self.detail).at(url);
        let error = if self.maybe { error.maybe_applied() } else { error };
        match self.advice {
            Some(advice) => error.advise(advice),
            None => error,
        }
    }
}

fn is_connect(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.downcast_ref::<ConnectError>().is_some() {
            return true;
        }
        source = error.source();
    }
    false
}

fn not_connected(status: &Status) -> Failure {
    let text = causes(status);
    let has = |part: &str| text.contains(part);
    if has("InvalidContentType") || has("corrupt message") {
        return Failure::new(ErrorKind::Config, Cause::NotSent, "the server does not speak TLS")
            .advise("use etcd:// for a cluster without TLS");
    }
    if has("certificate") || has("UnknownIssuer") || has("BadSignature") {
        return unfit_tls(&text);
    }
    let failure =
        Failure::new(ErrorKind::Unreachable, Cause::NotSent, format!("cannot connect: {text}"));
    if has("handshake eof") {
        return failure.advise("if the cluster does not speak TLS, use etcd://");
    }
    failure
}

fn unfit_tls(text: &str) -> Failure {
    Failure::new(ErrorKind::Config, Cause::NotSent, format!("TLS: {text}")).advise(
        "see that `ca` is the authority of the server's certificate, and that `cert` and `key` are \
         what the server asks for",
    )
}

fn not_etcd() -> Failure {
    Failure::new(ErrorKind::Config, Cause::Other, "the server is no etcd with the v3 API")
        .advise("name the cluster's client URL, usually port 2379")
}

/// The innermost causes, which say most.
fn causes(status: &Status) -> String {
    let mut text = String::new();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let one = error.to_string();
        if !text.contains(&one) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&one);
        }
        source = error.source();
    }
    let text = if text.is_empty() { status.message().to_owned() } else { text };
    leasehold_core::shown(&text, 300).to_string()
}

fn plain(text: &str) -> String {
    let text = text.strip_prefix("etcdserver: ").unwrap_or(text);
    leasehold_core::shown(text, 300).to_string()
}
