//! `ls`: names, and who holds them and waits for them.

use leasehold::blocking::block_on;
use leasehold_core::{Page, Queue, QueueEntry, QueueState, shown};

use crate::args::{Common, Ls};
use crate::context::Context;
use crate::durations::brief;
use crate::exit::End;
use crate::names::Named;
use crate::output;
use crate::records::{self, Shown, mode_word};
use crate::table::Table;

pub(crate) fn ls(common: &Common, args: &Ls) -> Result<End, End> {
    let context = Context::new(common)?;
    let opened = context.open()?;
    let client = &opened.client;
    let url = &client.profile().url;
    let mut page = Page { prefix: context.names.prefix(&args.prefix), ..Page::default() };
    let mut table = Table::new(&[
        "NAME", "STATE", "MODE", "HOLDER", "HELD FOR", "LEFT", "TOKEN", "WAITING", "LAST END",
    ]);
    loop {
        let names = block_on(client.list(&page))?;
        let Some(last) = names.last() else { break };
        page.after = Some(last.clone());
        for name in &names {
            let named = context.names.given(name);
            let queue = block_on(client.inspect(name.as_str()))?;
            if args.json {
                let shown = Shown::new(&named, context.names.namespace(), url, &queue);
                output::data(&records::line(&shown)?)?;
            } else {
                add_rows(&mut table, &named, &queue);
            }
        }
    }
    if !args.json {
        output::data(&table.text())?;
    }
    Ok(End::DONE)
}

/// A row for each holder; one for a name that nobody holds.
fn add_rows(table: &mut Table, named: &Named, queue: &Queue) {
    let name = shown(&named.given, 120).into_owned();
    let waiting = match queue.waiters().count() {
        0 => "-".to_string(),
        waiters => waiters.to_string(),
    };
    let last_end = queue.last_end.map_or("-", leasehold_core::Ended::word).to_string();
    let last_token = queue.last_token.map_or_else(|| "-".to_string(), |token| token.to_string());
    let mut held = false;
    for entry in queue.holders() {
        held = true;
        let [state, held_for, left, token] = grant_cells(entry);
        table.row(vec![
            name.clone(),
            state,
            mode_word(entry.mode).to_string(),
            shown(entry.holder.label(), 60).into_owned(),
            held_for,
            left,
            token,
            waiting.clone(),
            last_end.clone(),
        ]);
    }
    if !held {
        let none = || "-".to_string();
        table.row(vec![
            name,
            "free".into(),
            none(),
            none(),
            none(),
            none(),
            last_token,
            waiting,
            last_end,
        ]);
    }
}

/// State, time held, time left and token of a grant.
fn grant_cells(entry: &QueueEntry) -> [String; 4] {
    match &entry.state {
        QueueState::Granted { token, held_for, left, broken, .. } => [
            if *broken { "broken" } else { "held" }.to_string(),
            brief(*held_for),
            brief(*left),
            token.to_string(),
        ],
        QueueState::Waiting { .. } => ["waiting".into(), "-".into(), "-".into(), "-".into()],
    }
}
