//! One run: claimed, renewed while the handler works, and its answer stored.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Run, TryId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tower_service::Service;
use tracing::Instrument as _;

use super::answer::{Unread, read, replay, response, stored};
use super::keyed::{Keyed, Stored};
use super::layer::{IdempotencyLayer, failed};
use super::store::{Ended, KeyStore};
use crate::body::{AnyBody, Body, BoxError};
use crate::problem::Problem;

/// What is asked for.
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) payload: Fingerprint,
}

/// What the handler has answered.
enum Answered<E> {
    /// Whole, and perhaps stored by the handler itself.
    Whole {
        head: http::response::Parts,
        body: Bytes,
    },
    TooLarge(http::response::Parts),
    Broken(BoxError),
    Failed(E),
}

/// A client that asks while a run is under way need not wait for the whole term of a dead one: most
/// are done long before.
const RETRY_AFTER_MOST: Duration = Duration::from_secs(5);

/// How often a claim is tried while the store does not say.
const CLAIM_TRIES: u32 = 3;

/// Sees one request through to its answer.
pub(super) async fn see_through<S, R>(
    layer: &IdempotencyLayer,
    asked: Asked,
    mut inner: S,
    mut request: Request<Body>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>, Future: Send> + Send + 'static,
    S::Error: Send + 'static,
    R: AnyBody,
{
    let store = &*layer.store;
    let (claimed, since) = match claim(store, &asked).await {
        Ok(claimed) => claimed,
        Err(error) => {
            tracing::error!(target: "leasehold", %error, "an idempotency key was not claimed");
            return Ok(away().response());
        }
    };
    let run = match claimed {
        Claimed::Run(run) => run,
        Claimed::Replay(answer) => return Ok(replayed(answer)),
        Claimed::Busy { retry_after } => return Ok(under_way(retry_after).response()),
        Claimed::Mismatch => return Ok(mismatch().response()),
    };
    request.extensions_mut().insert(Keyed::new(run.clone()));
    let work = answer_of(inner.call(request), layer.answer_limit);
    let belief = Belief { since, term: store.term() };
    match work_under(store, &run, belief, tokio::spawn(work.in_current_span())).await {
        Ok((answered, belief)) => settle(layer, &asked, &run, belief, answered).await,
        Err(problem) => Ok(problem.response()),
    }
}

/// Claims, and tells since when the run is believed.
async fn claim(store: &dyn KeyStore, asked: &Asked) -> Result<(Claimed, Instant), BoxError> {
    let id = TryId::random()?;
    let mut pause = Duration::from_millis(50);
    let mut tries = 1;
    loop {
        let sent = Instant::now();
        match store.claim(&asked.key, &asked.payload, &id).await {
            Ok(claimed) => return Ok((claimed, sent)),
            Err(error) if tries == CLAIM_TRIES => return Err(error),
            Err(_) => {
                sleep(pause).await;
                pause *= 4;
                tries += 1;
            }
        }
    }
}

async fn answer_of<R, E>(
    call: impl Future<Output = Result<Response<R>, E>>,
    limit: usize,
) -> Answered<E>
where
    R: AnyBody,
{
    let answer = match call.await {
        Ok(answer) => answer,
        Err(error) => return Answered::Failed(error),
    };
    let (head, body) = answer.into_parts();
    match read(body, limit).await {
        Ok(body) => Answered::Whole { head, body },
        Err(Unread::TooLarge) => Answered::TooLarge(head),
        Err(Unread::Broken(error)) => Answered::Broken(error),
    }
}

/// Until when a run is believed to be ours: counted from when the last answered request was sent.
#[derive(Clone, Copy)]
struct Belief {
    since: Instant,
    term: Duration,
}

impl Belief {
    /// A tenth before the term could be over, for clocks that do not run alike.
    fn end(self) -> Instant {
        self.since + self.term - self.term / 10
    }
}

/// Lets the handler work while its run is renewed. A run that has ended cancels it.
async fn work_under<E>(
    store: &dyn KeyStore,
    run: &Run,
    mut belief: Belief,
    mut work: JoinHandle<Answered<E>>,
) -> Result<(Answered<E>, Belief), Problem> {
    let ended = tokio::select! {
        biased;
        done = &mut work => match done {
            Ok(answered) => return Ok((answered, belief)),
            Err(error) => {
                tracing::error!(target: "leasehold", %error, "the handler of a run has panicked");
                told(store.give_up(run).await, "gave up a run");
                return Err(failed("the handler failed"));
            }
        },
        ended = keep(store, run, &mut belief) => ended,
    };
    work.abort();
    let _ = work.await; // cancelled, or done too late to count
    tracing::warn!(target: "leasehold", ?ended, "a run was cancelled");
    Err(match ended {
        Ended::TakenOver => under_way(RETRY_AFTER_MOST),
        _ => away(),
    })
}

/// Renews a run for as long as it works; done when it may be another's.
async fn keep(store: &dyn KeyStore, run: &Run, belief: &mut Belief) -> Ended {
    let mut next = belief.since + belief.term / 3;
    loop {
        sleep_until(next.min(belief.end())).await;
        let sent = Instant::now();
        let end = belief.end();
        if sent >= end {
            return Ended::Unknown("the run could not be renewed in time".into());
        }
        match timeout_at(end, store.renew(run)).await {
            Ok(Ok(())) => {
                belief.since = sent;
                next = sent + belief.term / 3;
            }
            Ok(Err(Ended::TakenOver)) => return Ended::TakenOver,
            // The handler has stored its answer, and will soon be done.
            Ok(Err(Ended::Finished)) => std::future::pending().await,
            Ok(Err(error)) => {
                tracing::warn!(target: "leasehold", ?error, "a run was not renewed");
                next = Instant::now() + belief.term / 10;
            }
            Err(_) => next = end,
        }
    }
}

/// Stores what was answered, or gives the run up.
async fn settle<E>(
    layer: &IdempotencyLayer,
    asked: &Asked,
    run: &Run,
    belief: Belief,
    answered: Answered<E>,
) -> Result<Response<Body>, E> {
    let store = &*layer.store;
    let (head, body) = match answered {
        Answered::Whole { head, body } => (head, Some(body)),
        Answered::TooLarge(head) => (head, None),
        Answered::Broken(error) => {
            tracing::error!(target: "leasehold", %error, "a handler's answer broke off");
            return Ok(put_down(layer, asked, run, failed("the answer broke off").response()).await);
        }
        Answered::Failed(error) => {
            told(store.give_up(run).await, "gave up a run");
            return Err(error);
        }
    };
    // Its own words, whatever a layer between has added to them.
    if let Some(Stored(answer)) = head.extensions.get::<Stored>() {
        return Ok(shown(answer.clone()));
    }
    let is_kept = layer.is_kept(head.status);
    let answer = match body {
        Some(body) => stored(&head, &body),
        None => too_large(layer.answer_limit).await,
    };
    if is_kept {
        return Ok(finish(layer, asked, run, belief, answer).await);
    }
    Ok(put_down(layer, asked, run, shown(answer)).await)
}

async fn finish(
    layer: &IdempotencyLayer,
    asked: &Asked,
    run: &Run,
    belief: Belief,
    mut answer: Answer,
) -> Response<Body> {
    let store = &*layer.store;
    let mut pause = Duration::from_millis(50);
    loop {
        let finished = match timeout_at(belief.end(), store.finish(run, &answer)).await {
            Ok(finished) => finished,
            Err(late) => Err(Ended::Unknown(late.into())),
        };
        match finished {
            Ok(()) => return shown(answer),
            // By the handler, or by a call before this one whose reply was lost.
            Err(Ended::Finished) => return stored_one(store, asked, answer).await,
            Err(Ended::TakenOver) => return under_way(RETRY_AFTER_MOST).response(),
            Err(Ended::TooLarge) => {
                let refusal = too_large(layer.answer_limit).await;
                if refusal == answer {
                    return shown(answer); // the store takes not even that
                }
                answer = refusal;
            }
            Err(Ended::Unknown(error)) => {
                tracing::error!(target: "leasehold", %error, "an answer was not stored");
                if Instant::now() + pause >= belief.end() {
                    // What was done was done, and this client can be told.
                    return shown(answer);
                }
                sleep(pause).await;
                pause *= 2;
            }
        }
    }
}

/// The answer that is stored, or `ours` while that cannot be asked.
async fn stored_one(store: &dyn KeyStore, asked: &Asked, ours: Answer) -> Response<Body> {
    match claim(store, asked).await {
        Ok((Claimed::Replay(answer), _)) => shown(answer),
        _ => shown(ours),
    }
}

/// Ends a run whose answer is not stored.
async fn put_down(
    layer: &IdempotencyLayer,
    asked: &Asked,
    run: &Run,
    response: Response<Body>,
) -> Response<Body> {
    let store = &*layer.store;
    let ended = if response.status().is_server_error() {
        store.give_up(run).await
    } else {
        store.forget(run).await
    };
    // The handler's commit was done though it was not told so.
    if let Err(Ended::Finished) = ended
        && let Ok((Claimed::Replay(answer), _)) = claim(store, asked).await
    {
        return shown(answer);
    }
    told(ended, "ended a run without an answer");
    response
}

/// A run that was not ended ends with its term.
fn told(ended: Result<(), Ended>, what: &str) {
    if let Err(error) = ended {
        tracing::warn!(target: "leasehold", ?error, "not known whether it {what}");
    }
}

fn shown(answer: Answer) -> Response<Body> {
    response(answer).unwrap_or_else(corrupt)
}

fn replayed(answer: Answer) -> Response<Body> {
    replay(answer).unwrap_or_else(corrupt)
}

fn corrupt(what: &'static str) -> Response<Body> {
    tracing::error!(target: "leasehold", what, "a stored answer is none");
    failed("the stored answer cannot be read").response()
}

/// What is stored in place of an answer that is too large.
async fn too_large(limit: usize) -> Answer {
    let why = format!(
        "the work was done, but its answer has more than the {limit} bytes that can be kept for a \
         key; ask for what was done in another way"
    );
    let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "answer-too-large", why);
    let (head, body) = problem.response().into_parts();
    stored(&head, &read(body, usize::MAX).await.unwrap_or_default())
}

fn under_way(retry_after: Duration) -> Problem {
    let why = "a request with this key is under way; ask again with the same key";
    Problem::new(StatusCode::CONFLICT, "run-under-way", why)
        .retry_after(retry_after.min(RETRY_AFTER_MOST))
}

fn mismatch() -> Problem {
    let why = "this key came with another method, path or body before; each operation needs a key \
               of its own";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", why)
}

fn away() -> Problem {
    let why = "whether this was done cannot be told now; ask again with the same key";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "keys-unavailable", why)
        .retry_after(Duration::from_secs(1))
}
