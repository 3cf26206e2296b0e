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
    let told = effects(&mut machine, at(40));
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
        (Ended::Clock, Loss::Clock),
    ] {
        let mut machine = Renewal::new(1);
        machine.keep(keep(1, 0, 30));
        let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
        machine.handle(at(11), Input::Renewed { call, renewed: alloc::vec![Renewed::Gone(how)] });
        let told = effects(&mut machine, at(11));
        assert_eq!(lost(&told), [(1, loss)]);
        let told = effects(&mut machine, at(40));
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

fn claims_sent(effects: &[Effect]) -> Vec<(CallId, Vec<u128>, Duration)> {
    let renew = |e: &Effect| match e {
        Effect::Renew { call, claims, within, .. } => {
            Some((*call, claims.iter().map(|c| c.id.bits()).collect(), *within))
        }
        _ => None,
    };
    effects.iter().filter_map(renew).collect()
}

fn left(effects: &[Effect]) -> Vec<u128> {
    let leave = |e: &Effect| match e {
        Effect::Leave { claim, .. } => Some(claim.id.bits()),
        _ => None,
    };
    effects.iter().filter_map(leave).collect()
}

/// A store of one route where some claims are sick: a call that names one has no answer, and comes
/// to its end only at its limit. Runs for a while; whoever was lost.
fn run_with_sick(machine: &mut Renewal, sick: impl Fn(u128) -> bool, seconds: u64) -> Vec<u128> {
    let step = Duration::from_millis(20);
    let mut hung: Vec<(Moment, CallId, usize)> = Vec::new();
    let mut gone = Vec::new();
    let mut now = at(0);
    while now < at(seconds) {
        for (_, call, count) in hung.extract_if(.., |(limit, ..)| *limit <= now) {
            let renewed = alloc::vec![unreachable(); count];
            machine.handle(now, Input::Renewed { call, renewed });
        }
        let told = effects(machine, now);
        gone.extend(lost(&told).into_iter().map(|(id, _)| id));
        for (call, ids, within) in claims_sent(&told) {
            if ids.iter().any(|&id| sick(id)) {
                hung.push((now + within, call, ids.len()));
            } else {
                let renewed =
                    ids.iter().map(|_| Renewed::Alive { until: now + SECOND * 29 }).collect();
                machine.handle(now, Input::Renewed { call, renewed });
            }
        }
        now = now + step;
    }
    gone
}

#[test]
fn one_claim_that_makes_its_calls_hang_costs_no_other_its_lease() {
    for count in [2, 40, 1000] {
        let mut machine = Renewal::new(1);
        for id in 1..=count {
            machine.keep(keep(id, 0, 29));
        }
        let gone = run_with_sick(&mut machine, |id| id == 7 || (count == 2 && id == 1), 90);
        assert!(gone.len() == 1, "{count} leases: {} were lost with the sick one", gone.len());
    }
}

#[test]
fn many_calls_that_hang_do_not_keep_a_short_lease_from_being_renewed() {
    let mut machine = Renewal::new(1);
    for id in 1..=6 {
        // Each is due at a time of its own, and hangs in a call of its own.
        let asked_at = at(0) + Duration::from_millis(600 * u64::try_from(id).unwrap());
        machine.keep(Keep { asked_at, until: asked_at + SECOND * 30, ..keep(id, 0, 0) });
    }
    let short = keep(99, 0, 0);
    let claim = ClaimRef { term: SECOND * 3, ..short.claim };
    machine.keep(Keep { claim, asked_at: at(10), until: at(13), ..short });
    let gone = run_with_sick(&mut machine, |id| id < 99, 25);
    assert!(!gone.contains(&99), "{gone:?}");
}

#[test]
fn a_short_first_term_leaves_time_for_several_tries() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 2)); // of a term of 30 s, granted by another's release
    let (mut now, mut tries) = (at(0), 0);
    while now < at(2) {
        for (call, _, within) in claims_sent(&effects(&mut machine, now)) {
            assert!(within <= SECOND / 2, "a call that hangs is given up in time: {within:?}");
            tries += 1;
            let renewed = alloc::vec![unreachable()];
            machine.handle(now, Input::Renewed { call, renewed });
        }
        now = now + Duration::from_millis(5);
    }
    assert!(tries >= 4, "{tries} tries");
}

#[test]
fn a_broken_claim_is_left_by_its_owner_or_when_its_right_has_ended_by_itself() {
    for hastened in [true, false] {
        let mut machine = Renewal::new(1);
        machine.keep(keep(1, 0, 29));
        let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
        let renewed = alloc::vec![Renewed::Gone(Ended::Broken)];
        machine.handle(at(11), Input::Renewed { call, renewed });
        let told = effects(&mut machine, at(11));
        assert_eq!(lost(&told), [(1, Loss::Broken)]);
        assert!(left(&told).is_empty(), "its work is only just being told to stop");
        if hastened {
            machine.hasten(at(12), ClaimId::from_bits(1));
            assert_eq!(left(&effects(&mut machine, at(12))), [1]);
        } else {
            assert!(left(&effects(&mut machine, at(29))).is_empty());
            assert_eq!(left(&effects(&mut machine, at(34))), [1]);
        }
    }
}

