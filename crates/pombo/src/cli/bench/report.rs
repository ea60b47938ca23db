//! The figures, for scripts and for people.

use serde::Serialize;

use crate::failure::Outcome;
use crate::output::{Output, Table};

/// Everything that was measured on one database.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// `sqlite` or `postgres`.
    pub(super) database: &'static str,
    /// Its version.
    pub(super) database_version: String,
    /// What it was measured on.
    pub(super) hardware: String,
    /// The load generator straight to the receiver: the median of the runs between the scenarios.
    pub(super) raw_per_second: f64,
    /// All of those runs: how far apart they are tells how quiet the machine was.
    pub(super) raw_runs_per_second: Vec<f64>,
    /// The scenarios, in the order they ran.
    pub(super) scenarios: Vec<Scenario>,
}

/// The figures of one scenario.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Scenario {
    /// Which.
    pub(super) name: &'static str,
    /// From the first publish (outbox: the first receipt) to the last receipt, under full load.
    pub(super) deliveries_per_second: f64,
    /// The same, divided by `rawPerSecond`.
    pub(super) ratio_to_raw: f64,
    /// From publishing (outbox: before the insert) to receipt, at 100 deliveries a second.
    pub(super) p50_ms: Option<f64>,
    /// As above.
    pub(super) p99_ms: Option<f64>,
    /// By pg_stat_statements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) statements_per_delivery: Option<f64>,
    /// By pg_stat_database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transactions_per_delivery: Option<f64>,
    /// By the position of the write-ahead log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wal_bytes_per_delivery: Option<f64>,
    /// Memory of the server process: of several the largest; at its peak, or at rest for `idle`.
    pub(super) rss_mb: Option<f64>,
    /// Accepted and never received.
    pub(super) lost: u64,
    /// Received more than once.
    pub(super) duplicates: u64,
    /// Under full load: how much, and for how long.
    pub(super) deliveries: u64,
    /// As above.
    pub(super) seconds: f64,
    /// From publishing to receipt under full load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) loaded_p50_ms: Option<f64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) loaded_p99_ms: Option<f64>,
    /// From publishing to the answer under full load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) accept_p50_ms: Option<f64>,
    /// As above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) accept_p99_ms: Option<f64>,
    /// Processor time per delivery under full load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_micros_per_delivery: Option<Cpu>,
    /// Of one core, at rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_cpu_percent: Option<f64>,
    /// At rest, by pg_stat_statements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_statements_per_second: Option<f64>,
    /// At rest, by pg_stat_database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_transactions_per_second: Option<f64>,
}

/// Processor time, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cpu {
    /// Of the server processes.
    pub(super) server: f64,
    /// Of the receiver.
    pub(super) receiver: f64,
    /// Of the load generator.
    pub(super) load: f64,
}

impl Report {
    /// Puts the ratios in, once raw is known, and rounds.
    pub(super) fn finish(&mut self) {
        let mut runs = self.raw_runs_per_second.clone();
        runs.sort_by(f64::total_cmp);
        let raw = runs.get(runs.len() / 2).copied().unwrap_or(0.0);
        self.raw_per_second = raw.round();
        for run in &mut self.raw_runs_per_second {
            *run = run.round();
        }
        for scenario in &mut self.scenarios {
            let ratio = if raw > 0.0 { scenario.deliveries_per_second / raw } else { 0.0 };
            scenario.ratio_to_raw = (ratio * 10_000.0).round() / 10_000.0;
            scenario.round();
        }
    }

    /// Deliveries that were promised and never came.
    pub(super) fn lost(&self) -> u64 {
        self.scenarios.iter().map(|scenario| scenario.lost).sum()
    }

