//! `pombo demo`: the whole story, with nothing faked. A shop writes orders and events in one transaction into
//! a SQLite file; a real Pombo process relays, signs, sends and retries them over real HTTP; it is killed with
//! SIGKILL in the middle of a burst; and in the end every event is counted.

use std::env;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::output::{self, Output};

mod pombo;
mod receiver;
mod shop;

use pombo::Pombo;
use receiver::{Mood, Receiver};
use shop::Shop;

/// Orders of the quiet part.
const FIRST_ORDERS: u32 = 20;
/// Orders while the receiver fails.
const FAILING_ORDERS: u32 = 10;
/// Orders of the burst in which Pombo is killed.
const BURST_ORDERS: u32 = 400;
/// Orders of the burst before the kill.
const KILL_AFTER: u32 = 150;
/// Longest wait for a part of the story.
const WAIT_MAX: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
Examples:
  pombo demo             the story; on a terminal Pombo then keeps running for you to play with
  pombo demo --once      ends after the story; exit 0 only if every event arrived exactly as promised

Uses a fresh temporary directory and loopback ports; touches nothing else.";

/// Settings of the demo.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// End after the story, and exit 0 only if every event arrived exactly as promised
    #[arg(long)]
    once: bool,
}

/// Tells the story.
pub(crate) async fn run(args: DemoArgs, output: Output) -> Outcome {
    let directory = tempfile::Builder::new().prefix("pombo-demo-").tempdir().map_err(anyhow::Error::new)?;
    let teller = Teller { output, started: Instant::now() };
    let mut story = Story::begin(directory.path(), &teller).await?;
    let told = story.tell(&teller).await;
    let summary = match told {
        Ok(summary) => summary,
        Err(error) => {
            // The log of the child says more than this process can know.
            output::note(&story.pombo.log_tail());
            return Err(error);
        }
    };
    if output.is_json() {
        output.json(&summary)?;
    }
    if !args.once && teller.is_for_people() {
        story.stay(&teller).await?;
    }
    story.pombo.stop().await?;
    if summary.is_sound() { Ok(()) } else { Err(Failure::Failed(anyhow::anyhow!("{}", summary.complaint()))) }
}

/// Prints the steps; silent for `--json`.
struct Teller {
    output: Output,
    started: Instant,
}

impl Teller {
    fn is_for_people(&self) -> bool {
        !self.output.is_json() && std::io::IsTerminal::is_terminal(&std::io::stdout())
    }

    fn title(&self, text: &str) -> Outcome {
        self.line(&format!("\n[{:5.1} s] {text}", self.started.elapsed().as_secs_f64()))
    }

    fn detail(&self, text: &str) -> Outcome {
        self.line(&format!("          {text}"))
    }

    fn line(&self, text: &str) -> Outcome {
        if self.output.is_json() {
            return Ok(());
        }
        text.split('\n').try_for_each(|line| self.output.line(line))
    }
}

/// What came of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    orders_committed: u32,
    orders_rolled_back: u32,
    events_received: u32,
    lost: u32,
    unexpected: u32,
    duplicates: u32,
    duplicates_allowed: u32,
    signatures_verified: u64,
    signatures_bad: u64,
    requests_refused_by_receiver: u64,
    seconds: f64,
    check_is_clean: bool,
}

impl Summary {
    fn is_sound(&self) -> bool {
        self.lost == 0
            && self.unexpected == 0
            && self.signatures_bad == 0
            && self.duplicates <= self.duplicates_allowed
            && self.check_is_clean
    }

    fn complaint(&self) -> String {
        format!(
            "the promise was broken: {} lost, {} unexpected, {} duplicates (at most {} allowed), {} bad signatures, \
             check {}",
            self.lost,
            self.unexpected,
            self.duplicates,
            self.duplicates_allowed,
            self.signatures_bad,
            if self.check_is_clean { "clean" } else { "not clean" }
        )
    }
}

/// The three who play.
struct Story {
    shop: Shop,
    receiver: Receiver,
    pombo: Pombo,
    endpoint: String,
    /// Accepted copies that the kill costs: what the receiver took and Pombo could not record.
    duplicates_allowed: u32,
}

