//! The store answers as the executable specification does.
//!
//! The server's clock is not set by hand: each answer carries its time, and the model is asked for
//! that very moment.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use leasehold_core::model::{Handover, Model, Tick};
use leasehold_core::{
    Admission, Claim, ClaimId, Clock, Cursor, Drift, Error, Hint, Holder, HolderId, Ids, Left,
    Life, Mode, Moment, Page, Place, QueueState, Renewed, ResourceName, Store, Token, Waiting,
    belief_end,
};
use leasehold_net::BootClock;
use leasehold_redis::{Layout, RedisStore};
use leasehold_testkit::block_on;
use proptest::prelude::*;

const FIRST_TERM: Duration = Duration::from_millis(120);
const UNIT: Duration = Duration::from_millis(60);

/// One random request.
#[derive(Debug, Clone)]
enum Step {
    Enter { mode: u8, holder: u8, resource: u8, queue: bool, term: u8, after_loss: bool },
    Again(u8),
    Renew { claim: u8, term: u8, named: bool },
    Leave { claim: u8, unanswered: bool },
    Break { resource: u8, now: bool },
    Write(u8),
    Inspect(u8),
    Clean { dry: bool },
    Pass(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resource = 0..2_u8;
    let queue = prop::bool::weighted(0.8);
    let after_loss = prop::bool::weighted(0.2);
    let step = prop_oneof![
        6 => (0..3_u8, 0..4_u8, resource.clone(), queue, 1..8_u8, after_loss)
            .prop_map(|(mode, holder, resource, queue, term, after_loss)| {
                Step::Enter { mode, holder, resource, queue, term, after_loss }
            }),
        1 => any::<u8>().prop_map(Step::Again),
        4 => (any::<u8>(), 1..8_u8, any::<bool>())
            .prop_map(|(claim, term, named)| Step::Renew { claim, term, named }),
        4 => (any::<u8>(), prop::bool::weighted(0.1))
            .prop_map(|(claim, unanswered)| Step::Leave { claim, unanswered }),
        1 => (resource.clone(), any::<bool>())
            .prop_map(|(resource, now)| Step::Break { resource, now }),
        1 => any::<u8>().prop_map(Step::Write),
        2 => resource.prop_map(Step::Inspect),
        1 => any::<bool>().prop_map(|dry| Step::Clean { dry }),
        2 => (0..180_u16).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..70)
}

fn mode_of(number: u8, resource: u8) -> Mode {
    match (resource, number) {
        (0, n) => Mode::Permits { count: u32::from(n % 2) + 1, limit: 3 },
        (_, 0) => Mode::Shared,
        (_, _) => Mode::Exclusive,
    }
}

struct Pair<'s> {
    store: &'s RedisStore,
    model: Model,
    claims: Vec<(Claim, Option<Token>)>,
    /// Those that were released, and for each name the last that was after it held.
    released: HashSet<ClaimId>,
    last_released: HashMap<ResourceName, ClaimId>,
    ids: Ids,
    prefix: String,
}

