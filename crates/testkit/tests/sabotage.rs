//! The suite is proven by stores that break a promise: the case that asks for it must fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Cursor, Ended, Hint, Left, Life, Moment,
    Page, Place, Profile, Queue, Record, Renewed, ResourceName, Result, Route, Store, Token,
    Written,
};
use leasehold_testkit::{
    Ability, Harness, Hurt, LocalFuture, MemoryHarness, World, block_on, conformance as suite,
    run_case,
};

/// How a store is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sabotage {
    /// None: the case must pass.
    Nothing,
    /// A leave that finds nothing ends whoever holds.
    LeaveByName,
    /// A leave leaves no tombstone.
    NoTombstone,
    /// Renewals are always told alive.
    AlwaysAlive,
    /// Renewals do not reach the store, and are told gone.
    RenewalDropped,
    /// A try queues.
    TryQueues,
    /// Every claim is told that it holds until a day later.
    LongBelief,
    /// Each new client counts tokens for itself.
    TokensFromOne,
    /// Words are never told.
    Deaf,
    /// `changed` returns when it likes.
    Sleeps,
    /// Breaking does nothing.
    BreaksNothing,
    /// A dry clean cleans.
    NeverDry,
    /// Names are listed the wrong way round.
    ListedBackwards,
    /// Records are written without a grant.
    WritesAnyway,
    /// Any term is taken.
    AnyTerm,
    /// All names that differ in their last byte are one.
    NamesCut,
    /// Nobody is held back after a loss.
    Careless,
    /// The death of a process is not seen.
    BlindToDeath,
}

use Sabotage as S;

#[derive(Debug)]
struct Saboteur {
    store: Arc<dyn Store>,
    how: Sabotage,
}

impl Saboteur {
    fn is(&self, how: Sabotage) -> bool {
        self.how == how
    }

    fn cut(&self, name: &ResourceName) -> ResourceName {
        let text = name.as_str();
        match text.char_indices().last() {
            Some((end, _)) if self.is(S::NamesCut) => {
                ResourceName::new(&text[..end]).expect("cases choose longer names")
            }
            _ => name.clone(),
        }
    }
}

/// A name on which nothing ever changes.
fn nowhere() -> ResourceName {
    ResourceName::new("nowhere").expect("it is a name")
}

#[async_trait]
impl Store for Saboteur {
    fn profile(&self) -> &Profile {
        self.store.profile()
    }

    fn route(&self, resource: &ResourceName) -> Route {
        self.store.route(resource)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let mut claim = claim.clone();
        claim.resource = self.cut(&claim.resource);
        let (low, high) = self.profile().term_bounds;
        match self.how {
            S::TryQueues => claim.place = Place::Term(Duration::from_secs(60)),
            S::AnyTerm => claim.term = claim.term.clamp(low, high),
            S::Careless => claim.after_loss = Duration::ZERO,
            S::BlindToDeath => claim.life = Life::Term,
            _ => {}
        }
        let mut answer = self.store.enter(&claim).await?;
        if let Admission::Granted(grant) = &mut answer {
            match self.how {
                S::LongBelief => grant.until = grant.until + Duration::from_secs(86_400),
                S::TokensFromOne => grant.token = Token::new(1).expect("1 is a token"),
                _ => {}
            }
        }
        Ok(match answer {
            Admission::Waiting(_) if self.is(S::TryQueues) => Admission::Busy(Default::default()),
            other => other,
        })
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let now = Moment::from_nanos(1 << 50);
        match self.how {
            S::AlwaysAlive => claims.iter().map(|_| Renewed::Alive { until: now }).collect(),
            S::RenewalDropped => claims.iter().map(|_| Renewed::Gone(Ended::Expired)).collect(),
            _ => self.store.renew(claims).await,
        }
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let mut claim = claim.clone();
        claim.enter_unanswered &= !self.is(S::NoTombstone);
        let left = self.store.leave(&claim).await?;
        if self.is(S::LeaveByName) && matches!(left, Left::Gone(_)) {
            let queue = self.store.inspect(&claim.resource).await?;
            if let Some(holder) = queue.holders().next() {
                claim.id = holder.claim;
                self.store.leave(&claim).await?;
            }
        }
        Ok(left)
    }

