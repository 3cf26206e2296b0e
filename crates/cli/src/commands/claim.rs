//! `renew`, `release` and `check`: what scripts do with a claim that `acquire` printed.

use leasehold::blocking::block_on;
use leasehold::{Claimed, Left};
use leasehold_core::{ClaimId, Ended};

use crate::args::{ClaimOf, Common, Renew};
use crate::asked::{check_bounds, check_term};
use crate::context::Context;
use crate::exit::{Code, End, usage};
use crate::names::Named;
use crate::store::Opened;

struct Subject {
    context: Context,
    named: Named,
    opened: Opened,
    claim: Claimed,
}

impl Subject {
    fn new(common: &Common, of: &ClaimOf) -> Result<Subject, End> {
        let context = Context::new(common)?;
        let named = context.names.full(&of.name)?;
        let id: ClaimId = of.claim.parse().map_err(|_| {
            usage("--claim is not an id: want the 32 hexadecimal digits that `acquire` printed")
        })?;
        let opened = context.open()?;
        let claim = opened.client.claim(named.full.as_str(), id)?;
        Ok(Subject { context, named, opened, claim })
    }

    fn gone(&self, how: Ended) -> End {
        let text = format_args!("{} is not held by this claim: {how}", self.named.shown());
        self.context.voice.warn(text);
        End::code(Code::Lost)
    }
}

pub(crate) fn renew(common: &Common, args: &Renew) -> Result<End, End> {
    check_term(args.ttl)?;
    let subject = Subject::new(common, &args.of)?;
    check_bounds(args.ttl, subject.opened.client.profile())?;
    match block_on(subject.claim.renew(args.ttl))? {
        Ok(()) => Ok(End::DONE),
        Err(how) => Ok(subject.gone(how)),
    }
}

pub(crate) fn release(common: &Common, of: &ClaimOf) -> Result<End, End> {
    let subject = Subject::new(common, of)?;
    match block_on(subject.claim.release())? {
        Left::Released => Ok(End::DONE),
        Left::Gone(how) => Ok(subject.gone(how)),
    }
}

pub(crate) fn check(common: &Common, of: &ClaimOf) -> Result<End, End> {
    let subject = Subject::new(common, of)?;
    if block_on(subject.claim.is_held())? {
        return Ok(End::DONE);
    }
    Ok(subject.gone(Ended::Unknown))
}
