//! What every case stands on: two clients, names and claims of its own, and ways to ask.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, ClaimRef, ErrorKind, Grant, Hint, Holder, HolderId, Ids, Left, Life, Mode,
    Moment, Page, Place, Profile, Renewed, ResourceName, Result, Store, Waiting,
};

use crate::harness::{Ability, Harness, Hurt};

/// In which form the cases of a mutex are run. A semaphore of one permit and the exclusive claim
/// of a read-write lock have to pass what a plain lock passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Exclusive claims.
    Lock,
    /// One permit of one.
    OnePermit,
    /// Exclusive claims on a resource that had a reader before.
    WriteLock,
}

/// The ground of one case: a harness, two clients of it, and ways to ask.
pub struct World {
    /// The store as one client sees it.
    pub a: Arc<dyn Store>,
    /// The store as another client sees it.
    pub b: Arc<dyn Store>,
    harness: Arc<dyn Harness>,
    form: Form,
    prefix: String,
    ids: Mutex<Ids>,
    /// Names that had their reader, in the form of a write lock.
    read_before: Mutex<BTreeSet<ResourceName>>,
}

/// How long anything that must happen may take, on the clock of the harness.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked for.
const STEP: Duration = Duration::from_millis(10);

fn random_bits() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// Runs a case in a fresh world.
///
/// # Panics
///
/// If the store does not conform.
pub fn run_case<H: Harness>(
    harness: H,
    case: impl for<'w> FnOnce(&'w World) -> Pin<Box<dyn Future<Output = ()> + 'w>>,
) {
    run_case_as(harness, Form::Lock, case);
}

/// Runs a case of the mutex in this form. Where the store does not support the form, the refusal
/// is what is asked for.
///
/// # Panics
///
/// If the store does not conform.
pub fn run_case_as<H: Harness>(
    harness: H,
    form: Form,
    case: impl for<'w> FnOnce(&'w World) -> Pin<Box<dyn Future<Output = ()> + 'w>>,
) {
    let world = World::new(Arc::new(harness), form);
    let harness = Arc::clone(&world.harness);
    harness.run(Box::pin(async {
        if world.supports(world.mode()) {
            case(&world).await;
        } else {
            world.refused(&world.a, &world.claim("form"), ErrorKind::Unsupported).await;
        }
        world.a.close().await;
        world.b.close().await;
    }));
}

impl World {
    fn new(harness: Arc<dyn Harness>, form: Form) -> World {
        World {
            a: harness.open(),
            b: harness.open(),
            harness,
            form,
            prefix: format!("case-{:016x}-", random_bits() >> 64),
            ids: Mutex::new(Ids::seeded(random_bits())),
            read_before: Mutex::default(),
        }
    }

    /// What the store promises.
    pub fn profile(&self) -> &Profile {
        self.a.profile()
    }

    /// Another client.
    pub fn open(&self) -> Arc<dyn Store> {
        self.harness.open()
    }

    /// The local clock.
    pub fn now(&self) -> Moment {
        self.harness.now()
    }

    /// Lets time pass.
    pub fn pass(&self, span: Duration) {
        self.harness.pass(span);
    }

    /// Hurts the store; whether that could be done. See [`Ability::done`].
    pub fn hurt(&self, hurt: Hurt<'_>) -> bool {
        let ability: Ability = self.harness.hurt(hurt);
        ability.done(hurt, self.profile())
    }

