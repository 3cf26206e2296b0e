//! The blows of fate: pauses, deaths, clocks, cuts, and an operator's hand.

use std::time::Duration;

use leasehold_core::HolderId;

use super::bugs::Bug;
use super::client::Client;
use super::faults::Fault;
use super::world::{Happening, World};
use crate::history::{Cease, What, Who};

/// For how long beliefs may outlast their terms after a clock has misled them.
const UPSET: Duration = Duration::from_secs(14);

impl World {
    pub(super) fn plan_fate(&mut self) {
        if !self.weather.blows.is_empty() {
            let calm = self.dice.millis(50, self.weather.calm_ms);
            self.after(calm, Happening::Strikes);
        }
    }

    pub(super) fn strikes(&mut self) {
        if self.healed {
            return;
        }
        self.plan_fate();
        let blow = self.dice.pick(&self.weather.blows);
        let client =
            usize::try_from(self.dice.below(self.clients.len() as u64)).unwrap_or_default();
        let struck = match blow {
            Fault::ClientPaused | Fault::ClientFrozen => self.stand(client, blow),
            Fault::ClientCrashed => self.crash(client),
            Fault::ClientStepped => {
                let span = self.dice.millis(100, 5000);
                self.clients[client].clock.step_ahead(self.time, span);
                self.replan_beliefs(client);
                self.drive_if_running(client);
                true
            }
            Fault::Cut => self.cut(client),
            Fault::Parted => {
                let span = self.dice.millis(100, 6000);
                self.clients[client].parted_until = self.time + span;
                self.cut(client)
            }
            _ => self.strike_server(blow),
        };
        if struck {
            self.fired.count(blow);
        }
    }

    fn strike_server(&mut self, blow: Fault) -> bool {
        let index =
            usize::try_from(self.dice.below(self.resources.len() as u64)).unwrap_or_default();
        let name = self.resources[index].clone();
        match blow {
            Fault::ServerAhead => {
                let span = self.dice.millis(200, 3000);
                self.server.clock.step_ahead(self.time, span);
                self.record(Who::Store, None, What::Upset { window: UPSET });
                true
            }
            Fault::ServerBack => {
                let span = self.dice.millis(100, 1500);
                self.server.clock.step_back(self.time, span);
                self.record(Who::Store, None, What::WentBack { by: span });
                true
            }
            Fault::WallStepped => {
                let wall = 1_600_000_000_000_000 + self.dice.below(200_000_000_000_000);
                self.server.wall.replace(wall).is_some()
            }
            Fault::ServerPaused if !self.server_paused => {
                self.server_paused = true;
                let span = self.dice.millis(50, 900);
                self.after(span, Happening::ServerGoesOn);
                true
            }
            Fault::ServerRestarted => {
                self.server_epoch += 1;
                self.held.clear();
                self.server.restart();
                for client in 0..self.clients.len() {
                    self.cut(client);
                }
                true
            }
            Fault::Broken | Fault::BrokenNow => {
                let now = blow == Fault::BrokenNow;
                let struck = self.server.break_(self.time, &name, now, &mut self.history);
                self.tell();
                struck
            }
            Fault::Cleaned => {
                let keep = self.dice.millis(0, 3000);
                self.server.clean(self.time, keep, &mut self.history)
            }
            _ => false,
        }
    }

    /// A client stands still, with its clock or without it.
    fn stand(&mut self, client: usize, how: Fault) -> bool {
        if !self.clients[client].up || self.clients[client].standing {
            return false;
        }
        let span = self.dice.millis(100, 9000);
        self.clients[client].standing = true;
        let who = self.who(client);
        self.record(who, None, What::Paused);
        if how == Fault::ClientFrozen {
            self.clients[client].clock.freeze(self.time);
            self.record(who, None, What::Upset { window: span + UPSET });
        }
        self.late_writes(client, span);
        self.after(span, Happening::GoesOn { client });
        true
    }

    /// Writes that had passed their last look at the lease when the client stopped.
    fn late_writes(&mut self, client: usize, span: Duration) {
        for task in 0..self.clients[client].tasks.len() {
            if !self.dice.chance(500) {
                continue;
            }
            let now = self.clients[client].clock.at(self.time);
            let Some(hold) = self.clients[client].hold(task).cloned() else { continue };
            if hold.done < 2 || !self.clients[client].believes(hold.claim.id, now) {
                continue;
            }
            self.fired.count(Fault::LateWrite);
            let reach = self.reach(client, task, &hold, false);
            let delay = span + self.dice.micros(10, 3000);
            self.after(delay, Happening::Reaches(reach));
        }
    }

    pub(super) fn goes_on(&mut self, client: usize) {
        let whom = &mut self.clients[client];
        if !whom.up || !whom.standing {
            return;
        }
        whom.standing = false;
        let inbox = std::mem::take(&mut whom.inbox);
        if whom.clock.is_frozen() {
            whom.clock.thaw(self.time);
            self.replan_beliefs(client);
        }
        self.record(self.who(client), None, What::Resumed);
        // Whatever has waited is found at once, and the timers are looked at first.
        self.drive(client);
        for happening in inbox {
            self.happens(happening);
        }
    }

    fn crash(&mut self, client: usize) -> bool {
        if !self.clients[client].up {
            return false;
        }
        let who = self.who(client);
        let now = self.clients[client].clock.at(self.time);
        let leases: Vec<_> =
            self.clients[client].leases.iter().map(|(c, l)| (*c, l.clone())).collect();
        for (claim, lease) in leases {
            if self.clients[client].believes(claim, now) && !lease.ceased {
                let what = What::Ceases { why: Cease::Death };
                self.record(who, Some((&lease.resource, claim)), what);
            }
        }
        let machines = std::mem::take(&mut self.clients[client].machines);
        for machine in machines.values().filter(|m| !m.over) {
            let on = Some((&self.resources[0], machine.acquire.claim_id()));
            self.history.push(self.time, who, on, What::GaveUp { wish: machine.wish });
        }
        let seed = u64::try_from(self.dice.bits() >> 64).unwrap_or_default();
        let (clock, life) = (self.clients[client].clock.clone(), self.clients[client].life + 1);
        let dice = &mut self.dice;
        let mut new = Client::new(clock, seed, &mut || HolderId::from_bits(dice.bits()));
        if new.clock.is_frozen() {
            new.clock.thaw(self.time);
        }
        (new.life, new.up) = (life, false);
        new.parted_until = self.clients[client].parted_until;
        self.clients[client] = new;
        if self.weather.embedded {
            self.server.see_death(self.time, client, &mut self.history);
            self.tell();
        }
        let span = self.dice.millis(50, 3000);
        self.after(span, Happening::Restarts { client });
        true
    }

    pub(super) fn restarts(&mut self, client: usize) {
        self.clients[client].up = true;
        self.idle_tasks(client);
    }

    /// Cuts a client's connections: calls in flight fail, words are not heard until it rejoins.
    fn cut(&mut self, client: usize) -> bool {
        let whom = &mut self.clients[client];
        if !whom.up || !whom.subscribed || whom.standing {
            return false;
        }
        whom.subscribed = false;
        let life = whom.life;
        let back = whom.parted_until.max(self.time);
        if self.has(Bug::BuriesTheLiving) {
            self.server.see_death(self.time, client, &mut self.history);
        }
        self.fail_calls(client);
        self.fail_watches(client);
        self.drive(client);
        let span = self.dice.millis(5, 1500);
        self.at(back + span, Happening::Rejoins { client, life });
        true
    }
}
