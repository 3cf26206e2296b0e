//! One file a command.

mod acquire;
mod break_;
mod claim;
mod completions;
mod fence;
mod gc;
mod hold;
mod ls;
mod man;
mod run;
mod schema;
mod show;

use crate::args::{Cli, Command};
use crate::exit::End;

/// Runs the command that was asked for.
pub(crate) fn run(cli: &Cli) -> Result<End, End> {
    let common = &cli.common;
    match &cli.command {
        Command::Run(args) => run::run(common, args),
        Command::Hold(args) => hold::hold(common, args),
        Command::Acquire(args) => acquire::acquire(common, args),
        Command::Renew(args) => claim::renew(common, args),
        Command::Release(args) => claim::release(common, args),
        Command::Check(args) => claim::check(common, args),
        Command::Ls(args) => ls::ls(common, args),
        Command::Show(args) => show::show(common, args),
        Command::Break(args) => break_::break_(common, args),
        Command::Fence(args) => fence::fence(common, args),
        Command::Gc(args) => gc::gc(common, args),
        Command::Schema(args) => schema::schema(args),
        Command::Completions(args) => completions::completions(args),
        Command::Man => man::man(),
    }
}