    /// Prints it.
    pub(super) fn print(&self, output: Output) -> Outcome {
        if output.is_json() {
            return output.json(self);
        }
        output.line(&format!("{} on {}", self.database_version, self.hardware))?;
        output.line(&format!(
            "raw POST loop: {:.0}/s (runs: {})",
            self.raw_per_second,
            self.raw_runs_per_second.iter().map(|run| format!("{run:.0}")).collect::<Vec<_>>().join(", ")
        ))?;
        output.table(&self.table())?;
        output.line("p50 and p99: from publishing to receipt at 100/s; rates and the rest under full load.")
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            "SCENARIO",
            "DELIVERIES/S",
            "RATIO",
            "P50 MS",
            "P99 MS",
            "P50 LOADED",
            "P99 LOADED",
            "STMT/DLV",
            "WAL B/DLV",
            "RSS MB",
            "LOST",
            "DUPLICATES",
        ]);
        let number = |value: Option<f64>, digits: usize| {
            value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
        };
        for scenario in &self.scenarios {
            table.row([
                scenario.name.to_owned(),
                format!("{:.0}", scenario.deliveries_per_second),
                format!("{:.3}", scenario.ratio_to_raw),
                number(scenario.p50_ms, 2),
                number(scenario.p99_ms, 2),
                number(scenario.loaded_p50_ms, 1),
                number(scenario.loaded_p99_ms, 1),
                number(scenario.statements_per_delivery, 3),
                number(scenario.wal_bytes_per_delivery, 0),
                number(scenario.rss_mb, 1),
                scenario.lost.to_string(),
                scenario.duplicates.to_string(),
            ]);
        }
        table
    }
}

impl Scenario {
    fn round(&mut self) {
        let round = |value: &mut f64, digits: i32| {
            let scale = 10_f64.powi(digits);
            *value = (*value * scale).round() / scale;
        };
        round(&mut self.deliveries_per_second, 1);
        round(&mut self.seconds, 3);
        let three = [
            &mut self.p50_ms,
            &mut self.p99_ms,
            &mut self.loaded_p50_ms,
            &mut self.loaded_p99_ms,
            &mut self.accept_p50_ms,
            &mut self.accept_p99_ms,
            &mut self.statements_per_delivery,
            &mut self.transactions_per_delivery,
        ];
        three.into_iter().flatten().for_each(|value| round(value, 3));
        let one = [
            &mut self.wal_bytes_per_delivery,
            &mut self.rss_mb,
            &mut self.idle_cpu_percent,
            &mut self.idle_statements_per_second,
            &mut self.idle_transactions_per_second,
        ];
        one.into_iter().flatten().for_each(|value| round(value, 1));
        if let Some(cpu) = &mut self.cpu_micros_per_delivery {
            [&mut cpu.server, &mut cpu.receiver, &mut cpu.load].into_iter().for_each(|value| round(value, 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let api = Scenario {
            name: "api",
            deliveries_per_second: 8000.04,
            p50_ms: Some(1.234_56),
            p99_ms: Some(9.0),
            rss_mb: Some(31.26),
            ..Scenario::default()
        };
        let idle = Scenario { name: "idle", rss_mb: Some(20.0), ..Scenario::default() };
        let mut report = Report {
            database: "sqlite",
            database_version: "SQLite 3".to_owned(),
            hardware: "2 × CPU".to_owned(),
            raw_per_second: 0.0,
            raw_runs_per_second: vec![50_000.0, 40_000.0, 60_000.2],
            scenarios: vec![api, idle],
        };
        report.finish();
        report
    }

    #[test]
    fn ratio_is_to_the_median_of_the_raw_runs() {
        let report = report();
        let figures =
            [report.raw_per_second, report.scenarios[0].ratio_to_raw, report.scenarios[1].ratio_to_raw];
        assert_eq!(figures.map(|figure| figure.to_string()), ["50000", "0.16", "0"]);
    }

    #[test]
    fn scripts_find_the_names_of_the_reference() -> serde_json::Result<()> {
        let value = serde_json::to_value(report())?;
        for name in ["database", "hardware", "rawPerSecond", "scenarios"] {
            assert!(value.get(name).is_some(), "{name}");
        }
        let names =
            ["name", "deliveriesPerSecond", "ratioToRaw", "p50Ms", "p99Ms", "rssMb", "lost", "duplicates"];
        for scenario in value["scenarios"].as_array().into_iter().flatten() {
            assert!(names.iter().all(|name| scenario.get(name).is_some()), "{scenario}");
            assert!(
                scenario.get("statementsPerDelivery").is_none(),
                "nothing made up where nothing was measured"
            );
        }
        assert_eq!(value["scenarios"][0]["p50Ms"], 1.235);
        Ok(())
    }
}
