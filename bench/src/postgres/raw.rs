//! Statements as one would send them by hand.

use leasehold_testkit::server::postgres::Postgres;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use crate::Result;

/// A row that is taken and freed, by two prepared statements.
pub(crate) struct Raw {
    pub(crate) client: Client,
    take: Statement,
    free: Statement,
}

impl Raw {
    pub(crate) async fn open(server: &Postgres, name: &str) -> Result<Raw> {
        let (client, _) = connect(server).await?;
        client
            .batch_execute(&format!(
                "CREATE TABLE IF NOT EXISTS raw (
                   name text COLLATE \"C\" PRIMARY KEY, owner uuid, token bigint, until timestamptz
                 ) WITH (fillfactor = 30);
                 INSERT INTO raw VALUES ('{name}', NULL, 1, clock_timestamp()) ON CONFLICT DO NOTHING"
            ))
            .await?;
        let take = client
            .prepare(&format!(
                "UPDATE raw SET owner = gen_random_uuid(), until = clock_timestamp() + '30 s',
                   token = greatest(token + 1, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint)
                 WHERE name = '{name}' AND (owner IS NULL OR until <= clock_timestamp())
                 RETURNING token"
            ))
            .await?;
        let free = client
            .prepare(&format!(
                "UPDATE raw SET owner = NULL, until = clock_timestamp() WHERE name = '{name}'
                 AND owner IS NOT NULL"
            ))
            .await?;
        Ok(Raw { client, take, free })
    }

    /// Whether it was free.
    pub(crate) async fn take(&self) -> Result<bool> {
        Ok(self.client.query_opt(&self.take, &[]).await?.is_some())
    }

    pub(crate) async fn free(&self) -> Result<()> {
        self.client.execute(&self.free, &[]).await?;
        Ok(())
    }
}

/// A connection, and the payloads of its notifications.
pub(crate) async fn connect(
    server: &Postgres,
) -> Result<(Client, mpsc::UnboundedReceiver<String>)> {
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(server.port()).user("postgres").dbname("postgres");
    let (client, mut connection) = config.connect(NoTls).await?;
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(word) = message {
                // Nobody may be interested.
                let _ = sender.send(word.payload().to_owned());
            }
        }
    });
    Ok((client, receiver))
}
