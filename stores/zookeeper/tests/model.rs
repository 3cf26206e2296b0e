//! The store answers as the executable specification does, as far as time does not decide.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{config, connect, now, root, server};
use leasehold_core::model::{Handover, Model, Tick};
use leasehold_core::{
    Admission, Claim, Error, Grant, Holder, HolderId, Left, Mode, Place, Queue, QueueState,
    Renewed, ResourceName, Store, Token,
};
use leasehold_testkit::block_on;
use leasehold_testkit::server::wait_until;
use leasehold_testkit::server::zookeeper::Release;
use leasehold_zookeeper::ZookeeperStore;
use proptest::prelude::*;

/// Longer than a case takes.
const TERM: Duration = Duration::from_secs(60);

/// One random request.
#[derive(Debug, Clone)]
enum Step {
    Enter { mode: u8, holder: u8, resource: u8, queue: bool },
    Again(u8),
    Renew { claim: u8, named: bool },
    Leave { claim: u8, unanswered: bool },
    Break { resource: u8, now: bool },
    Write(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resource = 0..2_u8;
    let step = prop_oneof![
        6 => (0..3_u8, 0..3_u8, resource.clone(), prop::bool::weighted(0.8)).prop_map(
            |(mode, holder, resource, queue)| Step::Enter { mode, holder, resource, queue }
        ),
        2 => any::<u8>().prop_map(Step::Again),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(claim, named)| Step::Renew { claim, named }),
        5 => (any::<u8>(), prop::bool::weighted(0.1))
            .prop_map(|(claim, unanswered)| Step::Leave { claim, unanswered }),
        1 => (resource, any::<bool>()).prop_map(|(resource, now)| Step::Break { resource, now }),
        1 => any::<u8>().prop_map(Step::Write),
    ];
    prop::collection::vec(step, 1..40)
}

struct Pair {
    store: ZookeeperStore,
    model: Model,
    claims: Vec<(Claim, bool)>,
    /// Our tokens by theirs, of each resource.
    tokens: BTreeMap<(ResourceName, Token), Token>,
}

fn tick() -> Tick {
    Tick { now: now(), floor: 0 }
}

fn resource_of(number: u8) -> ResourceName {
    ResourceName::new(if number == 0 { "permits" } else { "lock" }).unwrap()
}

