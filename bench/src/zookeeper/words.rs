//! How many requests a contended acquisition costs, with few and with many waiters.

use leasehold::Client;
use leasehold_testkit::server::zookeeper::Zookeeper;

use super::{client, released};
use crate::Result;
use crate::figures::Figure;

const CLIENTS: usize = 4;
const FEW: usize = 4;
const MANY: usize = 256;

pub(crate) async fn run(server: &Zookeeper) -> Result<Vec<Figure>> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(server).await?);
    }
    // The first makes the nodes.
    contend(server, &clients, FEW, "few").await?;
    let few = contend(server, &clients, FEW, "few").await?;
    let many = contend(server, &clients, MANY, "many").await?;
    Ok(vec![
        Figure::told("requests a contended acquisition and its release, 4 waiters", few),
        Figure::at_most("the same of 256 waiters / of 4", many / few, 1.1),
    ])
}

async fn contend(server: &Zookeeper, clients: &[Client], count: usize, name: &str) -> Result<f64> {
    let held = clients.first().ok_or("no client")?.lock(name).acquire().await?;
    let before = received(server)?;
    let mut waiting = Vec::new();
    for n in 0..count {
        let (client, name) = (clients[n % clients.len()].clone(), name.to_owned());
        waiting.push(tokio::spawn(async move {
            match client.lock(&name).acquire().await {
                Ok(lease) => released(lease).await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }));
    }
    // Released only when all wait, looked at seldom: looking is asking too.
    let mut looks = 0.0;
    loop {
        looks += 1.0;
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        if standing(server, name)? > count {
            break;
        }
        if looks > 100.0 {
            return Err("not all are waiting".into());
        }
    }
    released(held).await?;
    for waiter in waiting {
        waiter.await??;
    }
    #[allow(clippy::cast_precision_loss)]
    Ok((received(server)? - before - looks) / count as f64)
}

/// How many packets the server has received; this question is one of them.
fn received(server: &Zookeeper) -> Result<f64> {
    let answer = server.word("mntr").ok_or("no answer")?;
    let line = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    Ok(line.ok_or("no count")?.trim().parse()?)
}

/// How many ephemeral nodes stand in a queue.
fn standing(server: &Zookeeper, name: &str) -> Result<usize> {
    let answer = server.word("dump").ok_or("no answer")?;
    let begin = format!("/bench/{name}/");
    Ok(answer.lines().filter(|line| line.trim().starts_with(&begin)).count())
}
