//! The trigger, applied by the databases' own shells, against writers that know nothing of it.

use std::process::{Command, Output, Stdio};

use leasehold_fence::sql::{Engine, enter, present, protection};
use leasehold_fence::{Access::Exclusive, Epoch, Mark, Resource};
use leasehold_sql::{Class, Connection};

use crate::drivers::{at, begin, mariadb_server, postgres_server, run};

/// What a shell said to this, on its standard input.
fn shell(mut command: Command, statements: &str) -> Output {
    use std::io::Write;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(statements.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn psql(mark: Option<&str>, statements: &str) -> Output {
    let mut command = Command::new("psql");
    command.args(["-h", "127.0.0.1", "-p", &postgres_server().port().to_string()]);
    command.args(["-U", "postgres", "-d", "guarded", "-X", "-q", "-A", "-t"]);
    command.args(["-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
    command.env_remove("PGOPTIONS");
    if let Some(mark) = mark {
        command.env("PGOPTIONS", format!("-c leasehold.mark={mark}"));
    }
    shell(command, statements)
}

fn mariadb(mark: Option<&str>, statements: &str) -> Output {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root"]);
    command.args(["--batch", "--skip-column-names", "--skip-ssl", "guarded"]);
    command.arg(format!("--port={}", mariadb_server().port()));
    if let Some(mark) = mark {
        command.arg(format!("--init-command=SET @leasehold_mark = '{mark}'"));
    }
    shell(command, statements)
}

type Shell = fn(Option<&str>, &str) -> Output;

#[track_caller]
fn passes(shell: Shell, mark: Option<&str>, statements: &str) -> String {
    let output = shell(mark, statements);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{statements}: {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[track_caller]
fn refused(shell: Shell, mark: Option<&str>, statements: &str, says: &str) {
    let output = shell(mark, statements);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{statements} passed");
    assert!(said.contains(says), "{said}");
}

/// What both engines do alike, to writers in their shells.
fn protects(shell: Shell, sql: &str) {
    passes(shell, None, "CREATE TABLE orders (n BIGINT); INSERT INTO orders VALUES (1)");
    passes(shell, None, sql);
    passes(shell, None, sql);
    for write in ["INSERT INTO orders VALUES (2)", "UPDATE orders SET n = 2", "DELETE FROM orders"]
    {
        refused(shell, None, write, "orders takes no write without a fencing token");
        refused(shell, Some("soon"), write, "holds no fencing token");
        passes(shell, Some("7"), &format!("BEGIN; {write}; ROLLBACK"));
    }
    passes(shell, Some("7"), "UPDATE orders SET n = 7");
    passes(shell, Some("8"), "UPDATE orders SET n = 8");
    // Its lease has ended, and it does not know.
    let says = "stale token 7 refused: a holder with token 8 has been here";
    refused(shell, Some("7"), "UPDATE orders SET n = 70", says);
    passes(shell, Some("1:2"), "UPDATE orders SET n = 9");
    let says = "stale token 9 refused: a holder with token 1:2 has been here";
    refused(shell, Some("9"), "DELETE FROM orders", says);
    assert_eq!(passes(shell, None, "SELECT n FROM orders"), "9");
}

/// And to writers in this library: who has entered may show its mark, and only then.
async fn shows(db: &mut dyn Connection, write: &str) {
    let of = Resource::new("orders").unwrap();
    let newer = Mark { epoch: Epoch(1), ..at(5) };
    let error = db.execute(write, &[]).await.unwrap_err();
    assert!(matches!(error.class(), Class::Refused | Class::Other), "{error:?}");
    let mut tx = begin(db).await;
    enter(&mut tx, &of, Exclusive, newer).await.unwrap();
    present(&mut tx, Some(newer)).await.unwrap();
    run(db, write).await;
    let mut tx = leasehold_sql::Begun::on(db).await.unwrap();
    present(&mut tx, None).await.unwrap();
    let error = db.execute(write, &[]).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(format!("{source:?}").contains("takes no write"), "{source:?}");
    run(db, "ROLLBACK").await;
}

#[tokio::test]
async fn a_trigger_of_postgres_refuses_the_late() {
    postgres_server().create_database("guarded");
    let sql = protection(Engine::Postgres, "orders").unwrap();
    tokio::task::spawn_blocking(move || {
        protects(psql, &sql);
        refused(psql, None, "TRUNCATE orders", "LH002");
        refused(psql, Some("1"), "TRUNCATE orders", "LH001");
        refused(psql, Some("0"), "TRUNCATE orders", "LH003");
        // In its transaction only; and not by a role that may not touch the marks.
        passes(psql, None, "CREATE ROLE clerk LOGIN; GRANT ALL ON orders TO clerk");
        let write = "SET ROLE clerk; BEGIN; SELECT set_config('leasehold.mark', '1:3', true); \
                     UPDATE orders SET n = 10; COMMIT;";
        passes(psql, None, write);
        refused(psql, None, &format!("{write} UPDATE orders SET n = 11"), "LH002");
        refused(psql, None, "SET ROLE clerk; DELETE FROM leasehold_fence", "permission denied");
        // A table in a schema, spelled with capitals.
        passes(psql, None, r#"CREATE SCHEMA shop; CREATE TABLE shop."Order" (n BIGINT)"#);
        passes(psql, None, &protection(Engine::Postgres, "shop.Order").unwrap());
        refused(psql, None, r#"INSERT INTO shop."Order" VALUES (1)"#, "shop.Order takes no write");
        passes(psql, Some("1"), r#"INSERT INTO shop."Order" VALUES (1)"#);
    })
    .await
    .unwrap();
    let config =
        format!("host=127.0.0.1 port={} user=postgres dbname=guarded", postgres_server().port());
    let (mut client, connection) =
        tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(async { drop(connection.await) });
    shows(&mut client, "UPDATE orders SET n = 20").await;
    // It ended with its transaction.
    let left =
        client.query_one("SELECT current_setting('leasehold.mark', true)", &[]).await.unwrap();
    assert_eq!(left.get::<_, Option<&str>>(0).unwrap_or_default(), "");
}

#[tokio::test]
async fn a_trigger_of_mysql_refuses_the_late() {
    mariadb_server().sql("mysql", "CREATE DATABASE guarded");
    let sql = protection(Engine::Mysql, "orders").unwrap();
    tokio::task::spawn_blocking(move || protects(mariadb, &sql)).await.unwrap();
    let url = format!("mysql://root@127.0.0.1:{}/guarded", mariadb_server().port());
    let mut db = mysql_async::Conn::from_url(&url).await.unwrap();
    shows(&mut db, "UPDATE orders SET n = 20").await;

    // A mark that was not taken back stays with the session, and ends where the pool resets it.
    let one = mysql_async::PoolConstraints::new(1, 1).unwrap();
    let options = mysql_async::OptsBuilder::from_opts(mysql_async::Opts::from_url(&url).unwrap())
        .pool_opts(mysql_async::PoolOpts::default().with_constraints(one));
    let pool = mysql_async::Pool::new(options);
    let mut db = pool.get_conn().await.unwrap();
    run(&mut db, "SET @leasehold_mark = '1:9'").await;
    run(&mut db, "UPDATE orders SET n = 21").await;
    let id = db.id();
    drop(db);
    let mut db = pool.get_conn().await.unwrap();
    assert_eq!(db.id(), id, "the same session");
    let error = Connection::execute(&mut db, "UPDATE orders SET n = 22", &[]).await.unwrap_err();
    assert_eq!(error.class(), Class::Refused, "{error:?}");
    drop(db);
    pool.disconnect().await.unwrap();
}
