//! The store answers as the executable specification does.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold_core::model::{Handover, Model, Tick};
use leasehold_core::{
    Admission, Claim, Clock, Drift, Ended, Error, Holder, HolderId, Ids, Life, Mode, Moment, Page,
    Place, Renewed, ResourceName, Store, Ticket, Token, Waiting, belief_end,
};
use leasehold_mysql::{Clocks, MysqlStore};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use proptest::prelude::*;
use tokio::runtime::Runtime;

/// Both clocks, set by hand: ours in memory, the server's in a table.
#[derive(Debug, Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst) * 1000)
    }
}

/// One random request.
#[derive(Debug, Clone)]
enum Step {
    Enter { mode: u8, holder: u8, resource: u8, queue: bool, term: u8, after_loss: bool },
    Again(u8),
    Renew { claim: u8, term: u8, named: bool },
    RenewAll,
    Leave { claim: u8, unanswered: bool, named: bool },
    Break { resource: u8, now: bool },
    Write(u8),
    Inspect(u8),
    Clean { dry: bool },
    Pass(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resource = 0..3_u8;
    let enter = (
        0..3_u8,
        0..4_u8,
        resource.clone(),
        prop::bool::weighted(0.8),
        1..8_u8,
        prop::bool::weighted(0.2),
    );
    let step = prop_oneof![
        6 => enter.prop_map(|(mode, holder, resource, queue, term, after_loss)| {
            Step::Enter { mode, holder, resource, queue, term, after_loss }
        }),
        1 => any::<u8>().prop_map(Step::Again),
        4 => (any::<u8>(), 1..8_u8, any::<bool>())
            .prop_map(|(claim, term, named)| Step::Renew { claim, term, named }),
        1 => Just(Step::RenewAll),
        4 => (any::<u8>(), prop::bool::weighted(0.1), any::<bool>())
            .prop_map(|(claim, unanswered, named)| Step::Leave { claim, unanswered, named }),
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
        (1, 0) => Mode::Shared,
        (_, _) => Mode::Exclusive,
    }
}

/// The store, its clocks, and the number of the next case.
struct World {
    runtime: Runtime,
    hand: Arc<Hand>,
    clock: Conn,
    store: MysqlStore,
    cases: u64,
}

impl World {
    fn new() -> World {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = common::server();
        server.sql("leasehold", "SET GLOBAL innodb_flush_log_at_trx_commit = 0");
        server.sql("leasehold", "CREATE TABLE hand (us BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB");
        server.sql("leasehold", "INSERT INTO hand VALUES (1)");
        let opts = OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(server.port())
            .prefer_socket(false)
            .user(Some("root"))
            .db_name(Some("leasehold"));
        let clock = runtime.block_on(Conn::new(opts)).unwrap();
        let hand = Arc::new(Hand::default());
        let local: Arc<dyn Clock> = Arc::clone(&hand) as Arc<dyn Clock>;
        let clocks = Clocks { local, server: "(SELECT us FROM hand)".to_owned() };
        let config = common::config(server.port());
        let store = block_on(MysqlStore::connect_on(config, clocks)).unwrap();
        World { runtime, hand, clock, store, cases: 0 }
    }

    fn set(&mut self, us: u64) {
        let sql = format!("UPDATE hand SET us = {us}");
        self.runtime.block_on(self.clock.query_drop(sql)).unwrap();
        self.hand.0.store(us, Ordering::SeqCst);
    }
}

struct Pair<'w> {
    world: &'w mut World,
    model: Model,
    claims: Vec<(Claim, Option<Token>)>,
    ids: Ids,
    case: u64,
}

