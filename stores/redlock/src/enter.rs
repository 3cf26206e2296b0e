//! Claims a resource in two phases: a majority takes it, a majority takes its token.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Admission, Applied, Busy, Claim, ClaimRef, Clock, Ended, Error, ErrorKind, Grant, Mode, Moment,
    Previous, Result, Slots, Store, Token, admission, belief_end,
};
use leasehold_net::BootClock;
use leasehold_redis::member::{self, Confirmed, Taken};

use crate::ask::{Asked, Said};
use crate::core::{Core, borne_by, most, worst};
use crate::pilot::Gate;

/// How often the second phase begins anew with a higher token.
const CONFIRM_MAX: usize = 16;
/// How much longer than half of what a majority took the others are waited for.
const GRACE: Duration = Duration::from_millis(1);

pub(crate) async fn enter(core: Arc<Core>, claim: Arc<Claim>) -> Result<Admission> {
    let started = BootClock.now();
    let slots = slots(&core, &claim).await?;
    let pilot = core.pilot(&claim);
    let (round, rest) = take(&core, &claim, slots, pilot).await;
    if let Some((token, _)) = round.confirmed(core.majority()) {
        return Ok(found(&core, &claim, &round, token));
    }
    if round.granted().count() < core.majority() {
        tokio::spawn(reap(Arc::clone(&core), Arc::clone(&claim), rest));
        let refused = refused(&core, &claim, &round);
        if matches!(refused, Ok(Admission::Busy(_))) {
            core.is_wanted(&claim.resource);
        }
        return refused;
    }
    confirm(&core, &claim, &round, started).await
}

/// What the members have said in the first phase.
struct Round {
    granted: Vec<(usize, Grant<Moment>, bool, bool)>,
    busy: Vec<Busy>,
    gone: Vec<Ended>,
    failed: Vec<(usize, Error)>,
    /// Who has not answered yet.
    silent: Vec<usize>,
}

