// Verifies the `x-webhook` style as a receiver in Node would, with nothing but Node.
//
// Reads a JSON list of {headers, body (base64), secret, genuine} and prints for how many the verdict is as it must be.

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";

/** Whether the request was signed with the secret, at most `toleranceMs` ago. `rawBody` is the Buffer as it came. */
export function verifyWebhook(rawBody, headers, secret, toleranceMs = 5 * 60 * 1000) {
  const parts = String(headers["x-webhook-signature"] ?? "").split(",").map((part) => part.trim().split("="));
  const timestamp = parts.find(([name]) => name === "t")?.[1];
  if (!timestamp || timestamp !== headers["x-webhook-timestamp"]) return false;
  if (!(Math.abs(Date.now() - Number(timestamp)) <= toleranceMs)) return false;
  const expected = createHmac("sha256", secret).update(`${timestamp}.`).update(rawBody).digest();
  // Two signatures during a rotation: either will do.
  return parts.some(([name, value]) => {
    if (name !== "v1") return false;
    const given = Buffer.from(value ?? "", "hex");
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}

let right = 0;
for (const { headers, body, secret, genuine } of JSON.parse(readFileSync(0, "utf8"))) {
  if (verifyWebhook(Buffer.from(body, "base64"), headers, secret) === genuine) right += 1;
  else console.error("wrong verdict on", headers);
}
console.log(right);