    async fn changed(
        &self,
        name: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let days = Duration::from_secs(864_000);
        match self.how {
            S::Deaf => self.store.changed(&nowhere(), claim, since, at_most).await,
            S::Sleeps => self.store.changed(&nowhere(), claim, since, days).await,
            _ => self.store.changed(name, claim, since, at_most).await,
        }
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        self.store.inspect(&self.cut(resource)).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        let mut names = self.store.list(page).await?;
        if self.is(S::ListedBackwards) {
            names.reverse();
        }
        Ok(names)
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let written = self.store.write(claim, value, keep).await?;
        Ok(if self.is(S::WritesAnyway) { Written::Stored } else { written })
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        self.store.read(resource).await
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        if self.is(S::BreaksNothing) {
            return Ok(Broken::Nothing { held: Vec::new() });
        }
        self.store.break_(resource, expect, now).await
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        self.store.clean(keep, page, dry && !self.is(S::NeverDry)).await
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.store.disturbed(since).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

/// A world whose every client is sabotaged.
struct Sabotaged(MemoryHarness, Sabotage);

impl Harness for Sabotaged {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(Saboteur { store: self.0.open(), how: self.1 })
    }

    fn now(&self) -> Moment {
        self.0.now()
    }

    fn pass(&self, span: Duration) {
        self.0.pass(span);
    }

    fn run(&self, case: LocalFuture<'_>) {
        block_on(case);
    }

    fn hurt(&self, hurt: Hurt<'_>) -> Ability {
        self.0.hurt(hurt)
    }
}

type Case = for<'w> fn(&'w World) -> LocalFuture<'w>;

fn passes(how: Sabotage, case: Case) -> bool {
    catch_unwind(AssertUnwindSafe(|| run_case(Sabotaged(MemoryHarness::new(), how), case))).is_ok()
}

macro_rules! caught {
    ($($test:ident: $how:ident by $($group:ident::$case:ident),+;)*) => {
        $(
            #[test]
            fn $test() {
                $(
                    let case: Case = |w| Box::pin(suite::$group::$case(w));
                    let name = stringify!($group::$case);
                    assert!(passes(S::Nothing, case), "{name} fails on a good store");
                    assert!(!passes(S::$how, case), "{name} passes {:?}", S::$how);
                )+
            }
        )*
    };
}

caught! {
    leave_by_name: LeaveByName by leave::a_repeated_leave_touches_no_newer_grant,
        leave::a_late_leave_touches_no_newer_grant, reentry::a_late_leave_frees_no_newer_count;
    no_tombstone: NoTombstone by leave::an_enter_after_its_leave_makes_no_ghost,
        leave::an_enter_is_barred_for_a_term_from_its_leave;
    always_alive: AlwaysAlive by renew::it_never_creates, renew::it_never_revives,
        renew::a_late_renewal_after_a_leave_is_gone, renew::it_names_the_grant,
        renew::each_is_answered_alone_and_in_order,
        breaking::a_marked_holder_is_told_and_keeps_others_out, hurts::an_evicted_holder_is_told;
    renewal_dropped: RenewalDropped by renew::it_lasts_its_new_term_from_now,
        renew::it_never_shortens, renew::a_waiter_keeps_its_place, renew::it_may_change_the_life,
        hurts::cut_connections_lose_nothing, hurts::a_silent_server_loses_nothing;
    try_queues: TryQueues by enter::without_a_place_it_is_busy_and_leaves_nothing;
    long_belief: LongBelief by enter::a_free_resource_is_granted,
        terms::belief_ends_before_another_gets_in;
    tokens_from_one: TokensFromOne by tokens::they_rise_over_every_end, clean::tokens_rise_over_it,
        tokens::a_counter_under_the_lock_is_exact, shared::readers_hold_together,
        terms::a_grant_ends_by_itself, reentry::the_last_claim_frees;
    deaf: Deaf by queue::a_hand_over_is_told_to_who_asks_later, queue::a_hand_over_wakes_who_waits;
    sleeps: Sleeps by queue::a_watch_ends_in_time;
    breaks_nothing: BreaksNothing by breaking::now_means_at_once,
        breaking::a_marked_holder_writes_nothing, breaking::a_marked_grant_is_not_reentered;
    never_dry: NeverDry by clean::a_dry_run_changes_nothing;
    listed_backwards: ListedBackwards by list::names_are_listed_in_order,
        list::pages_follow_each_other, names::each_is_one_of_its_own;
    writes_anyway: WritesAnyway by records::nothing_is_written_without_a_grant;
    any_term: AnyTerm by terms::out_of_bounds_is_refused;
    names_cut: NamesCut by names::the_longest_works;
    careless: Careless by after_loss::a_careful_claim_is_held_back, after_loss::nobody_passes_it;
    blind_to_death: BlindToDeath by hurts::a_dead_holder_frees;
}
