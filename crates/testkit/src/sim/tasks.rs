//! What tasks do: they want things, enter again what they hold, use it, and let it go.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::acquire::Input;
use leasehold_core::{Acquire, AcquirePlan, Claim, ClaimId, Life, Moment, Patience, Place};

use super::client::{Doing, Hold, MODES, Machine};
use super::server::claim;
use super::thing::Reach;
use super::world::{Happening, World};
use crate::history::{Op, What};

impl World {
    pub(super) fn plan_step(&mut self, client: usize, task: usize, wait: Duration) {
        let whom = &mut self.clients[client];
        whom.tasks[task].plan += 1;
        let (life, plan) = (whom.life, whom.tasks[task].plan);
        self.after(wait, Happening::Steps { client, life, task, plan });
    }

    pub(super) fn back_to_idle(&mut self, client: usize, task: usize) {
        self.clients[client].tasks[task].doing = Doing::Idle;
        let wait = self.dice.millis(1, 600);
        self.plan_step(client, task, wait);
    }

    /// Ends what a task does with what it held, inner holds included.
    pub(super) fn abandon(&mut self, client: usize, now: Moment, task: usize) {
        if let Some(inner) = self.clients[client].hold(task).and_then(|hold| hold.inner) {
            self.release(client, now, inner);
        }
        for machine in self.clients[client].machines.values_mut() {
            if machine.task == task && machine.inner && !machine.over {
                machine.acquire.handle(now, Input::Cancel);
            }
        }
        self.back_to_idle(client, task);
    }

    pub(super) fn step(&mut self, client: usize, now: Moment, task: usize) {
        match &self.clients[client].tasks[task].doing {
            Doing::Idle if self.healed => {}
            Doing::Idle => self.want(client, now, task),
            Doing::Acquiring => {}
            Doing::Holding(hold) => {
                let hold = hold.clone();
                self.use_it(client, now, task, &hold);
            }
        }
    }

    fn want(&mut self, client: usize, now: Moment, task: usize) {
        let index = usize::try_from(self.dice.below(4)).unwrap_or_default() % MODES.len();
        let mode = self.dice.pick(MODES[index].1);
        let term = self.dice.millis(3000, 8000);
        let life = if self.weather.embedded { Life::Process } else { Life::Term };
        let holder = self.clients[client].tasks[task].holder;
        let claim = claim(&self.resources[index], holder, mode, term, life);
        let patience = match self.dice.below(10) {
            0 | 1 => Patience::Try,
            2..=4 => Patience::Until(now + self.dice.millis(500, 6000)),
            _ => Patience::Forever,
        };
        self.clients[client].tasks[task].doing = Doing::Acquiring;
        self.acquire(client, now, task, false, claim, patience);
    }

    fn acquire(
        &mut self,
        client: usize,
        now: Moment,
        task: usize,
        inner: bool,
        claim: Claim,
        patience: Patience,
    ) {
        let plan = AcquirePlan {
            claim,
            patience,
            reach_within: Duration::from_secs(10),
            place: self.weather.place,
            drift: self.weather.drift,
            confirm_pushed: self.weather.confirm_pushed,
        };
        let name = plan.claim.resource.clone();
        let acquire = Acquire::new(plan, now, self.dice.bits());
        self.wishes += 1;
        let wish = self.wishes;
        self.record(self.who(client), Some((&name, acquire.claim_id())), What::Wants { wish });
        let whom = &mut self.clients[client];
        whom.machines_made += 1;
        let (id, life) = (whom.machines_made, whom.life);
        let words = VecDeque::new();
        let machine = Machine { acquire, task, inner, wish, over: false, watch: None, words };
        whom.machines.insert(id, machine);
        if self.dice.chance(150) {
            let wait = self.dice.millis(0, 3000);
            self.after(wait, Happening::Cancels { client, life, machine: id });
        }
    }

    fn use_it(&mut self, client: usize, now: Moment, task: usize, hold: &Hold) {
        if !self.clients[client].believes(hold.claim.id, now) {
            return; // it is about to be told
        }
        if hold.done >= hold.wanted {
            self.release(client, now, hold.claim.id);
            self.abandon(client, now, task);
            return;
        }
        if let Some(inner) = hold.inner
            && self.dice.chance(300)
        {
            self.release(client, now, inner);
            if let Some(hold) = self.clients[client].hold(task) {
                hold.inner = None;
            }
        }
        if !hold.inner_tried && !self.healed && self.dice.chance(200) {
            if let Some(hold) = self.clients[client].hold(task) {
                hold.inner_tried = true;
            }
            let term = self.dice.millis(3000, 4000);
            let inner = Claim { term, place: Place::No, ..hold.claim.clone() };
            self.acquire(client, now, task, true, inner, Patience::Forever);
        }
        let reach = self.reach(client, task, hold, true);
        let delay = self.dice.micros(50, 3000);
        self.after(delay, Happening::Reaches(reach));
    }

    /// The next access of a task: it enters, then reads, then writes.
    pub(super) fn reach(&self, client: usize, task: usize, hold: &Hold, answered: bool) -> Reach {
        let op = match hold.done {
            0 => Op::Enter,
            1 => Op::Read,
            _ => Op::Write,
        };
        Reach {
            client,
            life: self.clients[client].life,
            task,
            answered,
            resource: hold.claim.resource.clone(),
            claim: hold.claim.id,
            mode: hold.claim.mode,
            token: hold.token,
            slots: hold.slots.clone(),
            op,
        }
    }

    pub(super) fn reached(
        &mut self,
        client: usize,
        now: Moment,
        task: usize,
        claim: ClaimId,
        passed: bool,
    ) {
        let Some(hold) = self.clients[client].hold(task) else { return };
        if hold.claim.id != claim {
            return;
        }
        if !passed {
            self.release(client, now, claim);
            self.abandon(client, now, task);
            return;
        }
        hold.done += 1;
        let wait = if self.healed { self.dice.millis(1, 50) } else { self.dice.millis(5, 900) };
        self.plan_step(client, task, wait);
    }
}
