package ollama_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/aimocktest"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/ollama"
)

// TestModelServer tests the adapter, under the real loop, against a third-party mock:
// aimock, from npm. It counts no tokens here, and ignores results' IDs.
func TestModelServer(t *testing.T) {
	base := aimocktest.Start(t)
	newModel := func(stream bool) loop.Model {
		m, err := ollama.New(ollama.Options{ModelOptions: loop.ModelOptions{Model: "mock", BaseURL: base}, Stream: stream})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	for mode, stream := range map[string]bool{"whole": false, "stream": true} {
		t.Run(mode, func(t *testing.T) {
			d := &wiretest.Dispatcher{}
			out, shown := aimocktest.RunTurn(t, newModel(stream), "two at once", d, nil)
			if out.Reason != loop.StopAnswered || out.Answer != "Done: three files, and the issue is open." || d.Rounds != 1 {
				t.Fatalf("reason %s, answer %q, %d rounds, %v", out.Reason, out.Answer, d.Rounds, out.Err)
			}
			want := []string{`shell {"command":"ls | wc -l","timeout_seconds":5}`, `github/get_issue {"number":7}`}
			if diff := cmp.Diff(want, d.Ran); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if shown != "Both at once."+out.Answer {
				t.Errorf("deltas %q", shown)
			}
		})
	}
	aimocktest.TestRateLimit(t, newModel(true))
}
