//! A service with all of it: orders that may be sent again, routes that only a live holder may
//! change, reports that one at a time may make, and an instance that ends when its lease does.
//!
//! | request | what keeps it right |
//! |---|---|
//! | `POST /orders`, the wanted pieces as body | `Idempotency-Key`; stock, order and answer in one transaction |
//! | `PUT /routes/{name}`, the route as body | `Fencing-Token` of a lease on `routes/{name}` |
//! | `POST /reports/{name}` | a lease on `reports/{name}` for as long as the handler runs: [`Alone`] |
//! | `GET /health` | nothing |
//!
//! Who calls is known by `Authorization: Bearer NAME-secret`: no more than an example of it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use leasehold::{Client, Lease, Lost};
use leasehold_data::conditional::{Amounts, Taken};
use leasehold_data::idempotency::Keys;
use leasehold_fence::Resource;
use leasehold_http::fence::{Entered, FenceLayer, Guarded, SqlFence};
use leasehold_http::idempotency::{IdempotencyLayer, Keyed, SqlKeys};
use tokio::net::TcpListener;

use crate::db::{Db, Pool};
use crate::{Error, Result};

/// What the handlers share.
#[derive(Clone, Debug)]
pub struct App {
    pool: Pool,
    keys: Keys,
    locks: Client,
}

/// How an instance ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was told to.
    Told,
    /// Its lease was lost: another instance may be the active one.
    Lost(leasehold::Loss),
}

impl App {
    /// Makes the tables, where they are missing.
    ///
    /// # Errors
    ///
    /// What the database or the store of locks says.
    pub async fn new(pool: Pool, locks_url: &str, term: Duration) -> Result<App> {
        let keys = Keys::new().term(term)?;
        let mut connection = pool.get().await?;
        leasehold_fence::sql::create_table(&mut **connection).await?;
        let mut tx = connection.transaction().await?;
        // Two instances that start at once would make the tables twice.
        tx.batch_execute("SELECT pg_advisory_xact_lock(7301)").await?;
        keys.create_table(&mut *tx).await?;
        tx.batch_execute(
            "CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, pieces bigint NOT NULL);
             CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, pieces bigint NOT NULL);
             CREATE TABLE IF NOT EXISTS routes (name text PRIMARY KEY, route text NOT NULL);
             INSERT INTO stock VALUES ('tea', 1000) ON CONFLICT DO NOTHING",
        )
        .await?;
        tx.commit().await?;
        drop(connection);
        Ok(App { pool, keys, locks: leasehold::connect(locks_url).await? })
    }

    /// The service, and its layer of idempotency keys, to be drained in the end.
    pub fn router(&self) -> (Router, IdempotencyLayer) {
        let store = SqlKeys::new(self.keys.clone(), self.pool.clone());
        let idempotency = IdempotencyLayer::new(store, caller);
        let fence = FenceLayer::new(SqlFence::new(self.pool.clone()), |request: &Parts| {
            let name = request.uri.path().trim_start_matches('/');
            Ok(Some(Guarded::exclusive(Resource::new(name)?)))
        });
        let router = Router::new()
            .route("/orders", post(order).layer(idempotency.clone()))
            .route("/routes/{name}", put(route).layer(fence))
            .route("/reports/{name}", post(report))
            .route("/health", get(async || "well"))
            .with_state(self.clone());
        (router, idempotency)
    }

    /// Waits to be the active instance, then serves until it is told to end or its lease is lost.
    ///
    /// # Errors
    ///
    /// What the store of locks or the socket says.
    pub async fn serve(
        self,
        listener: TcpListener,
        told: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Ended> {
        let lease = self.locks.lock("service").ttl(Duration::from_secs(10)).acquire().await?;
        println!("active on {} with token {}", listener.local_addr()?, lease.token());
        let (router, idempotency) = self.router();
        let (ended, lost) = (lease.lost(), lease.lost());
        let until = async move {
            tokio::select! {
                () = told => {}
                _ = ended => {}
            }
        };
        // Stops listening, and lets those who are inside finish.
        axum::serve(listener, router).with_graceful_shutdown(until).await?;
        // Runs of clients that hung up, too: but not beside the next active instance for long.
        let _ = tokio::time::timeout(Duration::from_secs(5), idempotency.drained()).await;
        let how = ended_by(&lost);
        let _ = lease.release().await;
        let _ = self.locks.close(Duration::from_secs(5)).await;
        Ok(how)
    }
}

