//! From what the server says to the one error of leasehold.

use leasehold_core::{Error, ErrorKind};

use crate::wire::{Fail, Refusal, code};

/// What is being done, where the verb's own words are put in later.
pub(crate) const DOING: &str = "use ZooKeeper";

/// What a request without an answer means for a user; `trouble` is why there is no connection.
pub(crate) fn from_fail(fail: Fail, trouble: Option<Error>) -> Error {
    let made = |kind, detail: &str| Error::new(kind, DOING, detail);
    match fail {
        Fail::Refused(refusal) => from_refusal(refusal),
        Fail::Lost { maybe } => {
            let error = match trouble {
                Some(trouble) if !trouble.kind().is_transient() => return trouble,
                Some(trouble) => made(
                    ErrorKind::Unreachable,
                    &format!("no server answered in time; the last try: {trouble}"),
                ),
                None => made(ErrorKind::Unreachable, "the connection to the server was lost"),
            };
            if maybe { error.maybe_applied() } else { error }
        }
        Fail::SessionOver => made(ErrorKind::Unavailable, "the session has ended"),
        Fail::TooLarge(size) => made(
            ErrorKind::Unavailable,
            &format!("the server's answer has {size} bytes, more than is taken in"),
        )
        .advise("raise `answer_max` in the configuration, or have fewer nodes below one"),
        Fail::Garbled => made(ErrorKind::Corrupt, "the server's answer cannot be read"),
        Fail::Barred(error) => error,
        Fail::Closed => made(ErrorKind::Closed, "the store was closed"),
    }
}

fn from_refusal(refusal: Refusal) -> Error {
    let made = |kind, detail: &str| Error::new(kind, DOING, detail);
    match refusal.code {
        code::NO_AUTH => made(ErrorKind::Permission, "the node's ACL refuses these credentials")
            .advise("name the user and the password of who made the nodes, or another path"),
        code::INVALID_ACL => {
            made(ErrorKind::Permission, "the server knows none of our credentials for an ACL")
                .advise("check the user and the password, and the server's digest scheme")
        }
        code::AUTH_FAILED | code::SASL_REQUIRED => {
            made(ErrorKind::Permission, "the server refuses the credentials")
        }
        code::NOT_READ_ONLY => made(ErrorKind::Unavailable, "the server has no quorum"),
        code::EPHEMERAL_ON_LOCAL_SESSION => {
            made(ErrorKind::Config, "the server's local sessions cannot hold a lock").advise(
                "set localSessionsUpgradingEnabled=true beside localSessionsEnabled on the servers",
            )
        }
        code::QUOTA_EXCEEDED => made(ErrorKind::Unavailable, "the quota of the path is used up"),
        code::THROTTLED => made(ErrorKind::Unavailable, "the server is overloaded"),
        code::UNIMPLEMENTED => {
            made(ErrorKind::Version, "the server is older than 3.5: it does not know this request")
        }
        other => made(ErrorKind::Unavailable, &format!("the server answered error {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Applied;

    #[test]
    fn a_lost_write_may_have_happened_and_a_refused_login_is_final() {
        let lost = from_fail(Fail::Lost { maybe: true }, None);
        assert_eq!((lost.kind(), lost.applied()), (ErrorKind::Unreachable, Applied::Maybe));
        let barred = Error::new(ErrorKind::Permission, DOING, "no");
        let lost = from_fail(Fail::Lost { maybe: true }, Some(barred));
        assert_eq!(lost.kind(), ErrorKind::Permission);
        let refusal = Refusal { code: code::EPHEMERAL_ON_LOCAL_SESSION, at: 0 };
        assert_eq!(from_fail(Fail::Refused(refusal), None).kind(), ErrorKind::Config);
    }
}
