//! The watches of this process: one stream, on it one watch for each resource that is waited for.
//!
//! A watch is ordered, so that it proves grants without a write: a waiter is admitted at the first
//! revision at which its own key lives and nothing before it bars it, and that revision is its
//! token. The stream is opened again at the revision that was seen last; where the cluster has
//! compacted that, the resource is read anew. Every break wakes every waiter once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, Ended, Mode, ResourceName};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::desk::{Desk, Followed, Held};
use crate::error::Cause;
use crate::keys::Keys;
use crate::mirror::{Mirror, token_of};
use crate::proto::{
    WATCH, WatchCancelRequest, WatchCreateRequest, WatchOrder, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use crate::store::Inner;
use crate::value::wall_us;

/// How long a resource is watched after the last waiter has gone: the next may come soon.
pub(crate) const LINGER: Duration = Duration::from_secs(3);
/// A stream that said nothing for so long is asked whether it lives.
const PING_AFTER: Duration = Duration::from_secs(2);
/// One that said nothing for so long is broken.
const SILENT_MAX: Duration = Duration::from_secs(5);
const OPEN_WITHIN: Duration = Duration::from_secs(3);

/// What the watching task is to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Something is followed that was not.
    Start,
    /// This watch is not wanted any more.
    Stop(i64),
}

impl Inner {
    /// Follows a resource from what a look has told, unless it is followed already.
    pub(crate) fn follow(&self, resource: &ResourceName, keys: &Keys, mirror: Mirror) {
        let now = self.clock.now();
        let mut desk = self.desk();
        let slot = desk.slots.entry(resource.clone()).or_default();
        if let Some(followed) = &mut slot.followed {
            followed.wanted = now;
            self.take_in(&mut desk, resource, mirror);
            // A claim may have come into the books after the events that settle it.
            self.settle_followed(&mut desk, resource);
            return;
        }
        let watch = self.next_watch();
        slot.followed = Some(Followed { mirror, keys: keys.clone(), watch, wanted: now });
        self.settle_followed(&mut desk, resource);
        drop(desk);
        // A full queue is emptied by a task that then starts all that is followed.
        let _ = self.watching.try_send(Order::Start);
    }

    /// A claim has come into the books, perhaps after the events that settle it; whether the
    /// resource is followed.
    pub(crate) fn settle_late(&self, resource: &ResourceName) -> bool {
        let now = self.clock.now();
        let mut desk = self.desk();
        let Some(slot) = desk.slots.get_mut(resource) else { return false };
        let Some(followed) = &mut slot.followed else { return false };
        followed.wanted = now;
        self.settle_followed(&mut desk, resource);
        true
    }

    /// Whether a resource is followed, so that a look at all of it can be spared.
    pub(crate) fn is_followed(&self, resource: &ResourceName) -> bool {
        self.desk().slots.get(resource).is_some_and(|slot| slot.followed.is_some())
    }

    /// A look has told more than the watch, perhaps.
    pub(crate) fn looked(&self, resource: &ResourceName, mirror: &Mirror) {
        let mut desk = self.desk();
        self.take_in(&mut desk, resource, mirror.clone());
    }

    fn take_in(&self, desk: &mut Desk, resource: &ResourceName, mirror: Mirror) {
        let Some(slot) = desk.slots.get_mut(resource) else { return };
        let Some(followed) = &mut slot.followed else { return };
        if mirror.revision() > followed.mirror.revision() {
            followed.mirror = mirror;
            self.settle_followed(desk, resource);
        }
    }

    fn settle_followed(&self, desk: &mut Desk, resource: &ResourceName) {
        let Some(slot) = desk.slots.get_mut(resource) else { return };
        let Some(followed) = slot.followed.take() else { return };
        self.settle(desk, resource, &followed.mirror);
        desk.slots.entry(resource.clone()).or_default().followed = Some(followed);
    }

    /// Events of a watch.
    fn heard(&self, resource: &ResourceName, response: WatchResponse) {
        let mut desk = self.desk();
        let Some(slot) = desk.slots.get_mut(resource) else { return };
        let Some(mut followed) = slot.followed.take() else { return };
        if followed.watch == response.watch_id {
            followed.mirror.apply(response.events, |mirror| {
                self.settle(&mut desk, resource, mirror);
            });
        }
        desk.slots.entry(resource.clone()).or_default().followed = Some(followed);
    }

