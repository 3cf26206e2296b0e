//! Whatever is lost, late or doubled on the way, nothing is left behind but what is held.

use super::*;
use crate::claim::{Holder, HolderId, Life, Mode};
use crate::model::{Handover, Model, Tick};
use crate::name::ResourceName;
use alloc::vec::Vec;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// What becomes of one request on its way.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    ReplyLost,
    /// It reaches the store only at the end, after everything else.
    Delayed,
    /// It reaches the store twice, the second time at the end.
    Doubled,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Answered),
        1 => Just(Fate::ReplyLost),
        1 => Just(Fate::Delayed),
        1 => Just(Fate::Doubled),
    ]
}

fn claim() -> Claim {
    Claim {
        id: ClaimId::from_bits(0),
        resource: ResourceName::new("r").unwrap(),
        holder: Holder::new(HolderId::from_bits(1), "test"),
        mode: Mode::Exclusive,
        term: SECOND * 600,
        life: Life::Process,
        place: Place::No,
        after_loss: Duration::ZERO,
    }
}

struct World {
    model: Model,
    now: Moment,
    /// Enters that are still on their way.
    late: Vec<Claim>,
    has_queue: bool,
}

impl World {
    fn tick(&self) -> Tick {
        Tick { now: self.now, floor: 0 }
    }

    fn enter(&mut self, claim: &Claim) -> crate::Result<crate::Admission> {
        // A store without a queue answers busy at once.
        let mut claim = claim.clone();
        if !self.has_queue {
            claim.place = Place::No;
        }
        let sent = self.now;
        let answer = self.model.enter(self.tick(), &claim)?;
        Ok(answer.map_until(|left| belief_end(sent, left, Drift::None)))
    }

    fn carry_out(&mut self, machine: &mut Acquire, effect: Effect, fate: Fate) -> Option<Outcome> {
        let lost = || Error::new(ErrorKind::Unreachable, "ask", "no answer").maybe_applied();
        let now = self.now;
        match effect {
            Effect::Enter { call, claim } => {
                let answer = match fate {
                    Fate::Delayed => Err(lost()),
                    _ => self.enter(&claim),
                };
                // A store that answers busy has nothing by which to know a second copy.
                let is_busy = matches!(answer, Ok(crate::Admission::Busy(_)));
                if matches!(fate, Fate::Delayed) || matches!(fate, Fate::Doubled) && !is_busy {
                    self.late.push(claim.clone());
                }
                let result = if matches!(fate, Fate::ReplyLost) { Err(lost()) } else { answer };
                machine.handle(now, Input::Entered { call, result });
            }
            Effect::Check { call, claim } => {
                let renewed = self.model.renew(self.tick(), &claim);
                let renewed = match fate {
                    Fate::Answered => renewed.map_until(|left| now + left),
                    _ => crate::Renewed::Unknown(lost()),
                };
                machine.handle(now, Input::Checked { call, renewed });
            }
            Effect::Leave { call, claim } => {
                let left = self.model.leave(self.tick(), &claim);
                let result = if matches!(fate, Fate::Answered) { left } else { Err(lost()) };
                machine.handle(now, Input::Left { call, result });
            }
            Effect::Done(outcome) => return Some(outcome),
            Effect::Watch { .. } | Effect::Progress(_) => {}
        }
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_left_behind(
        seed: u64,
        has_queue: bool,
        held: bool,
        patience in 0..3_u8,
        fates in proptest::collection::vec(fate(), 0..40),
        cancel_after in 0..40_usize,
    ) {
        let model = Model::new(Handover { first_term: SECOND * 2, push_min: SECOND });
        let now = Moment::START + SECOND;
        let mut world = World { model, now, late: Vec::new(), has_queue };
        let other = Claim {
            id: ClaimId::from_bits(7),
            holder: Holder::new(HolderId::from_bits(2), "other"),
            term: SECOND * 5,
            ..claim()
        };
        if held {
            world.enter(&other).unwrap();
        }
        let patience = match patience {
            0 => Patience::Try,
            1 => Patience::Forever,
            _ => Patience::Until(world.now + SECOND * 7),
        };
        let plan = AcquirePlan {
            claim: claim(),
            patience,
            reach_within: SECOND * 10,
            place: PlaceKept::Watched,
            drift: Drift::None,
            confirm_pushed: false,
        };
        let mut machine = Acquire::new(plan, world.now, u128::from(seed) | 1 << 90);
        let mut fates = fates.into_iter();
        let mut granted = None;
        for step in 0.. {
            prop_assert!(step < 4000, "it does not come to an end");
            if step == cancel_after {
                machine.handle(world.now, Input::Cancel);
            }
            while let Some(effect) = machine.poll_effect(world.now) {
                let fate = fates.next().unwrap_or(Fate::Answered);
                if let Some(Outcome::Granted(grant)) = world.carry_out(&mut machine, effect, fate) {
                    granted = Some(grant);
                }
            }
            if machine.is_finished() {
                break;
            }
            let next = machine.poll_timeout().expect("it waits for nothing").max(world.now);
            world.now = next.min(world.now + SECOND);
        }
        // Everyone leaves, and only then arrives what was on its way.
        if let Some(Granted { grant, claim, unanswered, .. }) = granted {
            let token = Some(grant.token);
            let claim = ClaimRef { token, enter_unanswered: unanswered, ..claim.to_ref() };
            let left = world.model.leave(world.tick(), &claim);
            prop_assert_eq!(left.unwrap(), crate::Left::Released);
        }
        world.model.leave(world.tick(), &other.to_ref()).unwrap();
        let late = core::mem::take(&mut world.late);
        for claim in late {
            let _ = world.enter(&claim);
        }
        let left = world.model.inspect(world.tick(), &claim().resource).entries;
        prop_assert!(left.is_empty(), "{left:?}");
    }
}
