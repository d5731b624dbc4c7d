# A decider that refuses git push, with Open Policy Agent: opa run --server pushes.rego
#
# policy:
#   decider: {url: "http://127.0.0.1:8181/v0/data/caisson/answer", classes: [execute], hosts: false}
package caisson

pushes if {
	some text in input.commands
	regex.match(`(?s)\bgit\b.*\bpush\b`, text)
}

pushes if "\"$@\"" in input.commands # typed keys that may run any command

answer := {"id": input.id, "decision": "deny", "reason": "Pushes are for people."} if pushes

answer := {"id": input.id, "decision": "allow"} if not pushes