#[test]
fn the_end_of_belief_does_not_give_away_what_is_left_of_the_right() {
    let mut machine = Renewal::new(1);
    let until = crate::belief_end(at(0), SECOND * 30, crate::Drift::Tenth);
    machine.keep(Keep { until, ..keep(1, 0, 0) });
    let told = effects(&mut machine, until);
    assert_eq!(lost(&told), [(1, Loss::Expired)]);
    assert!(left(&told).is_empty());
    let almost = at(30).before(Duration::from_millis(1));
    assert!(left(&effects(&mut machine, almost)).is_empty(), "work has until here to stop");
    assert_eq!(left(&effects(&mut machine, at(31))), [1], "a renewal may have lengthened it");
}

#[test]
fn leaves_are_sent_a_few_at_a_time_and_ten_thousand_cost_little() {
    let mut machine = Renewal::new(1);
    for id in 1..=10_000 {
        machine.withdraw(at(0), keep(id, 0, 0).claim);
    }
    let mut done = 0;
    while !machine.is_idle() {
        let calls: Vec<CallId> = effects(&mut machine, at(1))
            .into_iter()
            .filter_map(|e| match e {
                Effect::Leave { call, .. } => Some(call),
                _ => None,
            })
            .collect();
        assert!(!calls.is_empty() && calls.len() <= 64, "{} leaves at once", calls.len());
        for call in calls {
            done += 1;
            let result = Ok(crate::Left::Released);
            machine.handle(at(1), Input::Left { call, result });
        }
    }
    assert_eq!(done, 10_000);
}

#[test]
fn what_is_in_flight_at_a_reconnect_is_asked_for_again() {
    let mut machine = Renewal::new(1);
    machine.keep(keep(1, 0, 30));
    let (call, _) = sent(&effects(&mut machine, at(10)))[0].clone();
    machine.handle(at(11), Input::Reverify);
    let renewed = alloc::vec![Renewed::Alive { until: at(40) }];
    machine.handle(at(12), Input::Renewed { call, renewed });
    assert_eq!(sent(&effects(&mut machine, at(12))).len(), 1);
}

mod any_order {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy)]
    enum Word {
        Alive,
        Late,
        Unknown,
        Gone,
        Hangs,
    }

    fn word() -> impl Strategy<Value = Word> {
        prop_oneof![
            4 => Just(Word::Alive),
            1 => Just(Word::Late),
            2 => Just(Word::Unknown),
            1 => Just(Word::Gone),
            2 => Just(Word::Hangs),
        ]
    }

    proptest! {
        /// Whatever is answered and when: belief never goes beyond what an answer in time gave, loss
        /// is told once and on time, nothing is kept after it, and nothing loops.
        #[test]
        fn belief_is_what_was_answered_in_time(
            words in proptest::collection::vec((word(), 0..9000_u64), 0..60),
            leases in 1..5_u128,
        ) {
            let mut machine = Renewal::new(3);
            let mut believed = BTreeMap::new();
            let mut over = BTreeSet::new();
            for id in 1..=leases {
                let until = 20 + u64::try_from(id).unwrap();
                machine.keep(keep(id, id.try_into().unwrap_or(0) % 2, until));
                believed.insert(id, at(until));
            }
            let mut words = words.into_iter();
            let mut hung: Vec<(Moment, CallId, Vec<u128>, Word)> = Vec::new();
            let mut now = at(0);
            for _ in 0..400 {
                hung.sort_by_key(|(when, ..)| *when);
                while hung.first().is_some_and(|(when, ..)| *when <= now) {
                    let (_, call, ids, word) = hung.remove(0);
                    let renewed: Vec<Renewed> = ids.iter().map(|id| match word {
                        Word::Alive => {
                            // A lease that ran out meanwhile is revived by no answer.
                            if believed.get(id).is_some_and(|end| *end > now) {
                                believed.insert(*id, now + SECOND * 20);
                            }
                            Renewed::Alive { until: now + SECOND * 20 }
                        }
                        Word::Late => Renewed::Alive { until: now },
                        Word::Gone => Renewed::Gone(Ended::Expired),
                        Word::Unknown | Word::Hangs => unreachable(),
                    }).collect();
                    machine.handle(now, Input::Renewed { call, renewed });
                }
                let told = effects(&mut machine, now);
                prop_assert!(told.len() < 200, "it loops");
                for (id, _) in lost(&told) {
                    prop_assert!(over.insert(id), "loss is told once");
                }
                for effect in &told {
                    if let Effect::Kept { claim, until } = effect {
                        prop_assert!(!over.contains(&claim.bits()) , "kept after it was lost");
                        prop_assert!(*until <= believed[&claim.bits()]);
                    }
                }
                for (id, end) in &believed {
                    prop_assert!(*end > now || over.contains(id), "the end was not told");
                }
                for (call, ids, within) in claims_sent(&told) {
                    let (word, delay) = words.next().unwrap_or((Word::Alive, 1));
                    let delay = Duration::from_millis(delay).min(within);
                    let when = now + if matches!(word, Word::Hangs) { within } else { delay };
                    hung.push((when, call, ids, word));
                }
                let next = machine.poll_timeout().unwrap_or(Moment::NEVER);
                let answer = hung.iter().map(|(when, ..)| *when).min().unwrap_or(Moment::NEVER);
                let next = next.min(answer).max(now);
                if next > at(200) {
                    break;
                }
                now = next;
            }
        }
    }
}
