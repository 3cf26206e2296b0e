//! Corners of core that the simulation has found, step by step: a seed finds its way back to them
//! only as long as nothing else of the schedule changes.

use std::time::Duration;

use leasehold_core::acquire::{Effect, Input};
use leasehold_core::model::{Handover, Tick};
use leasehold_core::{
    Acquire, AcquirePlan, Admission, Claim, ClaimId, Drift, Ended, Error, ErrorKind, Holder,
    HolderId, Left, Life, Mode, Model, Moment, Page, Patience, Place, PlaceKept, ResourceName,
};

const TERM: Duration = Duration::from_secs(10);

fn model() -> Model {
    Model::new(Handover { first_term: Duration::from_secs(2), push_min: Duration::ZERO })
}

fn at(seconds: u64) -> Tick {
    Tick { now: Moment::START + Duration::from_secs(seconds), floor: 0 }
}

fn claim(id: u128, holder: u128, mode: Mode) -> Claim {
    Claim {
        id: ClaimId::from_bits(id),
        resource: ResourceName::new("r").expect("it is a name"),
        holder: Holder::new(HolderId::from_bits(holder), "test"),
        mode,
        term: TERM,
        life: Life::Term,
        place: Place::Term(Duration::from_secs(3)),
        after_loss: Duration::ZERO,
    }
}

#[test]
fn cleaning_does_not_forget_what_ran_out_unseen() {
    let mut model = model();
    let lost = claim(1, 1, Mode::Exclusive);
    assert!(matches!(model.enter(at(0), &lost), Ok(Admission::Granted(_))));
    let cleaned = model.clean(at(15), Duration::ZERO, &Page::default(), false);
    assert_eq!(cleaned.names, std::slice::from_ref(&lost.resource));
    assert_eq!(model.enter(at(16), &lost).unwrap(), Admission::Gone(Ended::Expired));
}

#[test]
fn an_inner_grant_of_one_slot_is_not_entered_again_for_two() {
    let of = |count| Mode::Permits { count, limit: 3 };
    let mut model = model();
    let (outer, inner) = (claim(1, 7, of(2)), claim(2, 7, of(1)));
    assert!(matches!(model.enter(at(0), &outer), Ok(Admission::Granted(_))));
    assert!(matches!(model.enter(at(0), &inner), Ok(Admission::Granted(_))));
    assert_eq!(model.leave(at(1), &outer.to_ref()).unwrap(), Left::Released);
    match model.enter(at(1), &claim(3, 7, of(2))).unwrap() {
        Admission::Granted(grant) => assert_eq!(grant.slots.as_slice().len(), 2),
        other => assert!(matches!(other, Admission::Waiting(_)), "{other:?}"),
    }
}

#[test]
fn a_leave_bars_an_unanswered_enter_for_a_whole_term_whatever_it_finds() {
    let mut model = model();
    let lost = claim(1, 1, Mode::Exclusive);
    assert!(matches!(model.enter(at(0), &lost), Ok(Admission::Granted(_))));
    assert!(matches!(
        model.enter(at(10), &claim(2, 2, Mode::Exclusive)),
        Ok(Admission::Granted(_))
    ));
    let mut unanswered = lost.to_ref();
    unanswered.enter_unanswered = true;
    assert_eq!(model.leave(at(19), &unanswered).unwrap(), Left::Gone(Ended::Expired));
    assert_eq!(model.enter(at(25), &lost).unwrap(), Admission::Gone(Ended::Expired));
}

/// A place that the store watches lasts as long as the process: its leave is not given up.
#[test]
fn a_watched_place_is_seen_out_however_long_the_store_is_silent() {
    let plan = AcquirePlan {
        claim: claim(1, 1, Mode::Exclusive),
        patience: Patience::Forever,
        reach_within: TERM,
        place: PlaceKept::Watched,
        drift: Drift::None,
        confirm_pushed: false,
    };
    let silent = || Error::new(ErrorKind::Unreachable, "ask", "no answer").maybe_applied();
    let mut acquire = Acquire::new(plan, Moment::START, 1);
    let mut leaves = 0;
    let mut last = Moment::START;
    let mut now = Moment::START;
    while now < Moment::START + TERM * 10 {
        while let Some(effect) = acquire.poll_effect(now) {
            match effect {
                Effect::Enter { .. } => acquire.handle(now, Input::Cancel), // with the enter unanswered
                Effect::Leave { call, .. } => {
                    (leaves, last) = (leaves + 1, now);
                    acquire.handle(now, Input::Left { call, result: Err(silent()) });
                }
                _ => {}
            }
        }
        now = now + Duration::from_millis(100);
    }
    assert!(!acquire.is_finished(), "it was given up after {leaves} leaves, the last at {last:?}");
    assert!(last > Moment::START + TERM * 9, "the last of {leaves} leaves was at {last:?}");
}
