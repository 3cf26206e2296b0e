//! The loop of the simulation: what happens, in the order of its time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, ClaimId, ClaimRef, Hint, HolderId, Left, Moment, PushedEnd, Renewed,
    ResourceName, Result, Token, margin,
};

use super::bugs::Bug;
use super::client::{Client, MODES};
use super::clock::Clock;
use super::dice::Dice;
use super::faults::{Fault, Fired};
use super::server::Server;
use super::thing::{Reach, Things};
use super::weather::Weather;
use crate::history::{History, What, Who};

/// A request on its way.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) client: usize,
    pub(super) life: u32,
    pub(super) ask: Ask,
}

#[derive(Debug, Clone)]
pub(super) enum Ask {
    Enter(Claim),
    Renew(Vec<ClaimRef>),
    Leave(ClaimRef),
}

/// The server's answer, with spans of its own clock.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Entered(Result<Admission<Duration>>),
    Renewed(Vec<Renewed<Duration>>),
    Left(Result<Left>),
}

/// Something that happens at its time.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    /// A request reaches the server.
    Arrives(Request),
    /// The server gets to a request; a token may have been drawn before.
    Decides { request: Request, drawn: Option<Token>, epoch: u64 },
    /// A reply reaches its client.
    Replied { client: usize, life: u32, number: u64, reply: Reply },
    /// A client waits no longer for an answer.
    TimedOut { client: usize, life: u32, number: u64 },
    /// A word reaches a client.
    Told { client: usize, life: u32, claim: ClaimId, hint: Hint },
    /// A watch has lasted as long as it may.
    WatchEnds { client: usize, life: u32, machine: u32, watch: u64 },
    /// A machine of a client is due.
    Wakes { client: usize, wake: u64 },
    /// A task does its next step.
    Steps { client: usize, life: u32, task: usize, plan: u64 },
    /// Nobody wants an acquisition any more.
    Cancels { client: usize, life: u32, machine: u32 },
    /// The end of a belief may have come.
    BeliefEnds { client: usize, claim: ClaimId },
    /// An access reaches the thing.
    Reaches(Reach),
    /// The thing's answer reaches its client.
    Reached { client: usize, life: u32, task: usize, claim: ClaimId, passed: bool },
    /// Fate strikes.
    Strikes,
    /// A client goes on.
    GoesOn { client: usize },
    /// A dead client is started anew.
    Restarts { client: usize },
    /// The server goes on.
    ServerGoesOn,
    /// A cut connection is there again.
    Rejoins { client: usize, life: u32 },
}

impl Happening {
    /// The client that has to run for it.
    fn client(&self) -> Option<(usize, Option<u32>)> {
        use Happening as H;
        match *self {
            H::Replied { client, life, .. }
            | H::TimedOut { client, life, .. }
            | H::Told { client, life, .. }
            | H::WatchEnds { client, life, .. }
            | H::Steps { client, life, .. }
            | H::Cancels { client, life, .. }
            | H::Reached { client, life, .. }
            | H::Rejoins { client, life } => Some((client, Some(life))),
            H::Wakes { client, .. } => Some((client, None)),
            _ => None,
        }
    }
}

/// When, in which order among equals, and where what happens is kept.
type Due = Reverse<(Moment, u64)>;

#[derive(Debug)]
pub(super) struct World {
    pub(super) time: Moment,
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    pub(super) bug: Option<Bug>,
    pub(super) history: History,
    pub(super) fired: Fired,
    pub(super) events: u64,
    pub(super) healed: bool,
    pub(super) clients: Vec<Client>,
    pub(super) server: Server,
    pub(super) server_paused: bool,
    /// Counts the server's starts: what it was working on before is lost.
    pub(super) server_epoch: u64,
    pub(super) held: Vec<Request>,
    things: Things,
    queue: BinaryHeap<Due>,
    happenings: BTreeMap<u64, Happening>,
    serial: u64,
    pub(super) calls_made: u64,
    pub(super) wishes: u64,
    pub(super) resources: Vec<ResourceName>,
}

/// Progress is demanded within this time after healing.
const PATIENCE: Duration = Duration::from_secs(600);
/// Events that no schedule needs: a machine spins.
const EVENTS_MAX: u64 = 60_000;