impl Pair {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Enter { mode, holder, resource, queue } => {
                self.enter_new(mode, holder, resource, queue)?
            }
            Step::Again(n) => {
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                self.enter(&claim)?;
            }
            Step::Renew { claim, named } => self.renew(claim, named)?,
            Step::Leave { claim, unanswered } => {
                let Some((claim, _)) = self.pick(claim) else { return Ok(()) };
                let mut named = claim.to_ref();
                named.enter_unanswered = unanswered;
                let ours = block_on(self.store.leave(&named)).map_err(told);
                let theirs: Result<Left, String> = self.model.leave(tick(), &named).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Break { resource, now } => {
                let name = resource_of(resource);
                let ours = block_on(self.store.break_(&name, None, now)).unwrap();
                let theirs = self.model.break_(tick(), &name, None, now).unwrap();
                let count = |broken: &leasehold_core::Broken| match broken {
                    leasehold_core::Broken::Marked(tokens) => tokens.len(),
                    leasehold_core::Broken::Nothing { .. } => 0,
                };
                prop_assert_eq!(count(&ours), count(&theirs));
                self.hear_of_breaks();
            }
            Step::Write(n) => {
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                let (named, keep) = (claim.to_ref(), TERM);
                let ours = block_on(self.store.write(&named, &[n], keep)).map_err(told);
                let theirs = self.model.write(tick(), &named, &[n], keep).map_err(told);
                // Of what never was granted ours knows no end.
                prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
                let ours = block_on(self.store.read(&claim.resource)).unwrap();
                let theirs = self.model.read(tick(), &claim.resource);
                prop_assert_eq!(ours.map(|r| r.value), theirs.map(|r| r.value));
            }
        }
        self.settle(step)
    }

    fn enter_new(
        &mut self,
        mode: u8,
        holder: u8,
        resource: u8,
        queue: bool,
    ) -> Result<(), TestCaseError> {
        let base = common::claim("any");
        let mode = match (resource, mode) {
            (0, n) => Mode::Permits { count: u32::from(n % 2) + 1, limit: 3 },
            (_, 0) => Mode::Shared,
            (_, _) => Mode::Exclusive,
        };
        // Slots of an outer grant that its inner one outlives are each store's own affair.
        let id = if resource == 0 { base.holder.id } else { HolderId::from_bits(holder.into()) };
        let claim = Claim {
            resource: resource_of(resource),
            holder: Holder::new(id, "h"),
            mode,
            term: TERM,
            place: if queue { base.place } else { Place::No },
            ..base
        };
        let stands = self.enter(&claim)?;
        self.claims.push((claim, stands));
        Ok(())
    }

    fn pick(&self, n: u8) -> Option<(Claim, bool)> {
        // A try that was busy, or was refused, left nothing: it is as if it had never been.
        let stood: Vec<_> = self.claims.iter().filter(|(_, stood)| *stood).collect();
        stood.get(usize::from(n) % stood.len().max(1)).map(|&found| found.clone())
    }

    /// Whether the claim stands.
    fn enter(&mut self, claim: &Claim) -> Result<bool, TestCaseError> {
        let ours = block_on(self.store.enter(claim)).map_err(told);
        let theirs = self.model.enter(tick(), claim).map_err(told);
        if let (Ok(Admission::Granted(ours)), Ok(Admission::Granted(theirs))) = (&ours, &theirs) {
            self.same(&claim.resource, ours, theirs)?;
            return Ok(true);
        }
        prop_assert_eq!(ours.as_ref().map(kind), theirs.as_ref().map(kind));
        Ok(matches!(ours, Ok(Admission::Waiting(_) | Admission::Gone(_))))
    }

    fn same<U, V>(
        &mut self,
        resource: &ResourceName,
        ours: &Grant<U>,
        theirs: &Grant<V>,
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(&ours.slots, &theirs.slots);
        prop_assert_eq!(ours.previous, theirs.previous);
        let key = (resource.clone(), theirs.token);
        let known = *self.tokens.entry(key).or_insert(ours.token);
        prop_assert_eq!(known, ours.token, "one grant, two tokens");
        Ok(())
    }

    fn renew(&mut self, claim: u8, named: bool) -> Result<(), TestCaseError> {
        let Some((claim, _)) = self.pick(claim) else { return Ok(()) };
        let (mut mine, mut other) = (claim.to_ref(), claim.to_ref());
        let of = |(key, _): &(&(ResourceName, Token), &Token)| key.0 == claim.resource;
        if named && let Some((theirs, ours)) = self.tokens.iter().rfind(of) {
            (mine.token, other.token) = (Some(*ours), Some(theirs.1));
        }
        let ours = block_on(self.store.renew(&[mine])).pop().unwrap();
        let theirs = self.model.renew(tick(), &other);
        if let (Renewed::Granted(ours), Renewed::Granted(theirs)) = (&ours, &theirs) {
            return self.same(&claim.resource, ours, theirs);
        }
        prop_assert_eq!(renewed(&ours), renewed(&theirs));
        Ok(())
    }

    /// What was broken is told to its client in the background, or by a renewal.
    fn hear_of_breaks(&mut self) {
        let claims: Vec<_> = self.claims.iter().map(|(claim, _)| claim.to_ref()).collect();
        block_on(self.store.renew(&claims));
        for claim in &claims {
            self.model.renew(tick(), claim);
        }
    }

    /// Hand-overs are made by the waiter's client: they are waited for.
    fn settle(&mut self, step: &Step) -> Result<(), TestCaseError> {
        for number in 0..2 {
            let name = resource_of(number);
            let theirs = shape(&self.model.inspect(tick(), &name));
            wait_until("as specified", Duration::from_secs(20), || {
                let ours = shape(&block_on(self.store.inspect(&name)).unwrap());
                let same = ours == theirs;
                if same { Ok(()) } else { Err(format!("{step:?}: {ours:?}, not {theirs:?}")) }
            });
        }
        // Those that were granted know it before the next step.
        let claims: Vec<Claim> = self.claims.iter().map(|(claim, _)| claim.clone()).collect();
        for claim in claims {
            let granted = self.model.resources.get(&claim.resource).and_then(|r| r.held(claim.id));
            if granted.is_some_and(|held| !held.broken) {
                wait_until("granted", Duration::from_secs(20), || {
                    match block_on(self.store.renew(&[claim.to_ref()])).pop() {
                        Some(Renewed::Granted(_)) => Ok(()),
                        other => Err(format!("{step:?}: {other:?}")),
                    }
                });
            }
        }
        Ok(())
    }
}

/// A grant: whose, its slots, whether it was broken.
type Standing = (HolderId, Vec<u32>, bool);

/// Who stands where: one entry a grant, whatever re-entered it, and waiters in order.
fn shape(queue: &Queue) -> (BTreeSet<Standing>, Vec<HolderId>) {
    let mut held = BTreeMap::new();
    for entry in queue.holders() {
        let QueueState::Granted { token, slots, broken, .. } = &entry.state else { continue };
        let slots = slots.as_slice().to_vec();
        held.entry(*token).or_insert((entry.holder.id, slots, *broken));
    }
    (held.into_values().collect(), queue.waiters().map(|entry| entry.holder.id).collect())
}

fn told(error: Error) -> String {
    format!("{:?}", error.kind())
}

fn kind<U>(answer: &Admission<U>) -> String {
    match answer {
        Admission::Granted(_) => "granted".into(),
        Admission::Waiting(_) => "waiting".into(),
        Admission::Busy(_) => "busy".into(),
        Admission::Gone(how) => format!("gone {how}"),
    }
}

fn renewed<U>(answer: &Renewed<U>) -> String {
    match answer {
        Renewed::Alive { .. } => "alive".into(),
        Renewed::Granted(_) => "granted".into(),
        Renewed::Waiting(_) => "waiting".into(),
        Renewed::Gone(how) => format!("gone {how}"),
        Renewed::Unknown(error) => error.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default()
    })]
    #[test]
    fn every_answer_is_that_of_the_specification(steps in steps()) {
        let mut long = config(server(Release::Newest).addr(), &root());
        long.session = TERM;
        let handover = Handover { first_term: TERM, push_min: Duration::ZERO };
        let mut pair = Pair {
            store: connect(long),
            model: Model::new(handover),
            claims: Vec::new(),
            tokens: BTreeMap::new(),
        };
        for step in &steps {
            pair.step(step).map_err(|e| TestCaseError::fail(format!("at {step:?}: {e}")))?;
        }
        block_on(pair.store.close());
    }
}
