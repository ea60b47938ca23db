"""Verifies requests with the official Standard Webhooks library, as a receiver in Python would.

Reads a JSON list of {headers, body (base64), secret, genuine} and prints for how many the verdict is as it must be.
"""

import base64
import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

right = 0
for question in json.load(sys.stdin):
    body = base64.b64decode(question["body"])
    try:
        try:
            Webhook(question["secret"]).verify(body.decode(), question["headers"])
        except json.JSONDecodeError:
            pass  # The library parses the body once the signature has been found good; a raw payload is no JSON.
        genuine = True
    except WebhookVerificationError:
        genuine = False
    if genuine == question["genuine"]:
        right += 1
    else:
        print(f"wrong verdict ({genuine}) on {question}", file=sys.stderr)
print(right)
