//! `break`: takes a lock away from its holder, after asking.

use std::io::{self, Write};

use leasehold::blocking::block_on;
use leasehold_core::{Broken, Queue, QueueState, Token, shown};

use crate::acquiring::can_ask;
use crate::args::{Break, Common};
use crate::context::Context;
use crate::durations::brief;
use crate::exit::{Code, End, usage};
use crate::names::Named;

pub(crate) fn break_(common: &Common, args: &Break) -> Result<End, End> {
    let context = Context::new(common)?;
    let named = context.names.full(&args.name)?;
    let asks = !args.yes;
    if asks && !can_ask() {
        return Err(usage("break asks first, and here is no terminal to ask on: want --yes"));
    }
    let opened = context.open()?;
    let client = &opened.client;
    if let Some(mark) = args.token
        && mark.epoch != client.epoch()
    {
        let epoch = client.epoch();
        return Err(usage(format!("--token {mark} is of another epoch than the store's, {epoch}")));
    }
    let expect = args.token.map(|mark| mark.token);
    if asks {
        let queue = block_on(client.inspect(named.full.as_str()))?;
        if queue.holders().next().is_some() && !agreed(&named, &queue, args.now) {
            context.voice.warn("nothing was done");
            return Ok(End::DONE);
        }
    }
    let broken = block_on(client.break_(named.full.as_str(), expect, args.now))?;
    Ok(told(&context, &named, expect, &broken))
}

fn told(context: &Context, named: &Named, expect: Option<Token>, broken: &Broken) -> End {
    let name = named.shown();
    match (broken, expect) {
        (Broken::Marked(tokens), _) => {
            let tokens = listed(tokens);
            context.voice.warn(format_args!("broke {name}: the grant with token {tokens}"));
            End::DONE
        }
        (Broken::Nothing { held }, Some(expect)) if !held.is_empty() => {
            let held = listed(held);
            let text = format!("{name} is not held with token {expect}, but with token {held}");
            End::Fail(Code::Stale, text)
        }
        (Broken::Nothing { .. }, _) => {
            context.voice.warn(format_args!("nobody holds {name}; nothing was done"));
            End::DONE
        }
    }
}

fn listed(tokens: &[Token]) -> String {
    tokens.iter().map(Token::to_string).collect::<Vec<_>>().join(", ")
}

/// Shows what is about to be taken away, and from whom.
fn agreed(named: &Named, queue: &Queue, now: bool) -> bool {
    let mut question = String::new();
    for holder in queue.holders() {
        if let QueueState::Granted { token, held_for, left, .. } = &holder.state {
            question += &format!(
                "{} is held by {} for {} with token {token}, {} left\n",
                named.shown(),
                shown(holder.holder.label(), 200),
                brief(*held_for),
                brief(*left),
            );
        }
    }
    question += if now {
        "Free it now, beside a holder that may still be at work? [y/N] "
    } else {
        "Break it? Its holder is told at its next renewal. [y/N] "
    };
    let _ = io::stderr().write_all(question.as_bytes());
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer).is_ok();
    read && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
