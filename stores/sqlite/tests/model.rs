//! The store answers as the executable specification does.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold_core::model::{Handover, Model, Tick};
use leasehold_core::{
    Admission, Claim, Clock, Drift, Error, Holder, HolderId, Ids, Life, Mode, Moment, Page, Place,
    Renewed, ResourceName, Store, Token, Waiting, belief_end,
};
use leasehold_sqlite::SqliteStore;
use proptest::prelude::*;

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
    let step = prop_oneof![
        6 => (0..3_u8, 0..4_u8, resource.clone(), prop::bool::weighted(0.8), 1..8_u8, prop::bool::weighted(0.2))
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
        3 => (0..3000_u16).prop_map(Step::Pass),
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

struct Pair {
    hands: common::Hands,
    store: SqliteStore,
    model: Model,
    claims: Vec<(Claim, Option<Token>)>,
    ids: Ids,
}

impl Pair {
    fn tick(&self) -> Tick {
        Tick { now: self.hands.clock.now(), floor: self.hands.wall.0.load(Ordering::SeqCst) }
    }

    fn belief(&self, left: Duration) -> Moment {
        belief_end(self.hands.clock.now(), left, Drift::None)
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Enter { mode, holder, resource, queue, term, after_loss } => {
                let place = common::claim("x").place;
                let claim = Claim {
                    id: self.ids.claim(),
                    resource: resource_of(resource),
                    holder: Holder::new(HolderId::from_bits(u128::from(holder)), "h"),
                    mode: mode_of(mode, resource),
                    term: Duration::from_secs(term.into()),
                    life: if mode == 0 { Life::Term } else { Life::Process },
                    place: if queue { place } else { Place::No },
                    after_loss: Duration::from_secs(if after_loss { 3 } else { 0 }),
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
                let ours = block_on(self.store.leave(&named)).map_err(told);
                let theirs = self.model.leave(self.tick(), &named).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Break { resource, now } => {
                let name = resource_of(resource);
                let ours = block_on(self.store.break_(&name, None, now)).map_err(told);
                let theirs = self.model.break_(self.tick(), &name, None, now).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Write(n) => {
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                let (named, keep) = (claim.to_ref(), Duration::from_secs(4));
                let ours = block_on(self.store.write(&named, &[n], keep)).map_err(told);
                let theirs = self.model.write(self.tick(), &named, &[n], keep).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Inspect(resource) => self.inspect(resource)?,
            Step::Clean { dry } => {
                // Whether what ran out and was not touched since counts as used is each store's
                // own affair: touch it.
                for name in [resource_of(0), resource_of(1)] {
                    let none = Token::new(1);
                    let _ = block_on(self.store.break_(&name, none, false));
                    let _ = self.model.break_(self.tick(), &name, none, false);
                }
                let (page, keep) = (Page::default(), Duration::from_secs(9));
                let ours = block_on(self.store.clean(keep, &page, dry)).map_err(told);
                let theirs = Ok(self.model.clean(self.tick(), keep, &page, dry));
                prop_assert_eq!(ours, theirs);
                let ours = block_on(self.store.list(&page)).map_err(told);
                prop_assert_eq!(ours, Ok(self.model.list(&page)));
            }
            Step::Pass(ms) => self.hands.pass(Duration::from_millis(ms.into())),
        }
        Ok(())
    }

    fn pick(&self, n: u8) -> Option<(Claim, Option<Token>)> {
        // Of those that ended long ago the store may know less.
        let recent = self.claims.len().saturating_sub(16);
        let recent = &self.claims[recent..];
        recent.get(usize::from(n) % recent.len().max(1)).cloned()
    }

    fn enter(&mut self, claim: &Claim) -> Result<Option<Token>, TestCaseError> {
        let ours = block_on(self.store.enter(claim)).map_err(told);
        let theirs = self.model.enter(self.tick(), claim).map_err(told);
        let theirs = theirs.map(|a| a.map_until(|left| self.belief(left)));
        let token = match &theirs {
            Ok(Admission::Granted(grant)) => Some(grant.token),
            _ => None,
        };
        prop_assert_eq!(ours.map(comparable), theirs.map(comparable));
        Ok(token)
    }

    fn renew(&mut self, claim: u8, term: u8, named: bool) -> Result<(), TestCaseError> {
        let Some((claim, token)) = self.pick(claim) else { return Ok(()) };
        let mut reference = claim.to_ref();
        reference.term = Duration::from_secs(term.into());
        reference.token = token.filter(|_| named);
        let ours = common::renew(&self.store, &reference);
        let theirs = self.model.renew(self.tick(), &reference);
        let theirs = theirs.map_until(|left| self.belief(left));
        prop_assert_eq!(renewed(ours), renewed(theirs));
        Ok(())
    }

    fn inspect(&mut self, resource: u8) -> Result<(), TestCaseError> {
        let name = resource_of(resource);
        let mut ours = block_on(self.store.inspect(&name)).unwrap();
        let mut theirs = self.model.inspect(self.tick(), &name);
        prop_assert_eq!(
            block_on(self.store.read(&name)).unwrap(),
            self.model.read(self.tick(), &name)
        );
        for queue in [&mut ours, &mut theirs] {
            if queue.entries.is_empty() {
                queue.kind = None; // what has run out may still be counted or not
            }
            for entry in &mut queue.entries {
                if let leasehold_core::QueueState::Waiting { ticket } = &mut entry.state {
                    ticket.0 = 0;
                }
            }
        }
        prop_assert_eq!(ours, theirs);
        Ok(())
    }
}

fn resource_of(number: u8) -> ResourceName {
    common::name(if number == 0 { "permits" } else { "lock" })
}

fn told(error: Error) -> String {
    format!("{:?}", error.kind())
}

/// Tickets are each store's own, and so is the time of the next look.
fn comparable(answer: Admission) -> Admission {
    match answer {
        Admission::Waiting(waiting) => Admission::Waiting(common_waiting(waiting)),
        other => other,
    }
}

fn common_waiting(waiting: Waiting) -> Waiting {
    let ticket = leasehold_core::Ticket(0);
    Waiting { ticket, recheck_in: Duration::ZERO, ..waiting }
}

fn renewed(answer: Renewed) -> String {
    match answer {
        Renewed::Waiting(waiting) => format!("{:?}", common_waiting(waiting)),
        Renewed::Unknown(error) => told(error),
        other => format!("{other:?}"),
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let hands = common::hands();
    let store = SqliteStore::open_on(common::config(&dir), hands.machine.clone()).unwrap();
    let handover = Handover { first_term: Duration::from_secs(2), push_min: Duration::ZERO };
    let model = Model::new(handover);
    let all = format!("{steps:?}");
    let mut pair = Pair { hands, store, model, claims: Vec::new(), ids: Ids::seeded(3) };
    for step in steps {
        let told = format!("{step:?}");
        pair.step(step).map_err(|e| TestCaseError::fail(format!("at {told} of {all}: {e}")))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_answer_is_that_of_the_specification(steps in steps()) {
        run(steps)?;
    }
}
