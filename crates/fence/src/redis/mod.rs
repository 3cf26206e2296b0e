//! The fence for what is kept in Redis: one script checks the mark and does the write.
//!
//! What it means: two marks stand in a hash beside the protected keys. A script of this fence
//! refuses a mark that a conflicting newer one has passed, raises it otherwise, and then does the
//! caller's `SET`, `HSET` or own script, all in one step of the server's: nothing can come between.
//!
//! It is plain data, so that it fits every client: an [`Eval`] is the words of one `EVAL`.
//!
//! - [`Fence::enter`]: before a holder's first read. Without it an old holder's write could land
//!   between a new one's read and the write that was computed from it.
//! - [`Fence::set`], [`Fence::hset`], [`Fence::script`]: with every write. They demand that the
//!   mark has entered, so that a forgotten [`Fence::enter`] is found instead of papered over.
//!
//! ```
//! use leasehold_fence::redis::Fence;
//! use leasehold_fence::{Access, Mark, Resource, Token};
//!
//! let fence = Fence::new(&Resource::new("account/7")?);
//! let mine = Mark::from(Token::new(42).unwrap()); // what the lock gave with the lease
//! let enter = fence.enter(Access::Exclusive, mine);
//! let write = fence.set(Access::Exclusive, mine, "{account/7}:balance", "90");
//! // With the `redis` crate:
//! //   let mut eval = redis::Cmd::new();
//! //   for word in write.words() { eval.arg(word); }
//! //   let answer: Vec<redis::Value> = eval.query_async(&mut connection).await?;
//! assert_eq!(write.words()[0], b"EVAL");
//!
//! // The first item of the answer says whether it passed:
//! fence.outcome(mine, b"ok")?;
//! let refused = fence.outcome(mine, b"stale 0:43").unwrap_err();
//! assert_eq!(refused.stale_mark().map(|stale| stale.newest.token.get()), Some(43));
//! # Ok::<(), leasehold_fence::Error>(())
//! ```
//!
//! In a cluster all keys of a script lie in one slot: the marks have the resource's name as their
//! hash tag, so that the protected keys take the same (`{account/7}:balance` for `account/7`; the
//! tag in the name itself, where it has one).
//!
//! Fairness: none; Redis orders scripts. Cancel safety: a script whose answer was lost may have
//! happened; sent again it passes again, for the same mark passes as often as it likes.
//!
//! When not to use it: for what is not in this Redis. Writers that do not use it are not refused. A
//! failover that loses writes may lose a raised mark with them, and eviction may take the marks:
//! use `noeviction`, and `WAIT` where a lost mark would hurt.

use leasehold_core::{Access, Epoch, Mark, Stale, Token};

use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// What lets an access begin; the rest of a script follows it.
const FENCE: &str = include_str!("fence.lua");

/// The marks of one resource in Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    key: Vec<u8>,
    of: Resource,
}

/// One `EVAL`, for any client.
///
/// The answer is an array. Its first item goes to [`Fence::outcome`]; for [`Fence::script`] a
/// second one is what the caller's script returned.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Eval {
    /// The script.
    pub script: String,
    /// Its keys, the marks first.
    pub keys: Vec<Vec<u8>>,
    /// Its arguments.
    pub args: Vec<Vec<u8>>,
}

impl Eval {
    /// The words of the command, from `EVAL` on.
    pub fn words(&self) -> Vec<Vec<u8>> {
        let mut words = vec![b"EVAL".to_vec(), self.script.clone().into_bytes()];
        words.push(self.keys.len().to_string().into_bytes());
        words.extend(self.keys.iter().cloned());
        words.extend(self.args.iter().cloned());
        words
    }
}

impl Fence {
    /// The fence of this resource. Its marks are kept in one hash, for ever: see [`Fence::key`].
    pub fn new(of: &Resource) -> Fence {
        let slot = of.slot_number().map(|slot| format!("/{slot}")).unwrap_or_default();
        let name = of.name().as_str();
        // As the lock's own keys: a brace in the name is the tag, and the key begins otherwise.
        let key = if name.contains('{') {
            format!("leasehold:fence{slot}={name}")
        } else {
            format!("leasehold:fence{slot}:{{{name}}}")
        };
        Fence { key: key.into_bytes(), of: of.clone() }
    }

    /// The key of the marks: a hash with the fields `x` and `s`, each `EPOCH:TOKEN`.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Lets an access begin: checks the mark and raises it. Before the holder's first read.
    pub fn enter(&self, access: Access, mark: Mark) -> Eval {
        self.eval(access, mark, "raise", "return { 'ok' }\n", vec![], vec![])
    }

