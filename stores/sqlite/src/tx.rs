//! What one transaction has at hand.

use leasehold_core::{Moment, Ticket, Token};
use rusqlite::Connection;

use crate::entry::Entry;
use crate::error::{Fail, Step};
use crate::hub::{Expected, Hub};
use crate::live::{Alive, Home, Liveness};
use crate::message::Word;

/// How far tokens may go.
///
/// Numbers below `end` are reserved on the disk with a full sync; no token of this boot is below
/// `floor`, where the reservation of the boot before ended. Both only ever rise, so that this
/// process may remember them between transactions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens {
    pub(crate) end: u64,
    pub(crate) floor: u64,
}

/// A wall clock beyond this (the year 2223) is not believed.
pub(crate) const WALL_MAX_US: u64 = 8_000_000_000_000_000;

/// One transaction: all its decisions are at one moment, read after the write lock was got.
pub(crate) struct Tx<'t> {
    pub(crate) db: &'t Connection,
    pub(crate) live: &'t Liveness,
    pub(crate) hub: &'t Hub,
    pub(crate) tokens: &'t mut Tokens,
    /// On the clock that all processes share.
    pub(crate) now: Moment,
    pub(crate) wall_us: u64,
    /// What is told to others once this has been committed.
    pub(crate) words: Vec<Word>,
    /// Whose processes were found dead.
    pub(crate) dead: Vec<Home>,
    /// What each process asked about is.
    pub(crate) probed: Vec<(Home, Alive)>,
}

impl Tx<'_> {
    /// Whether a process lives.
    pub(crate) fn probe(&mut self, home: &Home) -> Alive {
        if *home == self.live.home() {
            return Alive::Yes;
        }
        if let Some((_, alive)) = self.probed.iter().find(|(known, _)| known == home) {
            return *alive;
        }
        let alive = self.live.probe(home);
        if self.probed.len() < 128 {
            self.probed.push((*home, alive));
        }
        alive
    }

    /// A new token above `last`, at or above `floor`, and reserved.
    pub(crate) fn mint(&mut self, last: Option<Token>, floor: u64) -> Step<Token> {
        let wall = if self.wall_us < WALL_MAX_US { self.wall_us } else { 0 };
        let floor = wall.max(floor).max(self.tokens.floor);
        let token = Token::next(last, floor).ok_or_else(|| {
            leasehold_core::Error::new(
                leasehold_core::ErrorKind::Unavailable,
                crate::error::DOING,
                "the numbers for tokens are used up",
            )
        })?;
        if token.get() >= self.tokens.end {
            // Another process may have reserved more in the meantime.
            let mut end = self.db.prepare_cached("SELECT token_end FROM meta")?;
            let end: i64 = end.query_row([], |row| row.get(0))?;
            self.tokens.end = self.tokens.end.max(u64::try_from(end).unwrap_or(0));
        }
        if token.get() >= self.tokens.end {
            return Err(Fail::Reserve(token.get()));
        }
        Ok(token)
    }

    /// Above every token of the names that were cleaned.
    pub(crate) fn cleaned_floor(&self) -> Step<u64> {
        let mut floor = self.db.prepare_cached("SELECT token_floor FROM meta")?;
        let floor: i64 = floor.query_row([], |row| row.get(0))?;
        Ok(u64::try_from(floor).unwrap_or(0))
    }

    /// Gets ready to be told of a claim of this process that waits, behind this neighbour.
    pub(crate) fn expect(
        &mut self,
        entry: &Entry,
        ticket: Ticket,
        resource: &leasehold_core::ResourceName,
        neighbour: Option<&Entry>,
    ) -> Step<()> {
        let watch = neighbour.filter(|n| {
            let waits = n.held.is_none();
            (waits || n.life == leasehold_core::Life::Process) && n.home != self.live.home()
        });
        // One of whom nothing can be found out ends by its term, when the claim looks by itself.
        let watch = watch.filter(|n| self.probe(&n.home) == Alive::Yes).map(|n| (n.home, n.term));
        let expected = Expected { claim: entry.id, ticket, resource, watch };
        self.hub.expect(expected)?;
        Ok(())
    }
}
