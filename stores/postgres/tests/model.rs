//! The store answers as the executable specification does.
//!
//! The server's clock is set by hand: a role whose search path finds another `clock_timestamp()`.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use leasehold_core::model::{Handover, Model, Tick};
use leasehold_core::{
    Admission, Claim, Clock, Drift, Ended, Error, Grant, Holder, HolderId, Ids, Left, Life, Mode,
    Moment, Page, Place, QueueState, Renewed, ResourceName, Store, Token, Waiting, Written,
    belief_end,
};
use leasehold_net::BootClock;
use leasehold_postgres::PostgresStore;
use proptest::prelude::*;
use tokio_postgres::NoTls;

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
        6 => (0..3_u8, 0..4_u8, resource.clone(), prop::bool::weighted(0.8), 1..8_u8,
              prop::bool::weighted(0.2))
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

/// A server whose clock a test sets, and a store there.
struct World {
    runtime: tokio::runtime::Runtime,
    hand: tokio_postgres::Client,
    store: PostgresStore,
    now_us: u64,
    cases: u32,
}

impl World {
    fn new() -> World {
        let (runtime, schema) = (common::runtime(), common::schema());
        common::server().sql(&format!(
            "CREATE ROLE by_hand SUPERUSER LOGIN;
             CREATE SCHEMA {schema};
             CREATE TABLE {schema}.hand (at timestamptz);
             INSERT INTO {schema}.hand VALUES ('2030-01-01');
             CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
               'SELECT at FROM {schema}.hand';
             ALTER ROLE by_hand SET search_path = {schema}, pg_catalog"
        ));
        let mut config = common::config(common::server().port(), &schema);
        config.user = "by_hand".into();
        let (hand, store) = runtime.block_on(async {
            let store = common::connect(&config).await;
            let mut direct = tokio_postgres::Config::new();
            direct.host("127.0.0.1").port(common::server().port()).user("by_hand");
            let (hand, connection) = direct.dbname("postgres").connect(NoTls).await.unwrap();
            tokio::spawn(connection);
            (hand, store)
        });
        let now_us = 1_893_456_000_000_000;
        let mut world = World { runtime, hand, store, now_us, cases: 0 };
        world.pass(Duration::ZERO);
        world
    }

    fn pass(&mut self, span: Duration) {
        self.now_us += u64::try_from(span.as_micros()).unwrap();
        let us = self.now_us;
        let sql = format!("UPDATE hand SET at = timestamptz 'epoch' + {us} * interval '1 us'");
        self.runtime.block_on(self.hand.batch_execute(&sql)).unwrap();
    }

    fn tick(&self) -> Tick {
        Tick { now: Moment::from_nanos(self.now_us * 1000), floor: self.now_us }
    }
}

struct Pair<'w> {
    world: &'w mut World,
    model: Model,
    claims: Vec<(Claim, Option<Token>)>,
    ids: Ids,
}

