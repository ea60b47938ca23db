// Verifies the `x-webhook` style as many receivers do: by a pattern that sees only the first `v1=`.
//
// Reads a JSON list of {headers, body (base64), secret, genuine} and prints for how many the verdict is as it must be.

import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";

function verifyWebhook(rawBody, signature, secret) {
  const match = /t=(\d+),v1=([0-9a-f]{64})/.exec(signature ?? "");
  if (!match) return false;
  const expected = createHmac("sha256", secret).update(`${match[1]}.`).update(rawBody).digest("hex");
  return expected === match[2];
}

let right = 0;
for (const { headers, body, secret, genuine } of JSON.parse(readFileSync(0, "utf8"))) {
  const verdict = verifyWebhook(Buffer.from(body, "base64"), headers["x-webhook-signature"], secret);
  if (verdict === genuine) right += 1;
  else console.error("wrong verdict on", headers);
}
console.log(right);
