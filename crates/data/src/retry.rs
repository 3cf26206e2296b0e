//! To run a whole transaction again, where that helps, and only where it is safe.
//!
//! A database ends transactions that could not be put in an order, or that wait for each other; the cure is to run
//! the *whole* of them again, reads and all. Which errors those are is [`Verdict`]'s to say; how often and after
//! which waits, [`Retry`]'s.
//!
//! # A commit whose reply was lost
//!
//! When the connection breaks at COMMIT, the work is done or not, and nobody knows which. To run it again then may
//! do it twice; to give up may leave it undone. So it is never run again blindly:
//!
//! * [`Retry::run`] gives up with [`Failed::Unknown`];
//! * [`Retry::run_probed`] asks the caller's probe whether it happened, and runs it again only if not. The old
//!   transaction may still be on its way, so the probe must look at what it *waits for*: claim the idempotency key,
//!   or lock the row whose version was changed (`SELECT … FOR UPDATE`). A plain read may come too early;
//! * [`Retry::run_repeatable`] runs it again, for work that is safe to repeat by itself: that begins with an
//!   idempotency key, or changes a row on condition of a version that it was given (not one that it reads).
//!
//! # What the closure is
//!
//! The caller's own: it begins a transaction, works, and commits. Whatever it returns in error must have ended the
//! transaction, as dropping it does with most drivers.
//!
//! ```
//! use leasehold_data::retry::{Failed, Retry};
//! use leasehold_sql::{Connection, Error};
//!
//! async fn book(db: &mut dyn Connection, seat: i64) -> Result<u64, Failed<Error>> {
//!     let book = async || {
//!         db.execute("BEGIN ISOLATION LEVEL SERIALIZABLE", &[]).await?;
//!         let book = "UPDATE seats SET free = free - 1 WHERE id = $1";
//!         let booked = db.execute(book, &[seat.into()]).await;
//!         db.execute(if booked.is_ok() { "COMMIT" } else { "ROLLBACK" }, &[]).await?;
//!         booked
//!     };
//!     Retry::new().run(tokio::time::sleep, book).await
//! }
//! ```

use std::time::Duration;

use leasehold_core::Backoff;
use leasehold_sql::Class;

/// What an error says about trying again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Certainly nothing happened, and it may go well next time.
    Again,
    /// Certainly nothing happened, and it would be the same next time.
    Never,
    /// It may have happened: the connection broke, or the driver itself failed.
    Unknown,
}

/// An error that knows whether its transaction is worth another try. Implement it for your own error type, passing
/// on what the database said.
pub trait Retryable {
    /// Whether to try again.
    fn verdict(&self) -> Verdict;
}

impl Retryable for leasehold_sql::Error {
    /// By its class. What is of no class and has no code of the database is the driver's, and unknown.
    fn verdict(&self) -> Verdict {
        match self.class() {
            Class::Restart | Class::Deadlock | Class::Busy => Verdict::Again,
            Class::Connection => Verdict::Unknown,
            Class::Other if self.code().is_none() => Verdict::Unknown,
            _ => Verdict::Never,
        }
    }
}

impl Retryable for crate::Error {
    fn verdict(&self) -> Verdict {
        self.database().map_or(Verdict::Never, Retryable::verdict)
    }
}

impl Retryable for crate::lock::Error {
    /// By what the database said; a lock that is busy is worth another try.
    fn verdict(&self) -> Verdict {
        match (self.database(), self.class()) {
            (Some(source), _) => source.verdict(),
            (None, Some(Class::Busy)) => Verdict::Again,
            (None, _) => Verdict::Never,
        }
    }
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failed<E> {
    /// Nothing happened; another try would end the same.
    #[error("it failed: {0}")]
    Never(E),
    /// Nothing happened; this was the last of the tries.
    #[error("it failed {tries} times, at last: {last}")]
    TooOften {
        /// How many tries there were.
        tries: u32,
        /// How the last ended.
        last: E,
    },
    /// It may have happened. Find out before it is done again.
    #[error("it may have happened: {0}")]
    Unknown(E),
}

impl<E> Failed<E> {
    /// What was said at last.
    pub fn into_inner(self) -> E {
        match self {
            Failed::Never(error) | Failed::TooOften { last: error, .. } => error,
            Failed::Unknown(error) => error,
        }
    }
}

/// How often a transaction is run, and how long between: waits double from the first to the longest, each jittered,
/// so that those who met do not meet again.
#[derive(Clone, Debug)]
pub struct Retry {
    tries: u32,
    first: Duration,
    longest: Duration,
    seed: Option<u64>,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry::new()
    }
}

impl Retry {
    /// Ten tries in all, with waits from 5 ms to 500 ms.
    pub fn new() -> Retry {
        Retry {
            tries: 10,
            first: Duration::from_millis(5),
            longest: Duration::from_millis(500),
            seed: None,
        }
    }

    /// So many tries in all, one at least.
    #[must_use]
    pub fn tries(self, tries: u32) -> Retry {
        Retry { tries: tries.max(1), ..self }
    }