impl World {
    pub(super) fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut dice = Dice::new(seed);
        let weather = Weather::new(&mut dice);
        let start = |dice: &mut Dice, embedded: bool| {
            Moment::from_nanos(1_000_000_000_000) + dice.millis(0, if embedded { 0 } else { 9_000 })
        };
        let mut clients = Vec::new();
        let mut fired = Fired::default();
        for gain in &weather.gains {
            if *gain != 0 {
                fired.count(Fault::ClockDrift);
            }
            let clock = Clock::new(start(&mut dice, weather.embedded), *gain);
            let seed = u64::try_from(dice.bits() >> 64).unwrap_or_default();
            clients.push(Client::new(clock, seed, &mut || HolderId::from_bits(dice.bits())));
        }
        let clock = Clock::new(start(&mut dice, weather.embedded), weather.server_gain);
        let wall = weather.floored.then_some(1_700_000_000_000_000);
        let server = Server::new(weather.handover, clock, wall, bug);
        let names = MODES.iter().filter_map(|(name, _)| ResourceName::new(name).ok());
        let mut world = World {
            time: Moment::from_nanos(1_000_000),
            dice,
            weather,
            bug,
            history: History::default(),
            fired,
            events: 0,
            healed: false,
            clients,
            server,
            server_paused: false,
            server_epoch: 0,
            held: Vec::new(),
            things: Things::default(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            serial: 0,
            calls_made: 0,
            wishes: 0,
            resources: names.collect(),
        };
        for client in 0..world.clients.len() {
            world.idle_tasks(client);
        }
        world.plan_fate();
        world
    }

