//! The store answers as the executable specification does, as far as time is left out of it: terms
//! are long, and tokens are compared by their order.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold_core::model::{Handover, Model, Tick};
use leasehold_core::{
    Admission, Broken, Claim, Clock, Error, Holder, HolderId, Ids, Life, Mode, Moment, Page, Place,
    Queue, QueueState, Renewed, ResourceName, Store, Token,
};
use leasehold_etcd::EtcdStore;
use leasehold_net::BootClock;
use leasehold_testkit::server::etcd::Release;
use proptest::prelude::*;

/// One random request.
#[derive(Debug, Clone)]
enum Step {
    Enter { mode: u8, holder: u8, resource: u8, queue: bool, careful: bool, term_life: bool },
    Again(u8),
    Renew { claim: u8, named: bool },
    Leave { claim: u8, unanswered: bool },
    Break { resource: u8, now: bool },
    Write(u8),
    Clean { dry: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resource = 0..2_u8;
    let rarely = || prop::bool::weighted(0.15);
    let step = prop_oneof![
        6 => (0..3_u8, 0..4_u8, resource.clone(), prop::bool::weighted(0.8), rarely(), rarely())
            .prop_map(|(mode, holder, resource, queue, careful, term_life)| {
                Step::Enter { mode, holder, resource, queue, careful, term_life }
            }),
        1 => any::<u8>().prop_map(Step::Again),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(claim, named)| Step::Renew { claim, named }),
        5 => (any::<u8>(), rarely()).prop_map(|(claim, unanswered)| Step::Leave { claim, unanswered }),
        1 => (resource, any::<bool>()).prop_map(|(resource, now)| Step::Break { resource, now }),
        1 => any::<u8>().prop_map(Step::Write),
        1 => any::<bool>().prop_map(|dry| Step::Clean { dry }),
    ];
    prop::collection::vec(step, 1..30)
}

fn mode_of(number: u8, resource: u8) -> Mode {
    match (resource, number) {
        (0, n) => Mode::Permits { count: u32::from(n % 2) + 1, limit: 3 },
        (_, 0) => Mode::Shared,
        (_, _) => Mode::Exclusive,
    }
}

const LONG: Duration = Duration::from_secs(600);

struct Pair {
    store: EtcdStore,
    model: Model,
    claims: Vec<Claim>,
    /// Our token of a claim, once it is known.
    tokens: BTreeMap<usize, (Token, Token)>,
    ids: Ids,
}

fn tick() -> Tick {
    Tick { now: BootClock.now(), floor: 0 }
}

fn resource_of(number: u8) -> ResourceName {
    ResourceName::new(if number == 0 { "permits" } else { "lock" }).unwrap()
}

fn told(error: Error) -> String {
    format!("{:?}", error.kind())
}

