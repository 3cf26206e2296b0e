//! The watches of this process: one stream, on it one watch for each resource that is waited for.
//!
//! A watch is ordered, so that it proves grants without a write: a waiter is admitted at the first
//! revision at which its own key lives and nothing before it bars it, and that revision is its
//! token. The stream is opened again at the revision that was seen last; where the cluster has
//! compacted that, the resource is read anew. Every break wakes every waiter once.
//!
//! Whoever has many before it watches one of them only, a few turns ahead of its own, and all of the
//! resource once that one is gone: so a turn is told to the few whose turn is near, however many
//! wait. A watch begins now, and not in the past, and a look made after that closes the gap.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, Ended, Mode, ResourceName};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::desk::{Desk, Followed, Held, Reach};
use crate::error::Cause;
use crate::keys::Keys;
use crate::mirror::{Mirror, token_of};
use crate::proto::{
    WATCH, WatchCancelRequest, WatchCreateRequest, WatchFilter, WatchOrder, WatchProgressRequest,
    WatchRequest, WatchResponse,
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

/// A claim with more than so many before it waits for one of them, and hears of no other.
const FAR: usize = 6;
/// How many turns before its own that one has.
const NEAR: usize = 3;
/// Events that wait for the look before them.
const EARLY_MAX: usize = 4096;

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
            self.reach_again(&mut desk, resource);
            return;
        }
        let reach = reach(&desk, resource, &mirror);
        let (keys, watch, early) = (keys.clone(), self.next_watch(), Some(Vec::new()));
        let followed = Followed { mirror, keys, watch, reach, early, wanted: now };
        desk.slots.entry(resource.clone()).or_default().followed = Some(followed);
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
        self.reach_again(&mut desk, resource);
        true
    }

    /// Whether all of a resource is followed, so that a look at it can be spared.
    pub(crate) fn is_followed(&self, resource: &ResourceName) -> bool {
        let desk = self.desk();
        let followed = desk.slots.get(resource).and_then(|slot| slot.followed.as_ref());
        followed.is_some_and(|f| f.reach == Reach::Near && f.early.is_none())
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

    /// Our first claim may stand further back now than the watch is needed for.
    fn reach_again(&self, desk: &mut Desk, resource: &ResourceName) {
        let followed = desk.slots.get(resource).and_then(|slot| slot.followed.as_ref());
        let Some(Followed { mirror, reach: Reach::Near, .. }) = followed else { return };
        let reach = reach(desk, resource, mirror);
        let followed = desk.slots.get_mut(resource).and_then(|slot| slot.followed.as_mut());
        if let (Reach::Far(_), Some(followed)) = (&reach, followed) {
            self.watch_anew(followed, reach);
        }
    }

    /// Another watch for what is followed, that begins now.
    fn watch_anew(&self, followed: &mut Followed, reach: Reach) {
        let old = std::mem::replace(&mut followed.watch, self.next_watch());
        followed.reach = reach;
        followed.early = Some(Vec::new());
        let _ = self.watching.try_send(Order::Stop(old));
        let _ = self.watching.try_send(Order::Start);
    }

    /// Events of a watch.
    fn heard(&self, resource: &ResourceName, response: WatchResponse) {
        let mut desk = self.desk();
        let Some(slot) = desk.slots.get_mut(resource) else { return };
        let Some(mut followed) = slot.followed.take() else { return };
        if followed.watch == response.watch_id {
            match (&followed.reach, &mut followed.early) {
                // It is gone, whether it held or gave up: our turn may be near.
                (Reach::Far(_), _) => self.watch_anew(&mut followed, Reach::Near),
                (Reach::Near, Some(early)) if early.len() < EARLY_MAX => {
                    early.extend(response.events);
                }
                (Reach::Near, Some(_)) => self.watch_anew(&mut followed, Reach::Near),
                (Reach::Near, None) => followed.mirror.apply(response.events, |mirror| {
                    self.settle(&mut desk, resource, mirror);
                }),
            }
        }
        desk.slots.entry(resource.clone()).or_default().followed = Some(followed);
    }

    /// What a watch was begun for, if the gap before its beginning is still to be closed.
    fn gap(&self, resource: &ResourceName, watch: i64) -> Option<(Keys, Reach)> {
        let desk = self.desk();
        let followed = desk.slots.get(resource)?.followed.as_ref()?;
        let open = followed.watch == watch && followed.early.is_some();
        open.then(|| (followed.keys.clone(), followed.reach.clone()))
    }

    /// A look that was made after the watch began has told all that came before it.
    fn close_gap(&self, resource: &ResourceName, watch: i64, look: Option<Mirror>) {
        let mut desk = self.desk();
        let Some(slot) = desk.slots.get_mut(resource) else { return };
        let Some(mut followed) = slot.followed.take() else { return };
        if followed.watch == watch
            && let Some(early) = followed.early.take()
        {
            if let Some(look) = look.filter(|l| l.revision() > followed.mirror.revision()) {
                followed.mirror = look;
            }
            if followed.reach == Reach::Near {
                self.settle(&mut desk, resource, &followed.mirror);
                followed.mirror.apply(early, |mirror| self.settle(&mut desk, resource, mirror));
            }
        }
        desk.slots.entry(resource.clone()).or_default().followed = Some(followed);
        self.reach_again(&mut desk, resource);
    }

    /// The one that was watched for is gone already.
    fn draw_near(&self, resource: &ResourceName, watch: i64) {
        let mut desk = self.desk();
        let followed = desk.slots.get_mut(resource).and_then(|slot| slot.followed.as_mut());
        if let Some(followed) = followed.filter(|followed| followed.watch == watch) {
            self.watch_anew(followed, Reach::Near);
        }
    }

    /// Grants what is admitted at the mirror's revision, and ends what is gone by then.
    fn settle(&self, desk: &mut Desk, resource: &ResourceName, mirror: &Mirror) {
        let now = self.clock.now();
        let admitted = mirror.admitted();
        for key in desk.keys_at(resource) {
            let Some(hold) = desk.holds.get(&key) else { continue };
            if hold.create > mirror.revision() || hold.leaving {
                continue;
            }
            let waits = hold.held.is_none();
            if !mirror.stands(key) {
                self.settle_gone(desk, resource, mirror, key);
            } else if waits
                && !hold.confirming
                && let Some(entry) = admitted.iter().find(|entry| entry.claim() == Some(key))
            {
                let (mode, after_loss) = (hold.mode, hold.after_loss);
                let held_back = desk.held_back(resource, mirror, after_loss, now);
                let by_write = matches!(mode, Mode::Permits { .. }) || !held_back.is_zero();
                // Whoever does not take its turn loses it.
                if let Some(hold) = desk.holds.get_mut(&key) {
                    hold.parts.iter_mut().for_each(|part| part.begin(now + held_back));
                }
                if by_write || !self.grant_by_watch(desk, key, mirror, entry.lease) {
                    desk.moved_for(resource, key);
                }
            }
        }
    }

    /// A grant that was made a moment ago, of a word that came late, goes before anybody has heard of
    /// it; of another its next renewal says so, which comes at once.
    fn settle_gone(
        &self,
        desk: &mut Desk,
        resource: &ResourceName,
        mirror: &Mirror,
        key: leasehold_core::ClaimId,
    ) {
        let now = self.clock.now();
        let Some(hold) = desk.holds.get(&key) else { return };
        let (waits, lease) = (hold.held.is_none(), hold.lease);
        let lives = self.leases.belief(lease).is_some_and(|b| b.end() > now);
        let unseen = if lives && !waits { Ended::Unknown } else { Ended::Expired };
        let how = mirror.end_of(key).unwrap_or(unseen);
        desk.remove(key, how, now);
        desk.moved_for(resource, key);
        if !waits {
            self.leases.disturb();
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

    /// A stream has ended. What is followed without a gap goes on where it was; for the rest
    /// another watch begins.
    fn begin_anew(&self) {
        let mut desk = self.desk();
        for followed in desk.slots.values_mut().filter_map(|slot| slot.followed.as_mut()) {
            if followed.reach != Reach::Near || followed.early.is_some() {
                followed.watch = self.next_watch();
                followed.early = Some(Vec::new());
            }
        }
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

    /// Stops following what many want and none of ours does: each of their turns would be told here.
    pub(crate) fn unfollow_crowds(&self) {
        let mut desk = self.desk();
        for resource in desk.take_deserted() {
            if !desk.keys_at(&resource).is_empty() {
                continue;
            }
            let Some(slot) = desk.slots.get_mut(&resource) else { continue };
            if let Some(followed) = slot.followed.take_if(|f| f.mirror.len() > FAR) {
                let _ = self.watching.try_send(Order::Stop(followed.watch));
            }
        }
    }
}

/// How much of a resource has to be watched for our claims that wait for it.
fn reach(desk: &Desk, resource: &ResourceName, mirror: &Mirror) -> Reach {
    let mut first: Option<i64> = None;
    for key in desk.keys_at(resource) {
        let Some(hold) = desk.holds.get(&key).filter(|hold| !hold.leaving) else { continue };
        // Whoever holds hears at once when its key goes; others may be admitted out of their order.
        if hold.held.is_some() || hold.mode != Mode::Exclusive || !hold.after_loss.is_zero() {
            return Reach::Near;
        }
        first = Some(first.map_or(hold.create, |first| first.min(hold.create)));
    }
    let Some(create) = first else { return Reach::Near };
    if mirror.before(create).nth(FAR).is_none() {
        return Reach::Near;
    }
    let ahead = mirror.before(create).nth(NEAR - 1);
    ahead.map_or(Reach::Near, |entry| Reach::Far(mirror.key_of(entry)))
}

/// A watch that resumes where the mirror is, or else begins now: of one that begins in the past,
/// members tell the first events up to a tenth of a second late.
fn create(followed: &Followed) -> WatchCreateRequest {
    let watch_id = followed.watch;
    let start_revision = if followed.early.is_some() { 0 } else { followed.mirror.revision() + 1 };
    match &followed.reach {
        Reach::Near => {
            let (key, range_end) = followed.keys.watched();
            WatchCreateRequest { key, range_end, start_revision, filters: vec![], watch_id }
        }
        Reach::Far(key) => {
            let (key, filters) = (key.clone(), vec![WatchFilter::NoPut.into()]);
            WatchCreateRequest { key, range_end: vec![], start_revision, filters, watch_id }
        }
    }
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
        inner.begin_anew();
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
    if response.created && !response.canceled {
        tokio::spawn(opened(Arc::clone(inner), resource.clone(), response.watch_id));
    }
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

/// A watch has begun: looks at what it cannot have told.
async fn opened(inner: Arc<Inner>, resource: ResourceName, watch: i64) {
    let Some((keys, reach)) = inner.gap(&resource, watch) else { return };
    let looked = match reach {
        Reach::Near => crate::look::look(&inner, &inner.rpc, &keys).await.map(Some),
        Reach::Far(key) => match crate::look::stands(&inner, key).await {
            Ok(true) => Ok(None),
            Ok(false) => return inner.draw_near(&resource, watch),
            Err(error) => Err(error),
        },
    };
    match looked {
        Ok(look) => inner.close_gap(&resource, watch, look),
        Err(_) => again(inner, resource, watch).await,
    }
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
        if slot.followed.as_ref().is_none_or(|followed| followed.watch != watch) {
            return; // another watch was begun meanwhile
        }
        slot.followed = None;
        let _ = inner.watching.try_send(Order::Stop(watch));
        desk.moved(&resource);
    }
    match looked {
        Ok(mirror) => inner.follow(&resource, &keys, mirror),
        // Waiters look by themselves; the next one that enters follows again.
        Err(error) => tracing::debug!(%error, "a watched resource could not be read anew"),
    }
}
