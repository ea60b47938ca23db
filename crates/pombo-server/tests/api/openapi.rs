//! The reference says what the routes do, and the other way round.

use std::collections::BTreeSet;

use http::Method;
use serde_json::Value;

use crate::client::Client;
use crate::harness::Service;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

fn document() -> Value {
    serde_json::to_value(pombo_server::openapi()).expect("JSON")
}

/// The whole contract on a page: what changes it shows here.
#[test]
fn the_contract_is_as_it_was_agreed() {
    let document = document();
    let mut lines = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            lines.push(operation_line(method, path, operation));
        }
    }
    lines.push(String::new());
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        lines.push(format!("{name}: {}", shape(schema)));
    }
    insta::assert_snapshot!("contract", lines.join("\n"));
}

fn operation_line(method: &str, path: &str, operation: &Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let parameters = parameters.filter(|parameter| parameter["in"] != "path");
    let parameters: Vec<&str> = parameters.filter_map(|parameter| parameter["name"].as_str()).collect();
    let parameters =
        if parameters.is_empty() { String::new() } else { format!(" ({})", parameters.join(", ")) };
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    let body = if body.is_null() { String::new() } else { format!(" {}", shape(body)) };
    let answers = operation["responses"].as_object().expect("answers").iter().map(|(status, answer)| {
        let content = answer["content"].as_object().and_then(|content| content.iter().next());
        match content {
            Some((_, content)) if shape(&content["schema"]) == "ProblemDocument" => status.clone(),
            Some((kind, content)) => format!("{status} {kind} {}", shape(&content["schema"])),
            None => status.clone(),
        }
    });
    let answers: Vec<String> = answers.collect();
    let is_open = operation["security"]
        .as_array()
        .is_some_and(|needs| needs.iter().all(|need| need == &serde_json::json!({})));
    let key = if is_open { " (no key)" } else { "" };
    let method = method.to_uppercase();
    format!("{method} {path}{parameters}{body}{key} -> {}", answers.join(", "))
}

/// A schema in a few characters.
fn shape(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return name.trim_start_matches("#/components/schemas/").to_owned();
    }
    for (several, joint) in [("allOf", " & "), ("oneOf", " | ")] {
        if let Some(parts) = schema[several].as_array() {
            return parts.iter().map(shape).collect::<Vec<_>>().join(joint);
        }
    }
    if let Some(fields) = schema["properties"].as_object() {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = fields.iter().map(|(name, field)| {
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            format!("{name}{mark}: {}", shape(field))
        });
        return format!("{{{}}}", fields.collect::<Vec<_>>().join(", "));
    }
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | "),
        Value::String(kind) if kind == "array" => format!("[{}]", shape(&schema["items"])),
        Value::String(kind) => kind.clone(),
        _ => "any".to_owned(),
    }
}

#[tokio::test]
async fn every_route_is_in_the_document_and_the_reverse() {
    let service = Service::start().await;
    // Without a key: a route answers 401 (or 200), an unknown method 405, an unknown path 404.
    let nobody = Client { key: None, ..service.client.clone() };
    assert_eq!(service.client.get("/openapi.json").await.expect(200), document());
    let document = document();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let real = path.replace("{id}", "01890a5d-ac96-774b-bcce-b302099a8057");
        for method in METHODS {
            let verb = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let answer = nobody.send(nobody.request(verb, &real), "").await;
            let expected: &[u16] = match item.get(method) {
                Some(_) if path.starts_with("/v1/") => &[401],
                Some(_) => &[200],
                None => &[405],
            };
            assert!(expected.contains(&answer.status.as_u16()), "{method} {path}: {}", answer.status);
        }
    }
    // What the reference must not lose.
    let paths: BTreeSet<&str> =
        document["paths"].as_object().expect("paths").keys().map(String::as_str).collect();
    for path in ["/v1/events", "/v1/events/batch", "/v1/events/{id}/body", "/v1/endpoints/{id}/rotate-secret"]
    {
        assert!(paths.contains(path), "{path}");
    }
    assert_eq!(paths.len(), 21);
}

#[tokio::test]
async fn the_fields_a_call_reads_are_those_of_its_schema() {
    let service = Service::start().await;
    let endpoint = service.endpoint("/h", serde_json::json!({})).await;
    let event = service.publish(serde_json::json!({"type": "t", "data": 1})).await;
    let delivery = service.delivery(&event, "delivered").await["id"].as_str().expect("an id").to_owned();
    let document = document();
    let mut checked = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in METHODS {
            let content = &item[method]["requestBody"]["content"]["application/json"]["schema"];
            if content.is_null() {
                continue;
            }
            let id = if path.contains("deliveries") { &delivery } else { &endpoint };
            let verb = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let request = service.client.request(verb, &path.replace("{id}", id));
            let request = request.header("content-type", "application/json");
            let answer = service.client.send(request, r#"{"zzzzzzzzzzzzzzzzzzzzzzzz":1}"#).await.expect(422);
            let errors = answer["errors"].as_array().expect("errors");
            let unknown = errors.iter().find(|error| error["code"] == "unknown_field").expect("named");
            let message = unknown["message"].as_str().expect("a text");
            let read = message.split_once("it has ").expect("a list").1;
            let mut read: BTreeSet<&str> = read.split(", ").collect();
            // Known so that a change can say why not; no fields of the call.
            for refused in ["id", "tenant", "status", "disabledReason", "createdAt", "updatedAt", "secret"] {
                if method == "patch" {
                    read.remove(refused);
                }
            }
            let mut described = BTreeSet::new();
            properties(&document, content, &mut described);
            assert_eq!(read, described.iter().map(String::as_str).collect(), "{method} {path}");
            checked += 1;
        }
    }
    assert_eq!(checked, 9);
}

fn properties(document: &Value, schema: &Value, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/components/schemas/");
        properties(document, &document["components"]["schemas"][name], found);
    }
    for several in ["allOf", "oneOf"] {
        for part in schema[several].as_array().into_iter().flatten() {
            properties(document, part, found);
        }
    }
    found.extend(schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned()));
}