    /// Whether the profile promises this mode.
    pub fn supports(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.profile().modes.shared,
            Mode::Permits { .. } => self.profile().modes.permits,
        }
    }

    /// A term that does not end within a case.
    pub fn long(&self) -> Duration {
        self.profile().term_bounds.1.min(Duration::from_secs(120))
    }

    /// The shortest term that this store takes, or half a second if that is longer: for what is to
    /// run out within a case.
    pub fn short(&self) -> Duration {
        self.profile().term_bounds.0.max(Duration::from_millis(500))
    }

    /// The mode of a mutex in this form.
    pub fn mode(&self) -> Mode {
        match self.form {
            Form::Lock | Form::WriteLock => Mode::Exclusive,
            Form::OnePermit => Mode::Permits { count: 1, limit: 1 },
        }
    }

    /// What every name of this case begins with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name of this case alone.
    ///
    /// # Panics
    ///
    /// If `suffix` cannot end a name.
    pub fn name(&self, suffix: &str) -> ResourceName {
        match ResourceName::new(&format!("{}{suffix}", self.prefix)) {
            Ok(name) => name,
            Err(bad) => panic!("a case chose a bad name: {bad}"),
        }
    }

    /// This case's part of a listing.
    pub fn page(&self) -> Page {
        Page { prefix: self.prefix.clone(), ..Page::default() }
    }

    /// A new claim of a new holder: a mutex in this form, with a long term, that queues.
    pub fn claim(&self, suffix: &str) -> Claim {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let holder = HolderId::from_bits(ids.claim().bits());
        Claim {
            id: ids.claim(),
            resource: self.name(suffix),
            holder: Holder::new(holder, "conformance"),
            mode: self.mode(),
            term: self.long(),
            life: if self.profile().transferable { Life::Term } else { Life::Process },
            place: Place::Term(self.long()),
            after_loss: Duration::ZERO,
        }
    }

    /// A new claim of the same holder on the same resource.
    pub fn again(&self, claim: &Claim) -> Claim {
        let id = self.claim("any").id;
        Claim { id, ..claim.clone() }
    }

    /// Whether a reader comes and goes before the first claim of each name, in this form.
    pub fn reads_first(&self) -> bool {
        self.form == Form::WriteLock && self.supports(Mode::Shared)
    }

    /// Enters, after the reader that the form of a write lock wants there first.
    pub async fn enter(&self, store: &Arc<dyn Store>, claim: &Claim) -> Result<Admission> {
        if self.reads_first() && self.is_new(&claim.resource) {
            let new = self.claim("any");
            let reader = Claim {
                id: new.id,
                holder: new.holder,
                mode: Mode::Shared,
                term: self.long(),
                after_loss: Duration::ZERO,
                ..claim.clone()
            };
            answered(store.enter(&reader).await, "enter");
            answered(store.leave(&reader.to_ref()).await, "leave");
        }
        store.enter(claim).await
    }

    fn is_new(&self, name: &ResourceName) -> bool {
        let mut before = self.read_before.lock().unwrap_or_else(PoisonError::into_inner);
        before.insert(name.clone())
    }

    /// Enters, and must be granted.
    pub async fn granted(&self, store: &Arc<dyn Store>, claim: &Claim) -> Grant {
        match answered(self.enter(store, claim).await, "enter") {
            Admission::Granted(grant) => {
                assert_eq!(grant.claim, claim.id, "a grant names its claim");
                grant
            }
            other => panic!("{:?} is not granted: {other:?}", claim.resource),
        }
    }

    /// Enters, and must wait: in the queue, or as busy where there is none or none was asked for.
    pub async fn waits(&self, store: &Arc<dyn Store>, claim: &Claim) -> Option<Waiting> {
        let queues = self.profile().queues && claim.place != Place::No;
        match answered(self.enter(store, claim).await, "enter") {
            Admission::Waiting(waiting) if queues => Some(waiting),
            Admission::Busy(_) if !queues => None,
            other => panic!("{:?} should wait (queues: {queues}): {other:?}", claim.resource),
        }
    }

    /// Enters, and must be gone.
    pub async fn gone(&self, store: &Arc<dyn Store>, claim: &Claim) -> leasehold_core::Ended {
        match answered(self.enter(store, claim).await, "enter") {
            Admission::Gone(how) => how,
            other => panic!("{:?} should be gone: {other:?}", claim.resource),
        }
    }

    /// Enters, and must be refused for this reason, without effect.
    pub async fn refused(&self, store: &Arc<dyn Store>, claim: &Claim, kind: ErrorKind) {
        match store.enter(claim).await {
            Err(error) => {
                assert_eq!(error.kind(), kind, "{error}");
                assert_eq!(error.applied(), leasehold_core::Applied::No, "{error}");
            }
            Ok(answer) => panic!("{:?} should be refused: {answer:?}", claim.resource),
        }
        let queue = answered(store.inspect(&claim.resource).await, "inspect");
        let there = queue.entries.iter().any(|e| e.claim == claim.id);
        assert!(!there, "a refused claim is in the queue");
    }

    /// Leaves, and must have been there.
    pub async fn leaves(&self, store: &Arc<dyn Store>, claim: &Claim) {
        let left = answered(store.leave(&claim.to_ref()).await, "leave");
        assert_eq!(left, Left::Released, "{:?}", claim.resource);
    }

    /// Renews one claim.
    pub async fn renew(&self, store: &Arc<dyn Store>, claim: &ClaimRef) -> Renewed {
        let mut answers = store.renew(std::slice::from_ref(claim)).await;
        assert_eq!(answers.len(), 1, "one claim, one answer");
        match answers.pop() {
            Some(answer) => answer,
            None => unreachable!("counted above"),
        }
    }

    /// Enters again and again until granted.
    pub async fn until_granted(&self, store: &Arc<dyn Store>, claim: &Claim) -> Grant {
        self.until_some("a claim is granted", async || {
            match answered(self.enter(store, claim).await, "enter") {
                Admission::Granted(grant) => Some(grant),
                Admission::Waiting(_) | Admission::Busy(_) => None,
                Admission::Gone(how) => panic!("{:?} is gone: {how}", claim.resource),
            }
        })
        .await
    }

    /// Renews again and again until the claim is gone.
    pub async fn until_gone(&self, store: &Arc<dyn Store>, claim: &Claim) -> leasehold_core::Ended {
        let claim = claim.to_ref();
        self.until_some("a claim is gone", async || match self.renew(store, &claim).await {
            Renewed::Gone(how) => Some(how),
            _ => None,
        })
        .await
    }

    /// Lets time pass until there is an answer, for at most half a minute.
    ///
    /// # Panics
    ///
    /// If there is none by then.
    pub async fn until_some<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let end = self.now() + PATIENCE;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(self.now() < end, "waited {PATIENCE:?} in vain until {what}");
            self.pass(STEP);
        }
    }

    /// Starts to watch a resource on a thread of its own.
    pub fn watch(
        &self,
        store: &Arc<dyn Store>,
        name: &ResourceName,
        since: leasehold_core::Cursor,
        at_most: Duration,
    ) -> Watch {
        let (store, name) = (Arc::clone(store), name.clone());
        let harness = Arc::clone(&self.harness);
        Watch(thread::spawn(move || {
            let mut heard = None;
            harness.run(Box::pin(async {
                heard = Some(store.changed(&name, None, since, at_most).await);
            }));
            heard
        }))
    }

    /// Runs a future on a thread of its own.
    pub fn spawn<F>(&self, work: impl FnOnce() -> F + Send + 'static) -> thread::JoinHandle<()>
    where
        F: Future<Output = ()>,
    {
        let harness = Arc::clone(&self.harness);
        thread::spawn(move || harness.run(Box::pin(work())))
    }
}

/// A call of `changed` under way on a thread of its own.
pub struct Watch(thread::JoinHandle<Option<Result<Hint>>>);

impl Watch {
    /// What was heard, once something was, within half a minute on the clock of the harness.
    pub async fn heard(self, world: &World) -> Hint {
        world.until_some("a watch returns", async || self.0.is_finished().then_some(())).await;
        match self.0.join() {
            Ok(Some(hint)) => answered(hint, "watch"),
            _ => panic!("a watch broke off"),
        }
    }
}

/// The answer of a verb that has no reason to fail.
pub fn answered<T>(answer: Result<T>, verb: &str) -> T {
    match answer {
        Ok(answer) => answer,
        Err(error) => panic!("{verb} failed: {error}"),
    }
}
