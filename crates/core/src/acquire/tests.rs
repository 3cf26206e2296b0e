//! Time is an argument: no test here waits.

use super::*;
use crate::answer::{Admission, Hint, Left, Previous, Renewed, Slots};
use crate::claim::{Holder, HolderId, Life, Mode};
use crate::name::ResourceName;
use crate::token::Token;
use alloc::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
const HEARTBEAT: PlaceKept = PlaceKept::Heartbeat { every: SECOND, term: Duration::from_secs(3) };

fn ms(millis: u64) -> Moment {
    Moment::START + Duration::from_millis(millis)
}

fn machine(patience: Patience, place: PlaceKept) -> Acquire {
    let claim = Claim {
        id: ClaimId::from_bits(0),
        resource: ResourceName::new("r").unwrap(),
        holder: Holder::new(HolderId::from_bits(1), "test"),
        mode: Mode::Exclusive,
        term: SECOND * 30,
        life: Life::Process,
        place: Place::No,
        after_loss: Duration::ZERO,
    };
    let plan = AcquirePlan {
        claim,
        patience,
        reach_within: SECOND * 10,
        place,
        drift: Drift::Tenth,
        confirm_pushed: false,
    };
    Acquire::new(plan, ms(0), 42)
}

fn effects(machine: &mut Acquire, now: Moment) -> Vec<Effect> {
    core::iter::from_fn(|| machine.poll_effect(now)).collect()
}

fn enter(effects: &[Effect]) -> (CallId, Claim) {
    let enter = effects.iter().find_map(|e| match e {
        Effect::Enter { call, claim } => Some((*call, claim.clone())),
        _ => None,
    });
    enter.expect("an enter")
}

fn leaves(effects: &[Effect]) -> Vec<ClaimRef> {
    let leave = |e: &Effect| match e {
        Effect::Leave { claim, .. } => Some(claim.clone()),
        _ => None,
    };
    effects.iter().filter_map(leave).collect()
}

fn outcome(effects: &[Effect]) -> Option<Outcome> {
    effects.iter().find_map(|e| match e {
        Effect::Done(outcome) => Some(outcome.clone()),
        _ => None,
    })
}

fn grant<U>(claim: ClaimId, until: U) -> Grant<U> {
    let token = Token::new(7).unwrap();
    Grant { claim, token, until, slots: Slots::default(), previous: Previous::First }
}

fn waiting(ticket: u64) -> Waiting {
    let ticket = Ticket(ticket);
    Waiting { ticket, ahead: Some(1), recheck_in: SECOND * 20, holder: None }
}

fn pushed(claim: ClaimId, ticket: u64) -> Input {
    let grant = grant(claim, PushedEnd::FirstTerm(SECOND * 2));
    Input::Hint(Hint::Granted(Pushed { grant, ticket: Ticket(ticket) }))
}

fn unreachable() -> Error {
    Error::new(ErrorKind::Unreachable, "enter", "nobody answers").maybe_applied()
}

/// A machine whose claim was queued under ticket 5 by an enter sent at the clock's beginning.
fn queued(place: PlaceKept) -> (Acquire, Claim) {
    let mut machine = machine(Patience::Forever, place);
    let (call, claim) = enter(&effects(&mut machine, ms(0)));
    let result = Ok(Admission::Waiting(waiting(5)));
    machine.handle(ms(10), Input::Entered { call, result });
    (machine, claim)
}

#[test]
fn a_grant_is_handed_out_with_the_send_time_it_counts_from() {
    let mut machine = machine(Patience::Try, HEARTBEAT);
    let (call, claim) = enter(&effects(&mut machine, ms(3)));
    assert_eq!(claim.place, Place::No, "a try leaves no ghost");
    let result = Ok(Admission::Granted(grant(claim.id, ms(20_000))));
    machine.handle(ms(9), Input::Entered { call, result });
    let Some(Outcome::Granted(granted)) = outcome(&effects(&mut machine, ms(9))) else { panic!() };
    assert_eq!((granted.asked_at, granted.claim.id), (ms(3), claim.id));
    assert!(machine.is_finished());
}

#[test]
fn a_retry_goes_under_the_same_id_and_a_new_start_under_a_new_one() {
    let mut machine = machine(Patience::Forever, HEARTBEAT);
    let (call, first) = enter(&effects(&mut machine, ms(0)));
    machine.handle(ms(100), Input::Entered { call, result: Err(unreachable()) });
    let (call, again) = enter(&effects(&mut machine, ms(3000)));
    assert_eq!(first.id, again.id);
    let result = Ok(Admission::Gone(Ended::Expired));
    machine.handle(ms(3001), Input::Entered { call, result });
    let (_, fresh) = enter(&effects(&mut machine, ms(3001)));
    assert_ne!(first.id, fresh.id);
}

