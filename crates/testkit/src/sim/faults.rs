//! What can go wrong in the simulation, and how often it did.

use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Something that goes wrong.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// A few words for tables.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Fault::$name => $word,)*
                }
            }
        }
    };
}

faults! {
    /// A request never arrives.
    RequestLost = "request lost",
    /// A reply never arrives.
    ReplyLost = "reply lost",
    /// A request arrives twice.
    RequestTwice = "request twice",
    /// A reply arrives twice.
    ReplyTwice = "reply twice",
    /// A message is long under way.
    Delayed = "message delayed",
    /// A message arrives before one that was sent earlier.
    Reordered = "message reordered",
    /// A pushed word never arrives.
    PushLost = "push lost",
    /// A pushed word arrives late.
    PushLate = "push late",
    /// A pushed word arrives twice.
    PushTwice = "push twice",
    /// A client stands still; its clock runs.
    ClientPaused = "client paused",
    /// A client stands still with its clock.
    ClientFrozen = "client frozen",
    /// A client dies.
    ClientCrashed = "client crashed",
    /// A client's clock gains or loses.
    ClockDrift = "clock drift",
    /// A client's clock steps ahead.
    ClientStepped = "client clock stepped",
    /// The judging clock steps ahead.
    ServerAhead = "server clock ahead",
    /// The judging clock steps back.
    ServerBack = "server clock back",
    /// The wall clock from which tokens are floored steps.
    WallStepped = "wall clock stepped",
    /// The server answers nothing for a while.
    ServerPaused = "server paused",
    /// The server starts anew; what it was working on is lost.
    ServerRestarted = "server restarted",
    /// A client's connections are cut and made again.
    Cut = "connection cut",
    /// Nothing passes between a client and the server for a while.
    Parted = "partition",
    /// A request waits for a row that somebody holds.
    LockWait = "row lock wait",
    /// An operator marks a grant.
    Broken = "marked as broken",
    /// An operator ends a grant at once.
    BrokenNow = "broken at once",
    /// Names are cleaned.
    Cleaned = "names cleaned",
    /// An acquisition is cancelled.
    Cancelled = "acquire cancelled",
    /// A write leaves a client that paused after its last look at the lease.
    LateWrite = "late write",
}

/// How often each fault has fired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fired([u64; Fault::ALL.len()]);

impl Default for Fired {
    fn default() -> Fired {
        Fired([0; Fault::ALL.len()])
    }
}

impl Fired {
    /// Counts one.
    pub fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// How often.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds what fired in another run.
    pub fn add(&mut self, other: &Fired) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// The faults that never fired.
    pub fn never(&self) -> Vec<Fault> {
        Fault::ALL.iter().copied().filter(|f| self.of(*f) == 0).collect()
    }
}

impl fmt::Display for Fired {
    /// One line a fault.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in Fault::ALL {
            writeln!(f, "  {:<22} {:>10}", fault.words(), self.of(*fault))?;
        }
        Ok(())
    }
}
