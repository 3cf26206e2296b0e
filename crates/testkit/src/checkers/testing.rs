//! Handwritten histories for the tests of checkers: one resource, a second an event.

use std::time::Duration;

use leasehold_core::{
    Access, ClaimId, Ended, HolderId, Mode, Moment, ResourceName, Slots, Ticket, Token,
};

use crate::history::{Answer, Cease, History, Op, Verb, What, Who};

/// A history under way. Claim `n` is asked for by client `n` as holder `n`.
pub(crate) struct Script {
    pub(crate) history: History,
    now: Moment,
    step: Duration,
    calls: u64,
    last: u128,
}

fn seconds(n: u64) -> Moment {
    Moment::START + Duration::from_secs(n)
}

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

impl Script {
    pub(crate) fn new() -> Script {
        let (now, step) = (Moment::START, Duration::from_secs(1));
        Script { history: History::default(), now, step, calls: 0, last: 0 }
    }

    fn push(&mut self, who: Who, claim: Option<u128>, what: What) -> &mut Script {
        let name = ResourceName::new("r").unwrap();
        let on = claim.map(|c| (&name, ClaimId::from_bits(c)));
        self.now = self.now + self.step;
        self.step = Duration::from_secs(1);
        self.history.push(self.now, who, on, what);
        self
    }

    /// The next event comes a millisecond after the last.
    pub(crate) fn at_once(&mut self) -> &mut Script {
        self.step = Duration::from_millis(1);
        self
    }

    pub(crate) fn client(&mut self, claim: u128, what: What) -> &mut Script {
        let client = Who::Client(u32::try_from(claim).unwrap());
        self.push(client, None, what)
    }

    fn by_client(&mut self, claim: u128, what: What) -> &mut Script {
        let client = Who::Client(u32::try_from(claim).unwrap());
        self.push(client, Some(claim), what)
    }

    pub(crate) fn fate(&mut self, what: What) -> &mut Script {
        self.push(Who::Fate, None, what)
    }

    pub(crate) fn upset(&mut self, client: u128) -> &mut Script {
        self.client(client, What::Upset { window: Duration::from_secs(60) })
    }

    pub(crate) fn sent(&mut self, claim: u128, verb: Verb) -> &mut Script {
        self.calls += 1;
        self.last = claim;
        let call = self.calls;
        self.by_client(claim, What::Sent { call, verb })
    }

    /// The answer to the last call.
    pub(crate) fn returned(&mut self, answer: Answer) -> &mut Script {
        let (call, claim) = (self.calls, self.last);
        self.by_client(claim, What::Returned { call, answer })
    }

    pub(crate) fn believes(&mut self, claim: u128, mode: Mode, n: u64) -> &mut Script {
        let holder = HolderId::from_bits(claim);
        let slots = Slots::default();
        self.by_client(claim, What::Believes { holder, mode, token: token(n), slots })
    }

    pub(crate) fn permits(
        &mut self,
        claim: u128,
        slots: &[u32],
        limit: u32,
        n: u64,
    ) -> &mut Script {
        let holder = HolderId::from_bits(claim);
        let count = u32::try_from(slots.len()).unwrap();
        let mode = Mode::Permits { count, limit };
        let slots = Slots::new(slots.to_vec());
        self.by_client(claim, What::Believes { holder, mode, token: token(n), slots })
    }

    pub(crate) fn ceases(&mut self, claim: u128) -> &mut Script {
        self.by_client(claim, What::Ceases { why: Cease::Release })
    }

    /// Admitted at second 10 of the judging clock, until 20.
    pub(crate) fn admitted(&mut self, claim: u128, mode: Mode, n: u64) -> &mut Script {
        let what = What::Admitted {
            holder: HolderId::from_bits(claim),
            mode,
            token: token(n),
            slots: Slots::default(),
            reenters: false,
            until: seconds(20),
            judged: seconds(10),
        };
        self.push(Who::Store, Some(claim), what)
    }

    pub(crate) fn extended(&mut self, claim: u128, until: u64, judged: u64) -> &mut Script {
        let what = What::Extended { until: seconds(until), judged: seconds(judged) };
        self.push(Who::Store, Some(claim), what)
    }

    /// Remembered until second 15.
    pub(crate) fn ended(&mut self, claim: u128, how: Ended) -> &mut Script {
        let remembered = seconds(15);
        self.push(Who::Store, Some(claim), What::Ended { how, remembered })
    }

    /// Queued with a place of 3 seconds.
    pub(crate) fn queued(&mut self, claim: u128, judged: u64) -> &mut Script {
        let place = Duration::from_secs(3);
        let what = What::Queued { ticket: Ticket(judged), place, judged: seconds(judged) };
        self.push(Who::Store, Some(claim), what)
    }

    pub(crate) fn heard(&mut self, claim: u128, judged: u64) -> &mut Script {
        self.push(Who::Store, Some(claim), What::Heard { judged: seconds(judged) })
    }

    pub(crate) fn leave_decided(&mut self, claim: u128, term: u64, judged: u64) -> &mut Script {
        let term = Duration::from_secs(term);
        self.push(Who::Store, Some(claim), What::LeaveDecided { term, judged: seconds(judged) })
    }

    pub(crate) fn remains(&mut self, claim: u128) -> &mut Script {
        self.push(Who::Store, Some(claim), What::Remains)
    }

    pub(crate) fn touched(
        &mut self,
        claim: u128,
        access: Access,
        n: u64,
        op: Op,
        accepted: bool,
    ) -> &mut Script {
        let what = What::Touched { access, token: token(n), slot: None, op, accepted };
        self.push(Who::Thing, Some(claim), what)
    }
}