    /// Grants what is admitted at the mirror's revision, and ends what is gone by then.
    fn settle(&self, desk: &mut Desk, resource: &ResourceName, mirror: &Mirror) {
        let now = self.clock.now();
        for key in desk.keys_at(resource) {
            let Some(hold) = desk.holds.get(&key) else { continue };
            if hold.create > mirror.revision() || hold.leaving {
                continue;
            }
            let (waits, confirming) = (hold.held.is_none(), hold.confirming);
            let (mode, after_loss, lease) = (hold.mode, hold.after_loss, hold.lease);
            match mirror.standing(key) {
                // A grant that was made a moment ago, of a word that came late, goes before anybody
                // has heard of it; of another its next renewal says so, which comes at once.
                None => {
                    let lives = self.leases.belief(lease).is_some_and(|b| b.end() > now);
                    let unseen = if lives && !waits { Ended::Unknown } else { Ended::Expired };
                    let how = mirror.end_of(key).unwrap_or(unseen);
                    desk.remove(key, how, now);
                    desk.moved_for(resource, key);
                    if !waits {
                        self.leases.disturb();
                    }
                }
                Some(standing) if waits && standing.admitted && !confirming => {
                    let held_back = desk.held_back(resource, mirror, after_loss, now);
                    let by_write = matches!(mode, Mode::Permits { .. }) || !held_back.is_zero();
                    // Whoever does not take its turn loses it.
                    if let Some(hold) = desk.holds.get_mut(&key) {
                        hold.parts.iter_mut().for_each(|part| part.begin(now + held_back));
                    }
                    if by_write || !self.grant_by_watch(desk, key, mirror, standing.entry.lease) {
                        desk.moved_for(resource, key);
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Whether the lease that the key stands on is believed to live, so that the grant can be.
    fn grant_by_watch(
        &self,
        desk: &mut Desk,
        key: leasehold_core::ClaimId,
        mirror: &Mirror,
        lease: i64,
    ) -> bool {
        let now = self.clock.now();
        let Some(belief) = self.leases.belief(lease) else { return false };
        let Some(token) = token_of(mirror.revision()) else { return false };
        let Some(hold) = desk.holds.get_mut(&key) else { return false };
        if belief.end() <= now {
            return false;
        }
        hold.held = Some(Held {
            token,
            slots: leasehold_core::Slots::default(),
            previous: mirror.previous(),
            since_us: wall_us(),
            untold: mirror.untold(),
        });
        hold.lease = lease;
        for part in &mut hold.parts {
            part.extend(belief.sent, now, belief);
        }
        desk.push(key);
        true
    }

    /// What is followed, and from where.
    fn all_followed(&self) -> Vec<(ResourceName, WatchCreateRequest)> {
        let desk = self.desk();
        let followed = desk.slots.iter().filter_map(|(resource, slot)| {
            Some((resource.clone(), create(slot.followed.as_ref()?)))
        });
        followed.collect()
    }

    /// Stops following what nobody has waited for lately.
    pub(crate) fn unfollow_idle(&self) {
        let now = self.clock.now();
        let mut desk = self.desk();
        let followed: Vec<ResourceName> = desk
            .slots
            .iter()
            .filter(|(_, slot)| slot.followed.is_some())
            .map(|(resource, _)| resource.clone())
            .collect();
        for resource in followed {
            let waits = desk.waits(&resource);
            let Some(slot) = desk.slots.get_mut(&resource) else { continue };
            let Some(followed) = &mut slot.followed else { continue };
            if waits {
                followed.wanted = now;
            } else if now.since(followed.wanted) > LINGER {
                let watch = followed.watch;
                slot.followed = None;
                let _ = self.watching.try_send(Order::Stop(watch));
            }
        }
    }
}

fn create(followed: &Followed) -> WatchCreateRequest {
    let (key, range_end) = followed.keys.watched();
    let start_revision = followed.mirror.revision() + 1;
    WatchCreateRequest { key, range_end, start_revision, watch_id: followed.watch }
}

fn order(order: WatchOrder) -> WatchRequest {
    WatchRequest { order: Some(order) }
}

/// The watches that the stream knows of.
type Known = HashMap<i64, ResourceName>;

/// Watches for as long as the runtime lives.
pub(crate) async fn watch(inner: Arc<Inner>, mut orders: mpsc::Receiver<Order>) {
    let seed = inner.clock.now().as_nanos();
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1), seed);
    loop {
        let followed = inner.all_followed();
        if followed.is_empty() {
            match orders.recv().await {
                Some(_) => continue,
                None => return,
            }
        }
        let (to, outbound) = mpsc::unbounded_channel();
        let mut known = Known::new();
        for (resource, create) in followed {
            known.insert(create.watch_id, resource);
            let _ = to.send(order(WatchOrder::Create(create)));
        }
        let outbound = UnboundedReceiverStream::new(outbound);
        let (number, opened) = inner.rpc.stream(WATCH, OPEN_WITHIN, outbound).await;
        match opened {
            Ok(stream) => {
                if turn(&inner, &to, &mut orders, known, stream).await {
                    backoff.reset();
                }
            }
            Err(failure) if failure.cause == Cause::Token => inner.rpc.forget_token().await,
            Err(_) => {}
        }
        inner.rpc.pass_on(number);
        inner.desk().all_moved();
        inner.leases.disturb();
        sleep(backoff.next_wait()).await;
    }
}

/// Hears until the stream breaks or falls silent; whether anything was heard.
async fn turn(
    inner: &Arc<Inner>,
    to: &mpsc::UnboundedSender<WatchRequest>,
    orders: &mut mpsc::Receiver<Order>,
    mut known: Known,
    mut stream: Streaming<WatchResponse>,
) -> bool {
    let (mut heard, mut last, mut asked) = (false, Instant::now(), false);
    loop {
        let wait = if asked { SILENT_MAX } else { PING_AFTER };
        let wait = wait.saturating_sub(last.elapsed());
        tokio::select! {
            biased;
            answer = stream.message() => match answer {
                Ok(Some(response)) => {
                    (heard, last, asked) = (true, Instant::now(), false);
                    on_response(inner, &mut known, response).await;
                }
                Ok(None) | Err(_) => return heard,
            },
            next = orders.recv() => match next {
                Some(Order::Start) => {
                    for (resource, create) in inner.all_followed() {
                        if let Entry::Vacant(place) = known.entry(create.watch_id) {
                            place.insert(resource);
                            let _ = to.send(order(WatchOrder::Create(create)));
                        }
                    }
                }
                Some(Order::Stop(watch_id)) => {
                    if known.remove(&watch_id).is_some() {
                        let _ = to.send(order(WatchOrder::Cancel(WatchCancelRequest { watch_id })));
                    }
                }
                None => return heard,
            },
            () = sleep(wait) => {
                if asked {
                    return heard;
                }
                asked = true;
                let _ = to.send(order(WatchOrder::Progress(WatchProgressRequest {})));
            }
        }
    }
}

async fn on_response(inner: &Arc<Inner>, known: &mut Known, response: WatchResponse) {
    let Some(resource) = known.get(&response.watch_id) else { return };
    if !response.canceled {
        if !response.events.is_empty() {
            inner.heard(resource, response);
        }
        return;
    }
    let Some(resource) = known.remove(&response.watch_id) else { return };
    if response.cancel_reason.contains("auth") {
        inner.rpc.forget_token().await;
    }
    // What was to be heard from there on is compacted away, or may not be heard at all.
    tokio::spawn(again(Arc::clone(inner), resource, response.watch_id));
}

/// Reads a resource anew and follows it from there.
async fn again(inner: Arc<Inner>, resource: ResourceName, watch: i64) {
    let keys = {
        let desk = inner.desk();
        let followed = desk.slots.get(&resource).and_then(|slot| slot.followed.as_ref());
        match followed {
            Some(followed) if followed.watch == watch => followed.keys.clone(),
            _ => return,
        }
    };
    let looked = crate::look::look(&inner, &inner.rpc, &keys).await;
    {
        let mut desk = inner.desk();
        let Some(slot) = desk.slots.get_mut(&resource) else { return };
        slot.followed = None;
        desk.moved(&resource);
    }
    match looked {
        Ok(mirror) => inner.follow(&resource, &keys, mirror),
        // Waiters look by themselves; the next one that enters follows again.
        Err(error) => tracing::debug!(%error, "a watched resource could not be read anew"),
    }
}