    /// `SET key value`, if the mark has entered and is still the newest.
    pub fn set(
        &self,
        access: Access,
        mark: Mark,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Eval {
        let body = "redis.call('SET', KEYS[2], ARGV[5])\nreturn { 'ok' }\n";
        self.eval(access, mark, "demand", body, vec![key.into()], vec![value.into()])
    }

    /// `HSET key field value …`, if the mark has entered and is still the newest.
    pub fn hset<F: Into<Vec<u8>>, V: Into<Vec<u8>>>(
        &self,
        access: Access,
        mark: Mark,
        key: impl Into<Vec<u8>>,
        fields: impl IntoIterator<Item = (F, V)>,
    ) -> Eval {
        let body = "for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end\n\
                    return { 'ok' }\n";
        let args = fields.into_iter().flat_map(|(field, value)| [field.into(), value.into()]);
        self.eval(access, mark, "demand", body, vec![key.into()], args.collect())
    }

    /// The caller's own script, with its own `KEYS` and `ARGV`, if the mark has entered and is
    /// still the newest.
    pub fn script(
        &self,
        access: Access,
        mark: Mark,
        script: &str,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Eval {
        let body = format!(
            "local keys, args = {{}}, {{}}\n\
             for i = 2, #KEYS do keys[i - 1] = KEYS[i] end\n\
             for i = 5, #ARGV do args[i - 4] = ARGV[i] end\n\
             return {{ 'ok', (function(KEYS, ARGV)\n{script}\nend)(keys, args) }}\n"
        );
        self.eval(access, mark, "demand", &body, keys, args)
    }

    fn eval(
        &self,
        access: Access,
        mark: Mark,
        how: &str,
        body: &str,
        mut keys: Vec<Vec<u8>>,
        mut args: Vec<Vec<u8>>,
    ) -> Eval {
        let access = match access {
            Access::Exclusive => "x",
            Access::Shared => "s",
        };
        let (epoch, token) = (mark.epoch.to_string(), mark.token.to_string());
        let own = [access, &epoch, &token, how].map(|word| word.as_bytes().to_vec());
        keys.insert(0, self.key.clone());
        args.splice(0..0, own);
        Eval { script: format!("{FENCE}{body}"), keys, args }
    }

    /// What the first item of an answer says.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: stop, the lease has ended; nothing was written.
    /// [`ErrorKind::NotEntered`] for a write before [`Fence::enter`]. [`ErrorKind::Corrupt`] where
    /// the marks are not what this fence writes: nothing passes then.
    pub fn outcome(&self, mark: Mark, answer: &[u8]) -> Result<()> {
        let doing = format!("enter {} in Redis", self.of);
        let text = std::str::from_utf8(answer).unwrap_or_default();
        if text == "ok" {
            return Ok(());
        }
        if text == "not entered" {
            let text =
                format!("{doing}: token {mark} has not entered; send enter before the first read");
            return Err(Error::new(ErrorKind::NotEntered, text));
        }
        if let Some(newest) = text.strip_prefix("stale ").and_then(mark_of) {
            return Err(Error::stale(&doing, Stale { offered: mark, newest }));
        }
        let key = String::from_utf8_lossy(&self.key);
        let text = format!(
            "{doing}: its marks in `{key}` are corrupt and not trusted; find out who wrote them, \
             then set them to the newest token given out"
        );
        Err(Error::new(ErrorKind::Corrupt, text))
    }
}

/// `EPOCH:TOKEN`.
fn mark_of(text: &str) -> Option<Mark> {
    let (epoch, token) = text.split_once(':')?;
    let token = Token::new(token.parse().ok()?)?;
    Some(Mark { epoch: Epoch(epoch.parse().ok()?), token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_has_marks_of_its_own() {
        let names = ["a", "{a}", "a{b}", "/3:{a}"];
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for name in names {
            keys.push(Fence::new(&Resource::new(name).unwrap()).key().to_vec());
            keys.push(Fence::new(&Resource::slot(name, 3).unwrap()).key().to_vec());
        }
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn what_is_no_answer_of_the_script_is_not_trusted() {
        let fence = Fence::new(&Resource::new("r").unwrap());
        let mark = Mark::from(Token::new(1).unwrap());
        for answer in [&b""[..], b"OK", b"stale", b"stale 1", b"stale 0:0", b"corrupt", b"\xff"] {
            let error = fence.outcome(mark, answer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{answer:?}");
        }
    }
}