    pub(super) fn idle_tasks(&mut self, client: usize) {
        for task in 0..self.clients[client].tasks.len() {
            let wait = self.dice.millis(1, 800);
            self.plan_step(client, task, wait);
        }
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn after(&mut self, span: Duration, happening: Happening) {
        self.at(self.time + span, happening);
    }

    pub(super) fn at(&mut self, time: Moment, happening: Happening) {
        self.serial += 1;
        self.queue.push(Reverse((time, self.serial)));
        self.happenings.insert(self.serial, happening);
    }

    pub(super) fn record(&mut self, who: Who, on: Option<(&ResourceName, ClaimId)>, what: What) {
        self.history.push(self.time, who, on, what);
    }

    /// Runs to the end: chaos, healing, quiet; and what is left after that.
    pub(super) fn run(&mut self) {
        let mut end = Moment::NEVER;
        while let Some(Reverse((time, serial))) = self.queue.pop() {
            let Some(happening) = self.happenings.remove(&serial) else { continue };
            self.time = time;
            if self.events >= self.weather.events && !self.healed {
                self.healed = true;
                end = time + PATIENCE;
                self.record(Who::Fate, None, What::Healed);
            }
            if time > end || self.events > EVENTS_MAX {
                break;
            }
            self.happens(happening);
            if self.healed && self.clients.iter().all(Client::is_quiet) {
                break;
            }
        }
        let late = self.time + Duration::from_secs(60);
        self.server.finish(late, &mut self.history);
    }

    /// Whether some machine asked for something without end.
    pub(super) fn spins(&self) -> bool {
        self.events > EVENTS_MAX
    }

    pub(super) fn happens(&mut self, happening: Happening) {
        if let Some((client, life)) = happening.client() {
            let whom = &mut self.clients[client];
            if !whom.up || life.is_some_and(|life| life != whom.life) {
                return;
            }
            if whom.standing {
                whom.inbox.push(happening);
                return;
            }
            if matches!(happening, Happening::Wakes { wake, .. } if wake != whom.wakes) {
                return; // it was planned anew
            }
            self.events += 1;
            self.befalls(client, happening);
            self.drive(client);
            return;
        }
        self.events += 1;
        match happening {
            Happening::Arrives(request) => self.arrives(request),
            Happening::Decides { request, drawn, epoch } if epoch == self.server_epoch => {
                self.decides(&request, drawn);
            }
            Happening::BeliefEnds { client, claim } => self.belief_ends(client, claim),
            Happening::Reaches(reach) => self.reaches(&reach),
            Happening::Strikes => self.strikes(),
            Happening::GoesOn { client } => self.goes_on(client),
            Happening::Restarts { client } => self.restarts(client),
            Happening::ServerGoesOn => {
                self.server_paused = false;
                for request in std::mem::take(&mut self.held) {
                    self.arrives(request);
                }
            }
            _ => {}
        }
    }

    // --- the network -------------------------------------------------------------------------

    /// When the copies of a message arrive; `to_server` or back.
    fn arrivals(&mut self, client: usize, to_server: bool) -> Vec<Moment> {
        if self.clients[client].parted_until > self.time {
            return Vec::new();
        }
        let (lost, twice) = if to_server {
            (Fault::RequestLost, Fault::RequestTwice)
        } else {
            (Fault::ReplyLost, Fault::ReplyTwice)
        };
        if !self.healed && self.dice.chance(self.weather.lost) {
            self.fired.count(lost);
            return Vec::new();
        }
        let mut copies = 1;
        if !self.healed && self.dice.chance(self.weather.twice) {
            self.fired.count(twice);
            copies = 2;
        }
        (0..copies).map(|_| self.arrival(client, usize::from(to_server))).collect()
    }

    fn arrival(&mut self, client: usize, way: usize) -> Moment {
        let mut delay = self.dice.micros(100, 4000);
        if !self.healed && self.dice.chance(self.weather.delayed) {
            self.fired.count(Fault::Delayed);
            delay = self.dice.millis(50, 1000);
        }
        let arrival = self.time + delay;
        let last = &mut self.clients[client].last_arrival[way];
        if arrival < *last {
            self.fired.count(Fault::Reordered);
        }
        *last = (*last).max(arrival);
        arrival
    }

    pub(super) fn send(&mut self, request: Request) {
        for arrival in self.arrivals(request.client, true) {
            self.at(arrival, Happening::Arrives(request.clone()));
        }
    }

    // --- the server --------------------------------------------------------------------------

    fn arrives(&mut self, request: Request) {
        if self.server_paused {
            self.held.push(request);
            return;
        }
        let drawn = match &request.ask {
            Ask::Enter(claim) => self.server.draw(claim),
            Ask::Renew(_) | Ask::Leave(_) => None,
        };
        if !self.healed && self.dice.chance(self.weather.lock_wait) {
            self.fired.count(Fault::LockWait);
            let wait = self.dice.millis(5, 500);
            let epoch = self.server_epoch;
            self.after(wait, Happening::Decides { request, drawn, epoch });
        } else {
            self.decides(&request, drawn);
        }
    }

    fn decides(&mut self, request: &Request, drawn: Option<Token>) {
        let Request { number, client, life, ref ask } = *request;
        if self.weather.embedded && self.clients[client].life != life {
            return; // one machine: a dead process asks for nothing
        }
        let (time, history) = (self.time, &mut self.history);
        let reply = match ask {
            Ask::Enter(claim) => {
                Reply::Entered(self.server.enter(time, client, claim, drawn, history))
            }
            Ask::Renew(claims) => Reply::Renewed(
                claims.iter().map(|claim| self.server.renew(time, claim, history)).collect(),
            ),
            Ask::Leave(claim) => Reply::Left(self.server.leave(time, claim, history)),
        };
        for arrival in self.arrivals(client, false) {
            let reply = reply.clone();
            self.at(arrival, Happening::Replied { client, life, number, reply });
        }
        self.tell();
    }

    /// Sends the words that the server has for waiters.
    pub(super) fn tell(&mut self) {
        for (client, claim, hint) in self.server.take_hints() {
            let whom = &self.clients[client];
            let life = whom.life;
            let deaf = !whom.subscribed || whom.parted_until > self.time;
            if deaf || (!self.healed && self.dice.chance(self.weather.push_lost)) {
                self.fired.count(Fault::PushLost);
                continue;
            }
            let hint = self.on_one_clock(hint);
            let mut delay = self.dice.micros(50, 3000);
            if !self.healed && self.dice.chance(self.weather.push_late) {
                self.fired.count(Fault::PushLate);
                delay = self.dice.millis(50, 5000);
            }
            if !self.healed && self.dice.chance(self.weather.twice) {
                self.fired.count(Fault::PushTwice);
                let again = self.dice.millis(1, 5000);
                let hint = hint.clone();
                self.after(again, Happening::Told { client, life, claim, hint });
            }
            self.after(delay, Happening::Told { client, life, claim, hint });
        }
    }

    /// Where judge and waiter read one clock, a word says when the grant ends.
    fn on_one_clock(&self, hint: Hint) -> Hint {
        match hint {
            Hint::Granted(mut pushed) if self.weather.embedded => {
                if let PushedEnd::FirstTerm(term) = pushed.grant.until {
                    let end = self.server.clock.at(self.time) + term;
                    pushed.grant.until = PushedEnd::At(end.before(margin(term)));
                }
                Hint::Granted(pushed)
            }
            other => other,
        }
    }

    // --- the thing ---------------------------------------------------------------------------

    fn reaches(&mut self, reach: &Reach) {
        let passed = self.things.touch(self.time, reach, self.bug, &mut self.history);
        let Reach { client, life, task, claim, .. } = *reach;
        if reach.answered {
            let delay = self.dice.micros(100, 2000);
            self.after(delay, Happening::Reached { client, life, task, claim, passed });
        }
    }
}
