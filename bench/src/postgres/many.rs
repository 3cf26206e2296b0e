//! Many tasks of one process at once.

use leasehold_testkit::server::postgres::Postgres;

use super::client;
use crate::Result;
use crate::figures::Figure;
use crate::many::{self, Many};

pub(crate) async fn run(server: &Postgres) -> Result<Vec<Figure>> {
    let client = client(server).await?;
    let Many { alone, together, pairs } = many::run(&client).await?;
    Ok(vec![
        Figure::at_least("64 tasks at once / one after the other", alone / together, 10.0),
        Figure::told("acquire + release of 64 tasks a second", pairs / together),
    ])
}
