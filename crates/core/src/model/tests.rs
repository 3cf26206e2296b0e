//! The laws, asked of the specification itself.

use super::*;
use crate::claim::{Holder, HolderId, Ids, Life, Mode, Place};
use proptest::prelude::*;

const TERM: Duration = Duration::from_secs(10);

fn model() -> Model {
    Model::new(Handover { first_term: Duration::from_secs(2), push_min: Duration::ZERO })
}

fn at(seconds: u64) -> Tick {
    Tick { now: Moment::START + Duration::from_secs(seconds), floor: 0 }
}

fn name() -> ResourceName {
    ResourceName::new("r").unwrap()
}

fn claim(id: u128, holder: u128, mode: Mode) -> Claim {
    Claim {
        id: ClaimId::from_bits(id),
        resource: name(),
        holder: Holder::new(HolderId::from_bits(holder), "test"),
        mode,
        term: TERM,
        life: Life::Term,
        place: Place::Term(Duration::from_secs(3)),
        after_loss: Duration::ZERO,
    }
}

fn exclusive(id: u128) -> Claim {
    claim(id, id, Mode::Exclusive)
}

fn granted(answer: Result<Admission<Duration>>) -> crate::Grant<Duration> {
    match answer {
        Ok(Admission::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

fn is_waiting(answer: Result<Admission<Duration>>) -> bool {
    matches!(answer, Ok(Admission::Waiting(_)))
}

#[test]
fn a_release_hands_over_to_the_next_with_a_short_first_term_and_a_word() {
    let mut model = model();
    let first = granted(model.enter(at(0), &exclusive(1)));
    assert!(is_waiting(model.enter(at(1), &exclusive(2))));
    assert_eq!(model.leave(at(2), &exclusive(1).to_ref()).unwrap(), Left::Released);
    let (_, claim, hint) = model.hints.pop_front().unwrap();
    let Hint::Granted(pushed) = hint else { panic!("{hint:?}") };
    assert_eq!(claim, ClaimId::from_bits(2));
    assert!(pushed.grant.token > first.token);
    assert_eq!(pushed.grant.until, crate::PushedEnd::FirstTerm(Duration::from_secs(2)));
    let renewed = model.renew(at(3), &exclusive(2).to_ref());
    assert!(
        matches!(renewed, Renewed::Granted(g) if g.until == TERM && g.token == pushed.grant.token)
    );
}

#[test]
fn a_repeated_release_touches_no_newer_grant() {
    let mut model = model();
    granted(model.enter(at(0), &exclusive(1)));
    model.leave(at(1), &exclusive(1).to_ref()).unwrap();
    granted(model.enter(at(2), &exclusive(2)));
    let again = model.leave(at(3), &exclusive(1).to_ref()).unwrap();
    assert_eq!(again, Left::Gone(Ended::Released));
    assert!(model.resources[&name()].held(ClaimId::from_bits(2)).is_some());
}

#[test]
fn an_enter_that_arrives_after_its_leave_makes_no_ghost() {
    let mut model = model();
    let mut leave = exclusive(1).to_ref();
    leave.enter_unanswered = true;
    assert_eq!(model.leave(at(0), &leave).unwrap(), Left::Gone(Ended::Unknown));
    let late = model.enter(at(1), &exclusive(1)).unwrap();
    assert_eq!(late, Admission::Gone(Ended::Released));
    granted(model.enter(at(1), &exclusive(2)));
}

#[test]
fn what_has_expired_is_not_revived_though_nobody_came() {
    let mut model = model();
    granted(model.enter(at(0), &exclusive(1)));
    let late = model.renew(at(11), &exclusive(1).to_ref());
    assert!(matches!(late, Renewed::Gone(Ended::Expired)));
    assert_eq!(model.enter(at(11), &exclusive(1)).unwrap(), Admission::Gone(Ended::Expired));
}

#[test]
fn a_try_leaves_nothing_behind_and_does_not_pass_waiters() {
    let mut model = model();
    granted(model.enter(at(0), &exclusive(1)));
    let no_queue = Claim { place: Place::No, ..exclusive(2) };
    assert!(matches!(model.enter(at(0), &no_queue).unwrap(), Admission::Busy(_)));
    assert_eq!(model.resources[&name()].entries.len(), 1);
}

#[test]
fn a_dead_waiter_costs_its_place_term() {
    let mut model = model();
    granted(model.enter(at(0), &exclusive(1)));
    assert!(is_waiting(model.enter(at(0), &exclusive(2))));
    assert!(is_waiting(model.enter(at(1), &exclusive(3))));
    assert!(matches!(model.renew(at(3), &exclusive(3).to_ref()), Renewed::Waiting(_)));
    model.leave(at(5), &exclusive(1).to_ref()).unwrap();
    assert!(model.resources[&name()].held(ClaimId::from_bits(3)).is_some());
}

#[test]
fn an_inner_hold_shares_the_token_and_the_last_one_out_frees() {
    let mut model = model();
    let outer = granted(model.enter(at(0), &claim(1, 7, Mode::Exclusive)));
    assert!(is_waiting(model.enter(at(0), &exclusive(3))));
    let inner = Claim { term: Duration::from_secs(1), ..claim(2, 7, Mode::Exclusive) };
    let inner = granted(model.enter(at(1), &inner));
    assert_eq!(inner.token, outer.token);
    let outer_until = model.resources[&name()].held(ClaimId::from_bits(1)).unwrap().until;
    assert_eq!(outer_until, Moment::START + TERM, "the short inner term shortens nothing");
    model.leave(at(1), &claim(1, 7, Mode::Exclusive).to_ref()).unwrap();
    assert!(matches!(model.renew(at(1), &exclusive(3).to_ref()), Renewed::Waiting(_)));
    model.leave(at(1), &claim(2, 7, Mode::Exclusive).to_ref()).unwrap();
    assert!(matches!(model.renew(at(1), &exclusive(3).to_ref()), Renewed::Granted(_)));
}

#[test]
fn there_is_no_upgrade_and_no_second_kind() {
    let mut model = model();
    granted(model.enter(at(0), &claim(1, 7, Mode::Shared)));
    let upgrade = model.enter(at(0), &claim(2, 7, Mode::Exclusive)).unwrap_err();
    assert_eq!(upgrade.kind(), ErrorKind::Usage);
    let permit = Mode::Permits { count: 1, limit: 3 };
    let kind = model.enter(at(0), &claim(3, 8, permit)).unwrap_err();
    assert_eq!(kind.kind(), ErrorKind::Usage);
    assert_eq!(model.resources[&name()].entries.len(), 1, "refused claims change nothing");
}

#[test]
fn a_broken_holder_is_told_and_keeps_others_out_until_it_leaves() {
    let mut model = model();
    let old = granted(model.enter(at(0), &exclusive(1)));
    assert!(is_waiting(model.enter(at(0), &exclusive(2))));
    let broken = model.break_(at(1), &name(), Some(old.token), false).unwrap();
    assert_eq!(broken, Broken::Marked(alloc::vec![old.token]));
    assert!(matches!(model.renew(at(1), &exclusive(1).to_ref()), Renewed::Gone(Ended::Broken)));
    assert!(matches!(model.renew(at(1), &exclusive(2).to_ref()), Renewed::Waiting(_)));
    model.leave(at(2), &exclusive(1).to_ref()).unwrap();
    let Renewed::Granted(next) = model.renew(at(2), &exclusive(2).to_ref()) else { panic!() };
    assert_eq!(next.previous, crate::Previous::Ended(Ended::Broken));
    assert!(next.token > old.token);
}

#[test]
fn after_a_loss_the_next_is_held_back_and_nobody_passes() {
    let mut model = model();
    granted(model.enter(at(0), &exclusive(1)));
    let careful = Claim {
        after_loss: Duration::from_secs(5),
        place: Place::Term(Duration::from_secs(60)),
        ..exclusive(2)
    };
    assert!(is_waiting(model.enter(at(1), &careful)));
    assert!(is_waiting(model.enter(at(12), &exclusive(3))), "nobody passes the careful one");
    assert!(matches!(model.renew(at(14), &careful.to_ref()), Renewed::Waiting(_)));
    assert!(matches!(model.renew(at(15), &careful.to_ref()), Renewed::Granted(_)));
}

#[test]
fn a_waiter_that_leaves_hides_no_loss_from_the_next() {
    let mut model = model();
    granted(model.enter(at(0), &exclusive(1)));
    let patient = Claim { place: Place::Term(Duration::from_secs(60)), ..exclusive(2) };
    assert!(is_waiting(model.enter(at(1), &patient)));
    assert_eq!(model.leave(at(12), &patient.to_ref()).unwrap(), Left::Released);
    let next = granted(model.enter(at(12), &exclusive(3)));
    assert_eq!(next.previous, crate::Previous::Ended(Ended::Expired));
}

#[test]
fn a_cleaned_name_goes_on_above_its_old_tokens() {
    let mut model = model();
    let far = Tick { floor: 1_000_000, ..at(0) };
    let old = granted(model.enter(far, &exclusive(1)));
    model.leave(at(1), &exclusive(1).to_ref()).unwrap();
    let page = Page::default();
    assert!(model.clean(at(5), Duration::from_secs(60), &page, false).names.is_empty());
    assert_eq!(model.clean(at(90), Duration::from_secs(60), &page, false).names, [name()]);
    let new = granted(model.enter(at(91), &exclusive(2)));
    assert!(new.token > old.token, "though the wall clock went back");
}

/// One random step of a history.
#[derive(Debug, Clone)]
enum Step {
    Enter { mode: u8, holder: u8, queue: bool },
    Renew(u8),
    Leave(u8),
    Break { now: bool },
    Pass(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_u8, 0..4_u8, any::<bool>())
            .prop_map(|(mode, holder, queue)| Step::Enter { mode, holder, queue }),
        4 => any::<u8>().prop_map(Step::Renew),
        3 => any::<u8>().prop_map(Step::Leave),
        1 => any::<bool>().prop_map(|now| Step::Break { now }),
        2 => (0..8_u8).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..120)
}

fn mode_of(number: u8, permits: bool) -> Mode {
    match (permits, number) {
        (true, n) => Mode::Permits { count: u32::from(n % 2) + 1, limit: 3 },
        (false, 0) => Mode::Shared,
        (false, _) => Mode::Exclusive,
    }
}

/// No two grants conflict, and slots are given once.
fn assert_exclusion(resource: &Resource) {
    let held: Vec<&Entry> =
        resource.entries.iter().filter(|e| matches!(e.state, State::Granted(_))).collect();
    for a in &held {
        for b in &held {
            let same = a.order == b.order;
            let both = a.stands_as == Mode::Shared && b.stands_as == Mode::Shared;
            let permits = matches!(a.stands_as, Mode::Permits { .. });
            assert!(same || both || permits, "{a:?} beside {b:?}");
        }
    }
    let mut orders: Vec<u64> = Vec::new();
    let mut slots: Vec<u32> = Vec::new();
    for entry in held {
        let State::Granted(grant) = &entry.state else { continue };
        if !orders.contains(&entry.order) {
            orders.push(entry.order);
            slots.extend(grant.slots.as_slice());
        }
    }
    let given = slots.len();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(given, slots.len(), "a slot is given twice");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_happens_no_two_hold_and_tokens_rise(steps in steps(), permits: bool) {
        let mut model = model();
        let mut ids = Ids::seeded(1);
        let mut claims: Vec<Claim> = Vec::new();
        let mut now = 0;
        let mut newest: Option<Token> = None;
        let mut dead: Vec<ClaimId> = Vec::new();
        for step in steps {
            match step {
                Step::Enter { mode, holder, queue } => {
                    let mut new = claim(0, holder.into(), mode_of(mode, permits));
                    new.id = ids.claim();
                    new.place = if queue { new.place } else { Place::No };
                    let _ = model.enter(at(now), &new);
                    claims.push(new);
                }
                Step::Renew(n) if !claims.is_empty() => {
                    let claim = &claims[usize::from(n) % claims.len()];
                    if let Renewed::Gone(_) = model.renew(at(now), &claim.to_ref()) {
                        dead.push(claim.id);
                    }
                }
                Step::Leave(n) if !claims.is_empty() => {
                    let claim = &claims[usize::from(n) % claims.len()];
                    model.leave(at(now), &claim.to_ref()).unwrap();
                    dead.push(claim.id);
                }
                Step::Break { now: at_once } => {
                    model.break_(at(now), &name(), None, at_once).unwrap();
                }
                Step::Pass(seconds) => now += u64::from(seconds),
                _ => {}
            }
            let Some(resource) = model.resources.get(&name()) else { continue };
            assert_exclusion(resource);
            prop_assert!(resource.last_token >= newest);
            newest = resource.last_token;
            let revived = resource.entries.iter().find(|e| {
                dead.contains(&e.claim.id) && !matches!(&e.state, State::Granted(h) if h.broken)
            });
            prop_assert!(revived.is_none(), "{revived:?} came back");
            let granted = resource.entries.iter().any(|e| matches!(e.state, State::Granted(_)));
            let live = resource.entries.iter().any(|e| e.until() > at(now).now);
            let settled = resource.entries.iter().all(|e| e.until() > at(now).now);
            prop_assert!(granted || !live || !settled, "somebody waits for nobody");
        }
    }
}