impl Round {
    fn of(silent: Vec<usize>) -> Round {
        let (granted, busy, gone, failed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Round { granted, busy, gone, failed, silent }
    }

    fn note(&mut self, said: Said<Taken>) {
        self.silent.retain(|at| *at != said.at);
        match said.what {
            Ok(Taken::Granted { grant, is_confirmed }) => {
                self.granted.push((said.at, grant, is_confirmed, said.counts));
            }
            Ok(_) if !said.counts => {}
            Ok(Taken::Busy(busy)) => self.busy.push(busy),
            Ok(Taken::Gone(how)) => self.gone.push(how),
            Err(error) => self.failed.push((said.at, error)),
        }
    }

    /// The grants that count.
    fn granted(&self) -> impl Iterator<Item = &Grant<Moment>> {
        self.granted.iter().filter(|(.., counts)| *counts).map(|(_, grant, ..)| grant)
    }

    fn confirmed_most(&self) -> Option<(Token, usize)> {
        let confirmed = self.granted.iter().filter(|(_, _, is, counts)| *is && *counts);
        most(confirmed.map(|(_, grant, ..)| grant.token))
    }

    /// The token that a majority has confirmed before, or that it has of the outer grant.
    fn confirmed(&self, majority: usize) -> Option<(Token, usize)> {
        self.confirmed_most().filter(|(_, count)| *count >= majority)
    }

    fn is_over(&self, majority: usize, open: usize) -> bool {
        let granted = self.granted().count();
        let confirmed = self.confirmed_most().map_or(0, |(_, count)| count);
        if confirmed > 0 && confirmed < majority && confirmed + open >= majority {
            return false;
        }
        let is_simple = self.gone.is_empty() && self.failed.is_empty();
        granted >= majority || (granted + open < majority && (is_simple || open == 0))
    }
}

/// With a pilot, the others are asked once it has said yes, or has said nothing for a while; where
/// it says busy, they are not asked at all.
async fn take(
    core: &Arc<Core>,
    claim: &Arc<Claim>,
    slots: Slots,
    pilot: Option<usize>,
) -> (Round, Asked<Taken>) {
    let within = core.within(claim.term);
    let gate = Arc::new(Gate::new(pilot));
    let mut asked = core.ask_to_take(claim.id, core.all(), within, |at, store| {
        let (claim, slots, gate) = (Arc::clone(claim), slots.clone(), Arc::clone(&gate));
        async move {
            gate.pass(at).await?;
            let said = member::take(&store, &claim, &slots, None).await;
            gate.heard(at, matches!(said, Ok(Taken::Busy(_))));
            said
        }
    });
    let mut round = Round::of(core.all().collect());
    let began = tokio::time::Instant::now();
    while let Some(said) = asked.next().await {
        let is_turned_away = Some(said.at) == pilot && matches!(said.what, Ok(Taken::Busy(_)));
        round.note(said);
        if is_turned_away && gate.is_shut() {
            round.silent.clear();
            return (round, asked);
        }
        if round.is_over(core.majority(), asked.open) {
            break;
        }
    }
    // Whoever comes a little later has a higher token: it is counted too, or it could not confirm
    // that of the others, and the grant would stand on fewer members.
    if round.granted().count() >= core.majority() {
        let grace = tokio::time::Instant::now() + began.elapsed() / 2 + GRACE;
        while let Ok(Some(said)) = tokio::time::timeout_at(grace, asked.next()).await {
            round.note(said);
        }
    }
    (round, asked)
}

/// Takes back what is granted by members after it was clear that there is no majority, and bars
/// what may still come.
async fn reap(core: Arc<Core>, claim: Arc<Claim>, mut rest: Asked<Taken>) {
    while let Some(said) = rest.next().await {
        match said.what {
            Ok(Taken::Granted { .. }) => withdraw(&core, &claim, vec![said.at], Vec::new()),
            Err(error) if error.applied() == Applied::Maybe => end(&core, &claim, vec![said.at]),
            _ => {}
        }
    }
}

/// A claim that a majority knows already, or one within a grant of its holder.
fn found(core: &Arc<Core>, claim: &Arc<Claim>, round: &Round, token: Token) -> Admission {
    let (with, without): (Vec<_>, Vec<_>) =
        round.granted.iter().partition(|(_, grant, is, _)| *is && grant.token == token);
    let counted = with.iter().filter(|(.., counts)| *counts).map(|(_, grant, ..)| grant);
    let grants: Vec<&Grant<Moment>> = counted.collect();
    let until = borne_by(core.majority(), grants.iter().map(|grant| grant.until));
    let grant = combined(&grants, token, until, claim);
    core.holds(claim, token, &grant.slots);
    withdraw(core, claim, without.iter().map(|(at, ..)| *at).collect(), Vec::new());
    Admission::Granted(grant)
}

/// No majority: nothing of it is left anywhere, also where nobody has answered.
fn refused(core: &Arc<Core>, claim: &Arc<Claim>, round: &Round) -> Result<Admission> {
    let (confirmed, ours): (Vec<_>, Vec<_>) = round.granted.iter().partition(|(_, _, is, _)| *is);
    let of_ours: Vec<usize> = ours.iter().map(|(at, ..)| *at).collect();
    let failed = round.failed.iter().filter(|(_, error)| error.applied() == Applied::Maybe);
    let unclear: Vec<usize> =
        failed.map(|(at, _)| *at).chain(confirmed.iter().map(|(at, ..)| *at)).collect();
    let minority = core.minority();
    let refusals: Vec<&Error> =
        round.failed.iter().map(|(_, error)| error).filter(|e| !e.kind().is_transient()).collect();
    if round.gone.len() > minority {
        end(core, claim, of_ours.into_iter().chain(unclear).collect());
        return Ok(Admission::Gone(worst(round.gone.iter().copied()).unwrap_or(Ended::Unknown)));
    }
    withdraw(core, claim, of_ours, unclear);
    if refusals.len() > minority
        && let Some(refusal) = refusals.first()
    {
        return Err((*refusal).clone());
    }
    let unclear = round.failed.len() + round.granted().count() + round.silent.len();
    if round.busy.is_empty() || (unclear >= core.majority() && !round.failed.is_empty()) {
        return Err(core.too_few(&round.failed, round.granted().count()));
    }
    Ok(Admission::Busy(busy(core, round)))
}

fn busy(core: &Core, round: &Round) -> Busy {
    let free_in = round.busy.iter().filter_map(|busy| busy.free_in).max();
    let mut holder = round.busy.iter().find_map(|busy| busy.holder.clone());
    if let Some(holder) = &mut holder {
        // Only that of a majority is the holder's.
        let tokens = round.busy.iter().filter_map(|busy| busy.holder.as_ref()?.token);
        holder.token = most(tokens).filter(|(_, n)| *n >= core.majority()).map(|(token, _)| token);
    }
    Busy { holder, free_in }
}

/// Takes back what no majority has joined; where it is unclear, bars it.
fn withdraw(core: &Arc<Core>, claim: &Arc<Claim>, granted: Vec<usize>, unclear: Vec<usize>) {
    take_back(core, claim, granted, false);
    end(core, claim, unclear);
}

fn take_back(core: &Arc<Core>, claim: &Arc<Claim>, granted: Vec<usize>, confirmed_too: bool) {
    let named = claim.to_ref();
    drop(core.ask(granted, core.patient(), |_, store| {
        let named = named.clone();
        async move { member::withdraw(&store, &named, confirmed_too).await }
    }));
}

fn end(core: &Arc<Core>, claim: &Arc<Claim>, which: Vec<usize>) {
    let named = ClaimRef { enter_unanswered: true, ..claim.to_ref() };
    drop(core.ask(which, core.patient(), |_, store| {
        let named = named.clone();
        async move { store.leave(&named).await }
    }));
}

/// The second phase: the highest token of a majority becomes that of a majority. Who has issued a
/// higher one since, and was not counted, makes it begin anew with that.
async fn confirm(
    core: &Arc<Core>,
    claim: &Arc<Claim>,
    round: &Round,
    started: Moment,
) -> Result<Admission> {
    let within = core.within(claim.term);
    let ours: Vec<usize> =
        round.granted.iter().map(|(at, ..)| *at).chain(round.silent.iter().copied()).collect();
    let newest = round.granted().map(|grant| grant.token).max();
    let mut next = newest;
    let mut failed: Vec<(usize, Error)> = Vec::new();
    for _ in 0..CONFIRM_MAX {
        let Some(token) = next.take() else { break };
        let mut asked = core.ask(ours.iter().copied(), within, |_, store| {
            let claim = Arc::clone(claim);
            async move { member::confirm(&store, &claim, token).await }
        });
        let mut yes: Vec<Grant<Moment>> = Vec::new();
        failed.clear();
        while let Some(said) = asked.next().await {
            match said.what {
                Ok(Confirmed::Yes(grant)) if said.counts => yes.push(grant),
                Ok(Confirmed::Higher(higher)) if said.counts => next = next.max(Some(higher)),
                Ok(_) => {}
                Err(error) => failed.push((said.at, error)),
            }
            if yes.len() >= core.majority() {
                return granted(core, claim, &yes, token, started, ours);
            }
            if yes.len() + asked.open < core.majority() {
                break;
            }
        }
    }
    if failed.is_empty() && round.silent.is_empty() {
        take_back(core, claim, ours, true);
        return Ok(Admission::Busy(Busy::default()));
    }
    end(core, claim, ours);
    if failed.is_empty() {
        return Ok(Admission::Busy(Busy::default()));
    }
    Err(core.too_few(&failed, 0).maybe_applied())
}

fn granted(
    core: &Arc<Core>,
    claim: &Arc<Claim>,
    yes: &[Grant<Moment>],
    token: Token,
    started: Moment,
    ours: Vec<usize>,
) -> Result<Admission> {
    let borne = borne_by(core.majority(), yes.iter().map(|grant| grant.until));
    let until = borne.min(belief_end(started, claim.term, core.config.drift));
    if until <= BootClock.now() {
        withdraw(core, claim, Vec::new(), ours);
        let detail = "a majority has taken longer to answer than the term lasts";
        return Err(Error::new(ErrorKind::Unavailable, "ask a majority", detail).maybe_applied());
    }
    let yes: Vec<&Grant<Moment>> = yes.iter().collect();
    let grant = combined(&yes, token, until, claim);
    core.holds(claim, token, &grant.slots);
    Ok(Admission::Granted(grant))
}

fn combined(grants: &[&Grant<Moment>], token: Token, until: Moment, claim: &Claim) -> Grant {
    let slots = most(grants.iter().map(|grant| &grant.slots)).map(|(slots, _)| slots.clone());
    // A majority has at least one member that saw the last grant end; what others saw is older.
    let ends = grants.iter().filter_map(|grant| match grant.previous {
        Previous::First => None,
        Previous::Ended(how) => Some(how),
    });
    let previous = worst(ends).map_or(Previous::First, Previous::Ended);
    Grant { claim: claim.id, token, until, slots: slots.unwrap_or_default(), previous }
}

/// The slots to ask all members for: the lowest that are free at a majority. Where there are too
/// few, the lowest; then the members say what stands in the way.
async fn slots(core: &Arc<Core>, claim: &Arc<Claim>) -> Result<Slots> {
    let Mode::Permits { count, limit } = claim.mode else { return Ok(Slots::default()) };
    let lowest = || Slots::new((0..count).collect());
    if count == limit {
        return Ok(lowest());
    }
    let mut asked = core.ask(core.all(), core.within(claim.term), |_, store| {
        let name = claim.resource.clone();
        async move { store.inspect(&name).await }
    });
    let mut taken = vec![0_usize; limit as usize];
    let mut counted = 0;
    while let Some(said) = asked.next().await {
        let Ok(queue) = said.what else { continue };
        counted += usize::from(said.counts);
        for entry in queue.holders() {
            let leasehold_core::QueueState::Granted { slots, .. } = &entry.state else { continue };
            if entry.claim == claim.id {
                return Ok(slots.clone());
            }
            for slot in slots.as_slice() {
                if let Some(taken) = taken.get_mut(*slot as usize) {
                    *taken += 1;
                }
            }
        }
        if counted >= core.majority() {
            break;
        }
    }
    let in_use = (0..limit).filter(|slot| taken[*slot as usize] > 0);
    Ok(admission::free_slots(count, limit, in_use).unwrap_or_else(lowest))
}