#[test]
fn a_push_counts_from_the_latest_call_answered_waiting_with_its_ticket() {
    let (mut machine, claim) = queued(HEARTBEAT);
    let check = effects(&mut machine, ms(1000)).into_iter().find_map(|e| match e {
        Effect::Check { call, .. } => Some(call),
        _ => None,
    });
    let renewed = Renewed::Waiting(waiting(5));
    machine.handle(ms(1010), Input::Checked { call: check.unwrap(), renewed });
    machine.handle(ms(1900), pushed(claim.id, 5));
    let Some(Outcome::Granted(granted)) = outcome(&effects(&mut machine, ms(1900))) else {
        panic!("the push was not believed")
    };
    assert_eq!(granted.grant.until, belief_end(ms(1000), SECOND * 2, Drift::Tenth));
}

#[test]
fn a_push_is_not_believed_with_another_ticket_or_for_another_claim_or_too_late() {
    let (mut machine, claim) = queued(HEARTBEAT);
    machine.handle(ms(20), pushed(claim.id, 4));
    machine.handle(ms(20), pushed(ClaimId::from_bits(9), 5));
    assert!(outcome(&effects(&mut machine, ms(20))).is_none());
    // The first term of 2 s counts from 0, when the enter was sent, not from the arrival.
    machine.handle(ms(1990), pushed(claim.id, 5));
    let told = effects(&mut machine, ms(1990));
    assert!(outcome(&told).is_none());
    assert!(told.iter().any(|e| matches!(e, Effect::Check { .. })), "it looks for itself");
}

#[test]
fn a_push_can_be_made_to_be_confirmed() {
    let (mut machine, claim) = queued(HEARTBEAT);
    machine.plan.confirm_pushed = true;
    machine.handle(ms(20), pushed(claim.id, 5));
    let told = effects(&mut machine, ms(20));
    assert!(outcome(&told).is_none());
    assert!(told.iter().any(|e| matches!(e, Effect::Check { .. })));
}

#[test]
fn a_lost_place_goes_on_under_a_new_id() {
    let (mut machine, claim) = queued(HEARTBEAT);
    let check = effects(&mut machine, ms(1000)).into_iter().find_map(|e| match e {
        Effect::Check { call, .. } => Some(call),
        _ => None,
    });
    let renewed = Renewed::Gone(Ended::Expired);
    machine.handle(ms(1010), Input::Checked { call: check.unwrap(), renewed });
    let (_, fresh) = enter(&effects(&mut machine, ms(1010)));
    assert_ne!(fresh.id, claim.id);
}

#[test]
fn a_reconnect_makes_a_waiter_look_at_once() {
    let (mut machine, _) = queued(PlaceKept::Watched);
    assert!(matches!(
        effects(&mut machine, ms(11)).as_slice(),
        [Effect::Progress(_), Effect::Watch { .. }]
    ));
    machine.handle(ms(500), Input::Reconnected);
    assert!(matches!(effects(&mut machine, ms(500)).as_slice(), [Effect::Check { .. }]));
}

#[test]
fn endless_hints_do_not_make_it_look_endlessly() {
    let (mut machine, _) = queued(PlaceKept::Watched);
    let mut looks = 0;
    for cursor in 0..1000 {
        let told = effects(&mut machine, ms(100));
        for effect in told {
            if let Effect::Check { call, .. } = effect {
                looks += 1;
                let renewed = Renewed::Waiting(waiting(5));
                machine.handle(ms(100), Input::Checked { call, renewed });
            }
        }
        machine.handle(ms(100), Input::Hint(Hint::Moved(Cursor(cursor))));
    }
    assert!(looks <= QUICK_LOOKS_MAX + 2, "{looks} looks in no time");
}

#[test]
fn a_timed_wait_ends_on_time_and_withdraws_what_may_be_there() {
    let mut machine = machine(Patience::Until(ms(5000)), HEARTBEAT);
    let (_, claim) = enter(&effects(&mut machine, ms(0)));
    let told = effects(&mut machine, ms(5000));
    let Some(Outcome::Failed(error)) = outcome(&told) else { panic!("{told:?}") };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let leave = &leaves(&told)[0];
    assert_eq!(leave.id, claim.id);
    assert!(leave.enter_unanswered, "the enter may still arrive");
    assert!(!machine.is_finished());
}

