//! `completions`: a shell's completions.

use crate::args::Completions;
use crate::exit::{Code, End};
use crate::help;
use crate::output;

pub(crate) fn completions(args: &Completions) -> Result<End, End> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut help::described(), "leasehold", &mut script);
    let script = String::from_utf8(script)
        .map_err(|_| End::Fail(Code::Bug, "the completions are not UTF-8".into()))?;
    output::data(&script)?;
    Ok(End::DONE)
}
