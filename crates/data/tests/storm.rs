//! A storm of duplicates: 1,000 requests of 100 keys from processes that die at every step. Each effect happens
//! exactly once, and every answer is the same.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Mutex;
use std::task::Poll;
use std::time::{Duration, Instant};

use common::agent::{self, Agent, die, say};
use common::{Conn, Db, keys_in};
use leasehold_core::Noise;
use leasehold_data::Error;
use leasehold_data::Table;
use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys, Outcome, Run};
use leasehold_data::retry::{Retryable, Verdict};
use leasehold_sql::{Engine, Transaction};

const KEYS: usize = 100;
const REQUESTS: usize = 1000;
const PROCESSES: usize = 8;

/// Where a process dies.
const LOCAL_STEPS: [&str; 6] =
    ["before-claim", "after-claim", "mid-work", "before-commit", "at-commit", "before-reply"];
const REMOTE_STEPS: [&str; 10] = [
    "before-claim",
    "at-claim",
    "after-claim",
    "after-charge",
    "at-point",
    "after-point",
    "mid-work",
    "before-commit",
    "at-commit",
    "before-reply",
];

on_each!(
    duplicates_of_local_work_are_done_once_whatever_dies,
    duplicates_of_work_in_one_call_are_done_once_whatever_dies,
    duplicates_of_work_elsewhere_are_done_once_whatever_dies,
    a_run_that_slept_through_its_term_cannot_finish,
);

/// Not a test of its own: the processes of the tests below.
#[test]
fn agent() {
    agent::serve(serve);
}

/// Requests are `KEY STEP`: the key, and where to die.
async fn serve(db: Db, known: String, next: &mut dyn FnMut() -> Option<String>) {
    let (way, prefix) = known.split_once(' ').unwrap();
    let shop = Shop::of(prefix);
    let mut conn = db.connect().await;
    while let Some(request) = next() {
        let (key, step) = request.split_once(' ').unwrap();
        let key = Key::new("shop", key).unwrap();
        let mut dying =
            Dying { step: step.to_owned(), holds: step.ends_with("holds"), number: random() };
        let told = loop {
            let done = match way {
                "local" => shop.local(&mut conn, &key, &mut dying).await,
                "once" => shop.once(&mut conn, &key, &mut dying).await,
                _ => shop.remote(&mut conn, &key, &mut dying).await,
            };
            match done {
                Ok(Some(answer)) => {
                    break format!("answer {}", String::from_utf8_lossy(&answer.body));
                }
                Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) if error.verdict() == Verdict::Again => conn.clear().await,
                Err(error) => {
                    conn.clear().await;
                    break format!("refused {error}");
                }
            }
        };
        dying.at("before-reply");
        say(&told);
    }
}

/// Dies at its step, or at `hold` tells so and waits to be stopped.
struct Dying {
    step: String,
    holds: bool,
    /// Of this request alone.
    number: i64,
}

impl Dying {
    fn at(&mut self, step: &str) {
        if self.step == step {
            die();
        }
    }