#[test]
fn a_deadline_that_has_passed_before_the_first_call_is_a_time_out() {
    let mut machine = machine(Patience::Until(ms(0)), HEARTBEAT);
    let told = effects(&mut machine, ms(0));
    assert!(matches!(outcome(&told), Some(Outcome::TimedOut(_))), "{told:?}");
    assert!(machine.is_finished());
}

#[test]
fn a_cancelled_wait_leaves_until_the_store_says_so() {
    let (mut machine, claim) = queued(HEARTBEAT);
    effects(&mut machine, ms(11));
    machine.handle(ms(20), Input::Cancel);
    let told = effects(&mut machine, ms(20));
    assert!(matches!(outcome(&told), Some(Outcome::Cancelled)));
    let Some(Effect::Leave { call, claim: left }) = told.last().cloned() else { panic!() };
    assert_eq!((left.id, left.enter_unanswered), (claim.id, false));
    machine.handle(ms(30), Input::Left { call, result: Err(unreachable()) });
    let Some(again) = machine.poll_timeout() else { panic!("it gave up") };
    let Some(Effect::Leave { call, .. }) = machine.poll_effect(again) else { panic!() };
    machine.handle(again, Input::Left { call, result: Ok(Left::Released) });
    assert!(machine.is_finished());
}

#[test]
fn a_grant_that_comes_too_late_is_given_back_and_asked_for_anew() {
    let mut machine = machine(Patience::Forever, HEARTBEAT);
    let (call, claim) = enter(&effects(&mut machine, ms(0)));
    let result = Ok(Admission::Granted(grant(claim.id, ms(100))));
    machine.handle(ms(100), Input::Entered { call, result });
    let told = effects(&mut machine, ms(200));
    assert!(outcome(&told).is_none());
    assert_eq!(leaves(&told)[0].id, claim.id);
    assert_ne!(enter(&told).1.id, claim.id);
}

#[test]
fn a_store_that_was_never_reached_fails_a_wait_without_end() {
    let mut machine = machine(Patience::Forever, HEARTBEAT);
    let mut now = ms(0);
    loop {
        let told = effects(&mut machine, now);
        if let Some(outcome) = outcome(&told) {
            assert!(matches!(outcome, Outcome::Failed(_)));
            break;
        }
        for effect in told {
            if let Effect::Enter { call, .. } = effect {
                machine.handle(now, Input::Entered { call, result: Err(unreachable()) });
            }
        }
        now = machine.poll_timeout().expect("it must end").max(now);
    }
    assert_eq!(now, ms(10_000));
}

#[test]
fn heartbeats_of_a_process_lie_on_one_grid() {
    assert_eq!(next_on_grid(ms(1000), SECOND), ms(2000));
    assert_eq!(next_on_grid(ms(1999), SECOND), ms(2000));
}

fn checked(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|e| match e {
        Effect::Check { call, .. } => Some(*call),
        _ => None,
    })
}

#[test]
fn a_hint_that_comes_while_a_look_is_under_way_is_looked_at_again() {
    let (mut machine, _) = queued(PlaceKept::Watched);
    effects(&mut machine, ms(10));
    machine.handle(ms(500), Input::Hint(Hint::Moved(Cursor(1))));
    let call = checked(&effects(&mut machine, ms(500))).expect("it looks");
    // Something moves after the store has answered and before the answer is here.
    machine.handle(ms(510), Input::Hint(Hint::Moved(Cursor(2))));
    assert!(checked(&effects(&mut machine, ms(510))).is_none(), "one look at a time");
    machine.handle(ms(520), Input::Checked { call, renewed: Renewed::Waiting(waiting(5)) });
    assert!(checked(&effects(&mut machine, ms(520))).is_some(), "the wake-up was lost");
}

#[test]
fn word_that_overtakes_the_answer_to_an_enter_is_looked_at() {
    for hint in [Hint::Moved(Cursor(9)), {
        let grant = grant(ClaimId::from_bits(1), PushedEnd::FirstTerm(SECOND));
        Hint::Granted(Pushed { grant, ticket: Ticket(6) })
    }] {
        let (mut machine, _) = queued(HEARTBEAT);
        effects(&mut machine, ms(10));
        let call = checked(&effects(&mut machine, ms(1000))).expect("a heartbeat");
        let renewed = Renewed::Gone(Ended::Expired);
        machine.handle(ms(1010), Input::Checked { call, renewed });
        let (call, _) = enter(&effects(&mut machine, ms(1010)));
        machine.handle(ms(1020), Input::Hint(hint)); // on another connection
        let result = Ok(Admission::Waiting(waiting(6)));
        machine.handle(ms(1030), Input::Entered { call, result });
        assert!(checked(&effects(&mut machine, ms(1030))).is_some(), "the wake-up was lost");
    }
}

