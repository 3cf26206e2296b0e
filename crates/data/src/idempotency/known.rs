//! What the table knows of a key, and what follows from it for a claim.

use std::time::Duration;

use leasehold_core::Token;
use leasehold_sql::{Row, Value};

use super::{Answer, Fingerprint, RecoveryPoint, TryId};
use crate::{Error, Result};

/// What is known of a key, at this moment by the clock that judges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) now_us: i64,
    pub(super) row: Option<KeyRow>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyRow {
    pub(super) state: State,
    pub(super) token: Token,
    pub(super) attempt: u32,
    pub(super) runs_until_us: i64,
    pub(super) expires_us: i64,
    pub(super) fingerprint: Vec<u8>,
    pub(super) try_id: Vec<u8>,
    pub(super) point: Option<RecoveryPoint>,
    pub(super) answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Running,
    Finished,
    Forgotten,
}

/// What a claim does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Nobody has asked yet.
    Make,
    /// Forgotten, or kept for long enough.
    BeginAnew,
    /// Another payload.
    Mismatch,
    /// There is an answer.
    Replay,
    /// This very try has claimed it before.
    Mine,
    /// A run is under way for so much longer, unless it is renewed.
    Busy(Duration),
    /// A run was silent for its whole term.
    TakeOver,
}

impl Known {
    pub(super) fn next(&self, fingerprint: &Fingerprint, id: &TryId) -> Next {
        let Some(row) = &self.row else { return Next::Make };
        let silent = row.runs_until_us <= self.now_us;
        let expired = row.expires_us <= self.now_us;
        match row.state {
            State::Forgotten => Next::BeginAnew,
            State::Finished if expired => Next::BeginAnew,
            State::Running if expired && silent => Next::BeginAnew,
            _ if row.fingerprint != fingerprint.as_bytes() => Next::Mismatch,
            State::Finished => Next::Replay,
            State::Running if row.try_id == id.as_bytes() => Next::Mine,
            State::Running if silent => Next::TakeOver,
            State::Running => {
                let left = row.runs_until_us.saturating_sub(self.now_us);
                Next::Busy(Duration::from_micros(left.unsigned_abs()))
            }
        }
    }

    /// A token above all before it, and not below the clock.
    pub(super) fn next_token(&self) -> Option<Token> {
        let last = self.row.as_ref().map(|row| row.token);
        Token::next(last, u64::try_from(self.now_us).unwrap_or_default())
    }

    /// Of the columns that `look.sql` answers.
    pub(super) fn read(row: &Row, table: &str) -> Result<Known> {
        let bad = |what| Error::Corrupt { table: table.to_owned(), what };
        let now_us = row.int(0).ok_or_else(|| bad("no time"))?;
        if row.is_null(1) {
            return Ok(Known { now_us, row: None });
        }
        let state = match row.int(1) {
            Some(0) => State::Running,
            Some(1) => State::Finished,
            Some(2) => State::Forgotten,
            _ => return Err(bad("a state that does not exist")),
        };
        let token = row.int(2).and_then(|token| Token::new(u64::try_from(token).ok()?));
        let attempt = row.int(3).and_then(|attempt| u32::try_from(attempt).ok());
        let point = text(row, 8).map(|name| RecoveryPoint { name, state: bytes(row, 9) });
        let status = row.int(10).unwrap_or_default();
        let status = u16::try_from(status).map_err(|_| bad("a status that is none"))?;
        Ok(Known {
            now_us,
            row: Some(KeyRow {
                state,
                token: token.ok_or_else(|| bad("a token that is none"))?,
                attempt: attempt.ok_or_else(|| bad("a number of runs that is none"))?,
                runs_until_us: row.int(4).ok_or_else(|| bad("no term"))?,
                expires_us: row.int(5).ok_or_else(|| bad("no time to keep it"))?,
                fingerprint: bytes(row, 6),
                try_id: bytes(row, 7),
                point,
                answer: Answer { status, head: bytes(row, 11), body: bytes(row, 12) },
            }),
        })
    }
}

/// MySQL answers a text in a binary column as bytes.
fn text(row: &Row, at: usize) -> Option<String> {
    match row.get(at) {
        Some(Value::Text(text)) => Some(text.clone()),
        Some(Value::Bytes(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn bytes(row: &Row, at: usize) -> Vec<u8> {
    match row.get(at) {
        Some(Value::Bytes(bytes)) => bytes.clone(),
        Some(Value::Text(text)) => text.clone().into_bytes(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row() -> impl Strategy<Value = KeyRow> {
        let state =
            prop_oneof![Just(State::Running), Just(State::Finished), Just(State::Forgotten)];
        (state, 1_u64..50, 0_i64..40, 0_i64..40, 0_u8..2, 0_u8..2).prop_map(
            |(state, token, runs_until_us, expires_us, payload, id)| KeyRow {
                state,
                token: Token::new(token).unwrap(),
                attempt: 1,
                runs_until_us,
                expires_us,
                fingerprint: vec![payload; 32],
                try_id: vec![id; 16],
                point: None,
                answer: Answer::default(),
            },
        )
    }

    proptest! {
        #[test]
        fn each_claim_is_given_what_its_row_says(row in row(), now_us in 0_i64..40) {
            let known = Known { now_us, row: Some(row.clone()) };
            let next = known.next(&Fingerprint::from_bytes([0; 32]), &TryId::from_bytes([0; 16]));
            let (silent, expired) = (row.runs_until_us <= now_us, row.expires_us <= now_us);
            let same = row.fingerprint == [0; 32];
            // Nobody gets in beside a run that is heard of, but the very try that began it.
            if row.state == State::Running && !silent {
                prop_assert!(matches!(next, Next::Busy(_) | Next::Mismatch | Next::Mine));
            }
            // An answer is given to its own payload, for as long as it is kept.
            let kept = row.state == State::Finished && !expired;
            prop_assert_eq!(next == Next::Replay, kept && same);
            // Another payload is refused for as long as anything is known of the key.
            if !same && row.state != State::Forgotten && !(expired && (silent || row.state == State::Finished)) {
                prop_assert_eq!(next, Next::Mismatch);
            }
            if next == Next::TakeOver {
                prop_assert!(row.state == State::Running && silent && same && !expired);
            }
            if let Next::Busy(left) = next {
                prop_assert!(!left.is_zero());
            }
        }

        #[test]
        fn a_token_is_above_the_one_before_and_not_below_the_clock(row in row(), now_us in 0_i64..100) {
            let token = Known { now_us, row: Some(row.clone()) }.next_token().unwrap();
            prop_assert!(token > row.token && token.get() >= now_us.unsigned_abs());
        }
    }

    #[test]
    fn a_row_that_is_not_ours_is_told() {
        let columns = |state: i64| {
            let mut columns = vec![Value::Int(7), Value::Int(state)];
            columns.extend(std::iter::repeat_n(Value::Null, 11));
            Row::new(columns)
        };
        for row in [columns(9), columns(1), Row::new(Vec::new())] {
            assert!(matches!(Known::read(&row, "t"), Err(Error::Corrupt { .. })), "{row:?}");
        }
        let absent = Row::new(
            [Value::Int(7)].into_iter().chain(std::iter::repeat_n(Value::Null, 12)).collect(),
        );
        assert_eq!(Known::read(&absent, "t").unwrap(), Known { now_us: 7, row: None });
    }
}
