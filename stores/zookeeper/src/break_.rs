//! Breaking: a mark on the holder's own node, which its client watches; or at once.

use std::sync::Arc;

use leasehold_core::{Broken, Ended, ResourceName, Result, Token};

use crate::card::{Card, Mark, Memory};
use crate::hall::Hall;
use crate::inspect::look;
use crate::look::token_of;
use crate::wire::{Fail, Op, Stat, code};

/// What Curator's clients take for a wish that they release.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";
/// How often it starts over because holders came and went.
const TRIES: usize = 10;

pub(crate) async fn break_(
    hall: &Arc<Hall>,
    resource: &ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let paths = hall.paths(resource)?;
    let mut marked = Vec::new();
    for _ in 0..TRIES {
        let (generation, sight) = look(hall, resource).await?;
        let (mut held, mut again) = (Vec::new(), false);
        for (n, contender) in sight.line.contenders.iter().enumerate() {
            let holds = sight.line.admitted.get(n).copied().unwrap_or(false);
            let Some(Some((found, stat))) = sight.cards.get(n).filter(|_| holds) else { continue };
            let token = token_of(stat).map_err(|fail: Fail| hall.error(fail))?;
            held.push(token);
            if expect.is_some_and(|wanted| wanted != token) || marked.contains(&token) {
                continue;
            }
            let path = format!("{}/{}", paths.queue, contender.name);
            let card = Card::read(found);
            let op = if now {
                free(&paths, path, stat, token, card.as_ref())
            } else {
                mark(path, stat, card)
            };
            match hall.ask(generation, &op).await.result {
                Ok(_) => marked.push(token),
                // It went, or was changed: look again.
                Err(Fail::Refused(refusal))
                    if matches!(refusal.code, code::NO_NODE | code::BAD_VERSION) =>
                {
                    again = true;
                }
                Err(fail) => return Err(hall.error(fail)),
            }
        }
        if !again {
            let nothing = marked.is_empty();
            return Ok(if nothing { Broken::Nothing { held } } else { Broken::Marked(marked) });
        }
    }
    Ok(Broken::Marked(marked))
}

fn mark(path: String, stat: &Stat, card: Option<Card>) -> Op {
    let data = match card {
        Some(card) => Card { broken: true, ..card }.write(),
        None => REVOKE.to_vec(),
    };
    Op::Set { path, data, version: stat.version }
}

/// Takes the node away, and leaves word for its holder in its mark.
fn free(
    paths: &crate::names::Paths,
    path: String,
    stat: &Stat,
    token: Token,
    card: Option<&Card>,
) -> Op {
    let mut ops = vec![Op::Delete { path, version: stat.version }];
    if let Some(card) = card {
        let data = Mark::Broken.write();
        ops.push(Op::Set { path: paths.mark(card.claim), data, version: -1 });
        let slots = card.slots.as_slice().iter().map(|&slot| paths.slot(slot));
        ops.extend(slots.map(|path| Op::Delete { path, version: -1 }));
        let data = Memory { how: Ended::Broken, token: Some(token) }.write();
        ops.push(Op::Set { path: paths.memory.clone(), data, version: -1 });
    }
    Op::Multi(ops)
}
