//! The fence layer, over TCP: in memory, and with a real database.
#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use axum::routing::put;
use common::{Ask, Pool, SOON, ask, serve};
use leasehold_fence::{Mark, Resource, Token};
use leasehold_http::fence::{
    Entered, FenceLayer, FenceMarks, FencingToken as _, Guarded, MemoryFence, SqlFence,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;

#[derive(Clone)]
struct World {
    pool: Option<Pool>,
    inside: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl World {
    fn new(pool: Option<Pool>) -> World {
        let semaphore = || Arc::new(Semaphore::new(0));
        World { pool, inside: semaphore(), gate: semaphore() }
    }

    /// With the tables of a fence and of what it guards.
    async fn with_database() -> (World, Pool) {
        let pool = Pool::new();
        let mut connection = pool.get().await;
        leasehold_fence::sql::create_table(&mut **connection).await.unwrap();
        connection.batch_execute("CREATE TABLE kept (by BIGINT)").await.unwrap();
        (World::new(Some(pool.clone())), pool)
    }

    async fn serve(&self, marks: impl FenceMarks) -> SocketAddr {
        let layer = FenceLayer::new(marks, |request: &Parts| {
            let name = request.uri.path().replace("%0A", "\n");
            match request.method.as_str() {
                "GET" => Ok(Some(Guarded::shared(Resource::new(&name)?))),
                "PUT" => Ok(Some(Guarded::exclusive(Resource::new(&name)?))),
                _ => Ok(None),
            }
        });
        let app = Router::new()
            .route("/thing", put(write).get(async || "read").post(async || "free"))
            .route("/gate", put(gate))
            .route("/kept", put(keep))
            .fallback(async || "any")
            .layer(layer)
            .with_state(self.clone());
        serve(app).await
    }

    async fn until_inside(&self) {
        timeout(SOON, self.inside.acquire()).await.unwrap().unwrap().forget();
    }
}

async fn write(Extension(entered): Extension<Entered>) -> String {
    format!("written by {}", entered.mark)
}

async fn gate(State(world): State<World>) -> &'static str {
    world.inside.add_permits(1);
    world.gate.acquire().await.unwrap().forget();
    "through"
}

/// Begins its transaction after the layer, enters in it, and writes.
async fn keep(State(world): State<World>, Extension(entered): Extension<Entered>) -> Response {
    world.inside.add_permits(1);
    world.gate.acquire().await.unwrap().forget();
    let mut connection = world.pool.as_ref().unwrap().get().await;
    let mut tx = connection.transaction().await.unwrap();
    if let Some(refusal) = entered.enter(&mut *tx).await.unwrap() {
        return refusal.into_response();
    }
    let token = i64::try_from(entered.mark.token.get()).unwrap();
    tx.execute("INSERT INTO kept VALUES ($1)", &[&token]).await.unwrap();
    tx.commit().await.unwrap();
    "kept".into_response()
}

fn put_with(path: &str, token: &str) -> Ask {
    ask("PUT", path).header("fencing-token", token)
}

async fn refused(ask: Ask, addr: SocketAddr) -> (u16, String) {
    let reply = ask.send(addr).await;
    (reply.status, reply.code())
}

fn told(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

async fn answers_each_token_as_it_is_due(addr: SocketAddr) {
    let missing = told(428, "fencing-token-missing");
    assert_eq!(refused(ask("PUT", "/thing"), addr).await, missing);
    let malformed = told(400, "fencing-token-malformed");
    for token in ["", "x", "0", "-1", "1:2:3", "9007199254740992"] {
        assert_eq!(refused(put_with("/thing", token), addr).await, malformed, "{token:?}");
    }
    let twice = put_with("/thing", "7").header("fencing-token", "7");
    assert_eq!(refused(twice, addr).await, malformed);
    assert_eq!(put_with("/thing", "7").send(addr).await.text(), "written by 7");
    assert_eq!(put_with("/thing", "7").send(addr).await.status, 200, "one holder writes often");
    assert_eq!(put_with("/thing", "9").send(addr).await.status, 200);
    let stale = put_with("/thing", "8").send(addr).await;
    assert_eq!((stale.status, stale.code().as_str()), (412, "fencing-token-stale"));
    assert!(stale.text().contains(r#""offered":"8","newest":"9""#), "{}", stale.text());
    // A later epoch outranks every token, and then they count from the start.
    assert_eq!(put_with("/thing", "1:3").send(addr).await.status, 200);
    assert_eq!(put_with("/thing", "9").send(addr).await.status, 412);
    // Readers beside each other, not beside an older writer.
    let get = |token: &str| ask("GET", "/thing").header("fencing-token", token);
    for token in ["1:5", "1:4"] {
        assert_eq!(get(token).send(addr).await.text(), "read");
    }
    assert_eq!(put_with("/thing", "1:4").send(addr).await.status, 412, "a newer reader was there");
    // Others are not concerned.
    assert_eq!(put_with("/other", "1").send(addr).await.status, 200);
    assert_eq!(ask("POST", "/thing").send(addr).await.text(), "free");
    assert_eq!(refused(put_with("/a%0Ab", "1"), addr).await, told(400, "bad-resource"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_token_is_answered_as_it_is_due_in_memory() {
    let addr = World::new(None).serve(MemoryFence::new()).await;
    answers_each_token_as_it_is_due(addr).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_token_is_answered_as_it_is_due_in_a_database() {
    let (world, pool) = World::with_database().await;
    let addr = world.serve(SqlFence::new(pool.clone())).await;
    answers_each_token_as_it_is_due(addr).await;
    // Another instance knows what this one has seen.
    let other = world.serve(SqlFence::new(pool.clone())).await;
    assert_eq!(put_with("/thing", "1:3").send(other).await.status, 412);
    pool.away(true);
    let away = put_with("/thing", "1:9").send(addr).await;
    assert_eq!((away.status, away.code().as_str()), (503, "fence-unavailable"));
    assert_eq!(away.header("retry-after"), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory_a_newer_holder_waits_for_the_request_of_an_older_one() {
    let world = World::new(None);
    let fence = Arc::new(MemoryFence::new());
    let addr = world.serve(Arc::clone(&fence)).await;
    let older = tokio::spawn(async move { put_with("/gate", "1").send(addr).await });
    world.until_inside().await;
    let newer = tokio::spawn(async move { put_with("/gate", "2").send(addr).await });
    let (gate, two) = (Resource::new("/gate").unwrap(), Token::new(2).unwrap());
    while fence.marks(&gate).exclusive != Some(two.into()) {
        tokio::task::yield_now().await;
    }
    // It has raised the mark, so an older one is past; but it is not inside.
    assert_eq!(put_with("/gate", "1").send(addr).await.status, 412);
    assert_eq!(world.inside.available_permits(), 0, "the newer one came in beside the older");
    world.gate.add_permits(1);
    assert_eq!(older.await.unwrap().status, 200);
    world.until_inside().await;
    world.gate.add_permits(1);
    assert_eq!(newer.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_paused_after_the_layer_is_refused_in_its_own_transaction() {
    let (world, pool) = World::with_database().await;
    let addr = world.serve(SqlFence::new(pool.clone())).await;
    let paused = tokio::spawn(async move { put_with("/kept", "1").send(addr).await });
    world.until_inside().await;
    // A newer holder comes, before its first write.
    let newer = tokio::spawn(async move { put_with("/kept", "2").send(addr).await });
    world.until_inside().await;
    world.gate.add_permits(2);
    let (paused, newer) = (paused.await.unwrap(), newer.await.unwrap());
    assert_eq!((paused.status, paused.code().as_str()), (412, "fencing-token-stale"));
    assert_eq!((newer.status, newer.text().as_str()), (200, "kept"));
    assert_eq!(pool.count("SELECT sum(by)::bigint FROM kept").await, 2);
}

#[test]
fn a_client_shows_the_mark_of_its_lease() {
    let lease = leasehold_fence::Epoch(3);
    let mark = Mark { epoch: lease, token: Token::new(41).unwrap() };
    let request = http_request(mark);
    assert_eq!(request.headers()["fencing-token"], "3:41");
}

fn http_request(mark: Mark) -> axum::http::Request<()> {
    axum::http::Request::put("/thing").fencing_token(mark).body(()).unwrap()
}
