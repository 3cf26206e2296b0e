//! Many tasks of one process at once.

use leasehold_testkit::server::mariadb::MariaDb;

use super::client;
use crate::Result;
use crate::figures::Figure;
use crate::many::{self, Many};

pub(crate) async fn run(server: &MariaDb) -> Result<Vec<Figure>> {
    let client = client(server, "").await?;
    let Many { alone, together, pairs } = many::run(&client).await?;
    let connections = server
        .sql("mysql", "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'bench'");
    Ok(vec![
        Figure::at_least("64 tasks at once / one after the other", alone / together, 3.0),
        Figure::told("acquire + release of 64 tasks a second", pairs / together),
        Figure::told("connections of all clients then", connections.trim().parse()?),
    ])
}