impl Story {
    async fn begin(directory: &std::path::Path, teller: &Teller) -> Outcome<Self> {
        teller.line(
            "Pombo demo: a shop takes orders, a receiver wants to hear of each. Nothing here is faked:",
        )?;
        teller.line("real HTTP on loopback, a real SQLite file, a real SIGKILL.")?;
        let database = directory.join("shop.db");
        let pombo = Pombo::start(&database, directory).await?;
        teller.title("Pombo starts as a process of its own.")?;
        teller.detail(&format!("pid {}, {}, database {}", pombo.pid(), pombo.url(), database.display()))?;
        let receiver = Receiver::start().await?;
        let created: Value = pombo
            .post(
                "/v1/endpoints",
                &json!({
                    "tenant": "shop",
                    "url": receiver.url(),
                    "eventTypes": ["order.*"],
                    "headerStyle": "both",
                    "maxConcurrency": 16,
                    "timeoutMs": 2000,
                    "retry": {"schedule": ["0s", "500ms", "1s", "1s", "2s", "2s", "2s", "5s"], "jitter": "equal"},
                }),
            )
            .await?;
        let endpoint = text(&created, "id")?;
        receiver.learn_secret(&text(&created, "secret")?)?;
        teller.title("The receiver registers its endpoint.")?;
        teller.detail(&format!(
            "{endpoint} → {}, event types order.*, signed in both header styles",
            receiver.url()
        ))?;
        let shop = Shop::open(&database)?;
        Ok(Self { shop, receiver, pombo, endpoint, duplicates_allowed: 0 })
    }

    async fn tell(&mut self, teller: &Teller) -> Outcome<Summary> {
        self.quiet_trade(teller).await?;
        self.failing_receiver(teller).await?;
        self.sigkill(teller).await?;
        self.account(teller).await
    }

    async fn quiet_trade(&mut self, teller: &Teller) -> Outcome {
        teller.title(&format!(
            "{FIRST_ORDERS} orders, each with its event in the same transaction; one is rolled back."
        ))?;
        teller.detail(
            "BEGIN; INSERT INTO orders …; INSERT INTO pombo_outbox (tenant, type, data) …; COMMIT;",
        )?;
        self.shop.roll_back_an_order()?;
        let since = Instant::now();
        self.shop.take_orders(FIRST_ORDERS)?;
        self.all_received("the first orders").await?;
        teller.detail(&format!(
            "all {FIRST_ORDERS} events received {} ms after the first commit; every signature verified",
            since.elapsed().as_millis()
        ))
    }

    async fn failing_receiver(&mut self, teller: &Teller) -> Outcome {
        teller
            .title(&format!("The receiver breaks: it answers 503. The shop sells {FAILING_ORDERS} more."))?;
        self.receiver.set_mood(Mood::Failing);
        self.shop.take_orders(FAILING_ORDERS)?;
        let receiver = &self.receiver;
        wait("the receiver to refuse each new event once", || {
            receiver.refused() >= u64::from(FAILING_ORDERS)
        })
        .await?;
        let refused = self.receiver.refused();
        teller
            .detail(&format!("{refused} attempts answered 503; each delivery waits for its next attempt"))?;
        let query = format!("/v1/deliveries?endpoint={}&status=retrying&limit=1", self.endpoint);
        let page = self.pombo.get(&query).await?;
        if let Some(why) = page["data"][0]["why"]["text"].as_str() {
            teller.detail(&format!("Pombo says of one of them: \"{why}\""))?;
        }
        self.receiver.set_mood(Mood::Healthy);
        self.all_received("the refused events").await?;
        teller.detail("the receiver is mended; the retries bring every one of them")
    }

    async fn sigkill(&mut self, teller: &Teller) -> Outcome {
        teller.title(&format!(
            "A burst of {BURST_ORDERS} orders at a slow receiver. In the middle of it: kill -9."
        ))?;
        self.receiver.set_mood(Mood::Slow);
        self.shop.take_orders(KILL_AFTER)?;
        let receiver = &self.receiver;
        let before = receiver.distinct();
        wait("the burst to be on its way", || receiver.distinct() > before).await?;
        let pid = self.pombo.pid();
        self.pombo.kill().await?;
        self.receiver.set_mood(Mood::Healthy);
        // The bound (docs/protocol.md): a copy that the receiver took and Pombo could not record will be sent
        // again. Once the receiver has read what lay in its sockets both sides stand still, so it can be
        // counted exactly.
        let receiver = &self.receiver;
        wait("the receiver to read what was sent before the kill", || receiver.is_quiet()).await?;
        self.duplicates_allowed = self.receiver.copies().saturating_sub(self.shop.recorded_deliveries()?);
        let missing = self.shop.committed() - self.receiver.distinct();
        teller
            .detail(&format!("pid {pid} is gone; {missing} committed events have not been received yet"))?;
        teller.detail(&format!(
            "{} were received but not yet recorded: these the receiver will see twice",
            self.duplicates_allowed
        ))?;
        self.shop.take_orders(BURST_ORDERS - KILL_AFTER)?;
        teller.detail("the shop goes on selling: its transactions need no Pombo")?;
        self.pombo.restart().await?;
        teller
            .detail(&format!("Pombo is started again (pid {}) and finds what it left", self.pombo.pid()))?;
        self.all_received("everything after the kill").await?;
        teller.detail(&format!("all {} events received", self.shop.committed()))?;
        self.settled().await
    }

