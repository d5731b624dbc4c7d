#!/usr/bin/env python3
"""A decider that refuses git push outside working hours.

policy:
  decider: {command: [/etc/caisson/working-hours.py], classes: [execute], hosts: false}
"""

import datetime
import json
import re
import sys

question = json.load(sys.stdin)
commands = question.get("commands", [])
# Keys typed into a terminal may run any command.
pushes = '"$@"' in commands or any(re.search(r"\bgit\b.*\bpush\b", c, re.DOTALL) for c in commands)
now = datetime.datetime.now()
answer = {"id": question["id"], "decision": "allow"}
if pushes and not (now.weekday() < 5 and 9 <= now.hour < 17):
    answer.update(decision="deny", reason="Pushes wait until working hours.")
json.dump(answer, sys.stdout)
