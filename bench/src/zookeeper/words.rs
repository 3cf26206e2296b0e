//! How many requests a contended acquisition costs, with few and with many waiters.

use leasehold::Connect;
use leasehold_testkit::server::zookeeper::Zookeeper;

use super::released;
use crate::Result;
use crate::figures::Figure;

const FEW: usize = 4;
const MANY: usize = 256;

pub(crate) async fn run(server: &Zookeeper) -> Result<Vec<Figure>> {
    // The first makes the nodes.
    contend(server, FEW, "few").await?;
    let few = contend(server, FEW, "few").await?;
    let many = contend(server, MANY, "many").await?;
    Ok(vec![
        Figure::told("requests a contended acquisition and its release, 4 waiters", few),
        Figure::at_most("the same of 256 waiters / of 4", many / few, 1.1),
    ])
}

async fn contend(server: &Zookeeper, count: usize, name: &str) -> Result<f64> {
    // A client each: of one client's tasks only the first stands in the queue. Their sessions are so
    // long that none says that it is there while this is measured.
    let url = format!("zookeeper://{}/bench?session=600s", server.addr());
    let connecting = (0..=count).map(|_| Connect::to(url.as_str()).open());
    let clients = futures_util::future::try_join_all(connecting).await?;
    let (first, others) = clients.split_first().ok_or("no client")?;
    let held = first.lock(name).acquire().await?;
    let before = received(server)?;
    let mut waiting = Vec::new();
    for client in others {
        let (client, name) = (client.clone(), name.to_owned());
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
            return Err(format!("not all are waiting: {}", standing(server, name)? - 1).into());
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
