//! Time is an argument: no test here waits.

use super::*;
use crate::claim::Life;
use crate::name::ResourceName;
use crate::token::Token;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Moment {
    Moment::START + SECOND * u32::try_from(seconds).unwrap()
}

fn keep(id: u128, route: u64, until: u64) -> Keep {
    let claim = ClaimRef {
        id: ClaimId::from_bits(id),
        resource: ResourceName::new("r").unwrap(),
        token: Token::new(u64::try_from(id).unwrap()),
        term: SECOND * 30,
        life: Life::Process,
        enter_unanswered: false,
    };
    Keep { claim, route: Route(route), asked_at: at(0), until: at(until), renewed: true }
}

fn effects(machine: &mut Renewal, now: Moment) -> Vec<Effect> {
    core::iter::from_fn(|| machine.poll_effect(now)).collect()
}

fn sent(effects: &[Effect]) -> Vec<(CallId, Vec<u128>)> {
    let renew = |e: &Effect| match e {
        Effect::Renew { call, claims, .. } => {
            Some((*call, claims.iter().map(|c| c.id.bits()).collect()))
        }
        _ => None,
    };
    effects.iter().filter_map(renew).collect()
}

fn lost(effects: &[Effect]) -> Vec<(u128, Loss)> {
    let lost = |e: &Effect| match e {
        Effect::Lost { claim, loss } => Some((claim.bits(), *loss)),
        _ => None,
    };
    effects.iter().filter_map(lost).collect()
}

fn unreachable() -> Renewed {
    Renewed::Unknown(Error::new(ErrorKind::Unreachable, "renew", "nobody answers"))
}

#[test]
fn renews_after_a_third_earliest_end_first_and_a_route_at_a_time() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 7, 30));
    machine.keep(keep(2, 7, 29));
    machine.keep(keep(3, 8, 30));
    assert_eq!(machine.poll_timeout(), Some(renew_due(at(0), at(29))));
    assert!(sent(&effects(&mut machine, at(9))).is_empty());
    let batches = sent(&effects(&mut machine, at(10)));
    assert_eq!(
        batches.iter().map(|(_, ids)| ids.clone()).collect::<Vec<_>>(),
        [alloc::vec![2, 1], alloc::vec![3]]
    );
    assert!(sent(&effects(&mut machine, at(11))).is_empty(), "they are in flight");
}

#[test]
fn an_answer_moves_the_end_and_counts_from_the_send_time() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 30));
    let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
    let renewed = alloc::vec![Renewed::Alive { until: at(40) }];
    machine.handle(at(15), Input::Renewed { call, renewed });
    assert_eq!(machine.until(ClaimId::from_bits(1)), Some(at(40)));
    assert!(sent(&effects(&mut machine, at(19))).is_empty());
    assert_eq!(sent(&effects(&mut machine, at(20))).len(), 1, "a third after it was sent");
}

#[test]
fn belief_ends_on_time_and_a_late_answer_revives_nothing() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 30));
    let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
    let renewed = alloc::vec![Renewed::Alive { until: at(40) }];
    machine.handle(at(30), Input::Renewed { call, renewed });
    let told = effects(&mut machine, at(30));
    assert_eq!(lost(&told), [(1, Loss::Unreachable)]);
    assert!(told.iter().any(|e| matches!(e, Effect::Leave { .. })), "it is obliged to leave");
    assert!(machine.is_empty());
}

#[test]
fn an_unclear_answer_is_tried_again_within_the_term_and_puts_the_lease_at_risk() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 30));
    let mut tries = 0;
    let mut at_risk_at = None;
    for second in 10..30 {
        let told = effects(&mut machine, at(second));
        for (call, _) in sent(&told) {
            tries += 1;
            let renewed = alloc::vec![unreachable()];
            machine.handle(at(second), Input::Renewed { call, renewed });
        }
        if told.iter().any(|e| matches!(e, Effect::AtRisk { .. })) {
            at_risk_at.get_or_insert(second);
        }
    }
    assert!(tries >= 4, "{tries} tries");
    assert_eq!(at_risk_at, Some(20));
    assert_eq!(lost(&effects(&mut machine, at(30))), [(1, Loss::Unreachable)]);
}

#[test]
fn a_call_that_hangs_holds_up_no_other_lease_of_its_route() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 29));
    assert_eq!(sent(&effects(&mut machine, at(10))).len(), 1);
    machine.keep(Keep { asked_at: at(10), until: at(13), ..keep(2, 0, 0) });
    let batches = sent(&effects(&mut machine, at(11)));
    assert_eq!(batches[0].1, [2]);
}

#[test]
fn what_the_store_ended_is_lost_for_its_reason() {
    for (how, loss) in [
        (Ended::Broken, Loss::Broken),
        (Ended::Expired, Loss::Expired),
        (Ended::Unknown, Loss::Stolen),
        (Ended::Failover, Loss::Failover),
    ] {
        let mut machine = Renewal::new(1);
        machine.keep(keep(1, 0, 30));
        let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
        machine.handle(at(11), Input::Renewed { call, renewed: alloc::vec![Renewed::Gone(how)] });
        let told = effects(&mut machine, at(11));
        assert_eq!(lost(&told), [(1, loss)]);
        let leaves = told.iter().any(|e| matches!(e, Effect::Leave { .. }));
        assert_eq!(leaves, how == Ended::Broken, "a broken holder frees it by leaving");
    }
}

#[test]
fn a_fixed_term_is_not_renewed_and_ends() {
    let mut machine = Renewal::new(1);
    machine.keep(Keep { renewed: false, ..keep(1, 0, 30) });
    assert_eq!(machine.poll_timeout(), Some(at(30)));
    assert!(effects(&mut machine, at(29)).is_empty());
    assert_eq!(lost(&effects(&mut machine, at(30))), [(1, Loss::Expired)]);
}

#[test]
fn a_frozen_process_is_told_before_it_renews() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 30));
    let told = effects(&mut machine, at(500));
    assert!(sent(&told).is_empty());
    assert_eq!(lost(&told), [(1, Loss::Expired)]);
}

#[test]
fn a_short_answer_is_unknown_for_the_rest() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 30));
    machine.keep(keep(2, 0, 30));
    let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
    let renewed = alloc::vec![Renewed::Alive { until: at(40) }];
    machine.handle(at(10), Input::Renewed { call, renewed });
    assert_eq!(machine.until(ClaimId::from_bits(2)), Some(at(30)));
    assert_eq!(machine.len(), 2);
}

#[test]
fn ten_thousand_leases_go_in_full_batches() {
    let mut machine = Renewal::new(1);
    for id in 1..=10_000 {
        machine.keep(keep(id, 0, 30));
    }
    let mut sizes = Vec::new();
    loop {
        let batches = sent(&effects(&mut machine, at(10)));
        if batches.is_empty() {
            break;
        }
        for (call, ids) in batches {
            let renewed = ids.iter().map(|_| Renewed::Alive { until: at(40) }).collect();
            machine.handle(at(10), Input::Renewed { call, renewed });
            sizes.push(ids.len());
        }
    }
    assert_eq!(sizes, [BATCH_MAX; 10]);
}