    /// Waits until nothing is live any more, so that the account is final.
    async fn settled(&self) -> Outcome {
        let end = Instant::now() + WAIT_MAX;
        for status in ["pending", "sending", "retrying", "paused"] {
            let query = format!("/v1/deliveries?status={status}&limit=1");
            while self.pombo.get(&query).await?["data"].as_array().is_none_or(|live| !live.is_empty()) {
                if Instant::now() > end {
                    return Err(Failure::Failed(anyhow::anyhow!(
                        "deliveries are still {status} after {WAIT_MAX:?}"
                    )));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    async fn account(&mut self, teller: &Teller) -> Outcome<Summary> {
        let (check_is_clean, check_said) = self.pombo.check().await?;
        let counts = self.receiver.compare(self.shop.orders());
        let summary = Summary {
            orders_committed: self.shop.committed(),
            orders_rolled_back: self.shop.rolled_back(),
            events_received: self.receiver.distinct(),
            lost: counts.lost,
            unexpected: counts.unexpected,
            duplicates: counts.duplicates,
            duplicates_allowed: self.duplicates_allowed,
            signatures_verified: self.receiver.verified(),
            signatures_bad: self.receiver.bad_signatures(),
            requests_refused_by_receiver: self.receiver.refused(),
            seconds: teller.started.elapsed().as_secs_f64(),
            check_is_clean,
        };
        teller.title("The account.")?;
        teller.detail(&format!("orders committed      {:>5}", summary.orders_committed))?;
        teller.detail(&format!("events received       {:>5}", summary.events_received))?;
        teller.detail(&format!("lost                  {:>5}", summary.lost))?;
        teller.detail(&format!("from rolled-back      {:>5}", summary.unexpected))?;
        teller.detail(&format!(
            "received twice        {:>5}   (at most {}, the kill's; webhook-id tells the receiver)",
            summary.duplicates, summary.duplicates_allowed
        ))?;
        teller.detail(&format!(
            "signatures verified   {:>5}   ({} bad)",
            summary.signatures_verified, summary.signatures_bad
        ))?;
        teller.detail(&format!(
            "pombo check           {:>5}",
            if check_is_clean { "clean" } else { "NOT clean" }
        ))?;
        if !check_is_clean {
            teller.detail(&check_said)?;
        }
        Ok(summary)
    }

    /// Waits until every committed order's event was received at least once.
    async fn all_received(&self, what: &str) -> Outcome {
        let (receiver, wanted) = (&self.receiver, self.shop.committed());
        wait(what, || receiver.distinct() >= wanted).await
    }

    async fn stay(&mut self, teller: &Teller) -> Outcome {
        teller.title("Pombo keeps running until you press Ctrl-C. In another terminal, try:")?;
        let (pombo, server) = (program(), self.pombo.url());
        teller.detail(&format!("{pombo} deliveries list --server {server}"))?;
        teller.detail(&format!("{pombo} send order.paid --tenant shop --data '{{\"orderId\":\"ord_mine\"}}' --wait 5s --server {server}"))?;
        teller.detail(&format!("{pombo} --help"))?;
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C").map_err(Failure::Failed)
    }
}

/// How this program is called from another terminal: by its name only where a shell finds it so.
fn program() -> String {
    let Ok(program) = env::current_exe() else { return "pombo".to_owned() };
    let is_found = env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| Some(folder.as_path()) == program.parent()));
    if is_found { "pombo".to_owned() } else { program.display().to_string() }
}

fn text(value: &Value, field: &str) -> Outcome<String> {
    let found = value[field].as_str().map(str::to_owned);
    found.ok_or_else(|| Failure::Failed(anyhow::anyhow!("the answer has no `{field}`: {value}")))
}

/// Waits for a condition, at most [`WAIT_MAX`].
async fn wait(what: &str, mut is_met: impl FnMut() -> bool) -> Outcome {
    let end = Instant::now() + WAIT_MAX;
    while !is_met() {
        if Instant::now() > end {
            let seconds = WAIT_MAX.as_secs();
            return Err(Failure::Failed(anyhow::anyhow!("waited {seconds} s in vain for {what}")));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