fn ended_by(lost: &Lost) -> Ended {
    lost.now().map_or(Ended::Told, Ended::Lost)
}

/// Whom the service has authenticated.
fn caller(request: &Parts) -> Option<String> {
    let value = request.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let name = value.strip_prefix("Bearer ")?.strip_suffix("-secret")?;
    Some(name.to_owned())
}

/// The lease under which a handler runs: on what its path names.
///
/// Whoever else asks for it meanwhile is told 423. It is released when the handler is done, or
/// dropped because its client hung up.
#[derive(Debug)]
pub struct Alone(pub Lease);

impl FromRequestParts<App> for Alone {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Alone, Response> {
        let name = parts.uri.path().trim_start_matches('/').to_owned();
        match app.locks.lock(&name).try_acquire().await {
            Ok(Some(lease)) => Ok(Alone(lease)),
            Ok(None) => {
                let retry_after = [(header::RETRY_AFTER, "1")];
                let why = format!("{name} is being made\n");
                Err((StatusCode::LOCKED, retry_after, why).into_response())
            }
            Err(error) => Err(Failed(error.into()).into_response()),
        }
    }
}

/// Work, key and answer in one transaction.
async fn order(
    State(app): State<App>,
    Extension(keyed): Extension<Keyed>,
    body: String,
) -> Result<Response, Failed> {
    let Ok(pieces) = body.trim().parse::<i64>() else {
        return Ok((StatusCode::BAD_REQUEST, "how many pieces?\n").into_response());
    };
    let mut connection = app.pool.get().await?;
    let mut tx = connection.transaction().await?;
    let stock = Amounts::new("stock", "sku", "pieces")?;
    let Taken::All(left) = stock.take(&mut *tx, &[("tea".into(), pieces)]).await? else {
        return Ok((StatusCode::CONFLICT, "not enough is left\n").into_response());
    };
    let insert = "INSERT INTO orders (pieces) VALUES ($1) RETURNING id";
    let id: i64 = tx.query_one(insert, &[&pieces]).await?.try_get(0)?;
    let left = left.first().map_or(0, |(_, left)| *left);
    let answer = axum::http::Response::builder()
        .status(StatusCode::CREATED)
        .header(header::LOCATION, format!("/orders/{id}"))
        .body(format!("order {id}, {left} left\n"))?;
    let answer = keyed.finish(&mut *tx, &app.keys, answer).await?;
    tx.commit().await?;
    Ok(answer.into_response())
}

/// Enters its fence again in its own transaction: a newer holder may have come since the layer
/// looked, and waits from here on until this is committed.
async fn route(
    State(app): State<App>,
    Extension(entered): Extension<Entered>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Failed> {
    let mut connection = app.pool.get().await?;
    let mut tx = connection.transaction().await?;
    if let Some(refusal) = entered.enter(&mut *tx).await? {
        return Ok(refusal.into_response());
    }
    let route = String::from_utf8_lossy(&body).into_owned();
    let put = "INSERT INTO routes VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET route = $2";
    tx.execute(put, &[&name, &route]).await?;
    tx.commit().await?;
    Ok((StatusCode::OK, format!("{name} goes {route}\n")).into_response())
}

async fn report(Alone(lease): Alone, State(app): State<App>) -> Result<Response, Failed> {
    let orders = app.pool.number("SELECT count(*) FROM orders");
    match lease.run(orders).await {
        Ok(orders) => {
            let text = format!("{} orders, told under token {}\n", orders?, lease.token());
            let _ = lease.release().await;
            Ok(text.into_response())
        }
        Err(loss) => Err(Failed(loss.into())),
    }
}

/// What went wrong, which the client need not know.
#[derive(Debug)]
struct Failed(Error);

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("failed: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// Listens, and serves at this database until it is told to end by SIGTERM or an interrupt.
///
/// # Errors
///
/// As [`App::serve`].
pub async fn main(url: Option<&str>, addr: SocketAddr, term: Duration) -> Result<Ended> {
    let db = match url {
        Some(url) => Db::kept(url, "service").await?,
        None => Db::own("service").await?,
    };
    let app = App::new(db.pool.clone(), &db.locks_url(), term).await?;
    let listener = TcpListener::bind(addr).await?;
    app.serve(listener, signalled()).await
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
