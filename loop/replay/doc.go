// Package replay implements [loop.Model] without a model: it plays the turns in a file,
// while tools really run. It needs neither a key nor a network. The demo, tests and
// regression runs use it.
//
// A file is one of:
//
//   - a script, in YAML (below)
//   - a recorded trace of Caisson (trace.jsonl, or the session directory)
//   - an ATIF trajectory, v1.0 to v1.7 (JSON)
//
// Tool results are compared with the recorded ones, or with the script's expectations,
// except for IDs, times and durations. Each difference is reported.
//
// A script:
//
//	version: 1
//	name: fix-greeting            # names the model in records
//	task: Make the test pass.     # the default task
//	turns:
//	  - text: I will run the test first.
//	    calls:                    # one or more; they run in parallel
//	      - tool: shell           # canonical names
//	        input: {command: sh test.sh}
//	        expect:               # all optional
//	          exit_code: 1
//	          contains: FAIL      # a text or a list of them
//	          not_contains: [panic]
//	          error: true         # whether the result is an error
//	  - text: The test passes now.
//
// A call may have raw instead of input: the arguments byte for byte, possibly
// malformed.
package replay
