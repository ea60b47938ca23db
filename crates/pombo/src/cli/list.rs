//! What every list of the API has in common: a page of items, newest first.

use clap::Args;
use serde_json::Value;

use crate::client::{Answer, Client, field};
use crate::failure::Outcome;
use crate::output::{Output, Table, note};

/// Which page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Most items, 1 to 250
    #[arg(long, value_name = "N", default_value_t = pombo_domain::limits::PAGE_DEFAULT,
        value_parser = clap::value_parser!(u16).range(1..=250))]
    limit: u16,
    /// Where the page begins: the cursor that the page before ended with
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

impl PageArgs {
    /// As parameters of the call.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![("limit", self.limit.to_string())];
        query.extend(self.after.clone().map(|after| ("after", after)));
        query
    }
}

/// Adds a filter where it is given.
pub(crate) fn filter(
    query: &mut Vec<(&'static str, String)>,
    name: &'static str,
    value: Option<&impl ToString>,
) {
    query.extend(value.map(|value| (name, value.to_string())));
}

/// A column of a table: its heading, and the field it shows.
pub(crate) type Column = (&'static str, &'static str);

/// Asks for a page and prints it: the API's own JSON, or a table.
pub(crate) async fn print_page(
    client: &Client,
    path: &[&str],
    query: &[(&str, String)],
    columns: &[Column],
    output: Output,
) -> Outcome {
    let answer = client.get(path, query).await?;
    if output.is_json() {
        return output.bytes(&answer.body);
    }
    let page: Value = answer.json()?;
    let items = page.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
    if items.is_empty() {
        note("nothing found");
        return Ok(());
    }
    output.table(&table(&items, columns))?;
    if let Some(next) = page.get("next").and_then(Value::as_str) {
        note(&format!("more: --after {next}"));
    }
    Ok(())
}

/// A table of items.
pub(crate) fn table(items: &[Value], columns: &[Column]) -> Table {
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let mut table = Table::new(&headings);
    for item in items {
        table.row(columns.iter().map(|(_, name)| field(item, name)));
    }
    table
}

/// Prints one thing: the API's own JSON, or its fields one under another.
pub(crate) fn print_one(answer: &Answer, output: Output) -> Outcome {
    if output.is_json() {
        return output.bytes(&answer.body);
    }
    let value: Value = answer.json()?;
    print_fields(&value, &[], output)
}

/// Prints the fields of an object, one under another, without those in `skip` and without empty ones.
pub(crate) fn print_fields(value: &Value, skip: &[&str], output: Output) -> Outcome {
    let Some(object) = value.as_object() else { return output.json(value) };
    let names: Vec<&String> = object.keys().filter(|name| !skip.contains(&name.as_str())).collect();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    // What names the thing comes first, whatever the order of the JSON.
    let (first, rest): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|name| *name == "id");
    for name in first.into_iter().chain(rest) {
        let text = field(value, name);
        if !text.is_empty() {
            output.line(&format!("{name:<width$}  {text}"))?;
        }
    }
    Ok(())
}
