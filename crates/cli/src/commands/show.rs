//! `show`: one name, with its queue.

use std::fmt::Write as _;

use leasehold::blocking::block_on;
use leasehold_core::{Kind, Mode, Queue, QueueEntry, QueueState, shown};

use crate::args::{Common, Show};
use crate::context::Context;
use crate::durations::{brief, rfc3339_ago};
use crate::exit::{Code, End};
use crate::names::Named;
use crate::output;
use crate::records::{self, Shown, mode_word};

pub(crate) fn show(common: &Common, args: &Show) -> Result<End, End> {
    let context = Context::new(common)?;
    let named = context.names.full(&args.name)?;
    let opened = context.open()?;
    let queue = block_on(opened.client.inspect(named.full.as_str()))?;
    if context.voice.is_quiet() {
        let held = queue.holders().next().is_some();
        return Ok(if held { End::DONE } else { End::code(Code::Free) });
    }
    let url = &opened.client.profile().url;
    let text = if args.json {
        records::line(&Shown::new(&named, context.names.namespace(), url, &queue))?
    } else {
        for_people(&named, url, &queue)
    };
    output::data(&text)?;
    Ok(End::DONE)
}

fn for_people(named: &Named, url: &str, queue: &Queue) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", shown(&named.given, 512));
    let _ = writeln!(text, "  store       {}", output::redacted(url));
    if let Some(Kind::Permits { limit }) = queue.kind {
        let _ = writeln!(text, "  permits     {limit}");
    }
    let mut held = false;
    for holder in queue.holders() {
        held = true;
        let _ = writeln!(text, "  held by     {}", holder_line(holder));
    }
    if !held {
        let _ = writeln!(text, "  free");
    }
    for waiter in queue.waiters() {
        let label = shown(waiter.holder.label(), 200);
        let mode = asked_words(waiter.mode);
        let waited = brief(waiter.entered_ago);
        let _ = writeln!(text, "  waiting     {label} ({mode}) for {waited}");
    }
    if let Some(token) = queue.last_token {
        let _ = writeln!(text, "  last token  {token}");
    }
    if let Some(how) = queue.last_end {
        let ago = queue.last_end_ago.map(|ago| format!(" {} ago", brief(ago)));
        let _ = writeln!(text, "  last end    {how}{}", ago.unwrap_or_default());
    }
    text
}

fn holder_line(entry: &QueueEntry) -> String {
    let QueueState::Granted { token, slots, held_for, left, broken } = &entry.state else {
        return shown(entry.holder.label(), 200).into_owned();
    };
    let mut line = format!(
        "{} ({}) for {} since {}, {} left, token {token}",
        shown(entry.holder.label(), 200),
        asked_words(entry.mode),
        brief(*held_for),
        rfc3339_ago(*held_for),
        brief(*left),
    );
    if !slots.is_empty() {
        line += &format!(", slots {slots}");
    }
    if *broken {
        line += ", broken";
    }
    line
}

fn asked_words(mode: Mode) -> String {
    match mode {
        Mode::Permits { count, limit } => format!("{count} of {limit} permits"),
        mode => mode_word(mode).to_string(),
    }
}
