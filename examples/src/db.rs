//! The database of an example: a pool, and a store of locks in the same schema.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{Manager, Object, Runtime};
use leasehold_http::{BoxError, Database, Step};
use leasehold_testkit::server::postgres::Postgres;
use tokio_postgres::NoTls;

use crate::Result;

/// A connection of the pool.
pub type Connection = Object;

/// The connections that a service has anyway.
#[derive(Clone)]
pub struct Pool(deadpool_postgres::Pool);

impl Pool {
    /// A pool at this URL, in this schema.
    ///
    /// # Errors
    ///
    /// If the URL cannot be read.
    pub fn new(url: &str, schema: &str) -> Result<Pool> {
        let mut config = tokio_postgres::Config::from_str(url)?;
        config.options(format!("-c search_path={schema}"));
        config.connect_timeout(Duration::from_secs(5));
        let pool = deadpool_postgres::Pool::builder(Manager::new(config, NoTls))
            .max_size(24)
            .wait_timeout(Some(Duration::from_secs(10)))
            .runtime(Runtime::Tokio1)
            .build()?;
        Ok(Pool(pool))
    }

    /// One of its connections.
    ///
    /// # Errors
    ///
    /// If there is none in time.
    pub async fn get(&self) -> Result<Connection> {
        Ok(self.0.get().await?)
    }

    /// The one number that a statement answers.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn number(&self, statement: &str) -> Result<i64> {
        Ok(self.get().await?.query_one(statement, &[]).await?.try_get(0)?)
    }

    /// Runs statements, one after the other.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn run(&self, statements: &str) -> Result<()> {
        Ok(self.get().await?.batch_execute(statements).await?)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// How the layers of `leasehold-http` come by a transaction.
#[async_trait]
impl Database for Pool {
    async fn within(&self, step: &mut dyn Step) -> Result<(), BoxError> {
        let mut connection = self.get().await?;
        let mut transaction = connection.transaction().await?;
        step.run(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }
}

/// Where an example runs.
#[derive(Debug)]
pub struct Db {
    /// The connections.
    pub pool: Pool,
    /// The URL of the server and the database.
    pub url: String,
    /// The schema, made anew.
    pub schema: String,
    /// The server, if it is the example's own: ended when this is dropped.
    _server: Option<Postgres>,
}

impl Db {
    /// On a server of its own.
    ///
    /// # Errors
    ///
    /// If the schema cannot be made.
    ///
    /// # Panics
    ///
    /// If no server can be started.
    pub async fn own(name: &str) -> Result<Db> {
        let server = tokio::task::spawn_blocking(Postgres::start).await?;
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
        let db = Db::at(&url, name).await?;
        Ok(Db { _server: Some(server), ..db })
    }

    /// At this URL.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or the schema cannot be made.
    pub async fn at(url: &str, name: &str) -> Result<Db> {
        let schema = format!("leasehold_example_{name}");
        let pool = Pool::new(url, &schema)?;
        let anew = format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}");
        pool.run(&anew).await?;
        Ok(Db { pool, url: url.to_owned(), schema, _server: None })
    }

    /// At this URL, with what is there already.
    ///
    /// # Errors
    ///
    /// As [`Db::at`].
    pub async fn kept(url: &str, name: &str) -> Result<Db> {
        let schema = format!("leasehold_example_{name}");
        let pool = Pool::new(url, &schema)?;
        pool.run(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        Ok(Db { pool, url: url.to_owned(), schema, _server: None })
    }

    /// The store of locks in this schema, by its URL.
    pub fn locks_url(&self) -> String {
        let sign = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{sign}schema={}", self.url, self.schema)
    }

    /// A client of that store: one for each instance of a service.
    ///
    /// # Errors
    ///
    /// If it cannot be reached.
    pub async fn locks(&self) -> Result<leasehold::Client> {
        Ok(leasehold::connect(&self.locks_url()).await?)
    }
}
