//! The idempotency layer, over TCP, with a real database.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use common::{Ask, Pool, Reply, SOON, ask, serve};
use leasehold_data::idempotency::{Claimed, Fingerprint, Key, Keys};
use leasehold_http::idempotency::{IdempotencyLayer, Keyed, SqlKeys};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What a service and its test share.
#[derive(Clone)]
struct World {
    pool: Pool,
    keys: Keys,
    /// A permit for each handler that has come in.
    inside: Arc<Semaphore>,
    /// What a handler at a gate waits for.
    gate: Arc<Semaphore>,
}

impl World {
    async fn new() -> World {
        let pool = Pool::new();
        let keys = Keys::new();
        let mut connection = pool.get().await;
        let mut transaction = connection.transaction().await.unwrap();
        keys.create_table(&mut *transaction).await.unwrap();
        transaction.batch_execute("CREATE TABLE effects (what TEXT)").await.unwrap();
        transaction.commit().await.unwrap();
        let semaphore = || Arc::new(Semaphore::new(0));
        World { pool, keys, inside: semaphore(), gate: semaphore() }
    }

    /// One whose runs are taken over after this silence.
    async fn with_term(term: Duration) -> World {
        let world = World::new().await;
        World { keys: world.keys.clone().term(term).unwrap(), ..world }
    }

    fn layer(&self) -> IdempotencyLayer {
        let store = SqlKeys::new(self.keys.clone(), self.pool.clone());
        IdempotencyLayer::new(store, |request: &axum::http::request::Parts| {
            let caller = request.headers.get("x-caller")?.to_str().ok()?;
            Some(caller.to_owned())
        })
    }

    async fn serve(&self) -> SocketAddr {
        self.serve_with(self.layer()).await
    }

    async fn serve_with(&self, layer: IdempotencyLayer) -> SocketAddr {
        let app = Router::new()
            .route("/order", post(order).put(order))
            .route("/other", post(order))
            .route("/gate", post(gate))
            .route("/within", post(within))
            .route("/within-then-lost", post(within_then_lost))
            .route("/flaky", post(flaky))
            .route("/large", post(large))
            .route("/panic", post(panics))
            .route("/refused", post(refused))
            .route("/read", get(async || "read"))
            .layer(layer)
            .with_state(self.clone());
        serve(app).await
    }

    async fn effect(&self, what: &str) -> i64 {
        let statement = format!("INSERT INTO effects VALUES ('{what}')");
        self.pool.get().await.batch_execute(&statement).await.unwrap();
        self.effects().await
    }

    async fn effects(&self) -> i64 {
        self.pool.count("SELECT count(*) FROM effects").await
    }

    /// Waits until a handler has come to its gate.
    async fn until_inside(&self) {
        timeout(SOON, self.inside.acquire()).await.unwrap().unwrap().forget();
    }

    async fn claim_by_hand(&self, path: &str, key: &str) -> Claimed {
        self.claim_after("", path, key).await
    }

    /// Claims in one transaction with a statement before it.
    async fn claim_after(&self, statement: &str, path: &str, key: &str) -> Claimed {
        let mut connection = self.pool.get().await;
        let mut transaction = connection.transaction().await.unwrap();
        transaction.batch_execute(statement).await.unwrap();
        let key = Key::new("alice", key).unwrap();
        let payload = Fingerprint::of(["POST", path, ""]);
        let claimed = self.keys.claim(&mut *transaction, &key, &payload).await.unwrap();
        transaction.commit().await.unwrap();
        claimed
    }
}

async fn order(State(world): State<World>, body: Bytes) -> Response {
    let number = world.effect("order").await;
    let place = [("location", format!("/orders/{number}"))];
    (StatusCode::CREATED, place, [&b"ordered "[..], &body].concat()).into_response()
}

async fn gate(State(world): State<World>) -> String {
    world.inside.add_permits(1);
    world.gate.acquire().await.unwrap().forget();
    world.effect("gate").await.to_string()
}