    /// Sends what it was asked to, and dies before it is answered.
    async fn while_sending<T>(&mut self, step: &str, sending: impl Future<Output = T>) -> T {
        if self.step != step {
            return sending.await;
        }
        let mut sending = std::pin::pin!(sending);
        // Once or a few times polled it is sent; SQLite has done it at once.
        for _ in 0..3 {
            std::future::poll_fn(|context| {
                let _ = sending.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        die();
    }
}

fn random() -> i64 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    (hasher.finish() >> 1).cast_signed()
}

/// The tables of one test.
struct Shop {
    keys: Keys,
    prefix: String,
}

impl Shop {
    fn of(prefix: &str) -> Shop {
        let table = Table::new(format!("{prefix}_keys")).unwrap();
        let keys = Keys::new().in_table(table).unwrap().term(Duration::from_millis(600)).unwrap();
        Shop { keys, prefix: prefix.to_owned() }
    }

    async fn make(conn: &mut Conn, prefix: &str) -> Shop {
        keys_in(conn, &format!("{prefix}_keys")).await;
        let id = match Transaction::engine(conn) {
            Engine::Postgres => "id BIGSERIAL PRIMARY KEY",
            Engine::Mysql => "id BIGINT AUTO_INCREMENT PRIMARY KEY",
            _ => "id INTEGER PRIMARY KEY AUTOINCREMENT",
        };
        for (table, columns) in [
            ("effects", format!("{id}, request VARCHAR(40), mark BIGINT")),
            ("runs", format!("{id}, request VARCHAR(40), token BIGINT, attempt BIGINT")),
            ("charges", format!("{id}, step VARCHAR(40) UNIQUE, times BIGINT")),
        ] {
            conn.sql(&format!("DROP TABLE IF EXISTS {prefix}_{table}")).await;
            conn.sql(&format!("CREATE TABLE {prefix}_{table} ({columns})")).await;
        }
        Shop::of(prefix)
    }

    async fn claim(&self, conn: &mut Conn, key: &Key) -> Result<Claimed, Error> {
        self.keys.claim(conn, key, &Fingerprint::of([key.key()])).await
    }

    /// The work in this database: a row, whose number is the answer. `mark` is its own.
    async fn effect(&self, conn: &mut Conn, key: &Key, mark: i64) -> Result<Answer, Error> {
        let insert = format!("INSERT INTO {}_effects (request, mark) VALUES (?, ?)", self.prefix);
        conn.put(&insert, &[key.key().into(), mark.into()]).await?;
        let newest = format!("SELECT MAX(id) FROM {}_effects WHERE mark = {mark}", self.prefix);
        let rows = conn.rows(&newest, &[]).await?;
        Ok(Answer::new(200, rows[0].int(0).unwrap().to_string()))
    }

    /// Claim, work and answer in one transaction.
    async fn local(
        &self,
        conn: &mut Conn,
        key: &Key,
        dying: &mut Dying,
    ) -> Result<Option<Answer>, Error> {
        dying.at("before-claim");
        conn.try_begin().await?;
        let run = match self.claim(conn, key).await? {
            Claimed::Run(run) => run,
            Claimed::Replay(answer) => {
                conn.try_sql("COMMIT").await?;
                return Ok(Some(answer));
            }
            other => panic!("{other:?}"),
        };
        dying.at("after-claim");
        let answer = self.effect(conn, key, dying.number).await?;
        dying.at("mid-work");
        self.keys.finish(conn, &run, &answer).await?;
        dying.at("before-commit");
        dying.while_sending("at-commit", conn.try_sql("COMMIT")).await?;
        Ok(Some(answer))
    }

    /// The same in one call.
    async fn once(
        &self,
        conn: &mut Conn,
        key: &Key,
        dying: &mut Dying,
    ) -> Result<Option<Answer>, Error> {
        dying.at("before-claim");
        conn.try_begin().await?;
        let work = async |conn: &mut Conn| {
            dying.at("after-claim");
            let answer = self.effect(conn, key, dying.number).await?;
            dying.at("mid-work");
            Ok::<Answer, Error>(answer)
        };
        let payload = Fingerprint::of([key.key()]);
        let answer = match self.keys.once(conn, key, &payload, work).await? {
            Outcome::Done(answer) | Outcome::Replayed(answer) => answer,
            other => panic!("{other:?}"),
        };
        dying.at("before-commit");
        dying.while_sending("at-commit", conn.try_sql("COMMIT")).await?;
        Ok(Some(answer))
    }

    /// Claim, a charge elsewhere, a recovery point, and the rest of the work with its answer.
    async fn remote(
        &self,
        conn: &mut Conn,
        key: &Key,
        dying: &mut Dying,
    ) -> Result<Option<Answer>, Error> {
        dying.at("before-claim");
        conn.try_begin().await?;
        let claimed = self.claim(conn, key).await?;
        if let Claimed::Run(run) = &claimed {
            let token = i64::try_from(run.token().get()).unwrap();
            let note = format!(
                "INSERT INTO {}_runs (request, token, attempt) VALUES (?, ?, ?)",
                self.prefix
            );
            let attempt = i64::from(run.attempt());
            conn.put(&note, &[key.key().into(), token.into(), attempt.into()]).await?;
        }
        dying.while_sending("at-claim", conn.try_sql("COMMIT")).await?;
        let mut run = match claimed {
            Claimed::Run(run) => run,
            Claimed::Replay(answer) => return Ok(Some(answer)),
            Claimed::Busy { retry_after } => {
                tokio::time::sleep(retry_after.min(Duration::from_millis(100))).await;
                return Ok(None);
            }
            Claimed::Mismatch => panic!("the same key had another payload"),
        };
        dying.at("after-claim");
        if run.recovery_point().is_none() {
            self.charge(conn, &run).await?;
            dying.at("after-charge");
            conn.try_begin().await?;
            self.keys.recovery_point(conn, &mut run, "charged", b"state").await?;
            dying.while_sending("at-point", conn.try_sql("COMMIT")).await?;
        }
        dying.at("after-point");
        if dying.holds {
            // Its next word is the master's, once it goes on.
            say("holding");
            std::thread::sleep(Duration::from_millis(200));
        }
        conn.try_begin().await?;
        let answer = self.effect(conn, key, dying.number).await?;
        dying.at("mid-work");
        self.keys.finish(conn, &run, &answer).await?;
        dying.at("before-commit");
        dying.while_sending("at-commit", conn.try_sql("COMMIT")).await?;
        Ok(Some(answer))
    }

    /// A provider that knows keys of its own: the second time it only counts.
    async fn charge(&self, conn: &mut Conn, run: &Run) -> Result<(), Error> {
        let table = format!("{}_charges", self.prefix);
        let known = match Transaction::engine(conn) {
            Engine::Mysql => format!("ON DUPLICATE KEY UPDATE {table}.times = {table}.times + 1"),
            _ => format!("ON CONFLICT (step) DO UPDATE SET times = {table}.times + 1"),
        };
        let charge = format!("INSERT INTO {table} (step, times) VALUES (?, 1) {known}");
        conn.put(&charge, &[run.step("charge").into()]).await?;
        Ok(())
    }
}

/// Lets processes serve all requests, each again after a death, and returns the answers a key.
fn storm(db: &Db, known: &str, steps: &[&str]) -> BTreeMap<usize, Vec<String>> {
    let requests: VecDeque<usize> = (0..REQUESTS).map(|at| (at * 37) % KEYS).collect();
    let open = Mutex::new(requests);
    let answers: Mutex<BTreeMap<usize, Vec<String>>> = Mutex::default();
    std::thread::scope(|scope| {
        for process in 0..PROCESSES {
            let (open, answers) = (&open, &answers);
            scope.spawn(move || {
                let mut noise = Noise::seeded(process as u64 + 1);
                let mut agent = Agent::start(db, known);
                loop {
                    let Some(key) = open.lock().unwrap().pop_front() else { return };
                    let answer = loop {
                        // One in six dies, at a step drawn anew each time.
                        let dies = noise.next_u64().is_multiple_of(6);
                        let at = usize::try_from(noise.next_u64() % steps.len() as u64).unwrap();
                        let step = if dies { steps[at] } else { "nowhere" };
                        if let Some(answer) = agent.ask(&format!("key-{key} {step}")) {
                            break answer;
                        }
                        agent.kill();
                        agent = Agent::start(db, known);
                    };
                    answers.lock().unwrap().entry(key).or_default().push(answer);
                }
            });
        }
    });
    answers.into_inner().unwrap()
}

async fn judge(conn: &mut Conn, prefix: &str, answers: &BTreeMap<usize, Vec<String>>) {
    assert_eq!(answers.values().map(Vec::len).sum::<usize>(), REQUESTS);
    for (key, told) in answers {
        assert_eq!(told.len(), REQUESTS / KEYS);
        let effects = format!("SELECT COUNT(*) FROM {prefix}_effects WHERE request = 'key-{key}'");
        assert_eq!(conn.number(&effects).await, 1, "key {key}: {told:?}");
        let id = format!("SELECT MAX(id) FROM {prefix}_effects WHERE request = 'key-{key}'");
        let answer = format!("answer {}", conn.number(&id).await);
        assert!(told.iter().all(|told| *told == answer), "key {key}: {answer} but {told:?}");
    }
}

async fn duplicates_of_local_work_are_done_once_whatever_dies(engine: Engine) {
    let db = Db::of(engine);
    let mut conn = db.connect().await;
    Shop::make(&mut conn, "local").await;
    let answers = storm(&db, "local local", &LOCAL_STEPS);
    judge(&mut conn, "local", &answers).await;
}

async fn duplicates_of_work_in_one_call_are_done_once_whatever_dies(engine: Engine) {
    let db = Db::of(engine);
    let mut conn = db.connect().await;
    Shop::make(&mut conn, "once").await;
    let answers = storm(&db, "once once", &LOCAL_STEPS);
    judge(&mut conn, "once", &answers).await;
}

async fn duplicates_of_work_elsewhere_are_done_once_whatever_dies(engine: Engine) {
    let db = Db::of(engine);
    let mut conn = db.connect().await;
    Shop::make(&mut conn, "remote").await;
    let answers = storm(&db, "remote remote", &REMOTE_STEPS);
    judge(&mut conn, "remote", &answers).await;
    let charges = conn.number("SELECT COUNT(*) FROM remote_charges").await;
    assert_eq!(
        charges,
        i64::try_from(KEYS).unwrap(),
        "one at the provider for each key, whoever asked for it"
    );
    // Each that took over had a higher token than all before it, and each key its own.
    let later = "SELECT COUNT(*) FROM remote_runs a JOIN remote_runs b ON a.request = b.request \
                 WHERE a.attempt < b.attempt AND a.token >= b.token";
    assert_eq!(conn.number(later).await, 0);
    let twice = "SELECT COUNT(*) FROM (SELECT request, token FROM remote_runs \
                 GROUP BY request, token HAVING COUNT(*) > 1) AS t";
    assert_eq!(conn.number(twice).await, 0);
    let taken_over = conn.number("SELECT COUNT(*) FROM remote_runs WHERE attempt > 1").await;
    assert!(taken_over > 0, "no crash led to a take-over");
}

/// Stopped in the middle, it goes on after another has taken over and finished: nothing of it is left.
async fn a_run_that_slept_through_its_term_cannot_finish(engine: Engine) {
    let db = Db::of(engine);
    let mut conn = db.connect().await;
    let shop = Shop::make(&mut conn, "slept").await;
    let mut sleeper = Agent::start(&db, "remote slept");
    // It dies nowhere, but is stopped once its recovery point is there.
    assert!(sleeper.tell("key-1 nowhere-but-holds"));
    assert_eq!(sleeper.answer().as_deref(), Some("holding"));
    sleeper.process().stop().unwrap();
    let key = Key::new("shop", "key-1").unwrap();
    let mut dying = Dying { step: String::new(), holds: false, number: random() };
    let end = Instant::now() + common::PATIENCE;
    let answer = loop {
        match shop.remote(&mut conn, &key, &mut dying).await {
            Ok(Some(answer)) => break answer,
            Ok(None) => assert!(Instant::now() < end, "it is not taken over"),
            Err(error) => panic!("{error:?}"),
        }
    };
    sleeper.process().cont().unwrap();
    let told = sleeper.answer().unwrap();
    assert!(
        told.starts_with("refused another run") || told.starts_with("refused this run"),
        "{told}"
    );
    assert_eq!(conn.number("SELECT COUNT(*) FROM slept_effects").await, 1);
    let sum = "SELECT COUNT(*) FROM slept_runs WHERE attempt = 2";
    assert_eq!(conn.number(sum).await, 1);
    let kept = shop.remote(&mut conn, &key, &mut dying).await.unwrap();
    assert_eq!(kept, Some(answer), "the answer is that of the run that took over");
}
