package runner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
)

// depthOf returns the nesting depth of a JSON text.
func depthOf(t *testing.T, text []byte) int {
	t.Helper()
	depth, most := 0, 0
	dec := json.NewDecoder(strings.NewReader(string(text)))
	for dec.More() || depth > 0 {
		token, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
			most = max(most, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return most
}

// TestRecordsOfDeepInputsAreReadable: arguments nested 5,000 deep are refused and kept as text, so that
// parsers with bounds can read the records (Ruby's takes 100 levels). The control counts the
// arguments' levels.
func TestRecordsOfDeepInputsAreReadable(t *testing.T) {
	deep := strings.Repeat(`{"path":`, 5000) + `"x"` + strings.Repeat("}", 5000)
	if depthOf(t, []byte(deep)) != 5000 {
		t.Fatal("the arguments are not deep")
	}
	raw, err := json.Marshal(deep)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, "  - calls: [{tool: read_file, raw: "+string(raw)+"}]\n  - text: done\n")
	r, records := b.run(t.Context())
	text, err := os.ReadFile(filepath.Join(r.Dir, record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n := depthOf(t, []byte(line)); n > 90 {
			t.Errorf("a record is nested %d deep", n)
		}
	}
	kept := false
	for _, m := range of[record.Message](t, records) {
		for _, block := range m.Blocks {
			kept = kept || block.ToolUse != nil && block.ToolUse.Raw == deep && block.ToolUse.InputError != ""
		}
	}
	if !kept || r.Reason != loop.StopAnswered {
		t.Errorf("the arguments are kept: %v; ended %s", kept, r.Reason)
	}
}
