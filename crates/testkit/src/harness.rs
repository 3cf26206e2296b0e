//! What a store's author implements so that the suite can reach a store, let time pass at it, and
//! hurt it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Moment, Profile, ResourceName, Store};

/// A future that stays on its thread.
pub type LocalFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One world: a store with fresh data, which the suite may open, wait at, and hurt.
///
/// Every case makes a harness of its own by the expression given to
/// [`conformance!`](crate::conformance!), so cases run side by side. A real server may be shared by
/// all of them; then each harness takes a part of it for itself (a directory, a database, a
/// namespace). What a harness made is gone when it is dropped.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use leasehold_core::{Moment, Store};
/// use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, MemoryHarness, block_on};
///
/// /// A harness over another one; a store's own would hold its directory or server here.
/// struct Mine(MemoryHarness);
///
/// impl Harness for Mine {
///     fn open(&self) -> Arc<dyn Store> {
///         self.0.open()
///     }
///     fn now(&self) -> Moment {
///         self.0.now()
///     }
///     fn pass(&self, span: Duration) {
///         self.0.pass(span); // over a real server: std::thread::sleep(span)
///     }
///     fn run(&self, case: LocalFuture<'_>) {
///         block_on(case); // or the block_on of the runtime that the store needs
///     }
///     fn hurt(&self, hurt: Hurt<'_>) -> Ability {
///         match hurt {
///             Hurt::Sever | Hurt::Pause | Hurt::Resume => Ability::Absent("no connections"),
///             Hurt::Kill(_) | Hurt::Evict(_) => self.0.hurt(hurt),
///         }
///     }
/// }
/// # leasehold_testkit::run_case(Mine(MemoryHarness::new()), |w| {
/// #     Box::pin(leasehold_testkit::conformance::enter::a_free_resource_is_granted(w))
/// # });
/// ```
pub trait Harness: Send + Sync + 'static {
    /// Opens a new client of this world's store. Several are open at once and see the same data;
    /// each counts as a process of its own.
    fn open(&self) -> Arc<dyn Store>;

    /// Reads the local clock that the store's profile names, on which it tells `until`.
    fn now(&self) -> Moment;

    /// Lets this much time pass on the clock that judges terms and on the local one: a real sleep
    /// of this thread, or a step of a clock set by hand.
    fn pass(&self, span: Duration);

    /// Runs a future to its end, where the store's futures can run. Called from several threads at
    /// once. Futures call [`Harness::pass`], so a runtime with one thread is not enough if the
    /// store needs it to run meanwhile.
    fn run(&self, case: LocalFuture<'_>);

    /// Hurts the store or a client of it, or says why that cannot be done here.
    fn hurt(&self, hurt: Hurt<'_>) -> Ability;
}

/// How a store is hurt.
#[derive(Clone, Copy, Debug)]
pub enum Hurt<'a> {
    /// The process of this client dies: what its kernel or its session held for it is let go, and
    /// it says no more. The suite does not use the client afterwards.
    Kill(&'a Arc<dyn Store>),
    /// All connections of all clients are cut now; new ones may be made.
    Sever,
    /// The server stops answering, its connections stay.
    Pause,
    /// The server answers again.
    Resume,
    /// The store loses all it knows of this resource, counter included, as by eviction, by a
    /// restore, or by an operator's hand.
    Evict(&'a ResourceName),
}

/// Whether a hurt was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ability {
    /// It was done, in full, before the call returned.
    Done,
    /// It cannot be done at this store, for this reason. The suite compares that with the profile:
    /// what a profile promises has to be shown.
    Absent(&'static str),
}

impl Ability {
    /// Whether it was done; an absent ability that the profile does not excuse fails the case.
    ///
    /// # Panics
    ///
    /// If the ability is absent and the profile promises what only it can show.
    pub fn done(self, hurt: Hurt<'_>, profile: &Profile) -> bool {
        let Ability::Absent(reason) = self else { return true };
        let (excused, promise) = match hurt {
            Hurt::Kill(_) => (!profile.sees_death, "it sees the death of a holder"),
            Hurt::Evict(_) => (profile.token_hazards.is_empty(), "its tokens might not rise"),
            Hurt::Sever | Hurt::Pause | Hurt::Resume => {
                (!profile.remote, "it is reached over connections that may break")
            }
        };
        assert!(
            excused && !reason.is_empty(),
            "the profile of {} says that {promise}, but the harness cannot show it ({reason:?})",
            profile.name,
        );
        false
    }
}