impl Pair<'_> {
    /// The moment at which the store has just decided.
    fn tick(&self) -> Tick {
        let us = self.store.server_us();
        Tick { now: Moment::from_nanos(us * 1000), floor: us }
    }

    fn name(&self, number: u8) -> ResourceName {
        let kind = if number == 0 { "permits" } else { "lock" };
        common::name(&format!("{}{kind}", self.prefix))
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Enter { mode, holder, resource, queue, term, after_loss } => {
                let place = if queue { Place::Term(Duration::from_secs(60)) } else { Place::No };
                let claim = Claim {
                    id: self.ids.claim(),
                    resource: self.name(resource),
                    holder: Holder::new(HolderId::from_bits(u128::from(holder)), "h"),
                    mode: mode_of(mode, resource),
                    term: UNIT * u32::from(term),
                    life: if mode == 0 { Life::Term } else { Life::Process },
                    place,
                    after_loss: if after_loss { UNIT * 3 } else { Duration::ZERO },
                };
                let token = self.enter(&claim)?;
                self.claims.push((claim, token));
            }
            Step::Again(n) => {
                let Some(claim) = self.pick(n).map(|(claim, _)| claim) else { return Ok(()) };
                self.enter(&claim)?;
            }
            Step::Renew { claim, term, named } => self.renew(claim, term, named)?,
            Step::Leave { claim, unanswered } => {
                let Some((claim, _)) = self.pick(claim) else { return Ok(()) };
                let mut named = claim.to_ref();
                named.enter_unanswered = unanswered;
                let resource = self.model.resources.get(&claim.resource);
                let held = resource.is_some_and(|resource| resource.held(claim.id).is_some());
                let ours = block_on(self.store.leave(&named)).map_err(told);
                if ours == Ok(Left::Released) && !unanswered {
                    self.released.insert(claim.id);
                    if held {
                        self.last_released.insert(claim.resource.clone(), claim.id);
                    }
                }
                let theirs = self.model.leave(self.tick(), &named).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Break { resource, now } => {
                let name = self.name(resource);
                let ours = block_on(self.store.break_(&name, None, now)).map_err(told);
                let theirs = self.model.break_(self.tick(), &name, None, now).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Write(n) => {
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                let (named, keep) = (claim.to_ref(), UNIT * 4);
                let ours = block_on(self.store.write(&named, &[n], keep)).map_err(told);
                let theirs = self.model.write(self.tick(), &named, &[n], keep).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Inspect(resource) => self.inspect(resource)?,
            Step::Clean { dry } => self.clean(dry)?,
            Step::Pass(ms) => std::thread::sleep(Duration::from_millis(ms.into())),
        }
        self.hints()
    }

    fn pick(&self, n: u8) -> Option<(Claim, Option<Token>)> {
        // Of those that were released the store may know the last only, and of those that ended
        // long ago less.
        let known = self.claims.iter().rev().take(16).filter(|(claim, _)| {
            !self.released.contains(&claim.id)
                || self.last_released.get(&claim.resource) == Some(&claim.id)
        });
        let known: Vec<_> = known.collect();
        known.get(usize::from(n) % known.len().max(1)).map(|&known| known.clone())
    }

    /// Whoever was granted by this step hears of it.
    fn hints(&mut self) -> Result<(), TestCaseError> {
        for (name, claim, hint) in std::mem::take(&mut self.model.hints) {
            let Hint::Granted(theirs) = hint else { continue };
            let patience = Duration::from_secs(20);
            let heard = self.store.changed(&name, Some(claim), Cursor(u64::MAX), patience);
            let Hint::Granted(ours) = block_on(heard).unwrap() else {
                return Err(TestCaseError::fail(format!("{claim} did not hear of its grant")));
            };
            prop_assert_eq!(ours.grant, theirs.grant);
        }
        Ok(())
    }

    fn enter(&mut self, claim: &Claim) -> Result<Option<Token>, TestCaseError> {
        let before = BootClock.now();
        let ours = block_on(self.store.enter(claim)).map_err(told);
        let after = BootClock.now();
        let theirs = self.model.enter(self.tick(), claim).map_err(told);
        let token = match (&ours, &theirs) {
            (Ok(Admission::Granted(ours)), Ok(Admission::Granted(theirs))) => {
                believed(before, after, theirs.until, ours.until)?;
                Some(theirs.token)
            }
            _ => None,
        };
        let ours = ours.map(|a| comparable(a.map_until(|_| ())));
        let theirs = theirs.map(|a| comparable(a.map_until(|_| ())));
        prop_assert_eq!(ours, theirs);
        Ok(token)
    }

    fn renew(&mut self, claim: u8, term: u8, named: bool) -> Result<(), TestCaseError> {
        let Some((claim, token)) = self.pick(claim) else { return Ok(()) };
        let mut reference = claim.to_ref();
        reference.term = UNIT * u32::from(term);
        reference.token = token.filter(|_| named);
        let before = BootClock.now();
        let ours = common::renew(self.store, &reference);
        let after = BootClock.now();
        let theirs = self.model.renew(self.tick(), &reference);
        match (&ours, &theirs) {
            (Renewed::Alive { until: ours }, Renewed::Alive { until: theirs }) => {
                believed(before, after, *theirs, *ours)?;
            }
            (Renewed::Granted(ours), Renewed::Granted(theirs)) => {
                believed(before, after, theirs.until, ours.until)?;
            }
            _ => {}
        }
        prop_assert_eq!(renewed(ours.map_until(|_| ())), renewed(theirs.map_until(|_| ())));
        Ok(())
    }

    fn inspect(&mut self, resource: u8) -> Result<(), TestCaseError> {
        let name = self.name(resource);
        let ours = block_on(self.store.read(&name)).unwrap();
        prop_assert_eq!(ours, self.model.read(self.tick(), &name));
        let mut ours = block_on(self.store.inspect(&name)).unwrap();
        let mut theirs = self.model.inspect(self.tick(), &name);
        for queue in [&mut ours, &mut theirs] {
            if queue.entries.is_empty() {
                queue.kind = None; // what has run out may still be counted or not
            }
            for entry in &mut queue.entries {
                if let QueueState::Waiting { ticket } = &mut entry.state {
                    ticket.0 = 0;
                }
            }
        }
        prop_assert_eq!(ours, theirs);
        Ok(())
    }

    fn clean(&mut self, dry: bool) -> Result<(), TestCaseError> {
        let page = Page { prefix: self.prefix.clone(), ..Page::default() };
        // Whether a name that is about to be idle, or to run out, is so at the one's moment or the
        // other's is not the question.
        for number in [0, 1] {
            let name = self.name(number);
            let none = Token::new(1);
            let _ = block_on(self.store.break_(&name, none, false));
            let _ = self.model.break_(self.tick(), &name, none, false);
        }
        let keep = UNIT * 9;
        let ours = block_on(self.store.clean(keep, &page, dry)).map_err(told);
        let theirs = Ok(self.model.clean(self.tick(), keep, &page, dry));
        prop_assert_eq!(ours, theirs);
        let ours = block_on(self.store.list(&page)).map_err(told);
        prop_assert_eq!(ours, Ok(self.model.list(&page)));
        Ok(())
    }
}

/// Belief is counted from before the request was sent, by what the server left.
fn believed(
    before: Moment,
    after: Moment,
    left: Duration,
    until: Moment,
) -> Result<(), TestCaseError> {
    let end = |sent| belief_end(sent, left, Drift::Tenth);
    prop_assert!(end(before) <= until && until <= end(after), "{:?} of {:?}", until, left);
    Ok(())
}

fn told(error: Error) -> String {
    format!("{:?}", error.kind())
}

/// Tickets are each store's own, and so is the time of the next look.
fn comparable(answer: Admission<()>) -> Admission<()> {
    match answer {
        Admission::Waiting(waiting) => Admission::Waiting(common_waiting(waiting)),
        other => other,
    }
}

fn common_waiting(waiting: Waiting) -> Waiting {
    let ticket = leasehold_core::Ticket(0);
    Waiting { ticket, recheck_in: Duration::ZERO, ..waiting }
}

fn renewed(answer: Renewed<()>) -> String {
    match answer {
        Renewed::Waiting(waiting) => format!("{:?}", common_waiting(waiting)),
        Renewed::Unknown(error) => told(error),
        other => format!("{other:?}"),
    }
}

/// A store that listens for the word of its waiters all the while.
fn store(layout: Layout) -> RedisStore {
    let mut config = common::config(common::shared().port(), layout);
    config.first_term = FIRST_TERM;
    config.push_min = Duration::ZERO;
    let store = block_on(RedisStore::connect(config)).unwrap();
    let elsewhere = common::fresh("elsewhere");
    let place = Place::Term(Duration::from_secs(3600));
    let term = Duration::from_secs(3600);
    common::granted(&store, &Claim { term, ..common::claim(&elsewhere) });
    common::waiting(&store, &Claim { place, ..common::claim(&elsewhere) });
    store
}

fn run(store: &RedisStore, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let handover = Handover { first_term: FIRST_TERM, push_min: Duration::ZERO };
    let all = format!("{steps:?}");
    let mut pair = Pair {
        store,
        model: Model::new(handover),
        claims: Vec::new(),
        released: HashSet::new(),
        last_released: HashMap::new(),
        ids: Ids::seeded(common::random()),
        prefix: format!("case-{:032x}-", common::random()),
    };
    for step in steps {
        let told = format!("{step:?}");
        pair.step(step).map_err(|e| TestCaseError::fail(format!("at {told} of {all}: {e}")))?;
    }
    for (claim, _) in pair.claims {
        forget(store, claim.id, &claim);
    }
    Ok(())
}

fn forget(store: &RedisStore, id: ClaimId, claim: &Claim) {
    assert_eq!(id, claim.id);
    let _ = block_on(store.leave(&claim.to_ref()));
}

fn compare(layout: Layout) {
    let store = store(layout);
    let config = ProptestConfig {
        cases: 150,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    if let Err(failure) = runner.run(&steps(), |steps| run(&store, steps)) {
        panic!("{failure}");
    }
}

#[test]
fn every_answer_is_that_of_the_specification() {
    compare(Layout::Redisson);
}

#[test]
fn every_answer_in_the_plain_layout_is_that_of_the_specification() {
    compare(Layout::Plain);
}
