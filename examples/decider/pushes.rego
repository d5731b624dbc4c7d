# A decider that refuses git push, by an Open Policy Agent: opa run --server pushes.rego
#
# policy:
#   decider: {url: "http://127.0.0.1:8181/v0/data/caisson/answer", classes: [execute]}
package caisson

commands contains text if some text in input.commands

commands contains text if some text in input.input

pushes if {
	some text in commands
	regex.match(`(?s)\bgit\b.*\bpush\b`, text)
}

pushes if "\"$@\"" in commands # typed keys that may run any command

answer := {"id": input.id, "decision": "deny", "reason": "Pushes are for people."} if pushes

answer := {"id": input.id, "decision": "allow"} if not pushes
