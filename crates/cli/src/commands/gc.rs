//! `gc`: forgets names that have been unused for long.

use leasehold::blocking::block_on;
use leasehold_core::{Page, shown};

use crate::args::{Common, Gc};
use crate::context::Context;
use crate::durations::brief;
use crate::exit::End;
use crate::output;

pub(crate) fn gc(common: &Common, args: &Gc) -> Result<End, End> {
    let context = Context::new(common)?;
    let opened = context.open()?;
    let mut page = Page { prefix: context.names.prefix(""), ..Page::default() };
    let mut count = 0_usize;
    loop {
        let cleaned = block_on(opened.client.clean(args.unused_for, &page, args.dry_run))?;
        for name in &cleaned.names {
            let named = context.names.given(name);
            output::data(&format!("{}\n", shown(&named.given, 512)))?;
        }
        count += cleaned.names.len();
        match cleaned.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    let what = if args.dry_run { "would be forgotten" } else { "forgotten" };
    let span = brief(args.unused_for);
    context.voice.detail(format_args!("{count} names {what}, unused for {span}"));
    Ok(End::DONE)
}
