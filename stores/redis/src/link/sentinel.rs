//! Which server is the master, by the word of the Sentinels.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, Error, ErrorKind, Result};
use tokio::task::JoinSet;

use super::dial::{Address, Dialer, within};
use super::disturbance::Cause;
use super::node::Node;
use super::pipe::Pipe;
use super::refusal::{self, DOING};
use super::resp::Reply;
use super::shared::Shared;

/// The port of Sentinels where none is named.
pub(crate) const PORT: u16 = 26379;
/// How long a Sentinel may take to answer.
const ASK: Duration = Duration::from_millis(1500);
/// The waits between attempts to listen to a Sentinel.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How often a Sentinel that is listened to is asked whether it is there.
const STILL_THERE: Duration = Duration::from_secs(5);
/// What a Sentinel says when another server has become the master.
const SWITCHED: &[u8] = b"+switch-master";

/// The Sentinels of a deployment.
#[derive(Debug)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<Address>,
    pub(crate) master: String,
    pub(crate) dialer: Dialer,
}

/// What a Sentinel says.
struct Told {
    address: Address,
    /// The higher, the later it was decided.
    epoch: i64,
}

impl Sentinels {
    /// The master by the latest word of a majority of the Sentinels, or of those that answer.
    pub(crate) async fn master(self: &Arc<Self>) -> Result<Address> {
        let mut asked = JoinSet::new();
        for address in self.addresses.clone() {
            let ours = Arc::clone(self);
            asked.spawn(async move { ours.ask(&address).await });
        }
        let majority = self.addresses.len() / 2 + 1;
        let mut told: Vec<Told> = Vec::new();
        let mut refused = None;
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(word)) => told.push(word),
                // One that is there and refuses says more than one that is not there.
                Ok(Err(error)) => refused = Some(worse(refused, error)),
                Err(_) => {}
            }
            if told.len() == majority {
                break;
            }
        }
        match told.into_iter().max_by_key(|told| told.epoch) {
            Some(latest) => Ok(latest.address),
            None => Err(refused.unwrap_or_else(|| {
                Error::new(ErrorKind::Unreachable, DOING, "no Sentinel answered")
            })),
        }
    }

    async fn ask(&self, address: &Address) -> Result<Told> {
        let asked = async {
            let mut pipe = self.dialer.dial_plainly(address).await?;
            pipe.say(&[b"SENTINEL", b"MASTER", self.master.as_bytes()]);
            self.read(pipe.reply().await.map_err(|broken| broken.error())?)
        };
        within(ASK, asked).await.map_err(|error| {
            let told = format!("the Sentinel {address}");
            error.at(told)
        })
    }

    fn read(&self, reply: Reply) -> Result<Told> {
        if let Reply::Error(text) = &reply {
            if text.contains("No such master") {
                let detail = format!("the Sentinels know no master named {:?}", self.master);
                return Err(Error::new(ErrorKind::Config, DOING, detail)
                    .advise("name it as `sentinel monitor` does: redis+sentinel://host/name"));
            }
            return Err(refusal::error(text));
        }
        let said = |name: &str| reply.under(name).and_then(|value| value.str().ok());
        let port = said("port").and_then(|port| port.parse().ok());
        let (Some(host), Some(port)) = (said("ip"), port) else {
            let detail = "what a Sentinel says of the master has no address";
            return Err(Error::new(ErrorKind::Corrupt, DOING, detail));
        };
        let epoch = said("config-epoch").and_then(|epoch| epoch.parse().ok());
        let address = Address { host: host.to_owned(), port };
        Ok(Told { address, epoch: epoch.unwrap_or_default() })
    }

    /// Listens to one Sentinel for a switch of masters, for as long as the link lives.
    pub(crate) async fn listen(
        self: Arc<Self>,
        address: Address,
        shared: Arc<Shared>,
        node: Arc<Node>,
    ) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, shared.seed());
        loop {
            if self.listen_once(&address, &shared, &node).await {
                backoff.reset();
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    /// Whether the Sentinel was reached.
    async fn listen_once(&self, address: &Address, shared: &Shared, node: &Node) -> bool {
        let Ok(mut pipe) = self.dialer.dial_plainly(address).await else { return false };
        pipe.say(&[b"SUBSCRIBE", SWITCHED]);
        if !matches!(within(ASK, reply(&mut pipe)).await, Ok(Reply::Array(_) | Reply::Push(_))) {
            return false;
        }
        // What it said before it was listened to.
        if let Ok(told) = self.ask(address).await {
            self.notice(told.address, shared, node);
        }
        loop {
            let word = match tokio::time::timeout(STILL_THERE, pipe.reply()).await {
                Ok(Ok(word)) => word,
                Ok(Err(_)) => return true,
                Err(_) => {
                    pipe.say(&[b"PING"]);
                    match within(ASK, reply(&mut pipe)).await {
                        Ok(word) => word,
                        Err(_) => return true,
                    }
                }
            };
            if let Some(address) = self.switched_to(&word) {
                self.notice(address, shared, node);
            }
        }
    }

    /// `message`, channel, and `name old-ip old-port new-ip new-port`.
    fn switched_to(&self, word: &Reply) -> Option<Address> {
        let [kind, channel, payload] = word.array().ok()? else { return None };
        if kind.bytes().ok()? != b"message" || channel.bytes().ok()? != SWITCHED {
            return None;
        }
        let words: Vec<&str> = payload.str().ok()?.split(' ').collect();
        let [name, _, _, host, port] = words[..] else { return None };
        let address = Address { host: host.to_owned(), port: port.parse().ok()? };
        (name == self.master).then_some(address)
    }

    fn notice(&self, master: Address, shared: &Shared, node: &Node) {
        if node.address().is_some_and(|before| before != master) {
            node.give_up(shared, Cause::Failover);
        }
    }
}

async fn reply(pipe: &mut Pipe) -> Result<Reply> {
    pipe.reply().await.map_err(|broken| broken.error())
}

fn worse(before: Option<Error>, error: Error) -> Error {
    match before {
        Some(before) if !before.kind().is_transient() => before,
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinels() -> Sentinels {
        let dialer = Dialer { tls: None, server_name: None, user: None, password: None, db: 0 };
        Sentinels { addresses: Vec::new(), master: "main".into(), dialer }
    }

    fn bulks(words: &[&str]) -> Vec<Reply> {
        words.iter().map(|word| Reply::Bulk(word.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_switch_of_another_master_is_not_ours() {
        let said = |payload| Reply::Array(bulks(&["message", "+switch-master", payload]));
        let to = sentinels().switched_to(&said("main 10.0.0.1 6379 10.0.0.2 6380"));
        assert_eq!(to, Some(Address { host: "10.0.0.2".into(), port: 6380 }));
        assert_eq!(sentinels().switched_to(&said("other 10.0.0.1 6379 10.0.0.2 6380")), None);
        assert_eq!(sentinels().switched_to(&said("main")), None);
        assert_eq!(sentinels().switched_to(&Reply::Text("PONG".into())), None);
    }

    #[test]
    fn what_a_sentinel_says_of_the_master_is_read() {
        let words = ["name", "main", "ip", "h", "port", "7", "config-epoch", "12"];
        let told = sentinels().read(Reply::Array(bulks(&words))).unwrap();
        assert_eq!((told.address.port, told.epoch), (7, 12));
        let refused = sentinels().read(Reply::Error("ERR No such master with that name".into()));
        assert_eq!(refused.err().unwrap().kind(), ErrorKind::Config);
    }
}
