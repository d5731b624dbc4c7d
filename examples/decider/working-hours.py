#!/usr/bin/env python3
"""A decider that refuses git push outside of working hours.

policy:
  decider: {command: [/etc/caisson/working-hours.py], classes: [execute]}
"""

import datetime
import json
import re
import sys

question = json.load(sys.stdin)
now = datetime.datetime.now()
working = now.weekday() < 5 and 9 <= now.hour < 17
answer = {"id": question["id"], "decision": "allow"}
if re.search(r"\bgit\b.*\bpush\b", json.dumps(question["input"])) and not working:
    answer.update(decision="deny", reason="Pushes wait until working hours.")
json.dump(answer, sys.stdout)