impl Pair<'_> {
    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Enter { mode, holder, resource, queue, term, after_loss } => {
                let place = Place::Term(Duration::from_secs(5));
                let claim = Claim {
                    id: self.ids.claim(),
                    resource: self.resource(resource),
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
                let tick = self.world.tick();
                let ours = self.world.runtime.block_on(self.world.store.leave(&named));
                let theirs = self.model.leave(tick, &named).map_err(told);
                // What barred it: whether it is called released or unknown is all one.
                let plain = |l: Left| match l {
                    Left::Gone(Ended::Released | Ended::Unknown) if unanswered => None,
                    other => Some(other),
                };
                prop_assert_eq!(ours.map_err(told).map(plain), theirs.map(plain));
            }
            Step::Break { resource, now } => {
                let (name, tick) = (self.resource(resource), self.world.tick());
                let ours = self.world.runtime.block_on(self.world.store.break_(&name, None, now));
                let theirs = self.model.break_(tick, &name, None, now).map_err(told);
                prop_assert_eq!(ours.map_err(told), theirs);
            }
            Step::Write(n) => {
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                let (named, keep) = (claim.to_ref(), Duration::from_secs(4));
                let tick = self.world.tick();
                let ours = self.world.runtime.block_on(self.world.store.write(&named, &[n], keep));
                let theirs = self.model.write(tick, &named, &[n], keep).map_err(told);
                let ours: Result<Written, String> = ours.map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Inspect(resource) => self.inspect(resource)?,
            Step::Clean { dry } => self.clean(dry)?,
            Step::Pass(ms) => self.world.pass(Duration::from_millis(ms.into())),
        }
        Ok(())
    }

    fn clean(&mut self, dry: bool) -> Result<(), TestCaseError> {
        let tick = self.world.tick();
        // Whether what ran out and was not touched since counts as used is each store's own affair:
        // touch it.
        for name in [self.resource(0), self.resource(1)] {
            let none = Token::new(1);
            let touched = self.world.runtime.block_on(self.world.store.break_(&name, none, false));
            prop_assert!(touched.is_ok());
            prop_assert!(self.model.break_(tick, &name, none, false).is_ok());
        }
        let page = Page { prefix: self.prefix(), ..Page::default() };
        let keep = Duration::from_secs(9);
        let ours = self.world.runtime.block_on(self.world.store.clean(keep, &page, dry));
        let theirs = Ok(self.model.clean(tick, keep, &page, dry));
        prop_assert_eq!(ours.map_err(told), theirs);
        let ours = self.world.runtime.block_on(self.world.store.list(&page));
        prop_assert_eq!(ours.map_err(told), Ok(self.model.list(&page)));
        Ok(())
    }

    fn prefix(&self) -> String {
        format!("case{}-", self.world.cases)
    }

    fn resource(&self, number: u8) -> ResourceName {
        common::name(&format!("{}{}", self.prefix(), if number == 0 { "permits" } else { "lock" }))
    }

    fn pick(&self, n: u8) -> Option<(Claim, Option<Token>)> {
        // Of those that ended long ago the store may know less.
        let recent = self.claims.len().saturating_sub(16);
        let recent = &self.claims[recent..];
        recent.get(usize::from(n) % recent.len().max(1)).cloned()
    }

    fn enter(&mut self, claim: &Claim) -> Result<Option<Token>, TestCaseError> {
        let tick = self.world.tick();
        let before = BootClock.now();
        let ours = self.world.runtime.block_on(self.world.store.enter(claim)).map_err(told);
        let after = BootClock.now();
        let theirs = self.model.enter(tick, claim).map_err(told);
        let token = match &theirs {
            Ok(Admission::Granted(grant)) => Some(grant.token),
            _ => None,
        };
        if let (Ok(Admission::Granted(a)), Ok(Admission::Granted(b))) = (&ours, &theirs) {
            believed(a, b.until, before, after)?;
        }
        let ours = ours.map(|a| comparable(a.map_until(|_| Duration::ZERO)));
        let theirs = theirs.map(|a| comparable(a.map_until(|_| Duration::ZERO)));
        prop_assert_eq!(ours, theirs);
        Ok(token)
    }

    fn renew(&mut self, claim: u8, term: u8, named: bool) -> Result<(), TestCaseError> {
        let Some((claim, token)) = self.pick(claim) else { return Ok(()) };
        let mut reference = claim.to_ref();
        reference.term = Duration::from_secs(term.into());
        reference.token = token.filter(|_| named);
        let tick = self.world.tick();
        let before = BootClock.now();
        let claims = std::slice::from_ref(&reference);
        let ours = self.world.runtime.block_on(self.world.store.renew(claims)).pop().unwrap();
        let after = BootClock.now();
        let theirs = self.model.renew(tick, &reference);
        match (&ours, &theirs) {
            (Renewed::Granted(a), Renewed::Granted(b)) => believed(a, b.until, before, after)?,
            (Renewed::Alive { until }, Renewed::Alive { until: left }) => {
                within(*until, *left, before, after)?;
            }
            _ => {}
        }
        let plain = |r: String| r.replace("Gone(Clock)", "Gone(Expired)");
        let ours = renewed(ours.map_until(|_| Duration::ZERO));
        prop_assert_eq!(plain(ours), renewed(theirs.map_until(|_| Duration::ZERO)));
        Ok(())
    }

    fn inspect(&mut self, resource: u8) -> Result<(), TestCaseError> {
        let (name, tick) = (self.resource(resource), self.world.tick());
        let mut ours = self.world.runtime.block_on(self.world.store.inspect(&name)).unwrap();
        let mut theirs = self.model.inspect(tick, &name);
        let record = self.world.runtime.block_on(self.world.store.read(&name)).unwrap();
        prop_assert_eq!(record, self.model.read(tick, &name));
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
}

fn believed(
    ours: &Grant,
    left: Duration,
    before: Moment,
    after: Moment,
) -> Result<(), TestCaseError> {
    within(ours.until, left, before, after)
}

/// The end of belief is that of a request sent in between.
fn within(
    until: Moment,
    left: Duration,
    before: Moment,
    after: Moment,
) -> Result<(), TestCaseError> {
    let (low, high) =
        (belief_end(before, left, Drift::Tenth), belief_end(after, left, Drift::Tenth));
    prop_assert!(low <= until && until <= high, "{until:?} of {left:?}: {low:?} to {high:?}");
    Ok(())
}

fn told(error: Error) -> String {
    format!("{:?}", error.kind())
}

/// Tickets are each store's own, and so is the time of the next look.
fn comparable(answer: Admission<Duration>) -> Admission<Duration> {
    match answer {
        Admission::Waiting(waiting) => Admission::Waiting(common_waiting(waiting)),
        other => other,
    }
}

fn common_waiting(waiting: Waiting) -> Waiting {
    let ticket = leasehold_core::Ticket(0);
    Waiting { ticket, recheck_in: Duration::ZERO, ..waiting }
}

fn renewed(answer: Renewed<Duration>) -> String {
    match answer {
        Renewed::Waiting(waiting) => format!("{:?}", common_waiting(waiting)),
        Renewed::Unknown(error) => told(error),
        other => format!("{other:?}"),
    }
}

fn run(world: &mut World, steps: Vec<Step>) -> Result<(), TestCaseError> {
    world.cases += 1;
    world.pass(Duration::from_secs(60));
    let handover =
        Handover { first_term: Duration::from_secs(3), push_min: Duration::from_millis(500) };
    let model = Model::new(handover);
    let all = format!("{steps:?}");
    let ids = Ids::seeded(u128::from(world.cases) << 96);
    let mut pair = Pair { world, model, claims: Vec::new(), ids };
    for step in steps {
        let told = format!("{step:?}");
        pair.step(step).map_err(|e| TestCaseError::fail(format!("at {told} of {all}: {e}")))?;
    }
    Ok(())
}

#[test]
fn every_answer_is_that_of_the_specification() {
    let world = std::cell::RefCell::new(World::new());
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() };
    proptest!(config, |(steps in steps())| {
        run(&mut world.borrow_mut(), steps)?;
    });
}