#[test]
fn a_claim_given_up_for_a_new_one_leaves_if_its_enter_may_still_arrive() {
    for answer in [Admission::Busy(Busy::default()), Admission::Gone(Ended::Unknown)] {
        let mut machine = machine(Patience::Forever, HEARTBEAT);
        let (call, first) = enter(&effects(&mut machine, ms(0)));
        machine.handle(ms(5), Input::Entered { call, result: Err(unreachable()) });
        let (call, _) = enter(&effects(&mut machine, ms(100)));
        machine.handle(ms(110), Input::Entered { call, result: Ok(answer) });
        let left = leaves(&effects(&mut machine, ms(110)));
        assert_eq!(left.len(), 1, "the first enter may still arrive");
        assert!(left[0].id == first.id && left[0].enter_unanswered);
    }
}

#[test]
fn a_grant_taken_back_is_barred_if_an_enter_of_it_is_unanswered() {
    let mut machine = machine(Patience::Forever, HEARTBEAT);
    let (call, _) = enter(&effects(&mut machine, ms(0)));
    machine.handle(ms(5), Input::Entered { call, result: Err(unreachable()) });
    let (call, claim) = enter(&effects(&mut machine, ms(100)));
    let result = Ok(Admission::Granted(grant(claim.id, ms(20_000))));
    machine.handle(ms(110), Input::Entered { call, result });
    machine.handle(ms(110), Input::Cancel);
    let told = effects(&mut machine, ms(110));
    assert!(matches!(outcome(&told), Some(Outcome::Cancelled)), "whoever waits is told");
    assert!(leaves(&told)[0].enter_unanswered);
}

/// Answers each call at once and lets time run, for at most this long; how many enters there were.
fn enters_within(
    machine: &mut Acquire,
    end: Moment,
    answer: impl Fn(Moment, Claim) -> Admission,
) -> u32 {
    let (mut now, mut enters) = (ms(0), 0);
    while now < end {
        for effect in effects(machine, now) {
            match effect {
                Effect::Enter { call, claim } => {
                    enters += 1;
                    let result = Ok(answer(now, claim));
                    machine.handle(now, Input::Entered { call, result });
                }
                Effect::Leave { call, .. } => {
                    let result = Ok(Left::Released);
                    machine.handle(now, Input::Left { call, result });
                }
                Effect::Done(_) => return enters,
                _ => {}
            }
            assert!(enters < 10_000, "it never stops asking");
        }
        now = machine.poll_timeout().map_or(end, |at| at.max(now + Duration::from_micros(50)));
    }
    enters
}

#[test]
fn a_store_that_forgets_every_claim_is_not_stormed() {
    let mut machine = machine(Patience::Forever, HEARTBEAT);
    let enters = enters_within(&mut machine, ms(5000), |_, _| Admission::Gone(Ended::Evicted));
    assert!(enters <= 50, "{enters} enters in five seconds");
}

#[test]
fn a_try_ends_also_where_every_grant_comes_too_late() {
    let mut machine = machine(Patience::Try, HEARTBEAT);
    let late = |now, claim: Claim| Admission::Granted(grant(claim.id, now));
    let enters = enters_within(&mut machine, ms(60_000), late);
    assert!(enters <= 50, "{enters} enters");
    assert!(machine.is_finished(), "a try goes on without end");
}

#[test]
fn a_watch_that_fails_is_tried_again_soon_and_then_less_often() {
    let (mut machine, _) = queued(PlaceKept::Watched);
    let (mut now, mut watches) = (ms(10), Vec::new());
    while now < ms(10_000) {
        for effect in effects(&mut machine, now) {
            if let Effect::Watch { .. } = effect {
                watches.push(now);
                machine.handle(now, Input::WatchFailed);
            }
        }
        now = now + Duration::from_millis(5);
    }
    assert!(watches[1] <= ms(40), "{watches:?}");
    assert!(watches.len() < 40, "{} watches of a store that is away", watches.len());
}