impl Pair<'_> {
    fn now_us(&self) -> u64 {
        self.world.hand.0.load(Ordering::SeqCst)
    }

    fn tick(&self) -> Tick {
        Tick { now: Moment::from_nanos(self.now_us() * 1000), floor: self.now_us() }
    }

    fn belief(&self, left: Duration) -> Moment {
        belief_end(self.world.hand.now(), left, Drift::Tenth)
    }

    fn resource(&self, number: u8) -> ResourceName {
        common::name(&format!("case-{:06}-{number}", self.case))
    }

    fn page(&self) -> Page {
        Page { prefix: format!("case-{:06}-", self.case), ..Page::default() }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Enter { mode, holder, resource, queue, term, after_loss } => {
                let place = Place::Term(Duration::from_secs(3));
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
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                self.enter(&claim)?;
            }
            Step::Renew { claim, term, named } => self.renew(claim, term, named)?,
            Step::RenewAll => self.renew_all()?,
            Step::Leave { claim, unanswered, named } => {
                let Some((claim, token)) = self.pick(claim) else { return Ok(()) };
                let mut leave = claim.to_ref();
                leave.enter_unanswered = unanswered;
                leave.token = token.filter(|_| named);
                let ours = block_on(self.world.store.leave(&leave)).map_err(told);
                let theirs = self.model.leave(self.tick(), &leave).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Break { resource, now } => {
                let name = self.resource(resource);
                let ours = block_on(self.world.store.break_(&name, None, now)).map_err(told);
                let theirs = self.model.break_(self.tick(), &name, None, now).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Write(n) => {
                let Some((claim, _)) = self.pick(n) else { return Ok(()) };
                let (named, keep) = (claim.to_ref(), Duration::from_secs(4));
                let ours = block_on(self.world.store.write(&named, &[n], keep)).map_err(told);
                let theirs = self.model.write(self.tick(), &named, &[n], keep).map_err(told);
                prop_assert_eq!(ours, theirs);
            }
            Step::Inspect(resource) => self.inspect(resource)?,
            Step::Clean { dry } => self.clean(dry)?,
            Step::Pass(ms) => {
                let us = self.now_us() + u64::from(ms) * 1000;
                self.world.set(us);
            }
        }
        Ok(())
    }

    fn clean(&mut self, dry: bool) -> Result<(), TestCaseError> {
        // Whether what ran out and was not touched since counts as used is each store's own affair:
        // touch it.
        for name in [self.resource(0), self.resource(1), self.resource(2)] {
            let none = Token::new(1);
            block_on(self.world.store.break_(&name, none, false)).unwrap();
            self.model.break_(self.tick(), &name, none, false).unwrap();
        }
        let (page, keep) = (self.page(), Duration::from_secs(9));
        let ours = block_on(self.world.store.clean(keep, &page, dry)).map_err(told);
        let theirs = Ok(self.model.clean(self.tick(), keep, &page, dry));
        prop_assert_eq!(ours, theirs);
        let ours = block_on(self.world.store.list(&page)).map_err(told);
        prop_assert_eq!(ours, Ok(self.model.list(&page)));
        Ok(())
    }

    fn pick(&self, n: u8) -> Option<(Claim, Option<Token>)> {
        // Of those that ended long ago the store may know less.
        let recent = self.claims.len().saturating_sub(16);
        let recent = &self.claims[recent..];
        recent.get(usize::from(n) % recent.len().max(1)).cloned()
    }

    fn enter(&mut self, claim: &Claim) -> Result<Option<Token>, TestCaseError> {
        let ours = block_on(self.world.store.enter(claim)).map_err(told);
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
        let ours = block_on(common::renew(&self.world.store, &reference));
        let theirs = self.model.renew(self.tick(), &reference);
        let theirs = theirs.map_until(|left| self.belief(left));
        prop_assert_eq!(renewed(ours), renewed(theirs));
        Ok(())
    }

    /// Many at once, of several names.
    fn renew_all(&mut self) -> Result<(), TestCaseError> {
        let recent = self.claims.len().saturating_sub(16);
        let all: Vec<_> = self.claims[recent..].iter().map(|(claim, _)| claim.to_ref()).collect();
        let ours = block_on(self.world.store.renew(&all));
        // In one transaction a name after the other.
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|n| all[*n].resource.clone());
        let mut theirs: Vec<(usize, String)> = Vec::new();
        for n in order {
            let answer = self.model.renew(self.tick(), &all[n]);
            theirs.push((n, renewed(answer.map_until(|left| self.belief(left)))));
        }
        theirs.sort_unstable();
        let theirs: Vec<String> = theirs.into_iter().map(|(_, told)| told).collect();
        let ours: Vec<String> = ours.into_iter().map(renewed).collect();
        prop_assert_eq!(ours, theirs);
        Ok(())
    }

    fn inspect(&mut self, resource: u8) -> Result<(), TestCaseError> {
        let name = self.resource(resource);
        let mut ours = block_on(self.world.store.inspect(&name)).unwrap();
        let mut theirs = self.model.inspect(self.tick(), &name);
        prop_assert_eq!(
            block_on(self.world.store.read(&name)).unwrap(),
            self.model.read(self.tick(), &name)
        );
        for queue in [&mut ours, &mut theirs] {
            if queue.entries.is_empty() {
                queue.kind = None; // what has run out may still be counted or not
            }
            for entry in &mut queue.entries {
                if let leasehold_core::QueueState::Waiting { ticket } = &mut entry.state {
                    *ticket = Ticket(0);
                }
            }
        }
        prop_assert_eq!(ours, theirs);
        Ok(())
    }
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
    Waiting { ticket: Ticket(0), recheck_in: Duration::ZERO, ..waiting }
}

fn renewed(answer: Renewed) -> String {
    match answer {
        Renewed::Waiting(waiting) => format!("{:?}", common_waiting(waiting)),
        Renewed::Unknown(error) => told(error),
        // The two hands are not moved in one moment.
        Renewed::Gone(Ended::Clock) => format!("{:?}", Renewed::<Moment>::Gone(Ended::Expired)),
        other => format!("{other:?}"),
    }
}

fn run(world: &mut World, steps: Vec<Step>) -> Result<(), TestCaseError> {
    world.cases += 1;
    let case = world.cases;
    // Each case is later than all that were cleaned before it.
    world.set(1_700_000_000_000_000 + case * 100_000_000_000);
    let handover =
        Handover { first_term: Duration::from_millis(2500), push_min: Duration::from_millis(500) };
    let mut ids = Ids::seeded(u128::from(case) << 64);
    ids.claim();
    let all = format!("{steps:?}");
    let mut pair = Pair { world, model: Model::new(handover), claims: Vec::new(), ids, case };
    for step in steps {
        let told = format!("{step:?}");
        pair.step(step).map_err(|e| TestCaseError::fail(format!("at {told} of {all}: {e}")))?;
    }
    Ok(())
}

#[test]
fn every_answer_is_that_of_the_specification() {
    let world = std::cell::RefCell::new(World::new());
    let config = proptest::test_runner::Config {
        cases: 120,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Default::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&steps(), |steps| run(&mut world.borrow_mut(), steps));
    if let Err(error) = result {
        panic!("{error}");
    }
}