    /// Waits from `first` to `longest`.
    #[must_use]
    pub fn waits(self, first: Duration, longest: Duration) -> Retry {
        Retry { first, longest: longest.max(first), ..self }
    }

    /// Jitter from this seed, for tests; else from the operating system's randomness.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Retry {
        Retry { seed: Some(seed), ..self }
    }

    /// Runs a transaction until it goes well, is worth no other try, or the tries are used up. `sleep` is the
    /// runtime's: `tokio::time::sleep`.
    ///
    /// Cancel safety: dropped, it runs no more; what the closure had under way ends as when that is dropped.
    ///
    /// # Errors
    ///
    /// [`Failed`]; an unclear commit is [`Failed::Unknown`].
    pub async fn run<T, E: Retryable>(
        &self,
        sleep: impl AsyncFn(Duration),
        work: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, Failed<E>> {
        self.drive(sleep, work, async |_: &E| Ok(Asked::Stop)).await
    }

    /// As [`Retry::run`]; after an unclear commit `probe` tells whether it happened: with which answer, or `None`.
    ///
    /// # Errors
    ///
    /// [`Failed`]; [`Failed::Unknown`] if the probe did not find out, in as many tries as are left.
    pub async fn run_probed<T, E: Retryable>(
        &self,
        sleep: impl AsyncFn(Duration),
        work: impl AsyncFnMut() -> Result<T, E>,
        mut probe: impl AsyncFnMut() -> Result<Option<T>, E>,
    ) -> Result<T, Failed<E>> {
        let ask =
            async move |_: &E| probe().await.map(|found| found.map_or(Asked::Not, Asked::Did));
        self.drive(sleep, work, ask).await
    }

    /// As [`Retry::run`], for work that is safe to repeat by itself: an unclear commit is one more reason to run it.
    ///
    /// # Errors
    ///
    /// [`Failed`]; [`Failed::Unknown`] if the last try was unclear.
    pub async fn run_repeatable<T, E: Retryable>(
        &self,
        sleep: impl AsyncFn(Duration),
        work: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, Failed<E>> {
        self.drive(sleep, work, async |_: &E| Ok(Asked::Not)).await
    }

    /// As [`Retry::run_repeatable`] where `repeatable`, else as [`Retry::run`], on this thread: for drivers that
    /// block, such as `rusqlite`.
    ///
    /// # Errors
    ///
    /// As theirs.
    pub fn run_blocking<T, E: Retryable>(
        &self,
        repeatable: bool,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, Failed<E>> {
        let sleep = async |span| std::thread::sleep(span);
        let work = async || work();
        let ask = async |_: &E| Ok(if repeatable { Asked::Not } else { Asked::Stop });
        leasehold_sql::now(self.drive(sleep, work, ask))
    }

    async fn drive<T, E: Retryable>(
        &self,
        sleep: impl AsyncFn(Duration),
        mut work: impl AsyncFnMut() -> Result<T, E>,
        mut ask: impl AsyncFnMut(&E) -> Result<Asked<T>, E>,
    ) -> Result<T, Failed<E>> {
        let mut tries = Tries::new(self);
        loop {
            let error = match work().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match error.verdict() {
                Verdict::Never => return Err(Failed::Never(error)),
                Verdict::Again => match tries.next_wait() {
                    Some(wait) => sleep(wait).await,
                    None => return Err(Failed::TooOften { tries: self.tries, last: error }),
                },
                Verdict::Unknown => {
                    if let Some(answer) = find_out(&mut tries, &sleep, &mut ask, &error).await {
                        return answer.ok_or(Failed::Unknown(error));
                    }
                }
            }
        }
    }
}

/// What is known of a commit whose reply was lost.
enum Asked<T> {
    /// It was done, with this answer.
    Did(T),
    /// It was not, or may be done again.
    Not,
    /// Nobody knows.
    Stop,
}

/// Asks until the answer is known: `None` to run again, else what it ended with, if that is known.
async fn find_out<T, E: Retryable>(
    tries: &mut Tries,
    sleep: &impl AsyncFn(Duration),
    ask: &mut impl AsyncFnMut(&E) -> Result<Asked<T>, E>,
    error: &E,
) -> Option<Option<T>> {
    loop {
        let Some(wait) = tries.next_wait() else { return Some(None) };
        sleep(wait).await;
        match ask(error).await {
            Ok(Asked::Did(answer)) => return Some(Some(answer)),
            Ok(Asked::Not) => return None,
            Ok(Asked::Stop) => return Some(None),
            // The probe has changed nothing: a broken connection is no harm to it.
            Err(failed) if failed.verdict() == Verdict::Never => return Some(None),
            Err(_) => {}
        }
    }
}

/// The tries that are left, and the waits before them.
#[derive(Debug)]
struct Tries {
    left: u32,
    backoff: Backoff,
}

impl Tries {
    fn new(retry: &Retry) -> Tries {
        let seed = retry.seed.unwrap_or_else(random);
        Tries { left: retry.tries - 1, backoff: Backoff::new(retry.first, retry.longest, seed) }
    }

    fn next_wait(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        Some(self.backoff.next_wait())
    }
}

/// Without randomness the jitter is the same for all, and the waits still grow.
fn random() -> u64 {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        return u64::from(std::process::id());
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Told(Verdict);

    impl Retryable for Told {
        fn verdict(&self) -> Verdict {
            self.0
        }
    }

    fn verdicts() -> impl Strategy<Value = Vec<Verdict>> {
        let one = prop_oneof![
            4 => Just(Verdict::Again),
            1 => Just(Verdict::Never),
            2 => Just(Verdict::Unknown)
        ];
        prop::collection::vec(one, 0..20)
    }

    proptest! {
        #[test]
        fn tries_and_waits_are_bounded_and_what_is_unclear_is_not_run_again(
            ends in verdicts(), tries in 1_u32..12, seed in any::<u64>()
        ) {
            let retry = Retry::new().tries(tries).seeded(seed);
            let (ran, waits) = (Cell::new(0_usize), RefCell::new(Vec::new()));
            let sleep = async |span| waits.borrow_mut().push(span);
            let work = async || {
                let at = ran.replace(ran.get() + 1);
                ends.get(at).map_or(Ok(at), |verdict| Err(Told(*verdict)))
            };
            let ended = leasehold_sql::now(retry.run(sleep, work));
            let allowed = ends.iter().take_while(|end| **end == Verdict::Again).count();
            prop_assert_eq!(ran.get(), (allowed + 1).min(tries as usize));
            for (at, wait) in waits.borrow().iter().enumerate() {
                let step = Duration::from_millis(5).saturating_mul(1 << at.min(10));
                prop_assert!(*wait <= step.min(Duration::from_millis(500)));
            }
            match (ended, ends.get(allowed)) {
                (Ok(at), None) => prop_assert_eq!(at, ends.len()),
                (Err(Failed::TooOften { tries: told, .. }), _) => prop_assert_eq!(told, tries),
                (Err(Failed::Never(_)), Some(Verdict::Never)) => {}
                (Err(Failed::Unknown(_)), Some(Verdict::Unknown)) => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn work_with_a_probe_is_done_once_whatever_reply_is_lost(
            // At each try: is it done, is its reply lost. Then whether the probe itself fails first.
            tries in prop::collection::vec((any::<bool>(), any::<bool>()), 0..8),
            probe_fails in prop::collection::vec(any::<bool>(), 8),
        ) {
            let (done, at, asked) = (Cell::new(0_u32), Cell::new(0_usize), Cell::new(0_usize));
            let work = async || {
                let (does, lost) = *tries.get(at.replace(at.get() + 1)).unwrap_or(&(true, false));
                done.set(done.get() + u32::from(does));
                match (does, lost) {
                    (_, true) => Err(Told(Verdict::Unknown)),
                    (true, false) => Ok(()),
                    (false, false) => Err(Told(Verdict::Again)),
                }
            };
            let probe = async || {
                if probe_fails.get(asked.replace(asked.get() + 1)) == Some(&true) {
                    return Err(Told(Verdict::Unknown));
                }
                Ok((done.get() > 0).then_some(()))
            };
            let retry = Retry::new().tries(40).seeded(1);
            let ended = leasehold_sql::now(retry.run_probed(async |_| {}, work, probe));
            prop_assert_eq!((ended, done.get()), (Ok(()), 1));
        }
    }

    #[test]
    fn a_lost_reply_without_a_probe_is_told_and_run_only_where_that_is_safe() {
        let lost = Told(Verdict::Unknown);
        let ran = Cell::new(0);
        let work = || {
            ran.set(ran.get() + 1);
            if ran.get() < 3 { Err(lost) } else { Ok(ran.get()) }
        };
        let retry = Retry::new().waits(Duration::ZERO, Duration::ZERO);
        assert_eq!(retry.run_blocking(false, work), Err(Failed::Unknown(lost)));
        assert_eq!(ran.replace(0), 1);
        assert_eq!(retry.run_blocking(true, work), Ok(3));
        ran.set(0);
        let last = retry.tries(2).run_blocking(true, work);
        assert_eq!(last, Err(Failed::Unknown(lost)), "it may have happened at the last try");
    }

    #[test]
    fn errors_of_the_database_are_told_apart() {
        let of = |class, code: Option<&str>| {
            leasehold_sql::Error::new(class, code.map(str::to_owned), "it said so").verdict()
        };
        for class in [Class::Restart, Class::Deadlock, Class::Busy] {
            assert_eq!(of(class, Some("x")), Verdict::Again);
        }
        assert_eq!(of(Class::Connection, Some("57P01")), Verdict::Unknown);
        assert_eq!(
            of(Class::Other, None),
            Verdict::Unknown,
            "the driver says it, not the database"
        );
        for class in [Class::Other, Class::Aborted, Class::Duplicate, Class::NoTable] {
            assert_eq!(of(class, Some("x")), Verdict::Never);
        }
        assert_eq!(crate::Error::Finished.verdict(), Verdict::Never);
    }
}
