//! What the tests share: a stage with everything one test needs, the load on it, and what is known at its end.

pub(crate) mod calls;
pub(crate) mod database;
pub(crate) mod load;
pub(crate) mod records;
pub(crate) mod shop;
pub(crate) mod stage;
pub(crate) mod trial;

/// Writes the tests `name::sqlite` and `name::postgres`, each of which calls `name` with its kind of database.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            use crate::harness::database::Kind;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() -> anyhow::Result<()> {
                super::$name(Kind::Sqlite).await
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() -> anyhow::Result<()> {
                super::$name(Kind::Postgres).await
            }
        }
    )+};
}
pub(crate) use on_both;