impl Pair {
    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Enter { mode, holder, resource, queue, careful, term_life } => {
                // A claim that waits already does not become one that re-enters; clients let
                // only one claim of a process wait for a resource.
                let (id, name) = (HolderId::from_bits(u128::from(holder)), resource_of(resource));
                let queued = self.model.inspect(tick(), &name);
                if queued.waiters().any(|waiter| waiter.holder.id == id) {
                    return Ok(());
                }
                let claim = Claim {
                    id: self.ids.claim(),
                    resource: resource_of(resource),
                    holder: Holder::new(HolderId::from_bits(u128::from(holder)), "h"),
                    mode: mode_of(mode, resource),
                    term: LONG,
                    life: if term_life { Life::Term } else { Life::Process },
                    place: if queue { Place::Term(LONG) } else { Place::No },
                    after_loss: if careful { LONG } else { Duration::ZERO },
                };
                self.claims.push(claim);
                self.enter(self.claims.len() - 1)?;
            }
            Step::Again(n) => {
                let Some(at) = self.pick(n) else { return Ok(()) };
                self.enter(at)?;
            }
            Step::Renew { claim, named } => {
                let Some(at) = self.pick(claim) else { return Ok(()) };
                self.renew(at, named)?;
            }
            Step::Leave { claim, unanswered } => {
                let Some(at) = self.pick(claim) else { return Ok(()) };
                let mut named = self.claims[at].to_ref();
                named.enter_unanswered = unanswered;
                let ours = block_on(self.store.leave(&named)).map_err(told);
                let theirs = self.model.leave(tick(), &named).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Break { resource, now } => {
                let name = resource_of(resource);
                let count = |broken: Broken| match broken {
                    Broken::Marked(tokens) => (true, tokens.is_empty()),
                    Broken::Nothing { held } => (false, held.is_empty()),
                };
                let ours = block_on(self.store.break_(&name, None, now)).map_err(told).map(count);
                let theirs = self.model.break_(tick(), &name, None, now).map_err(told).map(count);
                prop_assert_eq!(ours, theirs);
            }
            Step::Write(n) => {
                let Some(at) = self.pick(n) else { return Ok(()) };
                let named = self.claims[at].to_ref();
                let ours = block_on(self.store.write(&named, &[n], LONG)).map_err(told);
                let theirs = self.model.write(tick(), &named, &[n], LONG).map_err(told);
                prop_assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
                let ours = block_on(self.store.read(&named.resource)).unwrap().map(|r| r.value);
                let theirs = self.model.read(tick(), &named.resource).map(|r| r.value);
                prop_assert_eq!(ours, theirs);
            }
            Step::Clean { dry } => {
                let page = Page::default();
                let ours = block_on(self.store.clean(Duration::ZERO, &page, dry)).map_err(told);
                let theirs = Ok(self.model.clean(tick(), Duration::ZERO, &page, dry));
                prop_assert_eq!(ours, theirs);
                let ours = block_on(self.store.list(&page)).map_err(told);
                prop_assert_eq!(ours, Ok(self.model.list(&page)));
            }
        }
        self.look()
    }

    /// Everybody looks where it stands, and so does an onlooker.
    fn look(&mut self) -> Result<(), TestCaseError> {
        for at in 0..self.claims.len() {
            self.renew(at, false)?;
        }
        for resource in 0..2 {
            let name = resource_of(resource);
            let ours = block_on(self.store.inspect(&name)).unwrap();
            let theirs = self.model.inspect(tick(), &name);
            prop_assert_eq!(shown(&ours, false), shown(&theirs, true));
        }
        Ok(())
    }

    fn pick(&self, n: u8) -> Option<usize> {
        let recent = self.claims.len().saturating_sub(8);
        let count = self.claims.len() - recent;
        (count > 0).then(|| recent + usize::from(n) % count)
    }

    fn enter(&mut self, at: usize) -> Result<(), TestCaseError> {
        let claim = self.claims[at].clone();
        let ours = block_on(self.store.enter(&claim)).map_err(told);
        let theirs = self.model.enter(tick(), &claim).map_err(told);
        if let (Ok(Admission::Granted(ours)), Ok(Admission::Granted(theirs))) = (&ours, &theirs) {
            self.granted(at, ours.token, theirs.token)?;
        }
        prop_assert_eq!(ours.map(entered), theirs.map(entered));
        Ok(())
    }

    fn renew(&mut self, at: usize, named: bool) -> Result<(), TestCaseError> {
        let mut named_ours = self.claims[at].to_ref();
        let mut named_theirs = named_ours.clone();
        if let Some((ours, theirs)) = self.tokens.get(&at).filter(|_| named) {
            (named_ours.token, named_theirs.token) = (Some(*ours), Some(*theirs));
        }
        let ours = block_on(self.store.renew(&[named_ours])).pop().unwrap();
        let theirs = self.model.renew(tick(), &named_theirs);
        if let (Renewed::Granted(ours), Renewed::Granted(theirs)) = (&ours, &theirs) {
            self.granted(at, ours.token, theirs.token)?;
        }
        prop_assert_eq!(
            renewed(ours, |moment| moment > BootClock.now()),
            renewed(theirs, |left| !left.is_zero()),
            "renewing claim {}",
            at
        );
        Ok(())
    }

    /// Tokens are each store's own: what is the same here is the same there, and they rise together
    /// unless they were given out together.
    fn granted(&mut self, at: usize, ours: Token, theirs: Token) -> Result<(), TestCaseError> {
        let resource = &self.claims[at].resource;
        for (other, (our, their)) in &self.tokens {
            if self.claims[*other].resource != *resource {
                continue;
            }
            if theirs == *their {
                prop_assert_eq!(ours, *our);
            } else if theirs > *their {
                prop_assert!(ours >= *our, "{:?} after {:?}", ours, our);
            }
        }
        self.tokens.insert(at, (ours, theirs));
        Ok(())
    }
}

/// Which of the free slots are given is each store's own affair; the suite sees that none is out twice.
fn entered<U>(answer: Admission<U>) -> String {
    match answer {
        Admission::Granted(grant) => {
            format!("granted {} slots, {}", grant.slots.as_slice().len(), grant.previous)
        }
        // Others do not see who has re-entered.
        Admission::Waiting(_) => "waiting".into(),
        Admission::Busy(_) => "busy".into(),
        Admission::Gone(how) => format!("gone {how}"),
    }
}

fn renewed<U>(answer: Renewed<U>, lives: impl Fn(U) -> bool) -> String {
    match answer {
        Renewed::Alive { until } => format!("alive {}", lives(until)),
        Renewed::Waiting(_) => "waiting".into(),
        Renewed::Granted(grant) => {
            format!("granted {} slots, {}", grant.slots.as_slice().len(), grant.previous)
        }
        Renewed::Gone(how) => format!("gone {how}"),
        Renewed::Unknown(error) => told(error),
    }
}

/// Without times and tokens. Claims that re-entered, which have one token, are known to their own
/// process only.
fn shown(queue: &Queue, reentered: bool) -> String {
    let mut tokens = std::collections::BTreeSet::new();
    let mut entries = Vec::new();
    for entry in &queue.entries {
        match &entry.state {
            QueueState::Granted { broken, token, .. } => {
                if tokens.insert(*token) || !reentered {
                    entries.push(format!("{} holds, broken: {broken}", entry.holder.id));
                }
            }
            QueueState::Waiting { .. } => entries.push(format!("{:?} waits", entry.claim)),
        }
    }
    format!("{entries:?} {:?}", queue.last_end)
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let etcd = common::server(Release::Newest);
    let store = common::connect(common::config(etcd.port(), &common::fresh_prefix()));
    let handover = Handover { first_term: LONG, push_min: Duration::ZERO };
    let all = format!("{steps:?}");
    let mut pair = Pair {
        store,
        model: Model::new(handover),
        claims: Vec::new(),
        tokens: BTreeMap::new(),
        ids: Ids::seeded(u128::from(Moment::as_nanos(BootClock.now()))),
    };
    for step in steps {
        let told = format!("{step:?}");
        pair.step(step).map_err(|e| TestCaseError::fail(format!("at {told} of {all}: {e}")))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default()
    })]
    #[test]
    fn every_answer_is_that_of_the_specification(steps in steps()) {
        run(steps)?;
    }
}