/// Work and answer in one transaction.
async fn within(State(world): State<World>, Extension(keyed): Extension<Keyed>) -> Response {
    let mut connection = world.pool.get().await;
    let mut transaction = connection.transaction().await.unwrap();
    transaction.batch_execute("INSERT INTO effects VALUES ('within')").await.unwrap();
    let answer = Response::builder().status(201).header("x-kept", "yes").body("within").unwrap();
    match keyed.finish(&mut *transaction, &world.keys, answer).await {
        Ok(answer) => {
            transaction.commit().await.unwrap();
            answer.into_response()
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// As one whose commit was done, and its reply lost.
async fn within_then_lost(world: State<World>, keyed: Extension<Keyed>) -> Response {
    assert_eq!(within(world, keyed).await.status(), 201);
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

/// Fails at the first try, after a step that cannot be undone.
async fn flaky(State(world): State<World>, Extension(keyed): Extension<Keyed>) -> Response {
    let mut run = keyed.run().clone();
    if run.recovery_point().is_some() {
        return format!("try {} went on", run.attempt()).into_response();
    }
    world.effect("charge").await;
    let mut connection = world.pool.get().await;
    let mut transaction = connection.transaction().await.unwrap();
    world.keys.recovery_point(&mut *transaction, &mut run, "charged", b"c-1").await.unwrap();
    transaction.commit().await.unwrap();
    StatusCode::BAD_GATEWAY.into_response()
}

async fn large(State(world): State<World>) -> Vec<u8> {
    world.effect("large").await;
    vec![b'x'; 1024 * 1024 + 1]
}

async fn panics(State(world): State<World>, Extension(keyed): Extension<Keyed>) -> String {
    world.effect("panic").await;
    assert!(keyed.run().attempt() > 1, "the first try ends here");
    "the second".to_owned()
}

async fn refused(State(world): State<World>) -> Response {
    world.effect("refused").await;
    StatusCode::TOO_MANY_REQUESTS.into_response()
}

fn order_of(key: &str) -> Ask {
    ask("POST", "/order").key(key).body("tea")
}

/// Everything but what belongs to the moment.
fn same(a: &Reply, b: &Reply) -> bool {
    let kept = |reply: &Reply| -> Vec<(String, String)> {
        let headers = reply.headers.iter().filter(|(name, _)| {
            !["date", "idempotent-replayed", "connection"].contains(&name.as_str())
        });
        let mut headers: Vec<_> = headers.cloned().collect();
        headers.sort();
        headers
    };
    (a.status, kept(a), &a.body) == (b.status, kept(b), &b.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_again_is_answered_the_same_and_run_once() {
    let world = World::new().await;
    let addr = world.serve().await;
    let first = order_of("\"k\"").send(addr).await;
    assert_eq!((first.status, first.text().as_str()), (201, "ordered tea"));
    assert_eq!(first.header("location"), Some("/orders/1"));
    assert_eq!(first.header("idempotent-replayed"), None);
    // Quoted or not, it is one key.
    for key in ["\"k\"", "k"] {
        let again = order_of(key).send(addr).await;
        assert!(same(&first, &again), "{first:?} {again:?}");
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(world.effects().await, 1);
    // Another key, and the same one of another caller, are others.
    assert_eq!(order_of("l").send(addr).await.header("location"), Some("/orders/2"));
    let bob = ask("POST", "/order").header("idempotency-key", "k").header("x-caller", "bob");
    assert_eq!(bob.body("tea").send(addr).await.header("location"), Some("/orders/3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_once_is_refused_before_it_is_run() {
    let world = World::new().await;
    let addr = world.serve().await;
    let post = || ask("POST", "/order").header("x-caller", "alice");
    let key = |key: &str| post().header("idempotency-key", key);
    let refused = [
        (post(), 400, "idempotency-key-missing"),
        (key("\"\""), 400, "idempotency-key-malformed"),
        (key("\"open"), 400, "idempotency-key-malformed"),
        (key("a b"), 400, "idempotency-key-malformed"),
        (key(&"k".repeat(256)), 400, "idempotency-key-malformed"),
        (key("a").header("idempotency-key", "a"), 400, "idempotency-key-malformed"),
        (ask("POST", "/order").header("idempotency-key", "a"), 401, "caller-unknown"),
        (key("a").body(vec![b'x'; 1024 * 1024 + 1]), 413, "request-too-large"),
    ];
    for (ask, status, code) in refused {
        let reply = ask.send(addr).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code));
    }
    assert_eq!(world.effects().await, 0);
    let whole = key("whole").body(vec![b'x'; 1024 * 1024]).send(addr).await;
    assert_eq!(whole.code(), "answer-too-large", "the body is taken; the answer is longer still");
    // What takes no key passes without one.
    assert_eq!(ask("GET", "/read").send(addr).await.text(), "read");
    assert_eq!(ask("PUT", "/order").body("x").send(addr).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_payload_under_the_same_key_is_refused() {
    let world = World::new().await;
    let addr = world.serve().await;
    assert_eq!(order_of("k").send(addr).await.status, 201);
    let others = [
        ask("POST", "/order").key("k").body("coffee"),
        ask("POST", "/order?fast=1").key("k").body("tea"),
        ask("POST", "/other").key("k").body("tea"),
    ];
    for other in others {
        let reply = other.send(addr).await;
        assert_eq!((reply.status, reply.code().as_str()), (422, "idempotency-key-reused"));
    }
    assert_eq!(world.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_is_not_run_beside_itself() {
    let world = World::new().await;
    let addr = world.serve().await;
    let asked = ask("POST", "/gate").key("k");
    let first = tokio::spawn({
        let asked = asked.clone();
        async move { asked.send(addr).await }
    });
    world.until_inside().await;
    let busy = asked.send(addr).await;
    assert_eq!((busy.status, busy.code().as_str()), (409, "run-under-way"));
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds));
    world.gate.add_permits(1);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text().as_str()), (200, "1"));
    assert!(same(&first, &asked.send(addr).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_does_not_stop_the_work() {
    let world = World::new().await;
    let layer = world.layer();
    let addr = world.serve_with(layer.clone()).await;
    let asked = ask("POST", "/gate").key("k");
    let hung_up = asked.open(addr).await;
    world.until_inside().await;
    drop(hung_up);
    world.gate.add_permits(1);
    timeout(SOON, layer.drained()).await.unwrap();
    // Asked elsewhere: this one was drained.
    let reply = asked.send(world.serve().await).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "1"));
    assert_eq!(reply.header("idempotent-replayed"), Some("true"));
    assert_eq!(world.effects().await, 1);
    let refused = ask("POST", "/order").key("l").send(addr).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "too-many-runs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_runs_than_allowed_are_under_way() {
    let world = World::new().await;
    let addr = world.serve_with(world.layer().runs_at_most(1)).await;
    let gone = ask("POST", "/gate").key("k").open(addr).await;
    world.until_inside().await;
    drop(gone);
    let refused = order_of("l").send(addr).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "too-many-runs"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    world.gate.add_permits(1);
    let mut last = 503;
    while last == 503 {
        last = order_of("l").send(addr).await.status;
    }
    assert_eq!(last, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_not_stored_and_the_next_try_goes_on_where_it_had_come_to() {
    let world = World::new().await;
    let addr = world.serve().await;
    let asked = ask("POST", "/flaky").key("k");
    assert_eq!(asked.send(addr).await.status, 502);
    let second = asked.send(addr).await;
    assert_eq!((second.status, second.text().as_str()), (200, "try 2 went on"));
    assert_eq!(second.header("idempotent-replayed"), None);
    assert!(same(&second, &asked.send(addr).await));
    assert_eq!(world.effects().await, 1, "the charge was made once");
}

#[tokio::test(flavor = "multi_thread")]
async fn which_answers_are_stored_can_be_said() {
    let world = World::new().await;
    let addr = world.serve_with(world.layer().keep_answers(|status| status != 429)).await;
    let flaky = ask("POST", "/flaky").key("k");
    assert_eq!(flaky.send(addr).await.status, 502);
    let again = flaky.send(addr).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (502, Some("true")));
    // Forgotten, the key may come with anything.
    let refused = ask("POST", "/refused").key("l");
    assert_eq!(refused.send(addr).await.status, 429);
    assert_eq!(refused.send(addr).await.header("idempotent-replayed"), None);
    assert_eq!(ask("POST", "/order").key("l").send(addr).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_large_is_refused_and_its_work_not_done_again() {
    let world = World::new().await;
    let addr = world.serve().await;
    let asked = ask("POST", "/large").key("k");
    let first = asked.send(addr).await;
    assert_eq!((first.status, first.code().as_str()), (413, "answer-too-large"));
    let again = asked.send(addr).await;
    assert!(same(&first, &again));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(world.effects().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_is_run_again() {
    let world = World::new().await;
    let addr = world.serve().await;
    let asked = ask("POST", "/panic").key("k");
    let first = asked.send(addr).await;
    assert_eq!((first.status, first.code().as_str()), (500, "run-failed"));
    assert_eq!(asked.send(addr).await.text(), "the second");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_and_answer_in_one_transaction_are_stored_once() {
    let world = World::new().await;
    let addr = world.serve().await;
    let asked = ask("POST", "/within").key("k");
    let first = asked.send(addr).await;
    assert_eq!((first.status, first.header("x-kept")), (201, Some("yes")));
    assert!(same(&first, &asked.send(addr).await));
    assert_eq!(world.effects().await, 1);
    // The stored answer outranks what the handler says after it.
    let lost = ask("POST", "/within-then-lost").key("l").send(addr).await;
    assert_eq!((lost.status, lost.text().as_str()), (201, "within"));
    assert_eq!(world.effects().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_fell_silent_is_taken_over() {
    let world = World::with_term(Duration::from_millis(400)).await;
    let addr = world.serve().await;
    // As a process that died right after its claim.
    assert!(matches!(world.claim_by_hand("/panic", "k").await, Claimed::Run(_)));
    let asked = ask("POST", "/panic").key("k");
    let mut reply = asked.send(addr).await;
    while reply.status == 409 {
        reply = asked.send(addr).await;
    }
    assert_eq!(reply.text(), "the second", "it is told that it is not the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_lives_longer_than_its_term_while_its_handler_works() {
    let world = World::with_term(Duration::from_millis(300)).await;
    let addr = world.serve().await;
    let asked = ask("POST", "/gate").key("k");
    let first = tokio::spawn({
        let asked = asked.clone();
        async move { asked.send(addr).await }
    });
    world.until_inside().await;
    // Three terms, by the clock that judges them.
    world.pool.get().await.batch_execute("SELECT pg_sleep(0.9)").await.unwrap();
    assert_eq!(asked.send(addr).await.status, 409);
    world.gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_renewed_is_cancelled_before_it_can_be_anothers() {
    let world = World::with_term(Duration::from_secs(2)).await;
    let addr = world.serve().await;
    let asked = ask("POST", "/gate").key("k");
    let first = tokio::spawn({
        let asked = asked.clone();
        async move { asked.send(addr).await }
    });
    world.until_inside().await;
    world.pool.away(true);
    let reply = first.await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (503, "keys-unavailable"));
    // It is not yet another's when the first is told.
    assert!(matches!(world.claim_by_hand("/gate", "k").await, Claimed::Busy { .. }));
    world.gate.add_permits(1);
    world.pool.away(false);
    assert_eq!(world.effects().await, 0, "what was cancelled does nothing more");
    let mut reply = asked.send(addr).await;
    while reply.status == 409 {
        reply = asked.send(addr).await;
    }
    assert_eq!(reply.text(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_taken_over_is_cancelled() {
    let world = World::with_term(Duration::from_secs(2)).await;
    let addr = world.serve().await;
    let first = tokio::spawn(async move { ask("POST", "/gate").key("k").send(addr).await });
    world.until_inside().await;
    // As after a pause of the whole process: its row says that it has been silent.
    let silent = "UPDATE leasehold_idempotency SET runs_until_us = 0";
    assert!(matches!(world.claim_after(silent, "/gate", "k").await, Claimed::Run(_)));
    let reply = first.await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (409, "run-under-way"));
    assert_eq!(world.effects().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_store_nothing_is_run() {
    let world = World::new().await;
    let addr = world.serve().await;
    world.pool.away(true);
    let reply = order_of("k").send(addr).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "keys-unavailable"));
    assert_eq!(reply.header("retry-after"), Some("1"));
    world.pool.away(false);
    assert_eq!(world.effects().await, 0);
    assert_eq!(order_of("k").send(addr).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_be_optional() {
    let world = World::new().await;
    let addr = world.serve_with(world.layer().optional()).await;
    for _ in 0..2 {
        assert_eq!(ask("POST", "/order").send(addr).await.status, 201);
    }
    assert_eq!(world.effects().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_duplicates_has_each_effect_once_and_one_answer_a_key() {
    let world = World::new().await;
    let addr = world.serve().await;
    let path = |n: usize| if n.is_multiple_of(2) { "/order" } else { "/within" };
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..400 {
        let key = n % 40;
        let asked = ask("POST", path(key)).key(&format!("key-{key}"));
        clients.spawn(async move {
            // Every fifth hangs up, and asks again.
            if n % 5 == 0 {
                drop(asked.open(addr).await);
            }
            loop {
                let reply = asked.send(addr).await;
                if reply.status != 409 {
                    return (
                        key,
                        reply.status,
                        reply.text(),
                        reply.header("location").map(str::to_owned),
                    );
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    let answers: BTreeSet<_> = clients.join_all().await.into_iter().collect();
    assert_eq!(answers.len(), 40, "{answers:?}");
    assert!(answers.iter().all(|(_, status, ..)| *status == 201));
    assert_eq!(world.effects().await, 40);
}
