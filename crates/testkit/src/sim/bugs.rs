//! Bugs that are planted to see them caught: in the server, in the clients' driver, or in the fence
//! of the simulation, never in core.

use std::fmt;
use std::str::FromStr;

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// A bug to plant.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $($(#[$doc])* $name,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name,)*];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Bug::$name => $word,)*
                }
            }
        }
    };
}

bugs! {
    /// A leave ends whoever holds the name.
    ReleaseByName = "release-by-name",
    /// Belief is counted from the arrival of the reply instead of the sending of the request.
    ValidityFromReply = "validity-from-reply",
    /// A pushed grant is believed from its arrival on.
    PushFromArrival = "push-from-arrival",
    /// Leaves leave no tombstone, so that an enter that arrives after its leave stands.
    EnterAfterLeave = "enter-after-leave",
    /// The token counter starts over when the server does.
    TokenRestarts = "token-restarts",
    /// A renewal revives what has run out, if nobody has claimed since.
    DeadRevived = "dead-revived",
    /// A reconnect wakes no waiter.
    NoWakeAfterReconnect = "no-wake-after-reconnect",
    /// A token is drawn before the wait for the row lock.
    TokenBeforeLock = "token-before-lock",
    /// A re-entry sets the end of the whole grant to that of the inner term.
    ReentryShortens = "reentry-shortens",
    /// The fence keeps one mark for readers and writers.
    SingleMark = "single-mark",
    /// The fence looks at writes only, so that the mark rises too late.
    MarkAtFirstWrite = "mark-at-first-write",
    /// A heartbeat of a place that is gone makes it again.
    HeartbeatRecreates = "heartbeat-recreates",
    /// A process whose connections were cut is taken for dead.
    BuriesTheLiving = "buries-the-living",
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Bug, String> {
        let bug = Bug::ALL.iter().copied().find(|b| b.name() == name);
        bug.ok_or_else(|| {
            let names: Vec<&str> = Bug::ALL.iter().map(|b| b.name()).collect();
            format!("no bug is called {name:?}: want one of {}", names.join(", "))
        })
    }
}
