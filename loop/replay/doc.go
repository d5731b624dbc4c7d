// Package replay is a [loop.Model] without a model: it plays the model's turns
// from a file, in order, while the tools really run. It needs no key and no
// network; the demo, tests and regression runs use it.
//
// A file is one of:
//
//   - a script, in YAML (below);
//   - a recorded trace of Caisson (trace.jsonl, or the session's folder);
//   - an ATIF trajectory, v1.0 to v1.7 (JSON).
//
// What the tools return is compared with what was recorded, or with what the
// script expects, and each difference is reported; ids, moments and durations
// are not differences.
//
// A script:
//
//	version: 1
//	name: fix-greeting            # names the model in records
//	task: Make the test pass.     # what the user asks, where the user asks nothing else
//	turns:
//	  - text: I will run the test first.
//	    calls:                    # one or more: they run side by side
//	      - tool: shell           # canonical names
//	        input: {command: sh test.sh}
//	        expect:               # all optional
//	          exit_code: 1
//	          contains: FAIL      # a text or a list of them
//	          not_contains: [panic]
//	          error: true         # that the result is marked as an error
//	  - text: The test passes now.
//
// A call may have raw instead of input: the arguments byte for byte, malformed
// ones included.
package replay
